"""OpenVINO on one of its devices, the CPU unless another is named: the extra `openvino`.

It is fastest with fixed shapes, so a program is compiled for each combination of input shapes when
it is first set up for them, and compiled programs are kept on disk. Its default precision on Arm is
f16: f32 is asked for, except in programs of models that allow half precision.
"""

import ctypes
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

import numpy as np
import openvino as ov
import structlog

from models.cut.program import Program
from models.tensors.arrays import Arrays, aligned_empty
from models.tensors.precision import Precision, read_precision
from protos.errors import BadConfiguration, ImbrexError
from protos.failures import BadInput, OutOfMemory, RunError
from worker.engines.base import (
    CompilingEngine,
    Place,
    Processor,
    Ready,
    Runnable,
    Signature,
    Traits,
    WantedShapes,
)
from worker.engines.processor import cpu_fingerprint
from worker.programs.graphs import (
    EMBED_BELOW_BYTES,
    checked_model,
    declare_weight,
    embed_weight,
    weight_bytes,
)

NAME = "openvino"

# Compiled programs hold their weights: these are those of several plans of ResNet-50.
CACHE_BYTES = 1_000_000_000
# Where a processor has no arithmetic in f16, OpenVINO computes in f32.
_HINTS: Mapping[Precision, str] = {"exact": "f32", "fp16": "f16", "int8": "f16"}
_PROCESSORS: Mapping[str, Processor] = {"CPU": "cpu", "GPU": "gpu", "NPU": "npu"}

_Shapes: TypeAlias = tuple[tuple[int, ...], ...]
# Shapes of inputs, and the outputs that are wanted.
_Wanted: TypeAlias = tuple[_Shapes, tuple[str, ...]]

_log = structlog.get_logger()


class OpenVino(CompilingEngine):
    """OpenVINO on `device`, by OpenVINO's name for it (CPU, GPU, GPU.1, NPU).

    Raises:
        BadConfiguration: OpenVINO has no such device here.
    """

    def __init__(self, place: Place, device: str = "CPU") -> None:
        self._core = ov.Core()
        if device not in self._core.available_devices:
            raise BadConfiguration(
                cause=f"OpenVINO finds no device {device!r} on this computer",
                cure=f"Choose one of {', '.join(self._core.available_devices)}",
            )
        self._device = device
        super().__init__(place)
        self._cache = place.folder / NAME
        self.traits = Traits(
            NAME if device == "CPU" else f"{NAME}:{device}",
            ov.__version__,
            _PROCESSORS.get(device.partition(".")[0], "cpu"),
            f"{NAME}|{ov.__version__}|{device}|{cpu_fingerprint()}",
        )
        place.folder.mkdir(parents=True, exist_ok=True)

    def trial(self, program: Program, weights: Arrays, threads: int) -> "Compiled":
        """The program with these weights and this many threads."""
        model = checked_model(program)
        with (
            _reading(),
            tempfile.TemporaryDirectory(dir=self._place.folder, prefix=".reading") as name,
        ):
            for number, ref in enumerate(program.weights):
                if weight_bytes(ref) < EMBED_BELOW_BYTES:
                    embed_weight(model, ref, weights[ref.name].tobytes())
                else:
                    declare_weight(model, ref, f"{number}")
                    _put(weights[ref.name], Path(name) / f"{number}")
            path = Path(name) / "program.onnx"
            path.write_bytes(model.SerializeToString())
            read = self._core.read_model(path)
        held = {tensor.name for tensor in model.graph.initializer}
        inputs = [value.name for value in model.graph.input if value.name not in held]
        outputs = [value.name for value in model.graph.output]
        with _reading():
            ends = _signatures(inputs, read.inputs), _signatures(outputs, read.outputs)
        wanted: dict[str, object] = {"INFERENCE_PRECISION_HINT": _HINTS[read_precision(model)]}
        if self._device == "CPU":
            wanted |= {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1}
        return Compiled(*ends, self, read, wanted)

    def compile(self, read: ov.Model, shapes: _Shapes, wanted: Mapping[str, object]) -> Any:
        """The program for inputs of these shapes, from the cache on disk if that is usable."""
        model = read.clone()
        model.reshape(dict(enumerate(map(list, shapes))))
        try:
            compiled = self._core.compile_model(
                model, self._device, {**wanted, "CACHE_DIR": str(self._cache)}
            )
        except Exception as error:
            # A disk that is full or can't be read must not keep a program from being computed.
            _log.warning("compiled without the cache", folder=str(self._cache), cause=_text(error))
            _trim(self._cache, 0)
            return self._core.compile_model(model, self._device, {**wanted})
        _trim(self._cache, CACHE_BYTES)
        return compiled


