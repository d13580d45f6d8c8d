"""The front: help, usage errors, exit codes, one JSON object."""

from __future__ import annotations

import json
import math
import os
import pty
import re
import subprocess
import sys
from contextlib import suppress

import pytest

from imbrex import terminal
from imbrex.cli import app
from tests.cli.run_cli import imbrex, imbrex_process, refused
from tests.models.model_files import saved, tiny

COMMANDS = (
    *("worker", "coordinator", "infer", "status", "plan", "simulate", "check"),
    *("bench", "profile", "models list", "drain", "resume", "doctor"),
)
NOWHERE = "http://127.0.0.1:9"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(command: str) -> None:
    ran = imbrex(*command.split(), "--help")
    assert ran.code == 0
    assert f"\n  imbrex {command}" in ran.out
    assert not ran.err


VGG = "vgg16-256 vgg16-256-conv"


@pytest.mark.needs_room("imbrex/demo")
def test_demo_is_listed_and_has_help() -> None:
    assert "\n  demo " in imbrex("--help").out
    assert "\n  imbrex demo" in imbrex("demo", "--help").out


def test_help_lists_all_commands() -> None:
    ran = imbrex("--help")
    assert ran.code == 0
    listed = ran.out.partition("Commands:")[2]
    assert all(f"\n  {command.split()[0]} " in listed for command in COMMANDS)


def test_help_imports_nothing_heavy() -> None:
    heavy = {"numpy", "onnx", "onnxruntime", "grpc", "fastapi", "httpx", "rich"}
    code = "import sys, imbrex.cli.app\ntry: imbrex.cli.app.main()\nfinally: print(*sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", code, "demo", "--help"], capture_output=True, text=True, check=True
    )
    assert not heavy & set(ran.stdout.split())


def test_version_is_printed() -> None:
    assert imbrex("--version").out.startswith("imbrex 0.")


@pytest.mark.parametrize(
    "arguments",
    [
        ["nothing"],
        ["demo", "--workers", "0"],
        ["demo", "--workers", "some"],
        ["infer"],
        ["infer", "a.png", "--unknown"],
        ["check"],
        ["check", "digits", "--grid", "4"],
        ["check", "digits", "--grid", "0x2"],
        ["check", "digits", "--wire", "fp8"],
        ["check", "digits", "--precision", "fp8"],
        ["check", "digits", "--precision", "fp16", "--wire", "fp16"],
        ["check", "digits", "--wire", "fp16", "--inputs", "0"],
        ["plan", "digits", "--wire", "half"],
        ["bench", "digits", "--wire", "exact,half"],
        ["infer", "a.png", "--plan", "p.json", "--wire", "fp16"],
        ["demo", "--wire", "8"],
        ["status", "--watch", "--json"],
        ["status", "--save", "cluster.json"],
        ["plan"],
        ["plan", "digits", "--devices", "0"],
        ["plan", "digits", "--save", "plan.txt"],
        ["simulate", "digits"],
        ["simulate", "digits", "--cluster", "a.toml", "--devices", "3..1"],
        ["simulate", "digits", "--cluster", "a.toml", "--strategy", "lw,"],
        ["simulate", "digits", "--cluster", "a.toml", "--plot", "a.png"],
        ["worker", "--port", "x"],
        ["drain"],
        ["resume"],
        ["doctor", "pi-1"],
        ["bench", "digits", "--json", "--csv"],
        ["bench", "digits", "--repeat", "0"],
        ["bench", "digits", "--devices", "0..2"],
        ["infer", "a.png", "--plan", "p.json", "--strategy", "lw"],
        ["infer", "a.png", "--devices", "0"],
    ],
    ids=" ".join,
)
def test_exit_code_of_wrong_usage_is_two(arguments: list[str]) -> None:
    ran = imbrex(*arguments)
    assert ran.code == 2
    assert "Usage: imbrex" in ran.err
    assert not ran.out


@pytest.mark.parametrize("daemon", ["worker", "coordinator"])
def test_to_join_with_no_token_on_standard_input_is_wrong_usage(daemon: str, tmp_path) -> None:
    told = ("--join", "-", "--join-only", "--state-dir", str(tmp_path))
    command = [sys.executable, "-m", "imbrex", daemon, *told]
    ran = subprocess.run(command, input="", capture_output=True, text=True, check=False)
    assert ran.returncode == 2, ran
    assert "no token" in ran.stderr


