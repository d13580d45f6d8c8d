"""Makes the models of this coordinator those of the cluster: what is new here is listed, what was
removed elsewhere is removed, and what is missing is fetched from whoever has it.
"""

import asyncio
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path

import structlog

from coordinator.devices.announcements import Announcements
from coordinator.library.sharing import ModelsChanged, Sharing
from coordinator.several import listed
from coordinator.several.borrowing import fetch, reserved, size_of, verify
from coordinator.several.lender import Lender
from coordinator.several.listed import Listed, ListedFile, ListedFiles
from coordinator.several.shared_store import SharedStore, files_of, is_as_marked
from coordinator.several.where import ADDRESS, own_address, sources
from coordinator.trust.cluster_state import COORDINATORS, DEFAULTS, MODELS, Entries
from coordinator.trust.trust import Trust
from models.catalogue.installed import Store
from models.tensors.memory import megabytes
from models.vision.heads import TASKS
from protos.errors import BadRequest, ImbrexError, Unavailable

# How often the folder and the state are looked at.
LOOK_S = 0.5
# When what could not be fetched is tried again: at first, and at most.
FIRST_AGAIN_S, LAST_AGAIN_S = 1.0, 30.0
# When changes of the cluster's state that were refused are tried again.
REFUSED_S = 5.0
# Addresses change with leases.
ADDRESS_S = 60.0
# Versions fetched at a time, the smallest first: a small one does not wait for a large one.
MOST_FETCHES = 4

log = structlog.get_logger(__name__)

_Version = tuple[str, int]


