"""Triton's model repository: `NAME/VERSION/model.onnx`, and optionally `NAME/config.pbtxt`.

A model that cannot be served does not affect the others: its `problem` says why, and the
repository's index reports it. Only what concerns a CNN on ONNX Runtime is read from the
configuration: platform or backend, file name, version policy, and the files of the outputs' labels.
The ONNX file determines the tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf import text_format

from models.onnx_file.model_file import file_at
from models.vision.label_file import labels_of
from protos import inference_pb2 as pb
from protos.daemon.documents import Problem
from protos.daemon.files import read_text
from protos.errors import BadConfiguration

CONFIG = "config.pbtxt"
MODEL_FILE = "model.onnx"
# A configuration is a page of text, and labels are a few thousand words.
LARGEST_TEXT_BYTES = 1 << 20
PLATFORMS = frozenset({"", "onnxruntime_onnx"})
BACKENDS = frozenset({"", "onnxruntime"})


@dataclass(frozen=True, slots=True)
class Stored:
    """A folder of the repository: the files of its versions (numbers as text, in order), and the
    labels of its outputs. If there is no version, `problem` says what is wrong.
    """

    name: str
    versions: Mapping[str, Path]
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    problem: str = ""

    @property
    def latest(self) -> Path:
        """The file of the highest version."""
        return self.versions[next(reversed(list(self.versions)))]


def read_repository(folder: Path, *, every_version: bool = False) -> dict[str, Stored]:
    """Every model of the repository, by name. With `every_version`, all versions of a model whose
    configuration does not choose.

    Raises:
        BadConfiguration: there is no such folder.
    """
    try:
        folders = sorted(entry for entry in folder.iterdir() if entry.is_dir())
    except OSError as error:
        raise BadConfiguration(
            cause=f"the model repository {folder} cannot be read ({error.strerror})",
            cure="Name a folder with NAME/1/model.onnx to --model-repository",
        ) from error
    return {
        folder.name: _stored(folder, every_version)
        for folder in folders
        if not folder.name.startswith(".")
    }


class _Problem(Exception):
    """Why a folder cannot be served as a model."""


def _stored(folder: Path, every_version: bool) -> Stored:
    try:
        config = _config(folder)
        return Stored(
            folder.name, _versions(folder, config, every_version), _labels(folder, config)
        )
    except _Problem as problem:
        return Stored(folder.name, {}, problem=str(problem))
    except Problem as problem:
        return Stored(folder.name, {}, problem=f"the labels of {folder}: {problem}")
    except OSError as error:  # a disk's lost+found, for example
        return Stored(folder.name, {}, problem=f"{folder} cannot be read ({error.strerror})")


def _config(folder: Path) -> pb.ModelConfig:
    path = folder / CONFIG
    if not path.exists():
        return pb.ModelConfig()
    config = pb.ModelConfig()
    try:
        text_format.Parse(_text(path), config, allow_unknown_field=True)
    except text_format.ParseError as error:
        raise _Problem(f"{path} is not a model configuration ({error})") from error
    if config.name not in ("", folder.name):
        raise _Problem(f"{path} names the model {config.name!r}, its folder is {folder.name!r}")
    if config.platform not in PLATFORMS or config.backend not in BACKENDS:
        wanted = config.backend or config.platform
        raise _Problem(f"{path} needs {wanted!r}, but imbrex runs only onnxruntime")
    if config.HasField("sequence_batching") or config.HasField("ensemble_scheduling"):
        raise _Problem(f"{path} needs sequences or an ensemble, which imbrex does not support")
    return config


def _versions(folder: Path, config: pb.ModelConfig, every: bool) -> dict[str, Path]:
    file = config.default_model_filename or MODEL_FILE
    if Path(file).name != file:
        raise _Problem(f"{folder / CONFIG} names the file {file!r} outside of its version")
    numbers = sorted(
        int(entry.name)
        for entry in folder.iterdir()
        if entry.name.isdecimal() and int(entry.name) > 0 and file_at(entry / file).is_file()
    )
    policy = config.version_policy
    if every and not config.HasField("version_policy"):
        policy = pb.ModelVersionPolicy(all=pb.ModelVersionPolicy.All())
    chosen = _chosen(numbers, policy)
    if not chosen:
        there = [str(entry.relative_to(folder.parent)) for entry in sorted(folder.glob("*/*"))[:5]]
        raise _Problem(
            f"there is no file {folder.name}/1/{file}, or its policy excludes it; there is "
            + (", ".join(there) or "nothing")
        )
    return {str(number): file_at(folder / str(number) / file) for number in chosen}


def _chosen(numbers: list[int], policy: pb.ModelVersionPolicy) -> list[int]:
    """The versions that the policy chooses; by default the latest."""
    match policy.WhichOneof("policy_choice"):
        case "all":
            return numbers
        case "specific":
            return [number for number in numbers if number in policy.specific.versions]
        case _:
            return numbers[-max(1, policy.latest.num_versions) :]


def _labels(folder: Path, config: pb.ModelConfig) -> dict[str, tuple[str, ...]]:
    labels = {}
    for output in config.output:
        if output.label_filename:
            path = folder / output.label_filename
            if not path.resolve().is_relative_to(folder.resolve()):
                raise _Problem(f"the labels {output.label_filename!r} are outside of {folder}")
            labels[output.name] = labels_of(_text(path))
    return labels


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST_TEXT_BYTES:
            raise _Problem(f"{path} is longer than {LARGEST_TEXT_BYTES} bytes")
        return read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise _Problem(f"{path} cannot be read ({error})") from error