def test_a_file_that_may_not_be_read_is_named(monkeypatch, capsys) -> None:
    def forbidden(**_: object) -> None:
        raise PermissionError(13, "Permission denied", "/var/lib/imbrex")

    monkeypatch.setattr(app, "app", forbidden)
    monkeypatch.setattr(app, "follow_parent", lambda: None)
    with pytest.raises(SystemExit) as ended:
        app.main()
    assert ended.value.code == 1
    told = capsys.readouterr().err
    assert "/var/lib/imbrex cannot be used" in told
    assert "cure:" in told


def test_numbers_that_are_not_finite_are_null_in_json(capsys) -> None:
    terminal.print_json({"a": [math.inf, (1.0, math.nan)], "b": {"c": -math.inf}})
    assert json.loads(capsys.readouterr().out) == {"a": [None, [1.0, None]], "b": {"c": None}}


def test_the_catalogue() -> None:
    ran = imbrex("models", "list", "--json")
    assert ran.code == 0
    found = {each["name"]: each for each in ran.json()["models"]}
    assert found["digits"]["trained"]
    assert not found["vgg16"]["trained"]
    people = imbrex("models", "list", env={"NO_COLOR": "1"})
    assert all(name in people.out for name in found)
    assert "\x1b" not in people.out


@pytest.mark.parametrize("without", [False, True])
def test_a_terminal_has_colours_unless_they_are_not_wanted(tmp_path, without: bool) -> None:
    model = saved(tmp_path, tiny())
    here, there = pty.openpty()
    quiet = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    done = subprocess.Popen(
        [sys.executable, "-m", "imbrex", "check", str(model), "--grid", "1x2"],
        stdout=there,
        stderr=subprocess.DEVNULL,
        env={**quiet, "TERM": "xterm-256color", **({"NO_COLOR": "1"} if without else {})},
    )
    os.close(there)
    shown = b""
    with suppress(OSError):  # the end of a terminal
        while piece := os.read(here, 65536):
            shown += piece
    os.close(here)
    assert done.wait(60) == 0
    assert b"ok: " in shown
    assert bool(re.search(rb"\x1b\[[0-9;]*3[0-7]m", shown)) is not without


@pytest.mark.needs_room("imbrex/demo")
def test_a_demo_of_what_does_not_exist_is_refused_with_a_cure() -> None:
    assert "vgg16" in refused("demo", "--model", "vgg61").err
    assert "aofl" in refused("demo", "--strategy", "aolf").err


def test_missing_models_files_and_hosts_are_refused_with_a_cure(tmp_path) -> None:
    assert "vgg16" in refused("check", "vgg61").err
    assert "no file" in refused("check", tmp_path / "none.onnx").err
    assert "no file" in refused("infer", tmp_path / "none.png", "--url", NOWHERE).err
    nonsense = tmp_path / "model.onnx"
    nonsense.write_bytes(b"this is no model")
    assert "not a complete ONNX model" in refused("check", nonsense).err
    assert "--url" in refused("status", "--url", NOWHERE).err
    assert "--url" in refused("infer", nonsense, "--url", NOWHERE).err
    assert "http://HOST:PORT" in refused("status", "--url", "ftp://pi-1:8460").err


CLUSTER = """
[host]
computes = false
[network]
mbps = 93.7
message_ms = 1.0
[[device]]
name = "pi-1"
count = 4
gflops = 1.85
memory_mb = 700
"""


def test_the_plan_for_a_described_cluster(tmp_path) -> None:
    file, drawn, kept = (tmp_path / name for name in ("four.toml", "plan.svg", "plan.json"))
    file.write_text(CLUSTER)
    found = imbrex("plan", "digits", "--cluster", file, "--json", "--save", kept).json()
    assert (found["model"], found["strategy"]) == ("digits", "auto")
    assert found.pop("made_for")  # who it was made for is not part of a saved plan
    assert found == json.loads(kept.read_text())
    assert found["predicted_latency_s"] < found["single_device_latency_s"]
    people = imbrex(
        *("plan", "digits", "--cluster", file, "--strategy", "single", "--explain"),
        *("--save", drawn),
    )
    assert people.code == 0
    assert "1 block on 1 device" in people.out
    assert "pi-4 left out: " in people.out
    assert drawn.read_text().startswith("<svg")


