"""What a device sent, as part of a request's tensors."""

from __future__ import annotations

import numpy as np

from coordinator.requests.flight import Flight
from models.tensors.boxes import Box
from models.tensors.selection import dense
from protos import imbrex_pb2 as pb
from protos.wire.convert import ranges


class NoResult(Exception):
    """What was sent cannot be a result; the message says why."""


def whole(header: pb.Tensor, payload: np.ndarray, flight: Flight) -> np.ndarray:
    """The box of a tensor that a payload stands for; entries that were not selected are zeros. The
    decoder has checked the payload's size against its box and type, and the scheduler judges its
    box.

    Raises:
        NoResult: it cannot be a part of this request's tensors.
    """
    version = flight.graph.plan.version
    if header.plan_version != version:
        raise NoResult(f"it is of plan {header.plan_version}, the request runs on plan {version}")
    array = flight.arrays.get(header.tensor)
    if array is None or header.tensor in flight.graph.inputs:
        raise NoResult(f"it is of {header.tensor!r}, which no task yields")
    if payload.dtype != array.dtype:
        raise NoResult(f"it is {payload.dtype}, but {header.tensor!r} is {array.dtype}")
    if header.HasField("shape") != flight.graph.tensors[header.tensor].is_dynamic:
        raise NoResult(f"it is not of the shape of {header.tensor!r}")
    if not header.HasField("kept"):
        return payload
    selection = flight.selections.get(header.tensor)
    if selection is None or selection.axis != header.kept.axis:
        raise NoResult(f"it is of some entries of {header.tensor!r}, which is read as a whole")
    box = Box.of(*ranges(header.box))
    if len(box) != array.ndim or not Box.whole(array.shape).contains(box):
        raise NoResult(f"its box {box} is not within {header.tensor!r}")
    try:
        return dense(payload, header.kept.entries, header.kept.axis, box.shape)
    except ValueError as error:
        raise NoResult(str(error)) from None
