"""`imbrex models add`: adds an ONNX file; what it does not say is guessed or asked."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import typer

from coordinator.library.sharing import open_store
from imbrex import terminal
from models.catalogue import catalogue
from models.catalogue.guess import Guess, guess, metadata, written_size
from models.check.check import require_programs
from models.cut.units import divide
from models.graph.graph import Graph
from models.graph.sizes import Size, bind, inputs_of, open_axes
from models.onnx_file.importer import graph_of
from models.onnx_file.model_file import file_at, read_model
from models.tensors.precision import Precision
from models.vision.anchored_grids import YoloV2, YoloV3
from models.vision.head import VisionTask
from models.vision.heads import TASKS
from models.vision.image_input import Resize
from models.vision.label_file import labels_of
from models.vision.model_families import PIXELS, About, described, head_for, takes_pictures
from models.vision.predictions import OutputMismatch, check_outputs
from models.vision.sidecar import LABELLESS, Assumable, Sidecar, sidecar_path
from models.vision.sidecar import load as load_sidecar
from protos.daemon.documents import Problem
from protos.daemon.files import read_text
from protos.errors import BadRequest, NotFound

PlanChoice = TypeVar("PlanChoice", bound=str)

# How somebody says what was assumed.
_OPTIONS: Mapping[Assumable, str] = {
    "task": "--task",
    "labels": "--labels",
    "pixels": "--pixels",
    "anchors": "a file named with --sidecar",
}
LABEL_FILES = (".txt", ".names", ".csv", ".labels")


@dataclass(frozen=True, slots=True)
class Said:
    """The description of the model on the command line; None: not given."""

    name: str | None = None
    task: VisionTask | None = None
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
    file = file_at(file)
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
        inputs = Size(*sidecar.input.size) if sidecar.input else None
        graph = _graph(file, said.size or inputs)
    else:
        is_open = any(map(open_axes, inputs_of(stored.proto)))
        graph = _graph(file, said.size or (written_size(stored.proto) if is_open else None))
        sidecar = _described(graph, metadata(stored.proto), name, said, file)
    try:
        check_outputs(sidecar, {name: graph.shape(name) for name in graph.outputs})
    except OutputMismatch as error:
        if said.sidecar or beside.is_file():
            raise
        raise BadRequest(
            cause=f"what was said of {name} does not fit it: {error.problem}",
            cure="Give as many labels as it has classes (--labels), or another --task; --task "
            "tensor returns its outputs as they are",
        ) from error
    with terminal.waiting("trying whether it can be split"):
        require_programs(divide(graph))
    if said.precision is not None:
        sidecar = replace(sidecar, precision=said.precision)
    return _keep(
        name, stored.complete().SerializeToString(), sidecar, default=default, as_json=as_json
    )


def confirm(name: str, *, as_json: bool) -> int:
    """Makes a version of an added model of which nothing counts as assumed, in place of the latest.

    Raises:
        NotFound: it was not added.
    """
    store = open_store()
    installed = store.find(name)
    if installed is None:
        raise NotFound(
            cause=f"no model {name!r} was added or downloaded", cure="See `imbrex models list`"
        )
    sidecar = load_sidecar(sidecar_path(installed.latest))
    version = max(installed.versions)
    if sidecar.assumed:
        version = store.add(name, installed.latest.read_bytes(), replace(sidecar, assumed={}))
        store.remove(name, max(installed.versions))
    if as_json:
        terminal.print_json({"name": name, "version": version, "confirmed": dict(sidecar.assumed)})
        return 0
    console = terminal.out()
    for key, why in sidecar.assumed.items():
        console.print(f"confirmed {key}: {why}", soft_wrap=True)
    if not sidecar.assumed:
        console.print(f"nothing is assumed of {name}")
    return 0


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
        terminal.print_json({**told, "assumed": dict(sidecar.assumed)})
        return 0
    console = terminal.out()
    console.print(f"added {name}, version {version}: {sidecar.task}", soft_wrap=True)
    for key, why in sidecar.assumed.items():
        console.print(f"assumed {key}: {why}; {_OPTIONS[key]} gives another", soft_wrap=True)
    if sidecar.assumed:
        console.print(f"if that is right: imbrex models confirm {name}")
    what = "PICTURE" if sidecar.input else "TENSORS.npz"
    console.print(f"try it: imbrex infer {what} --model {name}")
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
    task = said.task or _task(first, missing)
    if task is not None and task != "tensor":
        _require_picture(graph, file)
    guessed = guess(graph, told, task, len(given or ())) if task else first
    assumed = {**first.reasons, **guessed.reasons}
    if said.task is None and task == "tensor" and first.possible:
        assumed["task"] = f"tensor: {first.possible}"
    if task not in (None, "tensor") and guessed.classes and not given:
        # Before anybody is asked for labels that are of no use.
        numbers = tuple(map(str, range(guessed.classes)))
        if head_for(graph, task, numbers, guessed.pixels or "unit", told) is None:
            raise _unread(graph, file)
    labels = given or guessed.labels
    if task and task not in LABELLESS and labels is None:
        what = f"{guessed.classes} labels" if guessed.classes else "Its labels"
        text = _ask(f"{what}: a file, or a,b,c", "--labels", missing)
        labels = _read_labels(text) if text else None
    pixels = said.pixels or guessed.pixels
    if task == "tensor" and pixels is None and takes_pictures(graph):
        pixels = "unit"
        assumed["pixels"] = "0 to 1, in a letterbox: nothing says otherwise"
    elif task != "tensor" and pixels is None:
        pixels = _choose("Which pixels was it trained on?", tuple(PIXELS), "--pixels", missing)
    if missing:
        raise _not_said(file, first, missing)
    assert task is not None, "asked, or missing"
    head = head_for(graph, task, labels or (), pixels or "unit", told)
    if head is None and task != "tensor":
        raise _unread(graph, file)
    if isinstance(head, YoloV2 | YoloV3):
        assumed["anchors"] = "those of the published network with as many classes"
    about = About(name, file.name, said.licence, said.source)
    try:
        sidecar = described(
            graph, task, head, labels or (), pixels or "unit", about, said.resize, assumed
        )
        form = sidecar.input
        if told.get("task") != "classify" or form is None or form.resize != "centre-crop":
            return sidecar
        # Ultralytics' classifiers get all of the shorter side.
        return replace(sidecar, input=replace(form, resize_shorter=max(form.size)))
    except Problem as problem:
        raise BadRequest(
            cause=f"{file} cannot be described: {problem.what}", cure=problem.cure
        ) from problem


def _not_said(file: Path, guessed: Guess, missing: Sequence[str]) -> NotSaid:
    """That these options are missing, with what is believed of the model and why."""
    believed = guessed.possible
    if "--task" not in missing and "task" in guessed.reasons:
        believed = f"it was taken for {guessed.reasons['task'].replace(': ', ', as ', 1)}"
    return NotSaid(
        cause=f"{file} does not say what {', '.join(missing)} "
        + ("is" if len(missing) == 1 else "are")
        + (f" ({believed})" if believed else ""),
        cure="Give these options, use --task tensor to get its outputs as they are, or write a "
        "sidecar and name it with --sidecar",
    )


def _task(guessed: Guess, missing: list[str]) -> VisionTask | None:
    """The task that was guessed; somebody at a terminal is asked where the outputs allow others."""
    if guessed.task is not None and not (guessed.possible and sys.stdin.isatty()):
        return guessed.task
    believed = f"{guessed.possible[0].upper()}{guessed.possible[1:]}. " if guessed.possible else ""
    return _choose(f"{believed}What is it for?", TASKS, "--task", missing)


def _require_picture(graph: Graph, file: Path) -> None:
    if takes_pictures(graph):
        return
    inputs = ", ".join(
        f"{name} {graph.tensors[name].dtype} {graph.shape(name)}" for name in graph.inputs
    )
    raise BadRequest(
        cause=f"{file} takes no picture: its inputs are {inputs}",
        cure="Add it with --task tensor, or export it with one input (1, 3, H, W) or (1, H, W, 3), "
        "grey or in colours, float32, float16 or uint8",
    )


def _unread(graph: Graph, file: Path) -> BadRequest:
    shapes = [graph.shape(name) for name in graph.outputs]
    cure = "Write a sidecar with its head and anchors, and name it with --sidecar; --task tensor "
    cure += "returns its outputs as they are"
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
        return tuple(label.strip() for label in text.split(",") if label.strip())
    try:
        return labels_of(read_text(file))
    except OSError as error:
        raise BadRequest(
            cause=f"the labels {text} cannot be read ({error.strerror})",
            cure="Check the path after --labels, or list the labels: --labels a,b,c",
        ) from error
    except UnicodeDecodeError as error:
        raise BadRequest(
            cause=f"the labels {text} cannot be read ({error})",
            cure="Write one label per line, in UTF-8",
        ) from error
    except Problem as problem:
        raise BadRequest(cause=f"the labels {text}: {problem.what}", cure=problem.cure) from problem


def _choose(
    question: str, choices: Sequence[PlanChoice], option: str, missing: list[str]
) -> PlanChoice | None:
    """One of the choices; as `_ask`."""
    told = f"{question} ({', '.join(choices)})"
    while (answer := _ask(told, option, missing)) is not None:
        for choice in choices:
            if answer == choice:
                return choice
        typer.echo(f"not one of {', '.join(choices)}", err=True)
    return None


def _ask(question: str, option: str, missing: list[str]) -> str | None:
    """The answer; without a terminal, what is missing is noted."""
    if not sys.stdin.isatty():
        missing.append(option)
        return None
    return str(typer.prompt(question, err=True)).strip()
