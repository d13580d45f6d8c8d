"""Clients under TLS: by the cluster's authority or by files, renewed while the daemon runs."""

from __future__ import annotations

import ssl
import stat
import urllib.error
import urllib.request
from datetime import timedelta

import grpc
import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from coordinator.devices import children
from coordinator.serving.common import tls as module
from coordinator.serving.common.keys import NoKey
from coordinator.serving.common.tls import WebTls
from coordinator.settings import CoordinatorSettings
from coordinator.trust.authority import Authority
from imbrex.client import Client
from protos import inference_pb2 as pb
from protos import inference_pb2_grpc
from protos.errors import BadConfiguration
from protos.trust.identity import COORDINATOR_NAME, device_of, names_in, now_utc
from tests.cli.run_cli import imbrex, refused
from tests.serving.processes import wait
from tests.trust.test_cluster import command_lines, private_keys

YEAR = timedelta(days=365)


@pytest.fixture
def authority(tmp_path):
    return Authority.make(tmp_path / "coordinator", now_utc())


def written(folder, authority, names=("pi.home",), now=None):
    """A pair in files, as an administrator would name them."""
    key, certificate = authority.for_clients(names, now or now_utc())
    folder.mkdir(exist_ok=True)
    (folder / "key.pem").write_bytes(key)
    (folder / "key.pem").chmod(0o640)
    (folder / "cert.pem").write_bytes(certificate)
    return CoordinatorSettings(
        state_dir=folder, tls_cert=folder / "cert.pem", tls_key=folder / "key.pem"
    )


def test_a_coordinator_under_tls_answers_whoever_believes_its_authority(tmp_path, monkeypatch):
    state = tmp_path / "coordinator"
    imbrex("cluster", "init", "--state-dir", state)
    key = imbrex("cluster", "key", "me", "--role", "admin", "--state-dir", state).out.strip()
    file = tmp_path / "home.pem"
    file.write_text(imbrex("cluster", "authority", "--state-dir", state).out)
    settings = tmp_path / "coordinator.toml"
    settings.write_text('enrol_host = "127.0.0.1"\nenrol_port = 0\ntls = true\n')
    arguments = ["coordinator", "--config", str(settings), "--port", "0", "--no-host-computes"]
    arguments += ["--no-mdns", "--state-dir", str(state)]
    child = children.start("coordinator", arguments, state, state / "ready.json")
    try:
        told = wait(child.ready)
        url = told["url"]
        assert url.startswith("https://127.0.0.1:")
        monkeypatch.setenv("IMBREX_CA", str(file))
        monkeypatch.setenv("IMBREX_API_KEY", key)
        with Client(url) as client:
            assert [each.name for each in client.models()] == ["digits"]
        with Client(url.replace("127.0.0.1", "localhost")) as client:
            assert client.version()
        monkeypatch.setenv("IMBREX_API_KEY", "imbrex_wrong")
        with Client(url) as client, pytest.raises(NoKey):
            client.models()
        monkeypatch.delenv("IMBREX_CA")
        with Client(url) as client, pytest.raises(BadConfiguration) as stranger:
            client.version()
        assert "imbrex cluster authority" in stranger.value.cure
        with pytest.raises((urllib.error.URLError, OSError)):
            urllib.request.urlopen(url.replace("https", "http") + "/healthz", timeout=10)

        credentials = grpc.ssl_channel_credentials(file.read_bytes())
        with grpc.secure_channel(told["grpc"], credentials) as channel:
            stub = inference_pb2_grpc.GRPCInferenceServiceStub(channel)
            assert stub.ServerLive(pb.ServerLiveRequest(), timeout=30).live
        with grpc.insecure_channel(told["grpc"]) as channel, pytest.raises(grpc.RpcError):
            inference_pb2_grpc.GRPCInferenceServiceStub(channel).ServerLive(
                pb.ServerLiveRequest(), timeout=30
            )

        log, commands = child.log.read_text(), "".join(command_lines())
        assert "client refused" in log
        secrets = {key, *private_keys(tmp_path)}
        assert len(secrets) >= 3
        for secret in secrets:
            assert secret not in log
            assert secret not in commands
            for path in (each for each in tmp_path.rglob("*") if each.is_file()):
                if stat.S_IMODE(path.stat().st_mode) & 0o077:
                    assert secret.encode() not in path.read_bytes(), path
    finally:
        children.stop([child])


