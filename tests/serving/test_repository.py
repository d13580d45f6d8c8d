"""Triton's layout: what is served, by which version, and why something is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.library.naming import Names
from coordinator.library.repository import read_repository
from protos.errors import BadConfiguration, NotFound

FULL = """
name: "net"
platform: "onnxruntime_onnx"
max_batch_size: 8
input [{ name: "x" data_type: TYPE_FP32 format: FORMAT_NCHW
  dims: [3, 8, 8] reshape { shape: [1] } }]
output [{ name: "y" data_type: TYPE_FP32 dims: [3] label_filename: "labels.txt" }]
instance_group [{ count: 2 kind: KIND_CPU }]
dynamic_batching { preferred_batch_size: [4, 8] max_queue_delay_microseconds: 100 }
optimization { execution_accelerators { gpu_execution_accelerator: [{ name: "tensorrt" }] } }
parameters: { key: "intra_op_thread_count" value: { string_value: "2" } }
model_warmup [{ name: "zeros" batch_size: 1 inputs { key: "x" value { zero_data: true } } }]
"""


def make(folder: Path, config: str | None, *versions: int, file: str = "model.onnx") -> Path:
    net = folder / "net"
    for version in versions:
        (net / str(version)).mkdir(parents=True)
        (net / str(version) / file).write_bytes(b"onnx")
    net.mkdir(exist_ok=True)
    if config is not None:
        (net / "config.pbtxt").write_text(config)
    (net / "labels.txt").write_text("ant\nbee\n")
    return folder


@pytest.mark.parametrize(
    ("config", "served"),
    [
        (None, ["10"]),
        (FULL, ["10"]),
        ("version_policy { all {} }", ["1", "2", "10"]),
        ("version_policy { latest { num_versions: 2 } }", ["2", "10"]),
        ("version_policy: { specific: { versions: [1, 2, 7] } }", ["1", "2"]),
    ],
)
def test_versions_follow_the_models_policy(
    tmp_path: Path, config: str | None, served: list[str]
) -> None:
    stored = read_repository(make(tmp_path, config, 1, 10, 2))["net"]
    assert (list(stored.versions), stored.problem) == (served, "")
    assert stored.latest == tmp_path / "net" / served[-1] / "model.onnx"


def test_labels_and_the_file_that_is_named(tmp_path: Path) -> None:
    config = FULL + 'default_model_filename: "other.onnx"'
    stored = read_repository(make(tmp_path, config, 1, file="other.onnx"))["net"]
    assert stored.labels == {"y": ("ant", "bee")}
    assert stored.latest.name == "other.onnx"


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ("name: ", "not a model configuration"),
        ('name: "another"', "names the model 'another'"),
        ('platform: "tensorrt_plan"', "needs 'tensorrt_plan'"),
        ('backend: "python"', "needs 'python'"),
        ("sequence_batching { max_sequence_idle_microseconds: 1 }", "sequences"),
        ('default_model_filename: "../../model.onnx"', "outside of its version"),
        ('output [{ name: "y" label_filename: "../../secret" }]', "outside"),
        ('output [{ name: "y" label_filename: "none.txt" }]', "cannot be read"),
        ("version_policy { specific { versions: [5] } }", "policy excludes"),
        ("#" * (1 << 21), "longer than"),
    ],
)
def test_bad_model_hides_no_other(tmp_path: Path, config: str, problem: str) -> None:
    (make(tmp_path, config, 1) / "good" / "1").mkdir(parents=True)
    (tmp_path / "good" / "1" / "model.onnx").write_bytes(b"onnx")
    names = Names((), tmp_path)
    assert problem in names.stored["net"].problem
    with pytest.raises(NotFound, match="cannot be served"):
        names.source("net")
    good = str(tmp_path / "good" / "1" / "model.onnx")
    assert names.source("good") == good == names.configured[0]
    assert names.public(good) == ("good", "1")


def test_names_are_no_paths(tmp_path: Path) -> None:
    names = Names(("/somewhere/other.onnx",), make(tmp_path, "version_policy { all {} }", 1, 2))
    assert names.source("other") == "/somewhere/other.onnx"
    assert names.source("net", "1").endswith("net/1/model.onnx")
    assert names.source("net").endswith("net/2/model.onnx")
    for name, version in (("../net", ""), ("net", "3"), ("other", "2"), ("digits", "9"), ("", "")):
        with pytest.raises(NotFound):
            names.source(name, version)


def test_missing_repository_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadConfiguration, match="cannot be read"):
        read_repository(tmp_path / "nowhere")


def test_a_folder_that_cannot_be_read_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk's lost+found, which only root may read."""
    make(tmp_path, None, 1)
    (tmp_path / "lost+found").mkdir()
    real = Path.iterdir

    def refused(self: Path) -> Iterator[Path]:
        if self.name == "lost+found":
            raise PermissionError(13, "Permission denied", str(self))
        return real(self)

    monkeypatch.setattr(Path, "iterdir", refused)
    found = read_repository(tmp_path)
    assert "Permission denied" in found["lost+found"].problem
    assert list(found["net"].versions) == ["1"]


def test_a_name_with_several_sizes_is_no_model(tmp_path: Path) -> None:
    names = Names((), make(tmp_path, None, 3))
    assert names.versions("net@64x32") == ("3",)
    assert names.source("net@64x32", "3").endswith("3/model.onnx@64x32")
    for name in ("net@64x32@64x32", "a" + "@1x1" * 1500):
        with pytest.raises(NotFound):
            names.source(name)


def test_a_version_that_was_replaced_is_known_as_that(tmp_path: Path) -> None:
    names = Names((), make(tmp_path, None, 1))
    first = names.source("net")
    assert not names.is_replaced(first)
    make(tmp_path, None, 2)
    names.refresh()
    assert names.is_replaced(first)
    assert names.is_replaced(f"{first}@64x32")
    assert not names.is_replaced(names.source("net"))
    assert names.label(f"{names.source('net')}@64x32") == "net"