def test_a_described_cluster_that_cannot_be_used(tmp_path) -> None:
    file = tmp_path / "four.toml"
    assert str(file) in refused("plan", "digits", "--cluster", file).err
    file.write_text(CLUSTER.replace("gflops", "glops"))
    assert "glops" in refused("plan", "digits", "--cluster", file).err
    file.write_text(CLUSTER)
    assert "aofl" in refused("plan", "digits", "--cluster", file, "--strategy", "aolf").err
    save = tmp_path / "missing" / "plan.json"
    assert str(save) in refused("plan", "digits", "--cluster", file, "--save", save).err


def test_a_small_grid_of_digits_is_checked() -> None:
    report = imbrex("check", "digits", "--grid", "1x2", "--json").json()
    assert report["ok"]
    assert report["grid"] == "1x2"
    assert report["partitioned_flop_share"] >= 0.95


def test_the_effect_of_a_wire_is_measured() -> None:
    ran = imbrex("check", "lenet5", "--wire", "int8", "--inputs", "5", "--json")
    assert ran.code == 0, ran.err
    wire = ran.json()["wire"]
    assert wire["wire"] == "int8"
    assert "map_50" not in wire
    for each in (wire["planned_blocks"], wire["every_boundary"]):
        assert each["inputs"] == 5
        assert 0 <= each["max_rel_error"] < 0.1
        assert 0 <= each["top1_agreement"] <= 1
    assert wire["every_boundary"]["max_rel_error"] > 1e-4
    assert "wire" not in imbrex("check", "lenet5", "--json").json()


def test_the_effect_of_a_precision_is_measured() -> None:
    ran = imbrex("check", "lenet5", "--precision", "fp16", "--inputs", "5", "--json")
    assert ran.code == 0, ran.err
    told = ran.json()
    assert "wire" not in told
    assert told["precision"]["precision"] == "fp16"
    only_maps = imbrex("check", "lenet5", "--wire", "fp16", "--inputs", "5", "--json").json()
    # Half precision in a block loses more than on the way between blocks.
    for name in ("planned_blocks", "every_boundary"):
        lost = told["precision"][name]["max_rel_error"]
        assert only_maps["wire"][name]["max_rel_error"] < lost < 0.02


def test_a_failure_is_one_json_object_too() -> None:
    ran = imbrex("status", "--url", NOWHERE, "--json")
    assert ran.code == 1
    assert set(ran.json()["error"]) == {"code", "cause", "cure"}
    assert ran.err.startswith("error: ")


def test_a_worker_does_without_the_coordinators_libraries(tmp_path) -> None:
    """As on a Pi where the wheel was installed without `[coordinator]`."""
    blocked = tmp_path / "sitecustomize.py"
    blocked.write_text(
        "import sys\n"
        "for name in ('fastapi', 'httpx', 'PIL', 'sklearn', 'uvicorn', 'prometheus_client',\n"
        "             'python_multipart'):\n"
        "    sys.modules[name] = None\n"
    )
    bare = {"PYTHONPATH": str(tmp_path)}
    ran = imbrex_process("status", env=bare)
    assert ran.code == 1
    assert "\ncure:  " in ran.err
    assert "-m pip install 'fastapi>=" in ran.err
    ran = imbrex_process("worker", "--pace", "7", env=bare)
    assert ran.code == 1
    assert "pace" in ran.err
    assert ran.err.startswith("error: ")
    assert "\ncure:  " in ran.err
    assert imbrex_process("models", "list", env=bare).code == 0


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        pytest.param("imbrex wa", "watch", marks=pytest.mark.needs_room("imbrex/watch")),
        ("imbrex infer --mod", "--model"),
        ("imbrex check vgg16-25", VGG),
    ],
)
def test_a_shell_completes_commands_options_and_models(line: str, offered: str) -> None:
    asked = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    ran = imbrex(env={"_IMBREX_COMPLETE": "complete_bash", **asked})
    assert ran.out.split() == offered.split()


@pytest.mark.parametrize(
    ("room", "command"),
    [
        ("imbrex.demo", ["demo"]),
        ("imbrex.watch", ["watch", "."]),
        ("models.quantise", ["models", "quantise", "digits", "--images", "."]),
    ],
)
def test_a_command_that_is_not_installed_says_so(room: str, command: list[str]) -> None:
    code = f"import sys; sys.modules[{room!r}] = None; from imbrex.cli.app import main; main()"
    ran = subprocess.run(
        [sys.executable, "-c", code, *command], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    assert ran.stderr.startswith(f"error: this installation of imbrex lacks {room}")
    assert "\ncure:  Install" in ran.stderr
