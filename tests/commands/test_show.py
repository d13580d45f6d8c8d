"""`imbrex models show`."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.hardware import CLUSTERS
from imbrex.cli import show
from models.onnx_file.builder import NetworkBuilder, square
from protos.errors import Infeasible
from tests.cli.run_cli import imbrex, refused
from tests.models.model_files import opened, saved


def residual(folder: Path) -> Path:
    """Two convolutions with a shortcut around the second, and a fully connected layer."""
    net = NetworkBuilder("residual", seed=1)
    x = net.input("image", (1, 3, 32, 32)).conv("conv1", 8, square(3)).relu()
    x = x.conv("conv2", 8, square(3)).add("sum", x)
    return saved(folder, net.model(x.flatten("flatten").gemm("fc", 10)))


def test_units_boundaries_and_reasons(tmp_path: Path) -> None:
    found = imbrex("models", "show", residual(tmp_path), "--json").json()
    assert found["inputs"] == [{"name": "image", "shape": [1, 3, 32, 32], "type": "float32"}]
    assert found["outputs"] == [{"name": "fc", "shape": [1, 10], "type": "float32"}]
    assert found["operators"] == {"Conv": 2, "Relu": 1, "Add": 1, "Flatten": 1, "Gemm": 1}
    units = {unit["name"]: unit for unit in found["units"]}
    assert units["conv1"]["splits"]
    assert units["conv1"]["flop"] == 32 * 32 * 8 * (2 * 27 + 1)
    assert units["conv1"]["weight_bytes"] == 4 * (8 * 27 + 8)
    assert units["conv1"]["boundary"]["bytes"] == 4 * 8 * 32 * 32
    assert not units["fc"]["splits"]
    assert "Gemm" in units["fc"]["reason"] or "Flatten" in units["fc"]["reason"]
    assert found["flop"] == sum(unit["flop"] for unit in found["units"])
    split = sum(unit["flop"] for unit in found["units"] if unit["splits"])
    assert found["partitioned_flop_share"] == pytest.approx(split / found["flop"], abs=1e-6)
    assert 0.9 < found["partitioned_flop_share"] < 1.0
    largest = found["largest_activations"][0]
    assert (largest["shape"], largest["bytes"]) == ([1, 8, 32, 32], 4 * 8 * 32 * 32)
    sample = found["sample"]
    assert sample["devices"] == 4
    assert sample["devices_used"] == 1
    assert sample["speedup"] < 1  # a request is a message, which one device alone does without
    # It is rounded to four places.
    alone, together = sample["single_device_latency_s"], sample["predicted_latency_s"]
    assert abs(sample["speedup"] - alone / together) < 1e-4


def test_for_people_and_for_a_cluster_of_theirs(tmp_path: Path) -> None:
    cluster = tmp_path / "two.toml"
    cluster.write_text(
        "[host]\ngflops = 1.85\ncomputes = true\n"
        '[network]\nmedium = "star"\nmbps = 93.7\nmessage_ms = 1.0\nlatency_ms = 2.0\n'
        '[[device]]\nname = "pi"\ncount = 1\ngflops = 1.85\nmemory_mb = 700\n'
    )
    ran = imbrex("models", "show", residual(tmp_path), "--cluster", cluster)
    assert ran.code == 0, ran.err
    assert "output fc: float32 1x10" in ran.out
    assert "predicted on two.toml (it uses " in ran.out


def test_the_gain_is_in_the_summary_for_the_demos_pis(tmp_path: Path) -> None:
    ran = imbrex("models", "show", "digits")
    summary, _, units = ran.out.partition("\n\n")
    assert "gain: 2." in summary
    assert "x predicted on 4 Raspberry Pi 4s" in summary
    assert units.startswith("unit ")
    told = imbrex("models", "show", "digits", "--json").json()["sample"]
    file = imbrex("plan", "digits", "--cluster", CLUSTERS / "four-pi4.toml", "--json").json()
    assert told["predicted_latency_s"] == pytest.approx(file["predicted_latency_s"])
    assert told["strategy"] == file["strategy"]


def test_the_summary_comes_before_the_plan(tmp_path: Path, capsys, monkeypatch) -> None:
    def planned(*_: object) -> None:
        told = capsys.readouterr().out
        assert told.startswith("tiny ")
        assert "of the FLOPs" in told.split("\n\n")[0]
        raise Infeasible(cause="planned last", cure="-")

    monkeypatch.setattr(show, "propose", planned)
    with pytest.raises(Infeasible, match="planned last"):
        show.show(str(residual(tmp_path)), None, as_json=False)


def test_models_of_open_size_and_unknown_names_cannot_be_shown(tmp_path: Path) -> None:
    assert (
        "no fixed size" in refused("models", "show", saved(tmp_path, opened((1, 3, "H", "W")))).err
    )
    assert "no model" in refused("models", "show", "vgg-16").err
