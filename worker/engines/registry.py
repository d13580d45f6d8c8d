"""The engines: those in this package, and those of packages with an entry point in
`imbrex.engines`. Each is a function of a `Place`, imported on demand.

A name may say more after a colon: `onnxruntime:` an execution provider, `openvino:` a device.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points, version
from importlib.util import find_spec
from pathlib import Path

from protos.daemon.extras import line_for_extra
from protos.errors import BadConfiguration, ImbrexError
from protos.wire.limits import Limits
from worker.engines import AUTO
from worker.engines.base import Engine, EngineFactory, Place, Traits

GROUP = "imbrex.engines"
DEFAULT = "onnxruntime"

_BUILT_IN = {
    DEFAULT: "worker.engines.onnxruntime:OnnxRuntime",
    "ncnn": "worker.engines.ncnn:Ncnn",
    "openvino": "worker.engines.openvino:OpenVino",
}
_PROVIDER = "worker.engines.onnxruntime:Provider"
# Providers in every wheel that compute on this CPU as the default does, or far away.
_NO_CANDIDATES = frozenset({"CPUExecutionProvider", "AzureExecutionProvider"})
# OpenVINO's other devices are Intel's, and asking OpenVINO itself takes 100 MB.
_DEVICES = {"openvino:GPU": "class/drm/renderD*", "openvino:NPU": "class/accel/accel*"}
_INTEL = "0x8086"


def engine_names() -> list[str]:
    """The names that `factory_of` knows, and `auto`, without what may follow a colon."""
    return [AUTO, *_BUILT_IN, *sorted({*_installed()} - {*_BUILT_IN})]


def factory_of(name: str) -> EngineFactory:
    """The function that creates the engine of this name, whose results nothing verifies yet.

    Raises:
        BadConfiguration: there is none, or its package cannot be imported.
    """
    base, _, option = name.partition(":")
    if base == DEFAULT and option:
        return partial(_imported(name, _PROVIDER), provider=option)
    if base == "openvino" and option:
        return partial(_imported(name, _BUILT_IN[base]), device=option)
    if name in _BUILT_IN:
        return _imported(name, _BUILT_IN[name])
    entry = _installed().get(name)
    if entry is None:
        raise BadConfiguration(
            cause=f"there is no engine {name!r}",
            cure=f"Choose one of {', '.join(engine_names())}, or install its package",
        )
    try:
        plugged: EngineFactory = entry.load()
    except (ImportError, AttributeError) as error:
        raise BadConfiguration(
            cause=f"the engine {name!r} of {entry.value} cannot be imported: {error}",
            cure="Install what that package needs, or choose another engine",
        ) from error
    return partial(_made, name, plugged)


def candidates(sysfs: Path = Path("/sys")) -> dict[str, str]:
    """The engines to choose from beside onnxruntime, each with the version of its package; `sysfs`
    is where the kernel shows devices.
    """
    import onnxruntime

    versions = {
        f"{DEFAULT}:{provider}": onnxruntime.__version__
        for provider in onnxruntime.get_available_providers()
        if provider not in _NO_CANDIDATES
    }
    if find_spec("ncnn"):
        versions["ncnn"] = version("ncnn")
    if find_spec("openvino"):
        names = [name for name, nodes in _DEVICES.items() if _has_intel(sysfs, nodes)]
        versions |= dict.fromkeys(("openvino", *names), version("openvino"))
    for name, entry in _installed().items():
        versions[name] = entry.dist.version if entry.dist else ""
    return versions


def _has_intel(sysfs: Path, nodes: str) -> bool:
    """Whether one of these devices is Intel's."""
    with suppress(OSError):
        return any(
            file.read_text().strip() == _INTEL for file in sysfs.glob(f"{nodes}/device/vendor")
        )
    return False


def _made(name: str, make: EngineFactory, place: Place) -> Engine:
    """The engine of a package, whose mistakes are errors with its name."""
    try:
        engine = make(place)
        traits = engine.traits
        if not isinstance(traits, Traits):
            raise TypeError(f"its traits are of type {type(traits).__name__}")
        if not isinstance(traits.limits, Limits | None):
            raise TypeError(f"its limits are of type {type(traits.limits).__name__}")
    except ImbrexError as error:
        raise BadConfiguration(cause=f"engine {name!r}: {error.cause}", cure=error.cure) from error
    except Exception as error:
        raise BadConfiguration(
            cause=f"the engine {name!r} cannot be used: {type(error).__name__}: {error}",
            cure="Correct its package (docs/engines.md), or choose another engine",
        ) from error
    return engine


def _imported(name: str, where: str) -> Callable[..., Engine]:
    module, _, attribute = where.partition(":")
    try:
        maker: Callable[..., Engine] = getattr(import_module(module), attribute)
    except ImportError as error:
        raise BadConfiguration(
            cause=f"the engine {name!r} is not installed: {error}",
            cure=f"{line_for_extra(name.partition(':')[0])}, or choose another engine",
        ) from error
    return maker


def _installed() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}
