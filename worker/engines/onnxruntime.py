"""onnxruntime: programs are optimised once per processor and version, and their weights shared.

onnxruntime optimises a graph (fusions, the blocked layout of convolution weights) while it makes a
session, and would keep private weights for each. So a program is optimised once, its optimised
graph is kept on disk, and the re-laid weights go to the blob store by content: equal weights, such
as those of other border classes of a block, are stored and mapped once. A session is then made in
about a millisecond, also after a restart. The optimised form belongs to this processor.

Large matrices are left out of the optimisation: the optimiser sees them as inputs, so that it takes
no memory for them. Then they, too, are packed for their kernels, unless they are the huge ones of
fully connected layers, which sessions map as they were sent.
"""

import hashlib
import mmap
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnxruntime as ort
from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto

from models.cut.program import Program, WeightRef, sha256_of
from models.tensors.arrays import Arrays
from models.tensors.memory import PEAK_OVER_WEIGHTS, megabytes
from protos.daemon.extras import line_to_install
from protos.daemon.files import write_atomically
from protos.daemon.process_memory import free_bytes, give_back_memory
from protos.errors import BadConfiguration, BadRequest
from protos.failures import OutOfMemory, RunError
from protos.wire.convert import dtype_of
from worker.engines.base import Place, Processor, ProgramCache, Runnable, Traits, Trial
from worker.engines.ort_session import (
    CPU,
    Session,
    SharedWeights,
    from_runtime,
    make_session,
    options,
)
from worker.engines.packed import is_packed, pack, packed_bytes
from worker.engines.processor import cpu_fingerprint, cpu_gflops
from worker.programs.graphs import (
    EMBED_BELOW_BYTES,
    checked_model,
    declare_input,
    declare_weight,
    embed_weight,
    external_weights,
    inputs_to_weights,
    length_of,
    location_of,
    matrices,
    refer,
    weight_bytes,
)

NAME = "onnxruntime"
# pyproject.toml excludes them, too, but not from what is already installed.
WRONG_VERSIONS = ("1.27.0",)

# Graphs without weights, a few kilobytes each.
_MAX_KEPT = 4096
# The file of weights that are handed over in memory: there is none.
_GIVEN = "given"
_GPU = ("CUDA", "TensorRT", "ROCM", "MIGraphX", "Dml", "WebGpu")
_NPU = ("QNN", "VitisAI", "CoreML")


