"""The protocol over HTTP: JSON, optionally followed by tensors as raw bytes."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coordinator.serving.common.body import json_too_large
from coordinator.serving.oip.request import (
    LONGEST_ID,
    InferAnswer,
    InferRequest,
    RequestedOutput,
    class_count,
    refuse_unsupported,
    require_inputs,
    require_outputs,
)
from coordinator.serving.oip.tensors import (
    from_bytes,
    from_values,
    name_of,
    require,
    to_bytes,
    to_values,
)
from models.graph.graph import Graph
from protos.errors import BadRequest

SIZE = "binary_data_size"
# Three bytes of text can become an object of a hundred; 512x512 pixels as lists are as many
# objects.
MOST_NESTED = 1 << 18
# Short texts take ten times their length in memory. Tensors here contain none, and keys are few.
MOST_QUOTES = 1 << 18


def read_json(data: bytes | memoryview) -> dict[str, Any]:
    """A JSON object; an empty body counts as an empty object.

    Raises:
        BadRequest: it is anything else, or has more lists, objects and texts than any tensor needs.
    """
    text = bytes(data)
    if text.count(b"[") + text.count(b"{") > MOST_NESTED:
        raise BadRequest(
            cause=f"the request's JSON has more than {MOST_NESTED} lists and objects",
            cure="Send the values flat, in row-major order, or as bytes behind the JSON",
        )
    if text.count(b'"') > MOST_QUOTES:
        raise BadRequest(
            cause=f"the request's JSON has more than {MOST_QUOTES // 2} texts",
            cure="Send tensors of numbers",
        )
    try:
        document = json.loads(text, parse_constant=_no_constant) if text else {}
    except (ValueError, RecursionError) as error:
        raise BadRequest(
            cause=f"the request is not JSON ({error})"[:200], cure="Send one JSON object in UTF-8"
        ) from error
    if not isinstance(document, dict):
        raise BadRequest(cause="the request is not a JSON object", cure="Send one, as {}")
    return document


def split(body: bytes, header_length: str | None, most: int) -> tuple[memoryview, memoryview]:
    """The JSON of an inference request, and the raw tensors after it. `header_length` is the header
    with the length of the JSON; None: everything is JSON.

    Raises:
        BadRequest: the header is wrong.
        BodyTooLarge: the JSON is longer than `most` bytes: numbers as text grow in memory.
    """
    view = memoryview(body)
    at = _split_at(header_length, len(view))
    if at > most:
        raise json_too_large(most)
    return view[:at], view[at:]


def read_request(head: memoryview, raw: memoryview, graph: Graph) -> InferRequest:
    """An inference request from its JSON and the raw tensors after it.

    Raises:
        BadRequest: it violates the protocol, or does not fit the model's inputs.
        Unsupported: it asks for shared memory or sequences.
    """
    document = read_json(head)
    parameters = _object(document, "parameters")
    refuse_unsupported(parameters)
    inputs = _objects(document, "inputs")
    names = [_text(entry, "name") for entry in inputs]
    require_inputs(names, graph)
    tail = _Tail(raw)
    feeds = {
        name: _input(entry, name, tail, graph) for name, entry in zip(names, inputs, strict=True)
    }
    tail.require_end()
    all_binary = _flag(parameters, "binary_data_output", default=False)
    asked = _objects(document, "outputs")
    wanted = tuple(_output(output, all_binary) for output in asked) or tuple(
        RequestedOutput(name, all_binary) for name in graph.outputs
    )
    require_outputs(wanted, graph)
    identity = document.get("id", "")
    if not isinstance(identity, str) or len(identity) > LONGEST_ID:
        raise BadRequest(cause="'id' is not text, or too long", cure="Send a short one")
    return InferRequest(identity, feeds, wanted)


def write_answer(answer: InferAnswer) -> tuple[bytes, int | None]:
    """The body of the answer, and the length of its JSON if raw tensors follow it.

    Raises:
        NotFiniteAnswer: an output has values that JSON cannot represent.
    """
    outputs: list[dict[str, Any]] = []
    raw: list[bytes] = []
    for output, array in answer.outputs:
        told: dict[str, Any] = {
            "name": output.name,
            "datatype": name_of(array),
            "shape": list(array.shape),
        }
        if output.binary:
            raw.append(to_bytes(array))
            told["parameters"] = {SIZE: len(raw[-1])}
        else:
            told["data"] = to_values(output.name, array)
        outputs.append(told)
    document = {"model_name": answer.model, "model_version": answer.version, "outputs": outputs}
    if answer.id:
        document["id"] = answer.id
    head = json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
    return b"".join((head, *raw)), len(head) if raw else None


class _Tail:
    """The raw tensors after the JSON, taken in order."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def take(self, name: str, size: object) -> memoryview:
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= len(self._data):
            raise BadRequest(
                cause=f"the {SIZE} of {name!r} is {str(size)[:40]}, "
                f"and {len(self._data)} bytes are left",
                cure="Send as many bytes behind the JSON as its inputs say",
            )
        taken, self._data = self._data[:size], self._data[size:]
        return taken

    def require_end(self) -> None:
        if self._data:
            raise BadRequest(
                cause=f"{len(self._data)} bytes behind the JSON belong to no input",
                cure=f"Give every input in the raw part its {SIZE}",
            )


