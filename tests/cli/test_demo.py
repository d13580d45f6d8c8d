"""The demo on a tiny network: real workers, a real coordinator, real mDNS on loopback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np
import onnx
import psutil
import pytest

from coordinator.serving.common import names
from coordinator.serving.common.tensors import load_tensors, write_tensors
from imbrex.demo.demo_cluster import ClusterForm, DemoCluster
from models.digits.examples import examples
from models.onnx_file.builder import NetworkBuilder, square
from models.run.reference import WholeModel, compare
from tests import forked
from tests.cli.run_cli import Ran, imbrex, imbrex_forked
from tests.serving.in_place import blank, picture

MARK = "IMBREX_TEST_RUN"
KEYS = {
    "model",
    "strategy",
    "workers",
    "predictions",
    "latency_s",
    "single_device_latency_s",
    "baseline_device",
    "speedup",
    "predicted_latency_s",
    "max_abs_error",
    "max_rel_error",
    "bytes",
    "planned_bytes",
    "plan_version",
    "wire",
    "like",
    "scale",
    "curve",
}


def tiny(folder: Path) -> Path:
    """A network that is small but worth several tiles."""
    net = NetworkBuilder("tiny", seed=3)
    x = net.input("image", (1, 3, 64, 64))
    for number, channels in enumerate((8, 16, 16), start=1):
        x = x.conv(f"conv{number}", channels, square(3)).relu()
    x = x.max_pool("pool", square(2, 2)).conv("conv4", 8, square(3))
    path = folder / "tiny.onnx"
    onnx.save(net.model(x), path)
    return path


def left_behind(mark: str) -> list[psutil.Process]:
    """Processes that carry a run's mark, whoever their parent is now."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.pid != os.getpid():
                found.append(process)
        except psutil.Error:
            continue
    return found


def none_left(mark: str) -> bool:
    """Within ten seconds; whatever is left is ended, so that it disturbs no other test."""
    _, alive = psutil.wait_procs(left_behind(mark), timeout=10)
    for process in alive:
        process.kill()
    return not alive


def test_the_demo_gives_the_whole_models_answer(tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    arguments = (
        "--model",
        tiny(tmp_path),
        "--workers",
        2,
        "--strategy",
        "ofl",
        "--json",
        "--no-profile",
    )
    ran = imbrex("demo", *arguments, env={MARK: mark}, timeout_s=120)
    assert ran.code == 0, ran.err
    found = ran.json()
    assert set(found) == KEYS
    assert (found["model"], found["strategy"], found["workers"]) == ("tiny", "ofl", 2)
    assert (found["like"], found["scale"] < 1) == ("pi4", True)
    assert found["max_rel_error"] <= 1e-5
    assert found["predictions"] == [{"name": "conv4", "shape": [1, 8, 32, 32]}]
    assert found["bytes"] == found["planned_bytes"]
    assert found["speedup"] == pytest.approx(
        found["single_device_latency_s"] / found["latency_s"], rel=0.01
    )
    assert none_left(mark)


def test_rows_that_no_window_reads_are_in_nobodys_way(tmp_path: Path) -> None:
    net = NetworkBuilder("strided", seed=3)
    x = net.input("image", (1, 3, 64, 64)).conv("conv1", 8, square(3, 2, pad=0)).relu()
    path = tmp_path / "strided.onnx"
    onnx.save(net.model(x.conv("conv2", 8, square(3))), path)
    alone = ("--workers", 1, "--native", "--no-profile")
    with forked.instead():
        ran = imbrex("demo", "--model", path, *alone, "--json", timeout_s=120)
    assert ran.code == 0, ran.err
    assert ran.json()["max_rel_error"] == 0


@dataclass
class Kept:
    """A demo that was left up."""

    url: str
    model: Path
    mark: str
    process: subprocess.Popen[str]
    report: str = field(repr=False)

    def ask(self, *arguments: object) -> Ran:
        return imbrex(*arguments, "--url", self.url)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    folder, mark = tmp_path_factory.mktemp("kept"), uuid.uuid4().hex
    model = tiny(folder)
    # What runs in a shell's background ignores Ctrl-C, and so do its children.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "imbrex", "demo"]
    command += ["--model", str(model), "--workers", "2", "--native", "--no-profile"]
    command += ["--explain", "--curve", "--keep"]
    report = folder / "report.txt"
    with (
        report.open("w") as output,
        subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, MARK: mark},
        ) as process,
    ):
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if "http://" in line:
                url = line[line.index("http://") :].split()[0]
                break
        else:
            pytest.fail("".join(said))
        yield Kept(url, model, mark, process, report.read_text())
        process.send_signal(signal.SIGINT)
        process.stderr.read()
    assert process.returncode == 0
    assert none_left(mark)


def holder(port: int) -> int:
    """The process that listens on a port."""
    return next(
        each.pid
        for each in psutil.net_connections("tcp")
        if each.laddr.port == port and each.status == psutil.CONN_LISTEN
    )


def test_the_report_for_people(kept: Kept) -> None:
    for wanted in (
        "2 found over mDNS",
        "the same answer",
        "worker-1",
        "conv1",
        "scatter",
        "1 device ",
        "one alone",
        "moved:",
    ):
        assert wanted in kept.report, kept.report


def test_status_and_plan_of_a_live_cluster(kept: Kept) -> None:
    status = kept.ask("status", "--json").json()
    assert status["ready"]
    assert sorted(each["name"] for each in status["devices"]) == ["worker-1", "worker-2"]
    assert "worker-1" in kept.ask("status").out
    plan = kept.ask("plan", "tiny", "--json").json()
    assert plan["model"] == "tiny"
    assert "best device alone" in kept.ask("plan", "tiny", "--explain").out


