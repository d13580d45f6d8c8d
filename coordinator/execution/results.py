"""Whether what a device sent can be a result."""

from __future__ import annotations

import numpy as np

from coordinator.execution.flight import Flight
from protos import imbrex_pb2 as pb


def mismatch(header: pb.Tensor, payload: np.ndarray, flight: Flight) -> str:
    """Why a payload cannot be a part of this request's tensors; empty if it can. The decoder has
    checked its size against its box and type, and the scheduler judges its box.
    """
    version = flight.graph.plan.version
    if header.plan_version != version:
        return f"it is of plan {header.plan_version}, the request runs on plan {version}"
    array = flight.arrays.get(header.tensor)
    if array is None or header.tensor in flight.graph.inputs:
        return f"it is of {header.tensor!r}, which no task yields"
    if payload.dtype != array.dtype:
        return f"it is {payload.dtype}, but {header.tensor!r} is {array.dtype}"
    return ""
