"""Runs a plan in this process, task by task, as devices would: the answer that must not change."""

from collections.abc import Callable, Mapping

import numpy as np
import onnx

from coordinator.tasks.plan import Plan
from coordinator.tasks.task_graph import compile_plan
from models.cut.program import BlobSource
from models.cut.units import Network
from models.run.quantised_inputs import as_they_travel
from models.run.reference import (
    Comparison,
    ProgramRunner,
    WholeModel,
    answer,
    compare,
    random_inputs,
)

Arrays = Mapping[str, np.ndarray]
Fault = Callable[[int, Arrays], Arrays]


def run_plan(
    plan: Plan, network: Network, feeds: Arrays, fault: Fault = lambda task, feeds: feeds
) -> dict[str, np.ndarray]:
    """The network's outputs. `fault` may damage what a task reads."""
    blobs = BlobSource()
    tasks = compile_plan(plan, network, blobs)
    runner = ProgramRunner(blobs, threads=1)
    tensors = dict(as_they_travel(network.graph, feeds))
    filled: dict[str, np.ndarray] = {}
    for task in tasks.tasks:
        for output in task.outputs:
            if output.tensor not in tensors:
                dtype = tasks.tensors[output.tensor].dtype
                shape = network.graph.shape(output.tensor)
                # Nobody may read what nobody made; partial sums are added to zeros.
                start = 0 if output.reduce or not np.issubdtype(dtype, np.floating) else np.nan
                tensors[output.tensor] = np.full(shape, start, dtype)
                filled[output.tensor] = np.zeros(shape, np.int32)
        parts = {
            each.tensor: np.ascontiguousarray(tensors[each.tensor][each.box.slices()])
            for each in task.inputs
        }
        names = [output.tensor for output in task.outputs]
        results = runner.run(tasks.programs[task.program], fault(task.id, parts), names)
        for output, result in zip(task.outputs, results, strict=True):
            own = result[output.box.slices(inside=output.yields)]
            target = tensors[output.tensor][output.box.slices()]
            if output.reduce:
                target += own
            else:
                target[...] = own
                filled[output.tensor][output.box.slices()] += 1
    assert all((count <= 1).all() for count in filled.values()), "an element was made twice"
    graph = network.graph
    return answer(graph.outputs, graph.joined, tensors, graph.ending)


def difference(
    model: onnx.ModelProto,
    plan: Plan,
    network: Network,
    fault: Fault = lambda task, feeds: feeds,
) -> Comparison:
    """How far the plan's answer is from the whole model's, for one seeded input."""
    feeds = random_inputs(network.graph)
    return compare(run_plan(plan, network, feeds, fault), WholeModel(model, threads=1).run(feeds))
