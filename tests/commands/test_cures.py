"""Errors of starts and of wrong options: each has a cure, and the cure works."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from benchmarks.store import free_port
from coordinator.devices import children
from coordinator.requests.input_variants import check_feeds
from coordinator.trust.authority import Authority
from imbrex.cli.app import app
from models.catalogue.loading import network_of
from models.digits.examples import examples
from models.vision.preprocess import BadImage, decode_image
from models.vision.sidecar import dump
from protos.errors import BadRequest, ImbrexError
from protos.trust.identity import now_utc
from tests import forked
from tests.cli.run_cli import Ran, imbrex, imbrex_forked
from tests.commands.conftest import Live, wait_for
from tests.models.model_files import open_sized, two_inputs
from tests.serving.in_place import SIDECAR, picture, tiny_model
from tests.serving.processes import serving, wait
from tests.watch.test_watch import broker

DAEMONS = {
    "worker": ["worker", "--no-mdns", "--port", "0"],
    "coordinator": ["coordinator", "--no-mdns", "--no-host-computes", "--port", "0"],
}
# A user without an entry in the system's table has no home but HOME.
NOBODY = """
import pwd, sys
def unknown(_): raise KeyError
pwd.getpwuid = pwd.getpwnam = unknown
from imbrex.cli.app import main
main()
"""
needs_mounts = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="only root may mount a full disk"
)


def start(*arguments: str, env: dict[str, str] | None = None, code: str = "") -> Ran:
    """A daemon until it says that it is ready, or fails."""
    told_by = {"stderr": subprocess.PIPE, "text": True}
    told_by["env"] = env if env is not None else dict(os.environ)
    with (
        subprocess.Popen([sys.executable, "-c", code, *arguments], **told_by)
        if code
        else forked.Forked(arguments, **told_by)
    ) as process:
        assert process.stderr is not None
        told = ""
        for line in process.stderr:
            told += line
            if " ready " in line:
                process.send_signal(signal.SIGTERM)
    return Ran(process.returncode, "", told)


# How a start is tried that is refused: a worker caps its process's memory first.
REFUSED = {"coordinator": imbrex, "worker": start}


def homeless(**more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key in ("PATH", "PYTHONPATH")}
    return {**kept, **more}


def refused(ran: Ran, *texts: str) -> None:
    assert ran.code == 1, ran
    assert "Traceback" not in ran.err, ran.err
    assert ran.err.splitlines()[-2].startswith("error: "), ran.err
    assert ran.err.splitlines()[-1].startswith("cure:  "), ran.err
    for text in texts:
        assert text in ran.err, ran.err


@pytest.mark.parametrize("daemon", DAEMONS)
def test_cure_for_a_missing_home_directory_works(daemon: str, tmp_path: Path) -> None:
    ran = start(*DAEMONS[daemon], env=homeless(), code=NOBODY)
    refused(ran, "no home directory", "Set HOME, or state_dir (--state-dir)")
    for cure in (
        (homeless(HOME=str(tmp_path)), ()),
        (homeless(), ("--state-dir", str(tmp_path / "own"))),
    ):
        ran = start(*DAEMONS[daemon], *cure[1], env=cure[0], code=NOBODY)
        assert ran.code == 0, ran.err
    assert list(tmp_path.rglob("lock"))


def test_models_without_a_home(tmp_path: Path) -> None:
    model = open_sized(tmp_path / "net.onnx")
    add = ("models", "add", str(model), "--task", "tensor", "--size", "16x16")
    ran = start("models", "list", env=homeless(), code=NOBODY)
    assert ran.code == 0, ran.err
    refused(start(*add, env=homeless(), code=NOBODY), "IMBREX_MODELS")
    told = homeless(IMBREX_MODELS=str(tmp_path / "models"))
    assert start(*add, env=told, code=NOBODY).code == 0


@pytest.mark.parametrize("place", ["/proc/x", "/dev/null/x", "/dev/full", "x" * 300, "loop"])
@pytest.mark.parametrize("daemon", DAEMONS)
def test_an_impossible_state_directory(daemon: str, place: str, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    where = tmp_path / place  # an absolute one counts alone
    ran = REFUSED[daemon](*DAEMONS[daemon], "--state-dir", str(where))
    refused(ran, str(where)[:60], "(--state-dir) to a directory that this user may write")


@pytest.mark.parametrize("daemon", DAEMONS)
def test_a_state_directory_that_is_made(daemon: str, tmp_path: Path) -> None:
    assert start(*DAEMONS[daemon], "--state-dir", str(tmp_path / "new")).code == 0


@contextmanager
def disk(folder: Path, options: str) -> Iterator[list[str]]:
    """The prefix of a command for which the folder is such a disk, full except for that."""
    folder.mkdir()
    fill = f"dd if=/dev/zero of={folder}/rest bs=1k count=64 2>/dev/null"
    script = f'mount -t tmpfs -o {options} none {folder} && ({fill}; exec "$0" "$@")'
    yield ["unshare", "-m", "sh", "-c", script]


@needs_mounts
@pytest.mark.parametrize(
    ("options", "cure"),
    [
        ("size=64k", "Free some space, or set state_dir"),
        ("size=1m,nr_inodes=2", "Free some space, or set state_dir"),
        ("ro", "Set state_dir"),
    ],
)
@pytest.mark.parametrize("daemon", DAEMONS)
def test_a_full_and_a_read_only_disk(daemon: str, options: str, cure: str, tmp_path: Path) -> None:
    with disk(tmp_path / "disk", options) as prefix:
        command = [*prefix, sys.executable, "-m", "imbrex", *DAEMONS[daemon]]
        command += ["--state-dir", str(tmp_path / "disk")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    refused(Ran(done.returncode, done.stdout, done.stderr), cure, str(tmp_path / "disk"))


@pytest.mark.parametrize("daemon", DAEMONS)
def test_a_wrong_host_and_a_taken_port(
    daemon: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMBREX_WORKER_SECRET", "x")
    base = [each for each in DAEMONS[daemon] if each not in ("--port", "0")]
    state = ["--state-dir", str(tmp_path)]
    for host in ("192.0.2.1", "nowhere.invalid"):
        ran = REFUSED[daemon](*base, "--port", "0", "--host", host, *state)
        refused(ran, f"{host} is not an address of this machine", "--host")
        assert "another port" not in ran.err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ran = REFUSED[daemon](*base, "--port", port, *state)
        refused(ran, f"port {port} is taken by", "--port")
        assert start(*base, "--port", "0", *state).code == 0


def test_an_open_size_is_said_as_its_command_takes_it(store: str, tmp_path: Path) -> None:
    model = open_sized(tmp_path / "net.onnx")
    add = ("models", "add", model, "--task", "tensor", "--name", "net")
    ran = imbrex(*add)
    refused(ran, "no fixed size", "--size 480x640", "@480x640")
    assert imbrex(*add, "--size", "480x640").code == 0
    refused(imbrex("models", "show", model), "@480x640")
    assert imbrex("models", "show", f"{model}@480x640").code == 0
    fixed = two_inputs(tmp_path / "fixed.onnx")
    ran = imbrex("models", "add", fixed, "--task", "tensor", "--name", "fixed", "--size", "9x9")
    refused(ran, "fixed", "Leave out the size (--size")
    assert imbrex("models", "add", fixed, "--task", "tensor", "--name", "fixed").code == 0


def test_a_second_input_that_is_missing_is_named(tmp_path: Path) -> None:
    from models.catalogue import catalogue

    network = network_of(catalogue.load(two_inputs(tmp_path / "two.onnx")))
    tensors = network.graph.tensors
    given = {
        name: np.zeros(tensors[name].shape, tensors[name].dtype) for name in network.graph.inputs
    }
    with pytest.raises(BadRequest) as caught:
        check_feeds(network, {"images": given["images"]})
    assert "Send sizes, too" in caught.value.cure
    with pytest.raises(BadRequest) as caught:
        check_feeds(network, {**given, "other": given["images"]})
    assert "Leave out other" in caught.value.cure
    check_feeds(network, given)


def failed(*arguments: object) -> ImbrexError:
    """The error of a command, run in this process."""
    error = CliRunner().invoke(app, list(map(str, arguments))).exception
    assert isinstance(error, ImbrexError), error
    return error


def works(*arguments: object) -> str:
    """What a command prints that succeeds, run in this process."""
    ran = CliRunner().invoke(app, list(map(str, arguments)))
    assert ran.exit_code == 0, (arguments, ran.exception, ran.output)
    return ran.output


@pytest.fixture
def net(store: str, tmp_path: Path) -> Path:
    """A classifier of three classes in a file, with nothing said of it."""
    path = tmp_path / "net.onnx"
    onnx.save(tiny_model(), path)
    return path


CLASSIFIER = ("--task", "classification", "--pixels", "unit")
CLUSTER = Path(__file__).parents[2] / "docs" / "clusters" / "four-pi4.toml"


@pytest.mark.parametrize(
    ("wrong", "cure", "right"),
    [
        (("--name", "digits", "--task", "tensor"), "--name", ("--name", "own", "--task", "tensor")),
        (("--name", "a b", "--task", "tensor"), "letters, digits, dots", ("--name", "a-b")),
        (CLASSIFIER[:2], "--task tensor", ("--task", "tensor")),
        (
            (*CLASSIFIER[:2], "--labels", "a,b,c"),
            "these options",
            (*CLASSIFIER, "--labels", "a,b,c"),
        ),
        ((*CLASSIFIER, "--labels", "a,b"), "as many labels", (*CLASSIFIER, "--labels", "a,b,c")),
        ((*CLASSIFIER, "--labels", "a,b"), "--task tensor", ("--task", "tensor")),
        (
            (*CLASSIFIER, "--labels", "gone.txt"),
            "Check the path after --labels, or list the labels: --labels a,b,c",
            (*CLASSIFIER, "--labels", "a,b,c"),
        ),
        (
            ("--task", "detection", "--labels", "a,b,c", "--pixels", "unit"),
            "--task tensor returns",
            ("--task", "tensor"),
        ),
        (("--size", "9x9", "--task", "tensor"), "Leave out the size (--size", ("--task", "tensor")),
    ],
)
def test_options_of_models_add(
    net: Path, wrong: tuple[str, ...], cure: str, right: tuple[str, ...]
) -> None:
    error = failed("models", "add", net, *wrong)
    assert cure in error.cure
    assert "sidecar of" not in error.cause
    works("models", "add", net, *right)


def test_files_of_labels(net: Path, tmp_path: Path) -> None:
    labels, add = tmp_path / "labels.txt", ("models", "add", net, *CLASSIFIER, "--labels")
    labels.write_bytes("ä\nb\nc\n".encode("latin-1"))
    assert "in UTF-8" in failed(*add, labels).cure
    labels.write_text("ä\nb\nc\n", encoding="utf-8")
    works(*add, labels)
    labels.write_text("0 a\nb\n2 c\n")
    assert "NUMBER: LABEL on every line" in failed(*add, labels).cure
    labels.write_text("0: a\n1: b\n2: c\n")
    works(*add, labels)


def test_cures_for_sidecars_work(net: Path, tmp_path: Path) -> None:
    sidecar = tmp_path / "other.json"
    add, right = ("models", "add", net, "--sidecar", sidecar), dump(SIDECAR)
    sidecar.write_text(right.replace('"stretch"', '"nix"'))
    (value, *_) = re.findall(r"'([a-z-]+)'", failed(*add).cure)
    sidecar.write_text(right.replace('"stretch"', f'"{value}"'))
    works(*add)
    sidecar.write_text(right.replace('"cat"', '"cat", "dog"'))
    assert "Correct labels" in failed(*add).cure
    assert "move it away" in failed(*add, "--task", "tensor").cure
    sidecar.unlink()
    works("models", "add", net, "--task", "tensor")


def test_models_that_are_not_there(net: Path) -> None:
    for wrong in (("default",), ("remove",), ("confirm",), ("show",)):
        error = failed("models", *wrong, "nett")
        assert "imbrex models " in error.cure
    works("models", "list")
    works("models", "add", net, *CLASSIFIER, "--labels", "a,b,c")
    assert "Did you mean 'net'" in failed("models", "show", "nett").cure
    works("models", "show", "net")
    error = failed("models", "remove", "net", "--version", "7")
    works("models", "remove", "net", "--version", error.cure.removeprefix("It has "))
    assert "imbrex models add FILE.onnx" in failed("models", "pull", "nothing").cure
    works("models", "add", net, *CLASSIFIER, "--labels", "a,b,c")


def test_cluster_files_strategies_and_places(net: Path, tmp_path: Path) -> None:
    works("models", "add", net, "--task", "tensor")
    mine = tmp_path / "mine.toml"
    plan = ("plan", "net", "--strategy", "ofl", "--cluster")
    assert "Name a text file that you may read" in failed(*plan, mine).cure
    mine.write_text(CLUSTER.read_text().replace("[[device]]", "[[devices]]"))
    assert "docs/cluster-files.md" in failed(*plan, mine).cure
    mine.write_text(CLUSTER.read_text())
    works(*plan, mine)
    error = failed("plan", "net", "--cluster", mine, "--strategy", "nix")
    for name in ("single", "lw", "fused", "auto"):
        assert name in error.cure
        works("plan", "net", "--cluster", mine, "--strategy", name)
    gone = tmp_path / "gone" / "plan.json"
    assert "in a folder that you may write to" in failed(*plan, mine, "--save", gone).cure
    works(*plan, mine, "--save", tmp_path / "plan.json")


def test_authorities_and_keys(tmp_path: Path) -> None:
    where = ("--state-dir", tmp_path / "state")
    assert "`imbrex cluster init`" in failed("cluster", "list", *where).cure
    works("cluster", "init", *where)
    works("cluster", "list", *where)
    works("cluster", "key", "phone", *where)
    assert "`imbrex cluster revoke phone`" in failed("cluster", "key", "phone", *where).cure
    works("cluster", "key", "tablet", *where)
    works("cluster", "revoke", "phone", *where)
    works("cluster", "key", "phone", *where)
    backup = ("cluster", "backup")
    elsewhere = failed(*backup, tmp_path / "backup", "--state-dir", tmp_path / "other")
    assert "the coordinator's state directory with --state-dir" in elsewhere.cure
    gone = failed(*backup, tmp_path / "gone" / "backup", *where)
    assert "in a folder that you may write to" in gone.cure
    certificate = ("cluster", "certificate", "localhost", *where, "--file")
    gone = failed(*certificate, tmp_path / "gone" / "store.pem")
    assert "in a folder that you may write to" in gone.cure
    works(*certificate, tmp_path / "store.pem")
    works(*backup, tmp_path / "backup", *where)
    restore = ("cluster", "restore", tmp_path / "backup", *where)
    assert "move that folder away" in failed(*restore).cure
    (tmp_path / "state").rename(tmp_path / "away")
    wrong = failed("cluster", "restore", tmp_path / "store.pem", *where)
    assert "Give the file that `imbrex cluster backup` wrote" in wrong.cure
    works(*restore)


def test_certificates_of_clients_go_with_their_keys(tmp_path: Path) -> None:
    state = tmp_path / "state"
    ready = [*DAEMONS["coordinator"], "--grpc-port", "0", "--state-dir", str(state)]
    assert "`imbrex cluster init`" in failed(*ready, "--tls").cure
    works("cluster", "init", "--state-dir", state)
    file = tmp_path / "coordinator.toml"
    file.write_text("enrol_host = '127.0.0.1'\nenrol_port = 0\n")
    ready += ["--config", str(file)]
    assert start(*ready, "--tls").code == 0
    authority = Authority.load(state)
    assert authority is not None
    pair = authority.for_clients(["localhost"], now_utc())
    files = {"--tls-key": tmp_path / "key", "--tls-cert": tmp_path / "cert"}
    both = [str(word) for option in files.items() for word in option]
    assert "the coordinator's user can read" in failed(*ready, *both).cure
    for content, path in zip(pair, files.values(), strict=True):
        path.write_bytes(content)
        path.chmod(0o600)
    for option, path in files.items():
        (missing,) = files.keys() - {option}
        error = failed(*ready, option, path)
        assert f"({missing})" in error.cure
        assert "leave out" in error.cure
    for options in (both, []):
        assert start(*ready, *options).code == 0


@pytest.mark.needs_room("coordinator/several")
def test_cures_for_join_tokens_work(tmp_path: Path) -> None:
    state, port = tmp_path / "state", free_port()
    works("cluster", "init", "--state-dir", state)
    invite = ("cluster", "invite", "--address", f"127.0.0.1:{port}", "--state-dir", state)

    def joins(token: str, name: str = "pi") -> Ran:
        where = ("--state-dir", str(tmp_path / name))
        return start(*DAEMONS["worker"], *where, "--join-only", "--join", token)

    token = imbrex(*invite).out.strip()
    refused(joins(token[:-1]), "Copy all of what `imbrex cluster invite` printed")
    refused(joins(token), "Check that the coordinator is running", "enrolment port")
    file = tmp_path / "coordinator.toml"
    file.write_text(f"enrol_host = '127.0.0.1'\nenrol_port = {port}\n")
    arguments = [*DAEMONS["coordinator"], "--grpc-port", "0", "--config", str(file)]
    arguments += ["--state-dir", str(state)]
    other = start(*arguments, "--join", token)
    refused(other, "Start without --join, or join with another state directory (--state-dir)")
    coordinator = forked.start("coordinator", arguments, state, state / "ready.json")
    try:
        wait(coordinator.ready)
        assert joins(token).code == 0
        refused(joins(token, "second"), "Make a new one with `imbrex cluster invite`")
        assert joins(imbrex(*invite).out.strip(), "second").code == 0
        strange = re.sub("/[0-9a-f]{64}/", f"/{64 * '0'}/", imbrex(*invite).out.strip())
        refused(joins(strange, "third"), "invite the device again")
        assert joins(imbrex(*invite).out.strip(), "third").code == 0
    finally:
        children.stop([coordinator])


def test_plans_that_are_sent(live: Live, tmp_path: Path) -> None:
    url, file = f"{live.client.url}/v1/plans/tiny", tmp_path / "plan.json"

    def cure(answer: httpx.Response) -> str:
        assert answer.is_client_error, answer.text
        return str(answer.json()["error"]["cure"])

    made = ("plan", live.file, "--strategy", "lw", "--save", file)
    assert live.ask(*made).code == 0
    plan = json.loads(file.read_text())
    one = "`imbrex plan MODEL --save PLAN.json`"
    assert one in cure(httpx.put(url, content=b"a letter"))
    assert one in cure(httpx.put(url, json=plan | {"model": "other"}))
    assert "`imbrex plan`" in cure(httpx.put(url, json=plan | {"blocks": plan["blocks"][:-1]}))
    elsewhere = json.loads(json.dumps(plan).replace("worker-1", "worker-9"))
    known = cure(httpx.put(url, json=elsewhere))
    assert "plan for these" in known
    for name in ("worker-1", "worker-2"):
        assert name in known
        assert name in plan["devices_used"]
    make = f"{live.client.url}/v1/models/tiny/plan"
    for ask, chosen in ((httpx.get, url), (httpx.post, make)):
        assert "Send it (again): POST /v1/plans/" in cure(ask(chosen, params={"plan": "none"}))
    sent = {"plan": httpx.post(url, json=plan).json()["plan_id"]}
    assert httpx.get(url, params=sent).json()["strategy"] == "lw"
    other = {"strategy": "fused", "devices": 1}
    again = "POST /v1/models/tiny/plan with the same query"
    assert again in cure(httpx.get(url, params=other))
    httpx.post(make, params=other)
    assert httpx.get(url, params=other).json()["strategy"] == "fused"
    assert httpx.put(url, json=plan).json()["strategy"] == "lw"
    assert httpx.delete(url).is_success
    assert "plans for this model by itself" in cure(httpx.delete(url))
    wait_for(lambda: httpx.get(url).json()["strategy"] == "ofl")


def test_brokers_and_folders_of_a_watch(tmp_path: Path) -> None:
    pictures, port = tmp_path / "pictures", free_port()
    with serving(tmp_path, ["--model", "digits"], workers=1) as service:
        watch = ["watch", pictures, "--existing", "--frames", 1, "--url", service.url]
        refused(imbrex(*watch), f"no folder {pictures}", "Create it")
        pictures.mkdir()
        shutil.copy(examples()[0].path, pictures)
        assert imbrex_forked(*watch).code == 0
        url = f"mqtt://127.0.0.1:{port}/home"
        refused(imbrex(*watch, "--mqtt", url), "Start it there, or correct mqtt://")
        with broker(port, allow_anonymous=False):
            for wrong, cure in (
                (url, "Put the user in the URL and the password in IMBREX_MQTT_PASSWORD"),
                (url.replace("mqtt", "http"), "Write mqtt://USER@HOST:PORT/TOPIC"),
                (url.replace("//", "//me:secret@"), "passwords belong in IMBREX_MQTT_PASSWORD"),
                (url.replace("//", "//me@") + "/+", "Remove + # ? and @"),
            ):
                refused(imbrex(*watch, "--mqtt", wrong), cure)
            right = url.replace("//", "//me@")
            ran = imbrex_forked(*watch, "--mqtt", right, env={"IMBREX_MQTT_PASSWORD": "secret"})
            assert ran.code == 0, ran.err


def test_files_that_are_not_there(live: Live, tmp_path: Path) -> None:
    tensors, model = tmp_path / "input.npz", tmp_path / "tiny.onnx"
    infer = ("infer", tensors, "--model", "tiny")
    assert "Put it there, or name a file that exists" in live.refuses(*infer)
    shutil.copy(live.tensors, tensors)
    assert live.ask(*infer).code == 0
    refused(imbrex("models", "show", model), str(model), "name an .onnx file that exists")
    shutil.copy(live.file, model)
    assert imbrex("models", "show", model).code == 0
    cluster = tmp_path / "home.toml"
    plan = ("plan", model, "--strategy", "ofl", "--cluster", cluster)
    refused(imbrex(*plan), "`imbrex status --save FILE.toml`")
    assert live.ask("status", "--save", cluster).code == 0
    assert imbrex(*plan).code == 0


def test_cures_for_settings_work(tmp_path: Path) -> None:
    file = tmp_path / "coordinator.toml"
    start = ("coordinator", "--config", file)
    assert "leave it out" in failed(*start).cure
    file.write_text("prot = 0")
    assert "Did you mean 'port'" in failed(*start).cure
    file.write_text("port = 99999")
    assert "0: any free one" in failed(*start).cure
    file.write_text("port = 0\nmodel_repository = '/nowhere/at/all'")
    error = failed(*start, "--state-dir", tmp_path / "state", "--no-mdns", "--grpc-port", "0")
    assert "NAME/1/model.onnx" in error.cure


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_cure_for_a_bad_picture_names_types_that_work(kind: str) -> None:
    with pytest.raises(BadImage) as caught:
        decode_image(b"a letter")
    assert "JPEG" in caught.value.cure
    assert decode_image(picture(kind=kind)).size == (40, 30)
