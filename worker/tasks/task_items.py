"""Conversion between messages on the wire and the types of the task state."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain

import numpy as np

from models.tensors.boxes import Box, Span
from models.tensors.selection import Selection
from protos import imbrex_pb2 as pb
from protos.wire.convert import box_message, data_type_of, dtype_of, ranges
from protos.wire.frames import MAX_TENSOR_BYTES, Payload, pieces
from worker.tasks.actions import (
    InputSpec,
    OutputSpec,
    ReportFailure,
    TaskEnd,
    TaskForm,
    TaskKey,
    TaskOrder,
    TensorPiece,
)

OutgoingMessage = tuple[list[pb.Item], list[Payload]]

# Tasks of a few plans, a few KB each.
_MOST_REMEMBERED = 1024


def box_of(message: pb.Box) -> Box:
    """The box in a message; PeerViolation if it is malformed."""
    return Box.of(*ranges(message))


def task_order(message: pb.Task, stream: int) -> TaskOrder:
    """The task in a host's message; PeerViolation for impossible boxes or types. Removes from the
    message what differs between requests.
    """
    key = key_of(message)
    message.ClearField("request")
    message.ClearField("attempt")
    return TaskOrder(key, _form(message.SerializeToString()), stream)


@lru_cache(_MOST_REMEMBERED)
def _form(common: bytes) -> TaskForm:
    """The part of a task that is the same in every request of its plan."""
    message = pb.Task.FromString(common)
    inputs = tuple(
        InputSpec(
            entry.tensor,
            box_of(entry.box),
            dtype_of(entry.data_type),
            tuple((source.device, box_of(source.box)) for source in entry.sources)
            if message.sources_named
            else None,
        )
        for entry in message.inputs
    )
    outputs = output_specs(message.outputs)
    return TaskForm(message.program, inputs, outputs, message.any_values)


def output_specs(messages: Sequence[pb.Task.Output]) -> tuple[OutputSpec, ...]:
    """The outputs of a task or of a resend."""
    return tuple(
        OutputSpec(
            entry.tensor,
            box_of(entry.box),
            box_of(entry.yields),
            entry.to,
            entry.address,
            entry.to_task,
            entry.to_attempt,
            _selection(entry.selection) if entry.HasField("selection") else None,
            entry.dynamic,
        )
        for entry in messages
    )


def _selection(message: pb.Selection) -> Selection:
    scores = Span(message.start, message.stop)
    factor = message.factor - 1 if message.factor else None
    return Selection(message.axis, message.across, scores, message.least, factor)


def piece_of(message: pb.Tensor, array: np.ndarray, sender: str = "") -> TensorPiece:
    """A tensor frame; `sender` is the peer that it came from."""
    return TensorPiece(key_of(message), message.tensor, box_of(message.box), array, sender)


def key_of(message: pb.Task | pb.Tensor | pb.Resend | pb.Show) -> TaskKey:
    """The attempt that a message refers to."""
    return TaskKey(message.request, message.plan_version, message.task, message.attempt)


def messages(
    parts: Sequence[TensorPiece], last: Sequence[pb.Item] = ()
) -> Iterator[OutgoingMessage]:
    """Pieces, or of those with a selection its entries, coalesced into messages of about
    `MAX_TENSOR_BYTES`; larger pieces are split by box. The items `last` go with the final message.
    """
    items: list[pb.Item] = []
    payloads: list[Payload] = []
    held = 0
    for header, array in chain.from_iterable(map(_tensors, parts)):
        if items and held + array.nbytes > MAX_TENSOR_BYTES:
            yield items, payloads
            items, payloads, held = [], [], 0
        items.append(pb.Item(tensor=header))
        payloads.append(array)
        held += array.nbytes
    items.extend(last)
    if items:
        yield items, payloads


def done_item(done: TaskEnd) -> pb.Item:
    """The message of a finished task."""
    return pb.Item(
        done=pb.TaskDone(
            request=done.key.request,
            task=done.key.task,
            attempt=done.key.attempt,
            ready_s=done.ready_s,
            start_s=done.start_s,
            stop_s=done.stop_s,
            peer_bytes=done.peer_bytes,
            described_last=done.described_last,
        )
    )


def failed_item(failed: ReportFailure) -> pb.Item:
    """The message of a failed task."""
    return pb.Item(
        failed=pb.TaskFailed(
            request=failed.key.request,
            task=failed.key.task,
            attempt=failed.key.attempt,
            code=failed.code,
            message=failed.message,
        )
    )


def _tensors(part: TensorPiece) -> Iterator[tuple[pb.Tensor, np.ndarray]]:
    """The headers of a piece, each with its array."""
    array, kept = part.array, None
    if part.selection is not None and not part.dynamic:
        axis, chosen = part.selection.axis, part.selection.chosen(array)
        size = array.nbytes * len(chosen) // array.shape[axis]
        if size <= min(MAX_TENSOR_BYTES, array.nbytes // 2):
            kept = pb.Tensor.Kept(axis=axis, entries=chosen.tolist())
            array = array.take(chosen, axis)
    whole = part.dynamic or kept is not None
    for box in [part.box] if whole else [Box.of(*cut) for cut in pieces(part.box, array.itemsize)]:
        header = pb.Tensor(
            request=part.key.request,
            plan_version=part.key.plan_version,
            task=part.key.task,
            attempt=part.key.attempt,
            tensor=part.tensor,
            box=box_message(box),
            data_type=data_type_of(array.dtype),
            shape=pb.Tensor.Shape(dims=array.shape) if part.dynamic else None,
            kept=kept,
        )
        yield header, array if whole else array[box.slices(part.box)]
