"""`imbrex models add`: adds an ONNX file; what it does not say is guessed or asked."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import typer

from coordinator.sharing.store import open_store
from imbrex import terminal
from models import catalogue
from models.documents import Problem
from models.graph import Graph
from models.guess import guess, metadata, takes_pictures, written_size
from models.importer import graph_of
from models.label_file import labels_of
from models.model_file import read_model
from models.precision import Precision
from models.sizes import Size, bind, inputs_of, open_axes
from models.usual import PIXELS, About, described, head_for
from models.vision.head import Task
from models.vision.heads import TASKS
from models.vision.image_input import Resize
from models.vision.predictions import check_outputs
from models.vision.sidecar import LABELLESS, Sidecar, sidecar_path
from models.vision.sidecar import load as load_sidecar
from protos.errors import BadRequest
from protos.files import read_text

Choice = TypeVar("Choice", bound=str)

LABEL_FILES = (".txt", ".names", ".csv", ".labels")


@dataclass(frozen=True, slots=True)
class Said:
    """The description of the model on the command line; None: not given."""

    name: str | None = None
    task: Task | None = None
    labels: str | None = None
    pixels: str | None = None
    resize: Resize | None = None
    size: Size | None = None
    sidecar: Path | None = None
    licence: str = "not said"
    source: str | None = None
    precision: Precision | None = None


class NotSaid(BadRequest):
    """Something cannot be guessed, and there is no terminal to ask on."""

    code = "not_said"


def add(file: Path, said: Said, *, default: bool, as_json: bool) -> int:
    """Copies a model into the store, with its sidecar."""
    name = said.name or file.stem
    if name in catalogue.names():
        raise BadRequest(
            cause=f"{name!r} is a built-in model", cure="Give it another name with --name"
        )
    with terminal.waiting(f"reading {file.name}"):
        stored = read_model(file)
    beside = said.sidecar or sidecar_path(file)
    if said.sidecar or beside.is_file():
        _require_unsaid(said, beside)
        sidecar = load_sidecar(beside)
        inputs = sidecar.input.size
        graph = _graph(file, said.size or Size(*inputs))
    else:
        is_open = any(map(open_axes, inputs_of(stored.proto)))
        graph = _graph(file, said.size or (written_size(stored.proto) if is_open else None))
        sidecar = _described(graph, metadata(stored.proto), name, said, file)
    check_outputs(sidecar, {each: graph.shape(each) for each in graph.outputs})
    if said.precision is not None:
        sidecar = replace(sidecar, precision=said.precision)
    return _keep(
        name, stored.complete().SerializeToString(), sidecar, default=default, as_json=as_json
    )


def _require_unsaid(said: Said, sidecar: Path) -> None:
    """Refuses options that say what a sidecar says."""
    given = [f"--{key}" for key in ("task", "labels", "pixels", "resize") if getattr(said, key)]
    if given:
        raise BadRequest(
            cause=f"{sidecar} describes the model, so {', '.join(given)} cannot be used",
            cure="Change that file, or move it away",
        )


def _keep(name: str, model: bytes, sidecar: Sidecar, *, default: bool, as_json: bool) -> int:
    store = open_store()
    version = store.add(name, model, sidecar)
    if default:
        store.choose(sidecar.task, name)
    if as_json:
        told = {"name": name, "version": version, "task": sidecar.task, "default": default}
        terminal.print_json(told)
        return 0
    console = terminal.out()
    console.print(f"added {name}, version {version}: {sidecar.task}")
    console.print(f"try it: imbrex infer PICTURE --model {name}")
    return 0


def _graph(file: Path, size: Size | None) -> Graph:
    """The graph with its open sizes fixed."""
    stored = read_model(file)
    bind(inputs_of(stored.proto), size)
    return graph_of(stored, file.stem)


def _described(graph: Graph, told: dict[str, object], name: str, said: Said, file: Path) -> Sidecar:
    """The sidecar from what was given, guessed and asked."""
    given = _read_labels(said.labels) if said.labels is not None else None
    first = guess(graph, told, said.task, len(given or ()))
    missing: list[str] = []
    task = said.task or first.task or _choose("What is it for?", TASKS, "--task", missing)
    guessed = guess(graph, told, task, len(given or ())) if task else first
    labels = given or guessed.labels
    if task and task not in LABELLESS and labels is None:
        what = f"{guessed.classes} labels" if guessed.classes else "Its labels"
        text = _ask(f"{what}: a file, or a,b,c", "--labels", missing)
        labels = _read_labels(text) if text else None
    pixels = said.pixels or guessed.pixels
    if task != "tensor" and pixels is None:
        pixels = _choose("Which pixels was it trained on?", tuple(PIXELS), "--pixels", missing)
    if missing:
        raise NotSaid(
            cause=f"{file} does not say what {', '.join(missing)} "
            + ("is" if len(missing) == 1 else "are"),
            cure="Give these options, or write a sidecar and name it with --sidecar",
        )
    assert task is not None, "asked, or missing"
    if not takes_pictures(graph) and task != "tensor":
        raise BadRequest(
            cause=f"{file} takes no picture: its input is not (1, 3, H, W), float32 or float16",
            cure="Add it with --task tensor, or export it with such an input",
        )
    head = head_for(graph, task, labels or (), pixels or "unit", told)
    if head is None and task != "tensor":
        raise _unread(graph, file)
    about = About(name, file.name, said.licence, said.source)
    try:
        found = described(graph, task, head, labels or (), pixels or "unit", about, said.resize)
        if told.get("task") != "classify" or found.input.resize != "centre-crop":
            return found
        # Ultralytics' classifiers get all of the shorter side.
        whole = replace(found.input, resize_shorter=max(found.input.size))
        return replace(found, input=whole)
    except Problem as problem:
        raise BadRequest(
            cause=f"{file} cannot be described: {problem.what}", cure=problem.cure
        ) from problem


def _unread(graph: Graph, file: Path) -> BadRequest:
    shapes = [graph.shape(each) for each in graph.outputs]
    cure = "Write a sidecar with its head and anchors, and name it with --sidecar"
    if [shape[2:] for shape in shapes] == [(6,)]:
        cure = (
            'Write a sidecar and name it with --sidecar: "head": {"type": "end2end", '
            '"min_score": 0.25} if each row is x_min, y_min, x_max, y_max, score, class; '
            '"type": "yolov5" if it is centre, size, objectness and the score of the one class'
        )
    return BadRequest(
        cause=f"the form of the boxes in {file} is not known: its outputs are "
        + ", ".join(map(str, shapes)),
        cure=cure,
    )


def _read_labels(text: str) -> tuple[str, ...]:
    """The labels of a file, or from a list separated by commas."""
    file = Path(text)
    if file.suffix.lower() not in LABEL_FILES and ("," in text or not file.is_file()):
        return tuple(each.strip() for each in text.split(",") if each.strip())
    try:
        return labels_of(read_text(file))
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(
            cause=f"the labels {text} cannot be read ({error})",
            cure="Write one label per line, in UTF-8",
        ) from error
    except Problem as problem:
        raise BadRequest(cause=f"the labels {text}: {problem.what}", cure=problem.cure) from problem


def _choose(
    question: str, choices: Sequence[Choice], option: str, missing: list[str]
) -> Choice | None:
    """One of the choices; as `_ask`."""
    told = f"{question} ({', '.join(choices)})"
    while (answer := _ask(told, option, missing)) is not None:
        for each in choices:
            if answer == each:
                return each
        typer.echo(f"not one of {', '.join(choices)}", err=True)
    return None


def _ask(question: str, option: str, missing: list[str]) -> str | None:
    """The answer; without a terminal, what is missing is noted."""
    if not sys.stdin.isatty():
        missing.append(option)
        return None
    return str(typer.prompt(question, err=True)).strip()
