"""The engines: those in this package, and those of packages with an entry point in
`imbrex.engines`. Each is a function of a `Place`, imported on demand.
"""

from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from protos.errors import BadConfiguration
from worker.engines.base import Maker

GROUP = "imbrex.engines"
DEFAULT = "onnxruntime"

_BUILT_IN = {DEFAULT: "worker.engines.onnxruntime:OnnxRuntime"}


def engine_names() -> list[str]:
    """The names that `engine_maker` knows, sorted."""
    return [*_BUILT_IN, *sorted({*_installed()} - {*_BUILT_IN})]


def engine_maker(name: str) -> Maker:
    """The function that creates the engine of this name.

    Raises:
        BadConfiguration: there is none, or its package cannot be imported.
    """
    where = _BUILT_IN.get(name)
    if where is not None:
        module, _, attribute = where.partition(":")
        maker: Maker = getattr(import_module(module), attribute)
        return maker
    found = _installed().get(name)
    if found is None:
        raise BadConfiguration(
            cause=f"there is no engine {name!r}",
            cure=f"Choose one of {', '.join(engine_names())}, or install its package",
        )
    try:
        plugged: Maker = found.load()
    except (ImportError, AttributeError) as error:
        raise BadConfiguration(
            cause=f"the engine {name!r} of {found.value} cannot be imported: {error}",
            cure="Install what that package needs, or choose another engine",
        ) from error
    return plugged


def _installed() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}
