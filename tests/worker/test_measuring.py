"""Workers measure programs with random and real weights."""

import pytest

from models.cut.program import Program, WeightRef
from protos import imbrex_pb2 as pb
from protos.errors import BadRequest
from tests.worker.support import (
    conv_program,
    install,
    message_of,
)


async def test_measuring_with_random_weights(client):
    program, _ = conv_program()
    refs = tuple(WeightRef(r.name, "", r.data_type, r.dims) for r in program.weights)
    request = pb.MeasureRequest(
        program=message_of(Program(program.graph, refs)),
        inputs=[pb.TensorSpec(tensor="x", data_type=1, dims=[1, 16, 64, 64])],
        repeats=3,
        threads=[1],
    )
    reply = await client.measure(request)
    assert len(reply.seconds) == 3
    assert all(0 < seconds < 5 for seconds in reply.seconds)
    assert reply.threads == 1
    assert reply.resident_bytes > 1 << 20


async def test_measuring_real_weights_needs_them_and_bad_inputs_are_told(client):
    program, blobs = conv_program()
    request = pb.MeasureRequest(
        program=message_of(program),
        inputs=[pb.TensorSpec(tensor="x", data_type=1, dims=[1, 16, 8, 8])],
        repeats=1,
    )
    with pytest.raises(BadRequest, match="is not here"):
        await client.measure(request)
    await install(client, program, blobs)
    assert len((await client.measure(request)).seconds) == 1
    request.inputs[0].dims[1] = 3
    with pytest.raises(BadRequest):
        await client.measure(request)
    request.inputs[0].dims[1] = -3
    with pytest.raises(BadRequest, match="shape"):
        await client.measure(request)