@dataclass(slots=True)
class _Survey:
    """Versions in the folder: those of the cluster, with the folder of each; those that it does not
    list (yet), with their files; those that were removed; those of the cluster that were changed
    here, and what is wrong with them; and what is wrong with others.
    """

    here: dict[_Version, Path] = field(default_factory=dict)
    unlisted: dict[_Version, ListedFiles] = field(default_factory=dict)
    removed: list[_Version] = field(default_factory=list)
    edited: dict[_Version, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


class Follower(Sharing):
    """Announces that versions came or went. It gives files at `host:port`."""

    def __init__(
        self, store: SharedStore, trust: Trust, host: str, port: int, announcements: Announcements
    ) -> None:
        certified = trust.certified
        assert certified is not None, "only a cluster with an authority shares its state"
        self._store = store
        self._state = store.state
        self._trust = trust
        self._host = host
        self._port = port
        self._announcements = announcements
        self._lender = Lender(certified.credentials, host, port)
        self._found = _Survey()
        self._listed: Mapping[_Version, ListedFiles] = {}
        # What was there at the last look, and when the next one is due even if nothing changes.
        self._seen: tuple[Entries, Entries, float] | None = None
        self._look_s = 0.0
        self._address_s = 0.0
        self._problems: list[str] = []
        # Of versions that are missing: why, when they are tried again and the pause after that,
        # and those that are fetched now.
        self._why: dict[_Version, str] = {}
        self._again: dict[_Version, tuple[float, float]] = {}
        self._fetches: dict[_Version, asyncio.Task[None]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, state_dir: Path) -> None:
        """Starts giving and fetching.

        Raises:
            BadConfiguration: the port is taken.
        """
        self._port = await self._lender.start()
        try:
            await asyncio.to_thread(self._store.serve_from, state_dir)
        except ImbrexError as error:
            log.error("models of the cluster cannot be kept", cause=error.cause, cure=error.cure)
        loops = (self._admit, self._follow, self._fetch)
        self._tasks = [asyncio.create_task(loop()) for loop in loops]

    async def stop(self) -> None:
        """Stops both."""
        tasks = [*self._tasks, *self._fetches.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._lender.stop()

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong besides versions that are missing."""
        return tuple(self._problems)

    def awaited(self) -> dict[str, dict[str, str]]:
        """The versions that are installed in the cluster but not here, by name: each with the
        reason.
        """
        found: dict[str, dict[str, str]] = {}
        for name, number in self._missing():
            why = self._why.get((name, number), "it is about to be fetched")
            found.setdefault(name, {})[str(number)] = why
        return found

    def _missing(self) -> dict[_Version, ListedFiles]:
        here = self._found.here
        return {version: files for version, files in self._listed.items() if version not in here}

    async def _admit(self) -> None:
        while True:
            try:
                self._lender.allow(self._trust.coordinators())
            except ImbrexError as error:
                log.error("the list of coordinators cannot be read", cause=error.cause)
            except Exception:
                log.exception("the list of coordinators cannot be followed")
            await asyncio.sleep(LOOK_S)

    # ------------------------------------------------------------ following

    async def _follow(self) -> None:
        while True:
            try:
                await self._say_where()
                await self._look()
            except ImbrexError as error:
                self._trouble(error.cause)
            except OSError as error:
                self._trouble(f"the models' folder cannot be used: {error}")
            except Exception as error:
                log.exception("the cluster's models cannot be followed")
                self._trouble(repr(error))
            await asyncio.sleep(LOOK_S)

    def _trouble(self, cause: str) -> None:
        if cause not in self._problems:
            log.warning("the cluster's models cannot be followed", cause=cause)
        self._problems = [cause]
        self._look_s = time.monotonic() + REFUSED_S

    async def _say_where(self) -> None:
        if time.monotonic() < self._address_s:
            return
        self._address_s = time.monotonic() + REFUSED_S
        address = await asyncio.to_thread(own_address, self._state.url, self._host, self._port)
        own = self._state.entries(COORDINATORS).get(self._store.own_id)
        if own is None or not address:
            return
        if own.get(ADDRESS) != address:

            def note(coordinators: Entries) -> None:
                if self._store.own_id in coordinators:
                    coordinators[self._store.own_id][ADDRESS] = address

            await asyncio.to_thread(self._state.change, (COORDINATORS,), note)
            log.info("other coordinators fetch models here", address=address)
        self._address_s = time.monotonic() + ADDRESS_S

    async def _look(self) -> None:
        entries, defaults = self._state.entries(MODELS), self._state.entries(DEFAULTS)
        seen = (entries, defaults, self._store.changed_s())
        if seen == self._seen and time.monotonic() < self._look_s:
            return
        self._seen = seen
        models, problems = listed.read(entries)
        found = await asyncio.to_thread(survey, self._store, models)
        before, self._found = self._found, found
        self._listed = {
            (name, number): files
            for name, entry in models.items()
            for number, files in entry.versions.items()
        }
        self._lender.paths = {
            file.sha256: folder / name
            for version, folder in found.here.items()
            if version not in found.edited
            for name, file in self._listed[version].items()
        }
        for name, number in found.removed:
            await asyncio.to_thread(self._store.delete, name, (number,))
            log.info("model removed, as at another coordinator", model=name, version=number)
        if found.unlisted:
            await asyncio.to_thread(self._list, found.unlisted)
        await asyncio.to_thread(self._follow_defaults, defaults)
        await asyncio.to_thread(self._forget_parts)
        self._problems = [*problems, *found.problems, *found.edited.values()]
        self._look_s = inf
        if before.here.keys() != found.here.keys():
            self._announcements.announce(ModelsChanged())

    def _list(self, unlisted: Mapping[_Version, ListedFiles]) -> None:
        """Lists versions that are new in this folder; one whose number is taken gets another."""

        def add(entries: Entries) -> dict[_Version, int]:
            return {
                version: listed.add(entries, *version, files)
                for version, files in sorted(unlisted.items())
            }

        given = self._state.change((MODELS,), add)
        # From the highest on, so that none is in the way of another.
        for (name, number), now in sorted(given.items(), reverse=True):
            folder = self._store.root / name / str(number)
            self._store.mark(folder, unlisted[name, number])
            folder.rename(folder.with_name(str(now)))
            log.info("model listed in the cluster", model=name, version=now)

    def _follow_defaults(self, entries: Entries) -> None:
        here = self._store.defaults()
        told = {task: str(entry["model"]) for task, entry in entries.items()}
        own = {task: {"model": name} for task, name in here.items() if task not in told}
        if own:
            self._state.change((DEFAULTS,), lambda known: known.update({**own, **known}))
        for task in TASKS:
            name = told.get(task, here.get(task))
            if name != here.get(task) and name and self._store.find(name) is not None:
                Store.choose(self._store, task, name)  # here only: the cluster knows

    # ------------------------------------------------------------ fetching

    async def _fetch(self) -> None:
        while True:
            try:
                self._fetch_missing()
            except Exception:
                log.exception("the cluster's models cannot be fetched")
            await asyncio.sleep(LOOK_S)

    def _fetch_missing(self) -> None:
        """Begins to fetch what is missing and due, and stops what is not wanted any more."""
        missing = self._missing()
        for version in self._fetches.keys() - missing.keys():
            self._fetches[version].cancel()
        self._why = {version: why for version, why in self._why.items() if version in missing}
        self._again = {version: due for version, due in self._again.items() if version in missing}
        sizes = {
            version: sum(file.size_bytes for file in files.values())
            for version, files in missing.items()
        }
        for version in sorted(missing, key=lambda version: sizes[version]):
            due_s, _ = self._again.get(version, (0.0, 0.0))
            is_due = version not in self._fetches and time.monotonic() >= due_s
            if is_due and len(self._fetches) < MOST_FETCHES:
                fetching = asyncio.create_task(self._try(version, missing[version]))
                self._fetches[version] = fetching
                # Also of one that is cancelled before it begins.
                fetching.add_done_callback(partial(self._ended, version))

    async def _try(self, version: _Version, files: ListedFiles) -> None:
        name, number = version
        try:
            await self._complete(version, files)
            log.info("model installed, as at another coordinator", model=name, version=number)
            self._announcements.announce(ModelsChanged())
        except (ImbrexError, OSError) as error:
            why = error.cause if isinstance(error, ImbrexError) else str(error)
            if version not in self._again:
                what = {"model": name, "version": number, "cause": why}
                log.warning("a model of the cluster is missing", **what)
            self._why[version] = why
            _, pause_s = self._again.get(version, (0.0, FIRST_AGAIN_S))
            following_s = min(2 * pause_s, LAST_AGAIN_S)
            self._again[version] = (time.monotonic() + pause_s, following_s)

    def _ended(self, version: _Version, fetching: asyncio.Task[None]) -> None:
        del self._fetches[version]
        if not fetching.cancelled() and (fault := fetching.exception()) is not None:
            log.error("fetching a model failed inside imbrex", version=version, exc_info=fault)

    async def _complete(self, version: _Version, files: ListedFiles) -> None:
        """Fetches what is missing of a version, and installs it.

        Raises:
            ImbrexError, OSError: why it is not complete.
        """
        folder = await asyncio.to_thread(self._store.incoming)
        for name, file in files.items():
            there = folder / self._incoming(version, name, file)
            # It has this name once it is verified.
            if not there.exists():
                await self._borrow(version, file, there)
        await asyncio.to_thread(self._install, version, files)
        self._found.here[version] = self._store.root / version[0] / str(version[1])

    async def _borrow(self, version: _Version, file: ListedFile, target: Path) -> None:
        if (own := self._lender.paths.get(file.sha256)) is not None:
            part = target.with_name(f"{target.name}.part")
            with reserved(part.parent, part, file.size_bytes - size_of(part)):
                await asyncio.to_thread(shutil.copyfile, own, part)
            await asyncio.to_thread(verify, part, file)
            part.replace(target)
            return
        reasons = []
        for source in sources(self._state.entries(COORDINATORS), self._store.own_id):
            # Only continued by who began it: what another one sends may be of another file.
            part = target.with_name(f"{target.name}.{source.id}.part")
            self._why[version] = f"{megabytes(file.size_bytes)} are fetched from {source.name}"
            try:
                await fetch(source, self._trust.caller, file, part)
            except ImbrexError as error:
                reasons.append(
                    f"{source.name}: {error.cause} ({megabytes(size_of(part))} are here)"
                )
            else:
                part.replace(target)
                return
        raise Unavailable(
            cause="; ".join(reasons) or "no other coordinator has said where it can be asked",
            cure="It is tried again by itself",
        )

    def _install(self, version: _Version, files: ListedFiles) -> None:
        name, number = version
        incoming = self._store.incoming()

        def write(made: Path) -> None:
            for own, file in files.items():
                (incoming / self._incoming(version, own, file)).rename(made / own)
            self._store.mark(made, files)

        if not (self._store.root / name / str(number)).exists():
            self._store.put(name, write, lambda *_: number)

    def _incoming(self, version: _Version, name: str, file: ListedFile) -> str:
        return f"{self._store.own_id}-{version[0]}-{version[1]}-{name}-{file.sha256[:32]}"

    def _forget_parts(self) -> None:
        """Deletes what was fetched of versions that are not missing any more."""
        wanted = {
            self._incoming(version, name, file)
            for version, files in self._missing().items()
            for name, file in files.items()
        }
        for folder in (self._store.root / ".incoming").glob(f"{self._store.own_id}-*"):
            if not any(folder.name.startswith(one) for one in wanted):
                folder.unlink(missing_ok=True)


def survey(store: SharedStore, models: Mapping[str, Listed]) -> _Survey:
    """What is in the folder. Files are read only if they may have changed since they were marked as
    the cluster's.

    Raises:
        BadConfiguration, OSError: it cannot be read.
    """
    found = _Survey()
    for name, installed in store.installed().items():
        for number, path in installed.versions.items():
            try:
                _see(store, (name, number), path.parent, models.get(name), found)
            except BadRequest as error:
                found.problems.append(f"{name} {number}: {error.cause}")
    return found


def _see(
    store: SharedStore, version: _Version, folder: Path, known: Listed | None, found: _Survey
) -> None:
    marked = store.marked(folder)
    wanted = known.versions.get(version[1]) if known else None
    is_fresh = marked is not None and is_as_marked(folder, marked)
    files = marked if marked is not None and is_fresh else files_of(folder)
    if wanted == files:
        if not is_fresh:
            store.mark(folder, files)
        found.here[version] = folder
    elif marked is not None and wanted is not None:
        found.edited[version] = (
            f"{version[0]} {version[1]} was changed here, and is another one at the other "
            "coordinators: add it as a new version, or delete its folder to get theirs"
        )
        found.here[version] = folder
    elif marked is not None and known is not None and version[1] <= known.newest:
        found.removed.append(version)
    else:
        found.unlisted[version] = files
