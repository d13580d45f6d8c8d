"""Engines with one fault each, for the worker to find; each is an entry point of a package."""

import os
import time
from dataclasses import replace

from worker.engines.base import Runnable
from worker.engines.comparison import LEAST_ROUNDS
from worker.engines.onnxruntime import Provider


class Sound(Provider):
    """Right: onnxruntime by another name."""

    def __init__(self, place):
        super().__init__(place, "CPUExecutionProvider")
        name = type(self).__name__.lower()
        self.traits = replace(self.traits, name=name, fingerprint=name)


class SoundApart(Sound):
    """Right, and says that it may crash."""

    def __init__(self, place):
        super().__init__(place)
        self.traits = replace(self.traits, may_crash=True)


class Noted(SoundApart):
    """Notes the process of each run."""

    def load(self, sha256):
        loaded = Noting(super().load(sha256))
        loaded.file = self._store.blobs.parent / "runs"
        return loaded


class Wrong(Sound):
    """All results are off by a thousandth."""

    spoils = staticmethod(lambda program: True)

    def load(self, sha256):
        loaded = super().load(sha256)
        return Spoilt(loaded) if self.spoils(self._programs.get(sha256)) else loaded


class FarOff(Wrong):
    """All results are off by a tenth."""

    def load(self, sha256):
        loaded = super().load(sha256)
        loaded.factor = 1.1
        return loaded


class WrongOnce(Wrong):
    """Only one program of `digits` is converted wrongly, that which pools first."""

    spoils = staticmethod(lambda program: all(n in program.graph for n in (b"MaxPool", b"conv1_")))


class Raising(Sound):
    """Fails to compile."""

    def load(self, sha256):
        raise RuntimeError("this compiler has a bug")


class RaisingLate(Sound):
    """Fails in its third run of a program, when it has long been trusted."""

    def load(self, sha256):
        return FailingLate(super().load(sha256))


class Dying(Sound):
    """Takes the whole process with it."""

    def load(self, sha256):
        os.abort()


class DyingApart(Dying):
    """The same, and says that it may; another process then makes its first runs."""

    def __init__(self, place):
        super().__init__(place)
        self.traits = replace(self.traits, may_crash=True)


class DyingMeasured(SoundApart):
    """Takes the process with it when it runs what is to be measured."""

    def trial(self, program, weights, threads):
        return Deadly(super().trial(program, weights, threads))


class Endless(Sound):
    """Never compiles."""

    def trial(self, program, weights, threads):
        while True:
            time.sleep(60)


class Eating(Sound):
    """Keeps 400 MB for each program."""

    def load(self, sha256):
        loaded = super().load(sha256)
        # Piece by piece: the worker's other threads answer pings meanwhile.
        loaded.eaten = [b"x" * 4_000_000 for _ in range(100)]
        return loaded


class Spoilt(Runnable):
    factor = 1.001

    def __init__(self, sound):
        super().__init__(sound.inputs, sound.outputs, sound.blobs)
        self._sound = sound

    def _bind(self, inputs, shapes):
        ready = self._sound.bound(inputs, shapes)
        return replace(ready, compute=lambda: self.spoilt(ready.compute()))

    def spoilt(self, outputs):
        return {name: array * array.dtype.type(self.factor) for name, array in outputs.items()}


class Noting(Spoilt):
    def spoilt(self, outputs):
        with self.file.open("a") as file:
            file.write(f"{os.getpid()}\n")
        return outputs


class Deadly(Spoilt):
    def spoilt(self, outputs):
        os.abort()


class FailingLate(Spoilt):
    runs = 0

    def spoilt(self, outputs):
        self.runs += 1
        if self.runs > LEAST_ROUNDS:
            raise RuntimeError("out of luck")
        return outputs