def test_tls_takes_an_authority_or_two_files(tmp_path):
    ran = refused("coordinator", "--tls", "--port", "0", "--state-dir", tmp_path / "none")
    assert "imbrex cluster init" in ran.err
    with pytest.raises(BadConfiguration, match="tls_cert is set without tls_key"):
        CoordinatorSettings.load(flags={"tls_cert": tmp_path / "cert.pem"})
    gone = CoordinatorSettings(tls_cert=tmp_path / "cert.pem", tls_key=tmp_path / "key.pem")
    with pytest.raises(BadConfiguration, match="cannot be read"):
        WebTls.of(gone)
    assert WebTls.of(CoordinatorSettings(state_dir=tmp_path)) is None


def test_a_key_that_everybody_may_read_is_refused(tmp_path, authority):
    settings = written(tmp_path / "files", authority)
    settings.tls_key.chmod(0o644)
    with pytest.raises(BadConfiguration, match="everybody may read it"):
        WebTls.of(settings)


def shown(tls: WebTls) -> bytes:
    """The certificate that a client sees, as DER."""
    believing = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    believing.check_hostname, believing.verify_mode = False, ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    server_in, server_out = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = believing.wrap_bio(incoming, outgoing)
    server = tls.context.wrap_bio(server_in, server_out, server_side=True)
    done = False
    while not done:
        done = True
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                done = False
            server_in.write(outgoing.read())
            incoming.write(server_out.read())
    found = client.getpeercert(binary_form=True)
    assert found is not None
    return found


def names_of(der: bytes) -> list[str]:
    names = x509.load_der_x509_certificate(der).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    return [str(each.value) for each in names.value]


def test_renewed_files_are_taken_and_half_renewed_ones_are_not(tmp_path, authority):
    folder = tmp_path / "files"
    tls = WebTls.of(written(folder, authority, ["old.home"]))
    assert names_of(shown(tls)) == ["old.home"]
    key, certificate = authority.for_clients(["new.home"], now_utc())
    (folder / "cert.pem").write_bytes(certificate)
    with pytest.raises(BadConfiguration, match="cannot be used"):
        tls.refresh()
    assert names_of(shown(tls)) == ["old.home"]
    (folder / "key.pem").write_bytes(key)
    tls.refresh()
    assert names_of(shown(tls)) == ["new.home"]


def test_the_authoritys_follows_names_and_is_renewed_before_it_ends(
    tmp_path, authority, monkeypatch
):
    now = now_utc()
    monkeypatch.setattr(module, "now_utc", lambda: now)
    monkeypatch.setattr(module, "own_names", lambda: ("pi", "192.168.1.20", "fd00::20"))
    settings = CoordinatorSettings(
        state_dir=tmp_path / "coordinator", tls=True, tls_names=("pi.lan",)
    )
    tls = WebTls.of(settings)
    first = shown(tls)
    assert names_of(first) == ["pi", "192.168.1.20", "fd00::20", "pi.lan"]
    tls.refresh()
    assert shown(tls) == first
    monkeypatch.setattr(module, "own_names", lambda: ("pi", "192.168.1.21"))
    tls.refresh()
    second = shown(tls)
    assert names_of(second) == ["pi", "192.168.1.21", "pi.lan"]
    now += YEAR * 3 / 4
    tls.refresh()
    assert shown(tls) != second
    on_disk = b"".join(each.read_bytes() for each in tmp_path.rglob("*") if each.is_file())
    assert tls._pair.key_pem not in on_disk


def test_certificate_for_clients_proves_nothing_among_daemons(authority):
    _, certificate = authority.for_clients(("pi", "192.168.1.20"), now_utc())
    assert device_of(names_in(certificate)) == ""
    usage = x509.load_pem_x509_certificate(certificate).extensions.get_extension_for_class(
        x509.ExtendedKeyUsage
    )
    assert [*usage.value] == [ExtendedKeyUsageOID.SERVER_AUTH]
    for name in (COORDINATOR_NAME, "x.Worker.imbrex.internal", "imbrex.internal", "*", "a b", ""):
        with pytest.raises(BadConfiguration, match="cannot be a name of this device"):
            authority.for_clients((name,), now_utc())


def test_a_ca_file_that_is_none_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("IMBREX_CA", str(tmp_path / "none.pem"))
    with pytest.raises(BadConfiguration, match="cannot be used"):
        Client("https://127.0.0.1:1")
