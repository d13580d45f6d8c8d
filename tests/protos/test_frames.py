import contextlib
import struct
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protos import imbrex_pb2 as pb
from protos.errors import PeerViolation
from protos.wire.convert import DTYPES, box_message, data_type_of, ranges
from protos.wire.frames import MAX_TENSOR_BYTES, decode, encode, pieces
from tests.examples import examples


@dataclass(frozen=True)
class Span:
    start: int
    stop: int


def tensor_item(array, origin=0):
    box = box_message([Span(origin, origin + size) for size in array.shape])
    return pb.Item(
        tensor=pb.Tensor(
            request="r", task=3, tensor="t", box=box, data_type=data_type_of(array.dtype)
        )
    )


@st.composite
def views(draw):
    """A box of a larger array: contiguous or not, possibly empty, possibly a scalar."""
    dtype = draw(st.sampled_from(list(DTYPES.values())))
    shape = draw(st.lists(st.integers(0, 6), max_size=5))
    whole = np.arange(np.prod([size + 2 for size in shape], dtype=int)) % 2
    whole = whole.astype(dtype).reshape([size + 2 for size in shape])
    starts = [draw(st.integers(0, 2)) for _ in shape]
    return whole[tuple(slice(a, a + size) for a, size in zip(starts, shape, strict=True))]


@settings(max_examples=examples(60))
@given(st.lists(st.one_of(views(), st.binary(max_size=40)), max_size=4))
def test_encoded_items_are_decoded_equal(payloads):
    items = []
    for payload in payloads:
        if isinstance(payload, bytes):
            items.append(pb.Item(ping=pb.Ping(number=7)))
        else:
            items.append(tensor_item(payload, origin=5))
    items.append(pb.Item(release=pb.Release(requests=["r"])))

    received = decode(encode(items, payloads))

    assert [item for item, _ in received] == items
    for payload, (_, got) in zip(payloads, received, strict=False):
        if isinstance(payload, bytes):
            assert bytes(got) == payload
        else:
            assert got.dtype == payload.dtype
            assert np.array_equal(got, payload)
    assert received[-1][1] is None


def test_long_runs_of_a_strided_view_are_joined_without_a_copy_of_their_own():
    whole = np.arange(2 * 8 * 64 * 64, dtype=np.float32).reshape(2, 8, 64, 64)
    view = whole[:, 1:7, 3:50]
    ((_, got),) = decode(encode([tensor_item(view)], [view]))
    assert np.array_equal(got, view)


def test_arrays_are_views_of_the_message_aligned_for_their_type():
    arrays = [np.ones(3, np.uint8), np.arange(5, dtype=np.float64)]
    message = encode([tensor_item(array) for array in arrays], arrays)
    for _, got in decode(message):
        assert got.flags.aligned
        assert not got.flags.owndata
        assert not got.flags.writeable
        assert got.ctypes.data % 16 == 0


def test_every_truncation_is_a_violation():
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    message = encode([tensor_item(array)], [array])
    for length in range(len(message)):
        with pytest.raises(PeerViolation):
            decode(message[:length])


def test_trailing_bytes_are_a_violation():
    with pytest.raises(PeerViolation, match="whose items need"):
        decode(encode([pb.Item(release=pb.Release())]) + b"\0" * 16)


def frame_of(tensor, payload):
    header = pb.Frame(items=[pb.Item(tensor=tensor)]).SerializeToString()
    start = 4 + len(header)
    message = struct.pack("<I", len(header)) + header + bytes(-start % 16) + payload
    return message + bytes(-len(payload) % 16)


@pytest.mark.parametrize(
    ("tensor", "payload", "says"),
    [
        (pb.Tensor(data_type=1, payload_bytes=8, box=pb.Box(start=[0], stop=[3])), 8, "shape"),
        (pb.Tensor(data_type=99, payload_bytes=4, box=pb.Box(start=[0], stop=[1])), 4, "type 99"),
        (pb.Tensor(data_type=8, payload_bytes=4, box=pb.Box(start=[0], stop=[1])), 4, "type 8"),
        (pb.Tensor(data_type=1, payload_bytes=4, box=pb.Box(start=[2], stop=[1])), 4, "inverted"),
        (pb.Tensor(data_type=1, payload_bytes=4, box=pb.Box(start=[0, 0], stop=[1])), 4, "stops"),
        (
            pb.Tensor(data_type=1, payload_bytes=4, box=pb.Box(start=[0] * 17, stop=[1] * 17)),
            4,
            "17 starts",
        ),
        (
            pb.Tensor(
                data_type=1, payload_bytes=4, box=pb.Box(start=[0] * 9, stop=[2**32 - 1] * 9)
            ),
            4,
            "shape",
        ),
        (pb.Tensor(data_type=1, payload_bytes=2**63, box=pb.Box()), 4, "truncated"),
    ],
)
def test_headers_that_lie_are_violations(tensor, payload, says):
    with pytest.raises(PeerViolation, match=says):
        decode(frame_of(tensor, bytes(payload)))


@settings(max_examples=examples(60))
@given(st.binary(max_size=200))
def test_noise_is_a_violation_or_an_empty_frame(noise):
    for message in (noise, struct.pack("<I", len(noise)) + noise):
        with contextlib.suppress(PeerViolation):
            decode(message)


def test_a_kind_from_the_future_is_a_violation():
    with pytest.raises(PeerViolation, match="unknown kind"):
        decode(encode([pb.Item()]))


@settings(max_examples=examples(60))
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=4),
    st.integers(1, 400),
)
def test_pieces_are_the_box_and_each_is_small(bounds, most):
    box = [Span(start, start + size) for start, size in bounds]
    parts = pieces(box, 4, most)
    count = np.zeros([span.start + (span.stop - span.start) for span in box], int)
    for part in parts:
        count[tuple(slice(a, b) for a, b in part)] += 1
        volume = np.prod([b - a for a, b in part], dtype=int)
        assert volume * 4 <= most or volume <= 1
    assert (count[tuple(slice(span.start, span.stop) for span in box)] == 1).all()


def test_pieces_cut_the_outermost_axis_that_is_longer_than_one():
    box = [Span(0, 1), Span(0, 64), Span(0, 224), Span(0, 224)]
    parts = pieces(box, 4)
    assert parts[0] == ((0, 1), (0, 20), (0, 224), (0, 224))
    assert len(parts) == 4
    assert MAX_TENSOR_BYTES >= 20 * 224 * 224 * 4


def test_ranges_are_what_box_message_took():
    assert ranges(box_message([Span(1, 4), Span(0, 2)])) == ((1, 4), (0, 2))
