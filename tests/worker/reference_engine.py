"""A toy engine: ONNX's own reference implementation, slow and right. One file, one entry point."""

import numpy as np
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from worker.engines.base import Ready, Runnable, Signature, Traits
from worker.programs.graphs import checked_model


class Reference:
    """Keeps programs in memory, so every start prepares them again."""

    def __init__(self, place):
        self.traits = Traits("reference", "0", "cpu", "reference|0", frozenset({"float32"}))
        self._store = place.store
        self._programs = {}

    def gflops(self, cores, mhz):
        return 0.01

    def memory_bytes(self, allowed_bytes):
        return allowed_bytes

    def is_prepared(self, sha256):
        return sha256 in self._programs

    def prepare(self, program):
        weights = {
            ref.name: np.fromfile(
                self._store.path(ref.sha256), helper.tensor_dtype_to_np_dtype(ref.data_type)
            ).reshape(ref.dims)
            for ref in program.weights
        }
        self._programs[program.sha256] = self.trial(program, weights, 1)

    def load(self, sha256):
        return self._programs.get(sha256)

    def trial(self, program, weights, threads):
        model = checked_model(program)
        for name, array in weights.items():
            model.graph.initializer.append(numpy_helper.from_array(array, name))
        return _Program(model, frozenset(ref.sha256 for ref in program.weights))


class _Program(Runnable):
    def __init__(self, model, blobs):
        super().__init__(_signatures(model.graph.input), _signatures(model.graph.output), blobs)
        self._evaluator = ReferenceEvaluator(model)

    def _bind(self, inputs, shapes):
        def compute():
            made = self._evaluator.run([*shapes], dict(inputs))
            return dict(zip(shapes, map(np.ascontiguousarray, made), strict=True))

        return Ready(compute)


def _signatures(entries):
    return {
        entry.name: Signature(
            np.dtype(helper.tensor_dtype_to_np_dtype(entry.type.tensor_type.elem_type)),
            tuple(dim.dim_value or None for dim in entry.type.tensor_type.shape.dim),
        )
        for entry in entries
    }
