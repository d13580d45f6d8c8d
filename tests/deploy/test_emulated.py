"""64-bit Arm, as a Raspberry Pi's: `make test-arm64`.

The built wheel and the real aarch64 wheels of what it needs, in a Debian for Arm under qemu. Takes
root, some 3 GB, and minutes by the dozen; the first time ten more, for the Debian.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
import tomllib

import numpy as np
import pytest

from benchmarks.workers import WorkerProcess, coordinated, running
from coordinator.answers import PlanChoice
from coordinator.planning.plan_json import plan_json, save_plan
from models.catalogue.catalogue import load
from models.catalogue.loading import network_of
from models.cut.program import BlobSource
from models.cut.tiles import grid
from models.run import run_tiles
from models.run.reference import ProgramRunner, compare, picture_inputs
from tests.deploy.emulated import PYTHON, emulated, why_not
from tests.deploy.packages import ROOT, build, run, wheels
from tests.whole.cluster import assert_right, question
from tests.worker.support import conv_program, picture, weights_of

# What another processor could compute or lay out otherwise: frames, programs and their sessions,
# inputs joined from parts, pictures, encodings. Without daemons: these start above.
CORE = (
    "tests/protos/test_frames.py",
    "tests/worker/test_fused_additions.py",
    "tests/worker/test_packed.py",
    "tests/worker/test_selected_outputs.py",
    "tests/worker/test_sessions.py",
    "tests/worker/test_task_inputs.py",
    "tests/models/test_boxes.py",
    "tests/models/test_pixels.py",
    "tests/models/test_preprocess.py",
    "tests/models/test_split.py",
    "tests/models/test_tolerance.py",
    "tests/models/test_wire.py",
)
# Whole networks of the catalogue, which take minutes each under qemu.
LONG = "catalogue_networks"
# Of an emulated worker, on a busy machine too.
STARTS_WITHIN_S = 600.0
TESTERS = ("hypothesis", "pytest", "pytest-asyncio")
BIN = "/opt/imbrex/bin"
ENGINES = {"onnxruntime": "OnnxRuntime", "ncnn": "Ncnn", "openvino": "OpenVino"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("IMBREX_ARM64" not in os.environ, reason="run by `make test-arm64` only"),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]


@pytest.fixture(scope="module")
def arm(tmp_path_factory):
    """The system, with the wheel installed."""
    folder = tmp_path_factory.mktemp("arm64")
    wheel = build(ROOT, folder / "dist")
    with emulated(folder) as system:
        wanted = (f"{wheel}[coordinator]", *TESTERS)
        house = wheels(system.shared / "wheels", wanted, [PYTHON], "aarch64")
        assert list(house.glob("onnxruntime-*_aarch64.whl"))
        system.run("python3", "-m", "venv", "/opt/imbrex")
        offline = ("--quiet", "--no-compile", "--no-index", f"--find-links={house}")
        system.run(f"{BIN}/pip", "install", *offline, "imbrex[coordinator]", *TESTERS)
        yield system


def test_a_model_is_the_same_in_tiles(arm) -> None:
    assert arm.run(f"{BIN}/python", "-c", "import platform; print(platform.machine())") == (
        "aarch64\n"
    )
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert arm.run(f"{BIN}/imbrex", "--version").split() == ["imbrex", version]
    checked = json.loads(arm.run(f"{BIN}/imbrex", "check", "digits", "--json"))
    print(json.dumps(checked))
    assert checked["ok"] is True


async def test_arm_worker_computes_in_a_cluster_of_x86_workers(arm, tmp_path) -> None:
    folder = arm.shared / "worker"
    pi = WorkerProcess("arm", folder, pace=1.0, within=arm.python(), start_s=STARTS_WITHIN_S)
    others = [WorkerProcess(f"x86-{n}", tmp_path / f"x86-{n}", pace=0.2) for n in range(2)]
    feeds, whole = question("digits")
    async with running([pi, *others]), coordinated(tmp_path / "state", [pi, *others]) as cluster:
        for strategy in ("lw", "aofl", "halo"):
            plan, network = await cluster.plans.current("digits", PlanChoice(strategy))
            text = save_plan(plan_json(plan, network))
            if pi.id not in plan.devices:  # plans leave out whom they think too slow
                text = text.replace(plan.devices[-1], pi.id)
            given, plan, _ = await cluster.plans.give("digits", text.encode(), hold=False)
            answer = await cluster.infer("digits", feeds, choice=PlanChoice(plan=given))
            assert_right(answer, whole)
            print(strategy, len(answer.devices), "devices")
            assert len(answer.devices) > 1
            assert pi.id in answer.devices


# Each engine in a process of its own, and others than onnxruntime in a folder of their own: under
# qemu the engine that is loaded second crashes. OpenVINO also needs /sys, with which onnxruntime
# crashes there. Both need a processor such as a Raspberry Pi 4's.
COMPUTES = """
import pickle, sys
from importlib import import_module
from pathlib import Path
from worker.engines.base import Place
from worker.programs.store import BlobStore

