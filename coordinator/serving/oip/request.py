"""An inference request and its answer, independent of the protocol's form (HTTP, gRPC)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from coordinator.serving.oip.tensors import classes
from models.graph.graph import Graph
from models.tensors.arrays import Arrays
from protos.errors import BadRequest, Unsupported

# Requested outputs are named once each, and clients choose the id that the answer repeats.
LONGEST_ID = 1024


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """A requested output; with `classes` > 0, that many of the best classes as text."""

    name: str
    binary: bool = False
    classes: int = 0


@dataclass(frozen=True, slots=True)
class InferRequest:
    """Input tensors, and the requested outputs in order."""

    id: str
    feeds: Arrays = field(repr=False)
    wanted: tuple[RequestedOutput, ...]


@dataclass(frozen=True, slots=True)
class InferAnswer:
    """The requested outputs, in order."""

    id: str
    model: str
    version: str
    outputs: tuple[tuple[RequestedOutput, np.ndarray], ...] = field(repr=False)


def require_inputs(names: Sequence[str], graph: Graph) -> None:
    """Refuses a request that does not name each of the model's inputs exactly once.

    Raises:
        BadRequest: with the names.
    """
    unknown = [name for name in names if name not in graph.inputs]
    missing = [name for name in graph.inputs if name not in names]
    if unknown or missing or len(set(names)) < len(names):
        told = [f"{name[:80]!r} is unknown" for name in unknown[:4]]
        told += [f"{name!r} is missing" for name in missing]
        raise BadRequest(
            cause=f"these are not the model's inputs: {', '.join(told) or 'one is named twice'}",
            cure=f"Send each of {', '.join(graph.inputs)} once",
        )


def require_outputs(wanted: Sequence[RequestedOutput], graph: Graph) -> None:
    """Refuses an output that the model does not have, or that is named twice.

    Raises:
        BadRequest: with the names.
    """
    names = [output.name for output in wanted]
    wrong = [name for name in names if name not in graph.outputs or names.count(name) > 1]
    if wrong:
        raise BadRequest(
            cause=f"the output {wrong[0][:80]!r} is unknown, or named twice",
            cure=f"Ask for any of {', '.join(graph.outputs)}",
        )


def class_count(value: object) -> int:
    """The parameter `classification`: a positive number, or 0 if it is absent.

    Raises:
        BadRequest: it is anything else.
    """
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise BadRequest(
            cause="the parameter 'classification' is not a positive number",
            cure="Give the number of classes, for example 3",
        )
    return value


def refuse_unsupported(parameters: Mapping[str, object]) -> None:
    """Refuses parameters that would change the answer if they were ignored.

    Raises:
        Unsupported: they ask for shared memory or a sequence.
    """
    if any(key.startswith("shared_memory") for key in parameters):
        raise Unsupported(
            cause="imbrex does not share memory with its clients",
            cure="Send the tensor's data in the request",
        )
    if parameters.get("sequence_id"):
        raise Unsupported(
            cause="imbrex keeps no state between the requests of a sequence",
            cure="Leave sequence_id out",
        )


def wanted(outputs: Arrays, output: RequestedOutput, labels: Sequence[str]) -> np.ndarray:
    """A requested output in the requested form."""
    array = outputs[output.name]
    return classes(array, output.classes, labels) if output.classes else array
