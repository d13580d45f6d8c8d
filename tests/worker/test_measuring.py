"""Workers measure programs with random and real weights."""

import pytest

from models.cut.program import Program, WeightRef
from protos import imbrex_pb2 as pb
from protos.errors import BadRequest, ImbrexError, LostWorker
from protos.rpc.channels import Caller
from protos.rpc.worker_client import WorkerClient
from tests.worker.plugged import plant
from tests.worker.support import (
    conv_program,
    install,
    message_of,
    process,
    terminate,
)
from worker.compute.measure import Measurer


def random_weights():
    """A request to measure a convolution with weights that are not there."""
    program, _ = conv_program()
    refs = tuple(WeightRef(r.name, "", r.data_type, r.dims) for r in program.weights)
    return pb.MeasureRequest(
        program=message_of(Program(program.graph, refs)),
        inputs=[pb.TensorSpec(tensor="x", data_type=1, dims=[1, 16, 64, 64])],
        repeats=3,
        threads=[1],
    )


async def test_measuring_with_random_weights(client):
    reply = await client.measure(random_weights())
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


@pytest.mark.parametrize(("name", "named"), [("SoundApart", b""), ("DyingMeasured", b"signal 6")])
async def test_a_crash_of_an_engine_that_is_measured_does_not_end_the_worker(
    tmp_path, monkeypatch, name, named
):
    plant(tmp_path, monkeypatch, name)
    with process(tmp_path / "state", ENGINE=name.lower()) as running:
        async with WorkerClient(running.address, Caller("host")) as client:
            reply = await client.measure(random_weights())
            assert all(0 < seconds < 5 for seconds in reply.seconds)
        assert terminate(running) == 0
        log = running.process.stderr.read()
    assert named in log
    assert (b"an engine is not measured" in log) is bool(named)


async def test_a_fault_of_ours_ends_the_call_as_one_and_has_its_traceback_in_the_log(
    worker, client, monkeypatch, capsys
):
    async def fails(*_):
        raise OverflowError("timestamp out of range")

    monkeypatch.setattr(Measurer, "measure", fails)
    with pytest.raises(ImbrexError, match="failed inside its worker") as raised:
        await client.measure(random_weights())
    assert not isinstance(raised.value, LostWorker), "the device is there"
    assert "timestamp out of range" in "".join(capsys.readouterr())
    assert (await client.examine({})).condition.clock_s > 0