class OnnxRuntime:
    """onnxruntime on the CPU: the reference, and the engine that every device has.

    `without` names the optimiser passes to leave out.

    Raises:
        BadConfiguration: a version that computes wrong results.
    """

    providers: Sequence[str] = (CPU,)

    def __init__(self, place: Place, without: Sequence[str] = ()) -> None:
        if ort.__version__ in WRONG_VERSIONS:
            raise BadConfiguration(
                cause=f"onnxruntime {ort.__version__} computes convolutions wrongly on processors "
                "with SME",
                cure=f"Install another version: {line_to_install('onnxruntime!=1.27.0')}",
            )
        self._directory = place.folder
        self._store = place.store
        self._threads = place.threads
        self._memory_bytes = place.memory_bytes
        self._without = tuple(without)
        self._weights = SharedWeights()
        fingerprint = "|".join((ort.__version__, "packed", cpu_fingerprint(), *without))
        self.traits = Traits(NAME, ort.__version__, "cpu", fingerprint)
        place.folder.mkdir(parents=True, exist_ok=True)

    @property
    def trials(self) -> Mapping[str, Trial]:
        """Trials of the engines that may compute a program, by name: of this one."""
        return {NAME: self.trial}

    def gflops(self, cores: int, mhz: float) -> float:
        """Frequency x cores; an unknown frequency counts as 1 GHz."""
        return cpu_gflops(cores, mhz)

    def memory_bytes(self, allowed_bytes: int) -> int:
        """All of the allowed memory, as the CPU has no memory of its own."""
        return allowed_bytes

    def is_prepared(self, sha256: str) -> bool:
        """Whether the program's optimised form is here, with all its weights."""
        model = self._kept(sha256)
        return model is not None

    def prepare(self, program: Program) -> None:
        """Optimises a program, and keeps the result."""
        model = checked_model(program)
        names = matrices(model, program.weights)
        large = [ref for ref in program.weights if ref.name in names]
        self._check_memory([ref for ref in program.weights if ref.name not in names])
        for ref in program.weights:
            self._require_size(ref)
            if ref.name in names:
                declare_input(model, ref)
            else:
                self._attach(model, ref)
        with tempfile.TemporaryDirectory(dir=self._directory, prefix=".building") as name:
            built = Path(name)
            chosen = options(self._store.blobs, self._threads, optimise=True)
            chosen.optimized_model_filepath = str(built / "graph.onnx")
            for key, value in (
                ("session.optimized_model_external_initializers_file_name", "weights.bin"),
                (
                    "session.optimized_model_external_initializers_min_size_in_bytes",
                    str(EMBED_BELOW_BYTES),
                ),
            ):
                chosen.add_session_config_entry(key, value)
            make_session(model.SerializeToString(), chosen, self._without, self.providers)
            del model
            model = self._split(built)
            inputs_to_weights(model, large)
            pack(model, self._store, built, self._memory_bytes)
        write_atomically(self._path(program.sha256), model.SerializeToString())
        give_back_memory()
        files = sorted(self._directory.glob("*.onnx"), key=lambda file: file.stat().st_mtime_ns)
        for file in files[: max(0, len(files) - _MAX_KEPT)]:
            file.unlink(missing_ok=True)

    def load(self, sha256: str) -> Runnable | None:
        """A session of a prepared program; None if its optimised form is not here, or damaged."""
        model = self._kept(sha256)
        if model is None:
            return None
        chosen = options(self._store.blobs, self._threads, optimise=False, packed=True)
        values, read = [], 0
        blobs: dict[str, int] = {}
        packed: set[str] = set()
        for weight in external_weights(model):
            blob, size = location_of(weight), length_of(weight)
            read += size
            if is_packed(weight):
                # onnxruntime maps it itself, and reads it as it was only while it makes a session.
                blobs[blob] = blobs.get(blob, 0) + packed_bytes(weight)
                packed.add(blob)
                continue
            value = self._weights.value(
                self._store.path(blob), dtype_of(weight.data_type), tuple(weight.dims)
            )
            chosen.add_initializer(weight.name, value)
            values.append(value)
            blobs[blob] = size
        self._store.touch(blobs)
        try:
            inference = make_session(model.SerializeToString(), chosen)
        except RunError:
            # onnxruntime compares what is packed with what it would pack.
            if not packed:
                raise
            self._path(sha256).unlink(missing_ok=True)
            self._store.remove(packed)
            return None
        give_back_memory()
        return Session(sha256, inference, read, values, blobs)

    def trial(self, program: Program, weights: Arrays, threads: int) -> Runnable:
        """Plain onnxruntime, which packs its own weights, so its kernels differ from those of
        tasks.
        """
        model = checked_model(program)
        chosen = options(self._directory, threads, optimise=True, shared=False)
        values = {}
        for ref in program.weights:
            array = weights[ref.name]
            if array.nbytes < EMBED_BELOW_BYTES:
                embed_weight(model, ref, array.tobytes())
            else:
                declare_weight(model, ref, _GIVEN)
                values[ref.name] = ort.OrtValue.ortvalue_from_numpy(array)
        try:
            # Optimisers read these values; with `add_initializer` they would read the file.
            chosen.add_external_initializers([*values], [*values.values()])
        except Exception as error:
            raise from_runtime(error, "adding weights to a program") from error
        inference = make_session(model.SerializeToString(), chosen, self._without, self.providers)
        held = [*values.values()]
        read = sum(value.tensor_size_in_bytes() for value in held)
        return Session(f"plain {program.sha256} on {threads}", inference, read, held)

    def _path(self, sha256: str) -> Path:
        key = hashlib.sha256(f"{sha256}|{self.traits.fingerprint}".encode()).hexdigest()
        return self._directory / f"{key}.onnx"

    def _kept(self, sha256: str) -> ModelProto | None:
        model = ModelProto()
        try:
            model.ParseFromString(self._path(sha256).read_bytes())
        except (FileNotFoundError, DecodeError):
            return None
        here = (location_of(weight) in self._store for weight in external_weights(model))
        return model if all(here) else None

    def _check_memory(self, relaid: Sequence[WeightRef]) -> None:
        weights = sum(map(weight_bytes, relaid))
        free = free_bytes()
        if weights * PEAK_OVER_WEIGHTS > free:
            raise OutOfMemory(
                cause=f"a program with {megabytes(weights)} of weights to lay out takes "
                f"{megabytes(weights * PEAK_OVER_WEIGHTS)} while it is prepared, and "
                f"{megabytes(free)} are free",
                cure="Plan it on a device with more memory, raise memory_mb, or stop other "
                "programs here",
            )

    def _require_size(self, ref: WeightRef) -> None:
        size = self._store.size(ref.sha256)
        if size != weight_bytes(ref):
            raise BadRequest(
                cause=f"the weight {ref.name!r} of shape {ref.dims} needs {weight_bytes(ref)} "
                f"bytes, but its blob has {size}",
                cure="Cut the program again",
            )

    def _attach(self, model: ModelProto, ref: WeightRef) -> None:
        if weight_bytes(ref) < EMBED_BELOW_BYTES:
            embed_weight(model, ref, self._store.path(ref.sha256).read_bytes())
        else:
            declare_weight(model, ref, ref.sha256)

    def _split(self, built: Path) -> ModelProto:
        """Moves the re-laid weights to the store; returns the graph that refers to them."""
        model = ModelProto()
        model.ParseFromString((built / "graph.onnx").read_bytes())
        external = external_weights(model)
        if not external:
            return model
        with (built / "weights.bin").open("rb") as file:
            self._store.make_room(file.seek(0, 2))
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                for tensor in external:
                    self._move(tensor, mapped)
        return model

    def _move(self, tensor: TensorProto, mapped: mmap.mmap) -> None:
        place = {entry.key: entry.value for entry in tensor.external_data}
        start, length = int(place.get("offset", "0")), int(place["length"])
        with memoryview(mapped) as view, view[start : start + length] as part:
            sha256 = sha256_of(part)
            if sha256 not in self._store:
                temporary = self._store.temporary(sha256)
                temporary.write_bytes(part)
                self._store.add_file(temporary, sha256)
        refer(tensor, sha256, length)


