"""The public names of models: those of the catalogue, of models that were added or pulled, of files
that the operator configured, and of a model repository.

Only the operator gives paths. Over the network a file is named by its stem, a repository's model by
its folder, and no other file of this machine can be reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from pathlib import Path, PurePath

from coordinator.library.repository import Stored, read_repository
from coordinator.library.sharing import Sharing
from models.catalogue import catalogue
from models.catalogue.installed import Store
from models.graph.sizes import split_name
from protos.errors import NotFound, Unavailable

# The version of models that are not from a repository.
ONLY_VERSION = "1"


class Names:
    """Maps public names to sources (catalogue names or paths) and back. `detector` is the public
    name of the model that finds objects, or empty; it may be given as a path, and defaults to the
    default of `imbrex models default`. `sharing` knows what the cluster has and this coordinator
    lacks.

    Raises:
        NotFound: the detector does not exist.
    """

    def __init__(
        self,
        configured: Sequence[str],
        repository: Path | None = None,
        detector: str = "",
        sharing: Sharing | None = None,
    ) -> None:
        self._detector = public_name(detector)
        files = (*configured, detector) if detector != self._detector else configured
        self._configured = {public_name(file): file for file in files}
        self._folder = repository
        self._sharing = sharing or Sharing()
        self._store = Store()
        self._public: dict[str, tuple[str, str]] = {}
        self._replaced: Set[str] = set()
        # How often; `stamp` may change with it.
        self.refreshed = 0
        self.refresh()
        if detector:
            with suppress(Unavailable):  # it comes later
                self.source(self._detector)

    def refresh(self) -> None:
        """Reads the folders of the repository and of added models again."""
        self.refreshed += 1
        self._changed_s = self._store.changed_s()
        eager = read_repository(self._folder) if self._folder else {}
        added = read_repository(self._store.root, every_version=True) if self._changed_s else {}
        self._eager = frozenset(eager)
        self.stored: dict[str, Stored] = {**added, **eager}
        self.detector = self._detector or self._store.defaults().get("detection", "")
        # What the operator said a name stands for: of an installed model, the latest version.
        self._given = {
            name: given
            for name, given in self._configured.items()
            if given != name or name not in self.stored or not self.stored[name].versions
        }
        before = self._public.keys()
        self._public = {
            str(path): (stored.name, number)
            for stored in self.stored.values()
            for number, path in stored.versions.items()
        }
        self._replaced = (self._replaced | before) - self._public.keys()
        self._stamps = {
            str(path): stamp
            for stored in added.values()
            for path in stored.versions.values()
            if (stamp := _stamp(path)) is not None
        }

    def awaited(self) -> Mapping[str, Mapping[str, str]]:
        """The versions that the cluster has but this coordinator lacks, by name, and why."""
        return self._sharing.awaited()

    @property
    def configured(self) -> tuple[str, ...]:
        """Sources that are made ready at start: the named ones, and the repository's latest
        versions.
        """
        latest = [
            str(stored.latest)
            for stored in self.stored.values()
            if stored.versions and stored.name in self._eager
        ]
        finds = []
        if self.detector:
            with suppress(Unavailable, NotFound):  # it is to come, or was removed
                finds.append(self.source(self.detector))
        named = [
            self._given[name] if name in self._given else str(self.stored[name].latest)
            for name in self._configured
        ]
        return tuple(dict.fromkeys((*named, *latest, *finds)))

    @property
    def known(self) -> tuple[str, ...]:
        """Every public name."""
        return tuple(dict.fromkeys((*self._configured, *self.stored, *catalogue.names())))

    def source(self, name: str, version: str = "") -> str:
        """The source of a public name; without a version, the latest. A model with another input
        size, `NAME@480x640`, exists if the model does.

        Raises:
            NotFound: no such name or version.
            Unavailable: the cluster has it, and this coordinator does not have it yet.
            BadRequest: the size is not possible.
        """
        if name not in self._given and self._store.changed_s() != self._changed_s:
            self.refresh()
        if name not in self._given and name not in self.stored:
            plain, size = split_name(name)
            if size is not None and split_name(plain)[1] is not None:
                raise NotFound(cause=f"{name[:80]!r} has several sizes", cure="Name one of them")
            if size is not None:
                return f"{self.source(plain, version)}@{size}"
        if name in self._given or name not in self.stored:
            if name not in self._given and name not in catalogue.names():
                self._require_here(name, version)
                raise NotFound(
                    cause=f"there is no model {name!r}",
                    cure=f"Known models: {', '.join(self.known)}; "
                    "add others there with `imbrex models add` or `pull`, or give a file to "
                    "`imbrex coordinator --model`",
                )
            if version not in ("", ONLY_VERSION):
                raise _no_version(name, version, (ONLY_VERSION,))
            return self._given.get(name, name)
        stored = self.stored[name]
        if version and version not in stored.versions:
            self._require_here(name, version)
        if not stored.versions:
            raise NotFound(
                cause=f"the model {name!r} cannot be served: {stored.problem}",
                cure="Fix it in the model repository, then load it again",
            )
        if version and version not in stored.versions:
            raise _no_version(name, version, stored.versions)
        return str(stored.versions[version] if version else stored.latest)

    def stamp(self, source: str) -> tuple[int, int] | None:
        """Changes when a source of an installed model is another file than before."""
        return self._stamps.get(split_name(source)[0])

    def public(self, source: str) -> tuple[str, str]:
        """The public name and version of a source."""
        plain, size = split_name(source)
        if plain not in self._public:
            return public_name(source), ONLY_VERSION
        name, version = self._public[plain]
        return (name if size is None else f"{name}@{size}"), version

    def label(self, source: str) -> str:
        """The public name of a source, without a size that a client has chosen."""
        name = self.public(source)[0]
        return name if name in self._configured else split_name(name)[0]

    def is_replaced(self, source: str) -> bool:
        """Whether a source had a public name, but has none any more."""
        return split_name(source)[0] in self._replaced

    def versions(self, name: str) -> tuple[str, ...]:
        """Every available version of a public name."""
        if name not in self.stored:
            name, _ = split_name(name)
        if name in self._given or name not in self.stored:
            return (ONLY_VERSION,)
        return tuple(self.stored[name].versions)

    def labels(self, source: str, output: str) -> tuple[str, ...]:
        """Names of an output's classes, if the repository gives them."""
        plain, _ = split_name(source)
        if plain not in self._public:
            return ()
        return self.stored[self._public[plain][0]].labels.get(output, ())

    def _require_here(self, name: str, version: str) -> None:
        """Refuses what has yet to come.

        Raises:
            Unavailable: it is awaited.
        """
        awaited = self.awaited().get(name, {})
        why = awaited.get(version) if version else next(iter(awaited.values()), None)
        if why is not None:
            raise Unavailable(
                cause=f"the model {name!r} is installed in the cluster, but not yet here: {why}",
                cure="Try again in a while; the other coordinators may have it already",
            )


def public_name(source: str) -> str:
    """A configured model's name in URLs."""
    plain, size = split_name(source)
    path = PurePath(plain)
    name = path.stem if path.suffix.lower() == ".onnx" else plain
    return name if size is None else f"{name}@{size}"


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _no_version(name: str, version: str, known: Iterable[str]) -> NotFound:
    return NotFound(
        cause=f"the model {name!r} has no version {version!r}",
        cure=f"It has {', '.join(known)}",
    )
