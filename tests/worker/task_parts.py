"""Tasks and pieces for the tests of a worker's task state."""

import numpy as np

from models.tensors.boxes import Box
from worker.tasks.actions import (
    InputSpec,
    OutputSpec,
    RunProgram,
    SendToHost,
    SendToPeer,
    TaskForm,
    TaskKey,
    TaskOrder,
    TensorPiece,
)

F32 = np.dtype(np.float32)


IN = Box.of((0, 2), (4, 8))


OUT = Box.of((0, 4))


KEY = TaskKey("r", 1, 0, 0)


HOST = OutputSpec("y", OUT, OUT, "host")


def task_order(key=KEY, inputs=(("x", IN),), outputs=(HOST,), stream=7):
    read = tuple(InputSpec(n, b, F32) for n, b in inputs)
    return TaskOrder(key, TaskForm("p", read, outputs), stream)


def piece(box, value=1.0, key=KEY, tensor="x", dtype=np.float32):
    return TensorPiece(key, tensor, box, np.full(box.shape, value, dtype))


def sent_by(device, box, value=1.0, key=KEY):
    return TensorPiece(key, "x", box, np.full(box.shape, value, F32), device)


def plain(actions):
    """Actions as values that compare: arrays as lists."""
    shown = []
    for action in actions:
        match action:
            case RunProgram(key, program, inputs, shapes):
                arrays = {name: array.tolist() for name, array in inputs.items()}
                shown.append(("run", key, program, arrays, dict(shapes)))
            case SendToHost(stream, pieces, done, more):
                sent = ("host", stream, [shape(p) for p in pieces], done)
                shown.append((*sent, "more to come") if more else sent)
            case SendToPeer(device, address, pieces, source):
                shown.append(("peer", device, address, [shape(p) for p in pieces], source))
            case _:
                shown.append(action)
    return shown


def shape(p):
    return (p.key, p.tensor, p.box, p.array.tolist())


def run_one(tasks, task=None, value=0.0):
    """A task up to its end."""
    task = task or task_order()
    tasks.add_task(task, 0.0)
    for entry in task.form.inputs:
        tasks.add_piece(piece(entry.box, value, task.key, entry.tensor), 1.0)
    outputs = {
        o.tensor: np.arange(o.yields.volume, dtype=F32).reshape(o.yields.shape)
        for o in task.form.outputs
    }
    return tasks.finished(task.key, outputs, 2.0, 3.0)
