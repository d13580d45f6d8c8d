"""A whole cluster of real processes under TLS: it answers, and keeps its secrets."""

from __future__ import annotations

import contextlib
import io
import json
import stat
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from coordinator.devices import children
from imbrex.client import Client
from models.digits.examples import examples
from protos.trust.invitation import Invitation
from tests.cli.run_cli import imbrex

WORKERS = ("kitchen", "hall", "office")


@pytest.fixture
def cluster(tmp_path):
    """(client, state directory of the coordinator, folder of every process, tokens)."""
    state = tmp_path / "coordinator"
    imbrex("cluster", "init", "--state-dir", state)
    file = tmp_path / "coordinator.toml"
    file.write_text('enrol_host = "127.0.0.1"\nenrol_port = 0\n')
    started = []
    try:
        started.append(start_coordinator(state, file))
        where, url = wait_for(lambda: enrols_at(started[0]) and ready(started[0]), started)
        tokens = {}
        for name in WORKERS:
            invite = ("cluster", "invite", "--state-dir", state, "--address", where)
            tokens[name] = imbrex(*invite).out.strip()
            started.append(start_worker(tmp_path / name, name, tokens[name]))
        with Client(url) as client:
            yield client, state, tmp_path, tokens
    finally:
        children.stop(started)


def start_coordinator(state, file):
    arguments = ["coordinator", "--config", str(file), "--port", "0", "--no-host-computes"]
    arguments += ["--state-dir", str(state), "--strategy", "halo", "--no-profile"]
    arguments += ["--cluster", state.parent.name, "--interface", "127.0.0.1"]
    return children.start("coordinator", arguments, state, state / "ready.json")


def start_worker(folder, name, token):
    folder.mkdir()
    settings = folder / "worker.toml"
    # Slow enough that dividing an image pays.
    settings.write_text(f"threads = 1\npace = 0.1\njoin = {json.dumps(token)}\n")
    settings.chmod(0o600)
    arguments = ["worker", "--config", str(settings), "--name", name, "--port", "0"]
    arguments += ["--cluster", folder.parent.name, "--interface", "127.0.0.1"]
    arguments += ["--state-dir", str(folder)]
    return children.start(name, arguments, folder, folder / "ready.json")


def enrols_at(coordinator):
    for line in coordinator.log.read_text().splitlines():
        if "devices can be enrolled" in line:
            return line.partition("address=")[2].split()[0]
    return ""


def ready(coordinator):
    found = coordinator.ready()
    return found and (enrols_at(coordinator), found["url"])


def wait_for(condition, started=(), within_s=90.0):
    deadline = time.monotonic() + within_s
    while not (found := condition()):
        for child in started:
            child.require_alive()
        assert time.monotonic() < deadline, f"not within {within_s} s"
        time.sleep(0.05)
    return found


def names(client):
    return {each.name for each in client.devices() if each.state == "ready"}


def test_an_image_is_answered_with_halos_under_tls_and_neither_it_nor_secrets_show(cluster):
    client, state, folder, tokens = cluster
    wait_for(lambda: names(client) == set(WORKERS))
    image = examples()[0].path.read_bytes()
    wait_for(lambda: halo_bytes(client, image) > 0)
    answer = client.infer("digits", image, "image/png")
    assert len(answer.devices) > 1
    assert answer.predictions

    imbrex("cluster", "remove", "hall", "--state-dir", state)
    wait_for(lambda: names(client) == {"kitchen", "office"})
    again = client.infer("digits", image, "image/png")
    seen = [(each.label, each.box) for each in again.predictions]
    assert seen == [(each.label, each.box) for each in answer.predictions]

    pixels = np.random.default_rng(0).integers(0, 256, (416, 416, 3), np.uint8)
    assert client.infer("digits", as_png(pixels), "image/png").devices
    disks = [data for name in WORKERS for _, _, data in files_of(folder / name)]
    assert len(disks) > len(WORKERS)
    assert not any(holds(each, pixels) for each in disks)
    assert holds(b"x" + pixels.transpose(2, 0, 1)[:, 100:].tobytes(), pixels)

    secrets = {Invitation.parse(token).secret for token in tokens.values()}
    secrets |= private_keys(folder)
    assert len(secrets) >= 4
    logs = "".join(file.read_text() for file in folder.rglob("log.txt"))
    assert "device enrolled" in logs
    commands = "".join(command_lines())
    assert "imbrex" in commands
    assert not any(secret in logs or secret in commands for secret in secrets)
    for file, others, data in files_of(folder):
        assert not others or not any(secret.encode() in data for secret in secrets), file


def files_of(folder):
    """(path, who may read it, bytes) of every file; temporary ones come and go."""
    for file in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            yield file, stat.S_IMODE(file.stat().st_mode) & 0o077, file.read_bytes()


def as_png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def holds(data, pixels):
    """Whether some row of a picture of noise is there, its colours apart or beside each other."""
    rows = [np.ascontiguousarray(each[:, 200:230]) for each in (pixels, *pixels.transpose(2, 0, 1))]
    return any(line.tobytes() in data for each in rows for line in each[150:300:10])


def halo_bytes(client, image):
    return client.infer("digits", image, "image/png").bytes.halo


def private_keys(folder):
    """One line of every private key."""
    found = set()
    for file in folder.rglob("*.pem"):
        _, begins, rest = file.read_text().partition("-----BEGIN PRIVATE KEY-----\n")
        if begins:
            found.add(rest.splitlines()[0])
    return found


def command_lines():
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