class Provider(OnnxRuntime):
    """onnxruntime with an execution provider, which optimises programs at each start; the CPU
    computes the operators that the provider lacks.

    Raises:
        BadConfiguration: the installed onnxruntime has no such provider.
    """

    def __init__(self, place: Place, provider: str) -> None:
        if provider not in ort.get_available_providers():
            raise BadConfiguration(
                cause=f"the installed onnxruntime has no {provider!r}",
                cure=f"Choose one of {', '.join(ort.get_available_providers())}, or install a "
                "build of onnxruntime that has it",
            )
        super().__init__(place)
        self._programs = ProgramCache(place.store)
        self.providers = tuple(dict.fromkeys((provider, CPU)))
        self.traits = Traits(
            f"{NAME}:{provider}",
            ort.__version__,
            _processor(provider),
            f"{provider}|{ort.__version__}|{cpu_fingerprint()}",
        )

    def is_prepared(self, sha256: str) -> bool:
        """Whether the program has been given since the start."""
        return sha256 in self._programs

    def prepare(self, program: Program) -> None:
        """Keeps the program."""
        self._programs.add(program)

    def load(self, sha256: str) -> Session | None:
        """A session of a program; None if it has not been given."""
        program = self._programs.get(sha256)
        if program is None:
            return None
        model = checked_model(program)
        for ref in program.weights:
            self._attach(model, ref)
        chosen = options(self._store.blobs, self._threads, optimise=True, shared=False)
        inference = make_session(model.SerializeToString(), chosen, (), self.providers)
        return Session(f"{self.traits.name} {sha256}", inference)


def _processor(provider: str) -> Processor:
    if provider.startswith(_GPU):
        return "gpu"
    return "npu" if provider.startswith(_NPU) else "cpu"
