"""onnxruntime on another execution provider that its wheel has: CUDA, CoreML, XNNPACK ..."""

import onnxruntime as ort

from models.cut.program import Program
from protos.errors import BadConfiguration
from worker.engines.base import Place, Processor, ProgramCache, Traits
from worker.engines.onnxruntime import NAME, OnnxRuntime
from worker.engines.ort_session import CPU, Session, make_session, options
from worker.engines.processor import cpu_fingerprint
from worker.programs.graphs import checked_model

_GPU = ("CUDA", "TensorRT", "ROCM", "MIGraphX", "Dml", "WebGpu")
_NPU = ("QNN", "VitisAI", "CoreML")


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