def test_infer_by_tensors(kept: Kept, tmp_path: Path) -> None:
    file = tmp_path / "input.npz"
    file.write_bytes(write_tensors({"image": np.ones((1, 3, 64, 64), np.float32)}))
    answer = kept.ask("infer", file, "--model", "tiny", "--json").json()
    assert answer["predictions"][0]["shape"] == [1, 8, 32, 32]
    assert "conv4" in kept.ask("infer", file, "--model", "tiny").out


def test_bad_input_is_refused_and_the_service_goes_on(kept: Kept, tmp_path: Path) -> None:
    image, nonsense = tmp_path / "image.png", tmp_path / "nonsense.npz"
    image.write_bytes(picture())
    nonsense.write_bytes(b"nonsense")
    for file, model, cause in (
        (image, "tiny", "takes tensors"),
        (nonsense, "tiny", "not a usable .npz"),
        (image, "nothing", "nothing"),
    ):
        ran = kept.ask("infer", file, "--model", model)
        assert (ran.code, ran.out) == (1, "")
        assert cause in ran.err
        assert "cure:" in ran.err
    assert kept.ask("status", "--json").json()["ready"]


def test_pictures_that_cannot_be_used(kept: Kept) -> None:
    url = f"{kept.url}/v1/models/digits/infer"
    with httpx.Client(timeout=60, trust_env=False) as http:
        for body, kind, status in (
            (b"", "image/png", 400),
            (b"not an image", "image/png", 400),
            (picture()[:-200], "image/png", 400),
            (blank(20_000, 10), "image/png", 400),
            (picture(), "text/plain", 415),
            (bytes(65 << 20), "image/png", 413),
        ):
            response = http.post(url, content=body, headers={"Content-Type": kind})
            assert response.status_code == status
            assert set(response.json()["error"]) == {"code", "message", "cause", "cure"}
        answer = http.post(url, content=examples()[0].path.read_bytes()).json()
    found = sorted(each["label"] for each in answer["predictions"])
    assert found == sorted(each.label for each in examples()[0].truth)


def test_many_requests_at_once_do_not_mix(kept: Kept) -> None:
    url = f"{kept.url}/v1/models/tiny/infer"
    proto = onnx.load(kept.model)
    rng = np.random.default_rng(5)
    feeds = [{"image": rng.standard_normal((1, 3, 64, 64), np.float32)} for _ in range(12)]
    whole = WholeModel(proto, threads=1)

    def ask(each: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        headers = {"Content-Type": names.NPZ, "Accept": names.NPZ}
        response = httpx.post(
            url, content=write_tensors(each), headers=headers, timeout=60, trust_env=False
        )
        return load_tensors(response.content)

    with ThreadPoolExecutor(4) as pool:
        for each, answer in zip(feeds, pool.map(ask, feeds), strict=True):
            assert compare(answer, whole.run(each)).max_rel_error <= 1e-5
    assert compare(answer, whole.run(feeds[0])).max_rel_error > 1e-5


def test_no_file_of_the_machine_is_served(kept: Kept) -> None:
    """A model is named over HTTP; only the command line may give a path."""
    ran = kept.ask("infer", kept.model, "--model", str(kept.model))
    assert ran.code == 1


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, marks=pytest.mark.slow),
    ],
)
def test_a_demo_that_is_ended_early_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    mark = uuid.uuid4().hex
    # A shell without job control lets what it starts in the background ignore SIGINT.
    command = ["env", "--default-signal=INT", sys.executable]
    command += ["-m", "imbrex", "demo", "--model", str(tiny(tmp_path))]
    env = {**os.environ, MARK: mark, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "found over mDNS" in line:
                break
        # And one that computes tasks again, which comes and goes.
        assert len(left_behind(mark)) in (6, 7)
        process.send_signal(number)
        process.stderr.read()
    assert process.returncode != 0
    assert none_left(mark)
    folders = list(tmp_path.glob("imbrex-demo-*"))
    assert len(folders) == (1 if number is signal.SIGKILL else 0)


def test_a_taken_port_names_its_holder(kept: Kept, tmp_path: Path) -> None:
    port = int(kept.url.rpartition(":")[2])
    for daemon in ("coordinator", "worker"):
        where = ("--port", port, "--state-dir", tmp_path / daemon, "--no-mdns")
        ran = imbrex_forked(daemon, *where)
        assert ran.code == 1
        assert str(port) in ran.err
        assert str(holder(port)) in ran.err


def test_settings_that_are_wrong_are_named(tmp_path: Path) -> None:
    file = tmp_path / "coordinator.toml"
    file.write_text("prot = 1\n")
    ran = imbrex("coordinator", "--config", file)
    assert (ran.code, "prot" in ran.err, "cure:" in ran.err) == (1, True, True)
    file.write_text(json.dumps({"not": "toml"}))
    assert str(file) in imbrex("coordinator", "--config", file).err


def test_folders_of_killed_demos_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    nobodys, somebodys = (tmp_path / f"imbrex-demo-{pid}-x" for pid in (1 << 30, os.getpid()))
    nobodys.mkdir()
    somebodys.mkdir()
    cluster = DemoCluster(ClusterForm("digits", 1, "auto", None, False, tmp_path))
    assert not nobodys.exists()
    assert somebodys.exists()
    cluster.stop()
    assert list(tmp_path.iterdir()) == [somebodys]