class Compiled(Runnable):
    """A program that `engine` compiles for the shapes of each run, with the `wanted` options."""

    def __init__(
        self,
        inputs: Mapping[str, Signature],
        outputs: Mapping[str, Signature],
        engine: OpenVino,
        read: ov.Model,
        wanted: Mapping[str, object],
    ) -> None:
        super().__init__(inputs, outputs)
        self._engine = engine
        self._read = read
        self._wanted = wanted
        self._made: dict[_Shapes, Any] = {}
        # One request computes one task at a time. It keeps the addresses that it was given: of
        # outputs that a later run does not want, too, whose memory has another owner then.
        self._idle: dict[_Wanted, SimpleQueue[Any]] = defaultdict(SimpleQueue)

    def compile(self, shapes: _Shapes) -> Any:
        """The program for inputs of these shapes."""
        return self._engine.compile(self._read, shapes, self._wanted)

    def _bind(self, inputs: Arrays, shapes: WantedShapes) -> Ready[dict[str, np.ndarray]]:
        key = tuple(inputs[name].shape for name in self.inputs)
        try:
            if key not in self._made:
                self._made[key] = self.compile(key)
            # A shape that depends on values stays with onnxruntime.
            wanted = tuple(name for name in self.outputs if shapes.get(name) is not None)
            idle = self._idle[key, wanted]
            try:
                request = idle.get_nowait()
            except Empty:
                request = self._made[key].create_infer_request()
            for number, name in enumerate(self.inputs):
                request.set_input_tensor(number, _shared(inputs[name]))
            results: dict[str, np.ndarray] = {}
            for number, name in enumerate(self.outputs):
                if (shape := shapes.get(name)) is not None:
                    results[name] = aligned_empty(shape, self.outputs[name].dtype)
                    tensor = ov.Tensor(results[name], shared_memory=True)
                    request.set_output_tensor(number, tensor)
        except Exception as error:
            raise _explained(error, "setting up a program") from error

        # OpenVINO has the addresses of the inputs only.
        held = (inputs, results)

        def compute() -> dict[str, np.ndarray]:
            try:
                request.infer()
            except Exception as error:
                raise _explained(error, "running a program") from error
            idle.put(request)
            return held[1]

        return Ready(compute)


@contextmanager
def _reading() -> Iterator[None]:
    """Turns what OpenVINO raises on a program into one of our errors."""
    try:
        yield
    except Exception as error:
        raise _explained(error, "reading a program") from error


def _signatures(names: Sequence[str], ports: Sequence[Any]) -> dict[str, Signature]:
    return {name: _signature(port) for name, port in zip(names, ports, strict=True)}


def _signature(port: Any) -> Signature:
    dims = (None if size.is_dynamic else size.get_length() for size in port.partial_shape)
    return Signature(np.dtype(port.element_type.to_dtype()), tuple(dims))


def _shared(array: np.ndarray) -> ov.Tensor:
    """The array as a tensor, without a copy; OpenVINO demands that inputs can be written, too."""
    memory = (ctypes.c_uint8 * array.nbytes).from_address(array.ctypes.data)
    view = np.ctypeslib.as_array(memory).view(array.dtype).reshape(array.shape)
    return ov.Tensor(view, shared_memory=True)


def _put(array: np.ndarray, path: Path) -> None:
    """Makes an array's bytes a file; one that is mapped from a blob gets a second name."""
    if isinstance(array, np.memmap) and array.filename is not None:
        os.link(array.filename, path)
    else:
        path.write_bytes(np.ascontiguousarray(array).data)


def _trim(folder: Path, most_bytes: int) -> None:
    """Removes the files that were used longest ago until the others have `most_bytes` at most."""
    with suppress(OSError):
        files = sorted(folder.iterdir(), key=lambda file: file.stat().st_mtime_ns, reverse=True)
        total = 0
        for file in files:
            total += file.stat().st_size
            if total > most_bytes:
                file.unlink()


def _text(error: Exception) -> str:
    return " ".join(str(error).split())[:400] or type(error).__name__


def _explained(error: Exception, doing: str) -> ImbrexError:
    if isinstance(error, ImbrexError):
        return error
    text = _text(error)
    if isinstance(error, MemoryError) or "bad_alloc" in text or "allocate" in text:
        return OutOfMemory(
            cause=f"{doing}: not enough memory ({text[:200]})",
            cure="Stop other programs on this device, or plan smaller tiles",
        )
    if doing == "reading a program":
        return BadInput(
            cause=f"OpenVINO cannot take the program: {text}", cure="Use onnxruntime for it"
        )
    return RunError(cause=f"{doing}: {text}", cure="See this worker's log")
