"""Toy engines for hardware that takes whole networks only: onnxruntime in disguise. Each is an
entry point of a package.
"""

from dataclasses import replace

from models.cut.program import whole_network
from protos.errors import BadConfiguration
from protos.failures import BadInput
from protos.wire.limits import Limits
from worker.engines.onnxruntime import Provider


class WholeOnly(Provider):
    """Takes any whole network."""

    limits = Limits()
    rate = 1000.0

    def __init__(self, place):
        super().__init__(place, "CPUExecutionProvider")
        name = type(self).__name__.lower()
        self.traits = replace(self.traits, name=name, fingerprint=name, limits=self.limits)

    def gflops(self, cores, mhz):
        return self.rate

    def prepare(self, program):
        self._require_whole(program)
        super().prepare(program)

    def trial(self, program, weights, threads):
        self._require_whole(program)
        return super().trial(program, weights, threads)

    def _require_whole(self, program):
        if whole_network(program) is None:
            raise BadInput(cause="it is a part of a network", cure="Send a whole one")


class Compiled(WholeOnly):
    """Takes the networks for which there is a file `SHA256.toy` in its folder, compiled elsewhere
    beforehand, with pictures as inputs.
    """

    def __init__(self, place):
        files = [*(place.folder / "compiled").glob("*.toy")]
        if not files:
            raise BadConfiguration(
                cause=f"there is no compiled network in {place.folder / 'compiled'}",
                cure="Compile one, and name it after the SHA-256 of its ONNX file",
            )
        self.limits = Limits(networks=[file.stem for file in files])
        super().__init__(place)
        self.traits = replace(self.traits, dtypes=frozenset({"uint8", "float32"}))


class Misnamed(WholeOnly):
    """Names a network by something else than the hash of its file."""

    def __init__(self, place):
        self.limits = Limits(networks=["yolov8n"])


class Shapeless(WholeOnly):
    """Declares a shape with an open size."""

    def __init__(self, place):
        self.limits = Limits(shapes=["1x3x?x640"])


class Typeless(WholeOnly):
    """Declares a type that is none."""

    def __init__(self, place):
        self.limits = Limits(dtypes=["float8"])


class Unlisted(WholeOnly):
    """Gives a text in place of a list of texts."""

    def __init__(self, place):
        self.limits = Limits(networks="0" * 64)


class Endless(WholeOnly):
    """Names more networks than a device can report."""

    def __init__(self, place):
        self.limits = Limits(networks=[f"{number:064x}" for number in range(1000)])


class Yes(WholeOnly):
    """Declares its limits by another type."""

    limits = True


class Traitless:
    """Describes itself by another type."""

    def __init__(self, place):
        self.traits = {"limits": None}