def _input(entry: Mapping[str, Any], name: str, tail: _Tail, graph: Graph) -> np.ndarray:
    info, parameters = graph.tensors[name], _object(entry, "parameters")
    refuse_unsupported(parameters)
    shape = entry.get("shape")
    if not isinstance(shape, list):
        raise BadRequest(cause=f"the input {name!r} has no shape", cure=f"Say {list(info.shape)}")
    require(name, _text(entry, "datatype"), shape, info)
    if SIZE in parameters:
        if "data" in entry:
            raise BadRequest(
                cause=f"the input {name!r} has both data and {SIZE}", cure="Send one of them"
            )
        return from_bytes(name, tail.take(name, parameters[SIZE]), info)
    if not isinstance(entry.get("data"), list):
        raise BadRequest(
            cause=f"the input {name!r} has neither a list 'data' nor {SIZE}",
            cure="Send its values in one of the two ways",
        )
    return from_values(name, entry["data"], info)


def _output(entry: Mapping[str, Any], all_binary: bool) -> RequestedOutput:
    parameters = _object(entry, "parameters")
    refuse_unsupported(parameters)
    return RequestedOutput(
        name=_text(entry, "name"),
        binary=_flag(parameters, "binary_data", default=all_binary),
        classes=class_count(parameters.get("classification")),
    )


def _split_at(header_length: str | None, total: int) -> int:
    if header_length is None:
        return total
    # Digits alone: Python's int() also takes signs, spaces and underscores.
    plain = header_length.isascii() and header_length.isdigit() and len(header_length) < 20
    if not plain or int(header_length) > total:
        raise BadRequest(
            cause=f"Inference-Header-Content-Length is {header_length[:40]!r}, "
            f"the body has {total} bytes",
            cure="Say how many bytes of the body are its JSON",
        )
    return int(header_length)


def _object(entry: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = entry.get(key)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise BadRequest(cause=f"{key!r} is not a JSON object", cure="Send one, or leave it out")
    return found


def _objects(entry: Mapping[str, Any], key: str) -> Sequence[dict[str, Any]]:
    found = entry.get(key)
    if found is None:
        return ()
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise BadRequest(cause=f"{key!r} is not a list of JSON objects", cure="Send a list")
    return found


def _text(entry: Mapping[str, Any], key: str) -> str:
    found = entry.get(key)
    if not isinstance(found, str):
        raise BadRequest(cause=f"a tensor has no {key!r}", cure="Every tensor needs one, as text")
    return found


def _flag(parameters: Mapping[str, Any], key: str, *, default: bool) -> bool:
    found = parameters.get(key, default)
    if not isinstance(found, bool):
        raise BadRequest(cause=f"the parameter {key!r} is not a boolean", cure="Say true or false")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")