name, made_by, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
folder.mkdir()
make = getattr(import_module(f"worker.engines.{name}"), made_by)
store = BlobStore(folder, 1 << 30)
engine = make(Place(folder / "programs", store, 1))
made = []
for program, weights, feeds, shapes in pickle.loads(Path(sys.argv[4]).read_bytes()):
    for ref in program.weights:
        store.path(ref.sha256).write_bytes(weights[ref.name].tobytes())
    engine.prepare(program)
    made.append(engine.load(program.sha256).bound(feeds, shapes).compute())
(folder / "made").write_bytes(pickle.dumps(made))
"""
OF_NETWORKS, OF_EACH, UNITS = ("digits", "mobilenetv2", "resnet18", "yolov8n"), 3, 3


@pytest.fixture(scope="module")
def engines(arm):
    """The system, with all engines."""
    others = [each for each in ENGINES if each != "onnxruntime"]
    house = wheels(arm.shared / "engines", tuple(others), [PYTHON], "aarch64")
    offline = ("--quiet", "--no-compile", "--no-index", f"--find-links={house}")
    for each in others:
        arm.run(f"{BIN}/pip", "install", *offline, f"--target=/opt/{each}", each)
    return arm


@pytest.fixture
def tiles(monkeypatch):
    """What tiles of networks are given, and what onnxruntime makes of them here: of each network so
    many in blocks that are spread over it.
    """
    found = []

    class Noting(ProgramRunner):
        def run(self, program, feeds, outputs):
            weights = weights_of(program, self._blobs)
            results = super().run(program, feeds, outputs)
            made = dict(zip(outputs, results, strict=True))
            found[-1].append((program, weights, {k: np.array(v) for k, v in feeds.items()}, made))
            return results

    monkeypatch.setattr(run_tiles, "ProgramRunner", Noting)
    for name in OF_NETWORKS:
        found.append([])
        network = network_of(load(name))
        run = run_tiles.TileRun(network, BlobSource(), picture_inputs(network.graph, 1))
        for start in range(0, len(network.units), UNITS):
            stop = min(start + UNITS, len(network.units))
            run.block(start, stop, grid(network, start, stop, 2, 2))
    return [each for of in found for each in of[:: len(of) // OF_EACH][:OF_EACH]]


def computed(arm, engine, given):
    """What an engine makes there of programs with their weights, inputs and shapes of outputs."""
    file, folder = arm.shared / f"given-{engine}", arm.shared / f"by-{engine}-{len(given)}"
    file.write_bytes(pickle.dumps(given))
    variables: list[str] = []
    with contextlib.ExitStack() as stack:
        if engine != "onnxruntime":
            variables = [f"PYTHONPATH=/opt/{engine}", "QEMU_CPU=cortex-a72"]
        if engine == "openvino":
            run("mount", "-t", "sysfs", "sysfs", arm.root / "sys")
            stack.callback(run, "umount", arm.root / "sys")
        command = (f"{BIN}/python", "-c", COMPUTES, engine, ENGINES[engine])
        arm.run("env", *variables, *command, str(folder), str(file))
    return pickle.loads((folder / "made").read_bytes())


def test_ncnn_computes_tiles_of_networks_as_onnxruntime_does_here(engines, tiles) -> None:
    given = [(*each, {k: v.shape for k, v in made.items()}) for *each, made in tiles]
    found = computed(engines, "ncnn", given)
    assert len(found) == len(OF_NETWORKS) * OF_EACH == 12
    errors = [
        compare(there, here).max_rel_error for there, (*_, here) in zip(found, tiles, strict=True)
    ]
    print("largest differences:", ", ".join(f"{each:.1e}" for each in errors))
    assert max(errors) <= 1e-5


def test_all_engines_compute_the_same(engines) -> None:
    program, blobs = conv_program()
    x = picture()
    given = [(program, weights_of(program, blobs), {"x": x}, {"y": x.shape})]
    first, *others = (computed(engines, engine, given)[0]["y"] for engine in ENGINES)
    for other in others:
        difference = np.abs(first - other).max()
        print(f"largest difference {difference:.1e} of {np.abs(first).max():.1f}")
        assert difference <= 1e-4 * np.abs(first).max()


def test_core_of_the_suite_passes_on_arm(arm) -> None:
    suite = arm.shared / "suite"
    shutil.copytree(ROOT / "tests", suite / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", suite)
    chosen = ("-m", "not slow", "-k", f"not {LONG}")
    options = ("-q", "-p", "no:cacheprovider", f"--rootdir={suite}", *chosen)
    files = [str(suite / each) for each in CORE]
    print(arm.run("env", f"--chdir={suite}", f"{BIN}/python", "-m", "pytest", *options, *files))
