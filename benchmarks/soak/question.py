"""What a soak asks, and what the answer must be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import httpx
import numpy as np

from coordinator.serving.common.names import NPZ
from coordinator.serving.common.tensors import load_tensors, write_tensors
from models.catalogue import catalogue
from models.check.tolerance import PLAIN
from models.digits.examples import examples
from models.onnx_file.importer import load_graph
from models.run.reference import WholeModel, compare, random_inputs

PICTURES = "digits"


@dataclass(slots=True)
class Question:
    """A request. `expected` are the whole model's outputs; a picture's predictions have to stay
    what they were the first time instead.
    """

    model: str
    body: bytes = field(repr=False)
    headers: Mapping[str, str]
    expected: Mapping[str, np.ndarray] | None = field(default=None, repr=False)
    said: object = None


def questions(model: str) -> list[Question]:
    """The example sheets for `digits`, for others one seeded tensor."""
    if model == PICTURES:
        headers = {"Content-Type": "image/png"}
        return [Question(model, example.path.read_bytes(), headers) for example in examples()]
    proto = catalogue.load(model).proto
    feeds = random_inputs(load_graph(proto))
    headers = {"Content-Type": NPZ, "Accept": NPZ}
    return [Question(model, write_tensors(feeds), headers, WholeModel(proto).run(feeds))]


def wrong(question: Question, answer: httpx.Response) -> bool:
    """Whether the answer is not the right one."""
    if question.expected is not None:
        outputs = load_tensors(answer.content)
        return bool(compare(outputs, question.expected).max_rel_error > PLAIN)
    said = answer.json()["predictions"]
    question.said = question.said or said
    return bool(said != question.said)
