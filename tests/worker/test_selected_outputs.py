"""Of an output with a selection a worker sends the entries that the host reads."""

import numpy as np
import pytest

from models.tensors.boxes import Box
from protos import imbrex_pb2 as pb
from tests.worker.support import (
    picture,
    ready,
    task_item,
    tensor_item,
    until_done,
    whole,
)

IN = Box.whole((1, 16, 12, 10))


SELECTION = {"axis": 3, "across": 1, "start": 2, "stop": 16}


async def test_of_an_output_with_a_selection_the_likely_entries_are_sent(client):
    program = await ready(client)
    box, row = Box.whole((1, 16, 1, 10)), picture(1)
    expected = whole(row)
    best = np.sort(expected[0, 2:].max(axis=(0, 1)))
    stream = client.exchange()
    for number, (least, count) in enumerate(((best[-3], 3), (best[-1] + 1, 0), (best[0], 10))):
        selection = pb.Selection(**SELECTION, least=least)
        output = {"tensor": "y", "box": box, "yields": box, "selection": selection}
        request = f"r{number}"
        task = task_item(program, {"x": box}, [output], request=request)
        await stream.write([task, tensor_item("x", box, row, request=request)], [row])
        ((told, sent),), _ = await until_done(stream)
        assert sent.shape == (1, 16, 1, count)
        # All of it is cheaper to send than most of it.
        entries = list(told.kept.entries) if told.HasField("kept") else list(range(10))
        assert told.HasField("kept") is (count < 10)
        assert len(entries) == count
        np.testing.assert_allclose(sent, expected[..., entries], atol=1e-5)


@pytest.mark.parametrize(
    "wrong", [{"axis": 1}, {"across": 7}, {"stop": 17}, {"start": 16}, {"factor": 99}, {"axis": 2}]
)
async def test_a_selection_that_does_not_fit_its_output_is_refused(client, wrong):
    program = await ready(client)
    selection = pb.Selection(**SELECTION | {"least": 0.5} | wrong)
    output = {"tensor": "y", "box": IN, "yields": IN, "selection": selection}
    stream, x = client.exchange(), picture()
    await stream.write([task_item(program, {"x": IN}, [output]), tensor_item("x", IN, x)], [x])
    pieces, (failed,) = await until_done(stream)
    assert not pieces
    assert failed.code == "bad_input"
    assert "entries" in failed.message
