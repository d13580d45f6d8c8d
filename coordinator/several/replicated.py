"""The cluster's state in a store that several coordinators share.

All documents are one value, so each change is atomic, and is stored only if nobody else has changed
the value meanwhile. Every coordinator has a copy in files, the same files that one coordinator
alone uses: it answers from them whatever happens to the store.
"""

import asyncio
import atexit
import json
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import TimeoutError as TookTooLong
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import structlog
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NothingNew
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError, ServiceUnavailableError
from nats.js.kv import KeyValue

from coordinator.several.nats_store import CALL_S, KEY, MEETING_S, StoreAddress, StoreConnection
from coordinator.several.shared_value import MOST_BYTES, Shared, dumped, parsed
from coordinator.trust.cluster_state import (
    DOCUMENTS,
    FOLDER,
    STATE_FILE,
    ClusterState,
    Entries,
    changing,
    read_entries,
)
from protos.daemon.files import write_atomically
from protos.errors import BadRequest, ImbrexError, Infeasible, PeerViolation, Unavailable
from protos.trust.identity import now_utc

# Longer than reconnecting to each of three servers takes.
CHANGE_S = 10.0
# How often the store is asked whether it still answers while nothing changes, and how often it is
# tried again after an error. Others' changes arrive at once, or with the next question.
ASK_S = 1.0
# A copy's age is stored this often, for the next start: SD cards wear.
SEEN_EVERY_S = 600.0
# Each change is written by every replica. People make a few a day.
MOST_CHANGES_A_MINUTE = 60
_MOST_TRIES = 8
_RECORD = "nats"

T = TypeVar("T")
log = structlog.get_logger(__name__)


class Replicated(ClusterState):
    """The state at an address, and its copy in the state directory."""

    def __init__(self, state_dir: Path, address: StoreAddress) -> None:
        super().__init__(state_dir)
        self.address = address
        self._record_path = state_dir / FOLDER / STATE_FILE
        kept = read_entries(self._record_path).get(_RECORD, {})
        self._epoch, self._revision = str(kept.get("epoch", "")), int(kept.get("revision", 0))
        self._seen = _moment(kept.get("seen"))
        self._failure = "it has not answered yet"
        self._stored_s = time.monotonic()
        self._changes: deque[float] = deque(maxlen=MOST_CHANGES_A_MINUTE)
        self._store = StoreConnection(address, state_dir / FOLDER / "coordinator.pem")
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._following: asyncio.Future[None] | None = None

    @property
    def url(self) -> str:
        """Where the state is."""
        return self.address.url

    @property
    def problem(self) -> str:
        """Why changes are refused, and the copy's age; empty while the store answers."""
        if not self._failure:
            return ""
        age = "of unknown age"
        if self._seen is not None:
            seconds = max(0, int((now_utc() - self._seen).total_seconds()))
            age = f"{timedelta(seconds=seconds)} old"
        return (
            f"the cluster's state at {self.address.without_password} cannot be changed: "
            f"{self._failure}; what is known here is {age}"
        )

    def change(self, names: Sequence[str], do: Callable[..., T]) -> T:
        """Changes the value in the store, then the copy."""
        return self._wait_for(self._change(names, do))

    def refresh(self) -> None:
        """Reads the store once.

        Raises:
            Unavailable: it does not answer.
        """

        async def read() -> None:
            self._take((await self._store.read())[1])

        self._wait_for(read())

    def create(self, authority: str, documents: dict[str, Entries], *, replace: bool) -> None:
        """Puts a cluster's state into a store, and records that it is there from now on.

        Raises:
            BadRequest: another cluster's state is there, and is not to be replaced.
            Unavailable: the store does not answer.
        """
        shared = Shared(secrets.token_hex(8), authority, documents)
        there = self.address.without_password

        async def put() -> None:
            bucket = await self._store.opened(create=True)
            with suppress(KeyNotFoundError):
                before = await bucket.get(KEY)
                if not replace:
                    raise BadRequest(
                        cause=f"{there} holds the state of a cluster already",
                        cure="Join that cluster (`imbrex cluster invite --coordinator` on its "
                        "coordinator), or put this state in its place with --replace",
                    )
                del before
            self._revision = await bucket.put(KEY, dumped(shared))
            self._epoch = shared.epoch
            self._current()
            self._store_record()

        self._wait_for(put(), within_s=MEETING_S + CHANGE_S)

    def follow(self) -> None:
        """Watches the store until `close`."""
        loop = self._running()

        def begin() -> None:
            self._following = asyncio.ensure_future(self._follow())

        loop.call_soon_threadsafe(begin)

    def close(self) -> None:
        """Stops watching and hangs up."""
        if self._loop is None or self._thread is None:
            return
        with suppress(TookTooLong):
            asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(CALL_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_S)
        self._loop = self._thread = None

    # ------------------------------------------------------------ in a thread of its own

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._run, args=(self._loop,), name="cluster state", daemon=True
                )
                self._thread.start()
                atexit.register(self.close)
            return self._loop

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            loop.close()

    def _wait_for(self, work: Coroutine[Any, Any, T], within_s: float = CHANGE_S) -> T:
        """The result of work in the thread; errors of the store become Unavailable."""
        doing = asyncio.run_coroutine_threadsafe(work, self._running())
        try:
            return doing.result(within_s)
        except ImbrexError:
            raise
        except (NatsError, OSError, TookTooLong) as error:
            doing.cancel()
            raise Unavailable(
                cause=f"the cluster's state at {self.address.without_password} cannot be changed: "
                f"{_told(error)}",
                cure="More than half of its servers have to run and to reach each other (see "
                "`imbrex doctor`). A change that was sent may still take effect",
            ) from error

    async def _stop(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        await self._store.hang_up()
        # The library leaves tasks behind that end some seconds after their connection.
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _follow(self) -> None:
        while True:
            try:
                await self._watch(await self._store.opened())
            except (NatsError, OSError, ImbrexError) as error:
                self._failed(error)
                await self._store.hang_up()
            except Exception as error:
                log.exception("following the cluster's state failed inside imbrex")
                self._failed(error)
                await self._store.hang_up()
            await asyncio.sleep(ASK_S)

    async def _watch(self, bucket: KeyValue) -> None:
        watcher: Any = await bucket.watch(KEY)
        try:
            while True:
                try:
                    found = await watcher.updates(timeout=ASK_S)
                except NothingNew:
                    # Also shows whether the store still answers, and whether the watch, which a
                    # server keeps in its memory, has missed something.
                    found = await bucket.get(KEY)
                if found is not None:
                    self._take(found)
        finally:
            with suppress(NatsError, OSError):
                await watcher.stop()

    async def _change(self, names: Sequence[str], do: Callable[..., T]) -> T:
        patiently = not self._failure
        for _ in range(_MOST_TRIES):
            bucket, found = await self._store.read(patiently=patiently)
            shared = parsed(found.value or b"")
            before = dumped(shared)
            result = do(*(shared.documents.setdefault(name, {}) for name in names))
            data = dumped(shared)
            if data == before:
                self._take(found)
                return result
            if len(data) > MOST_BYTES:
                raise Infeasible(
                    cause=f"the cluster's state would take {len(data)} bytes, the most is "
                    f"{MOST_BYTES}",
                    cure="Remove devices, keys or models that are not used",
                )
            now_s = time.monotonic()
            if len(self._changes) == MOST_CHANGES_A_MINUTE and now_s - self._changes[0] < 60:
                raise Unavailable(
                    cause=f"the cluster's state was changed {MOST_CHANGES_A_MINUTE} times in a "
                    "minute",
                    cure="Wait a minute; each change is written to the disks of several devices",
                )
            try:
                revision = await bucket.update(KEY, data, last=found.revision)
            except (KeyWrongLastSequenceError, ServiceUnavailableError):
                continue
            self._changes.append(now_s)
            # What others changed next may have arrived before the store's answer.
            if not self._is_older(shared, revision):
                self._accept(shared, revision)
            return result
        raise Unavailable(
            cause="the cluster's state is changed by others all the time", cure="Try again"
        )

    def _take(self, found: KeyValue.Entry) -> None:
        """Puts a value of the store in force, unless it is older than the copy."""
        if not found.value or found.revision is None:
            raise PeerViolation(cause="the value was deleted", cure=_MOVE_AGAIN)
        if found.revision == self._revision:
            self._current()
            return
        shared = parsed(found.value)
        # Else it is from a replica that has not caught up.
        if not self._is_older(shared, found.revision):
            self._accept(shared, found.revision)

    def _is_older(self, shared: Shared, revision: int) -> bool:
        return shared.epoch == self._epoch and revision < self._revision

    def _accept(self, shared: Shared, revision: int) -> None:
        own = (self._state_dir / FOLDER / "authority.pem").read_bytes()
        shared.require(own, self.entries)

        def replace(*documents: Entries) -> None:
            for name, entries in zip(DOCUMENTS, documents, strict=True):
                entries.clear()
                entries.update(shared.documents.get(name, {}))

        super().change(DOCUMENTS, replace)
        self._epoch, self._revision = shared.epoch, revision
        self._current()
        self._store_record()

    def _current(self) -> None:
        if self._failure and self._following is not None:
            log.info("the cluster's state is followed", store=self.address.without_password)
        self._failure, self._seen = "", now_utc()
        if time.monotonic() - self._stored_s > SEEN_EVERY_S:
            self._store_record()

    def _failed(self, error: BaseException) -> None:
        failure = _told(error)
        if failure != self._failure:
            self._failure = failure
            log.error("the cluster's state cannot be followed", cause=self.problem)

    def _store_record(self) -> None:
        """Writes where the state is, and how new the copy is."""
        self._stored_s = time.monotonic()
        with changing(self._record_path) as entries:
            entries[_RECORD] = {
                "url": self.address.url,
                "epoch": self._epoch,
                "revision": self._revision,
                "seen": self._seen.isoformat() if self._seen else "",
            }


def address_of(state_dir: Path) -> StoreAddress | None:
    """Where the state of the cluster is, if it is shared.

    Raises:
        BadConfiguration: the file that says so is damaged.
    """
    path = state_dir / FOLDER / STATE_FILE
    url = read_entries(path).get(_RECORD, {}).get("url")
    return StoreAddress(str(url)) if url else None


def shared_state(state_dir: Path) -> Replicated | None:
    """The state of the coordinator with this state directory, if that says that it is shared.

    Raises:
        BadConfiguration: the file that says so is damaged.
    """
    address = address_of(state_dir)
    return Replicated(state_dir, address) if address else None


def record(state_dir: Path, url: str) -> None:
    """Records where the state of a cluster is that this coordinator joins."""
    entry = json.dumps({_RECORD: {"url": url}}).encode()
    write_atomically(state_dir / FOLDER / STATE_FILE, entry + b"\n")


def _told(error: BaseException) -> str:
    """An error for people; those of the library are often empty."""
    if isinstance(error, ImbrexError):
        return error.cause
    if isinstance(error, (NothingNew, TimeoutError)):
        return "more than half of its servers do not answer"
    return str(error) or type(error).__name__


def _moment(text: object) -> datetime | None:
    with suppress(ValueError):
        return datetime.fromisoformat(str(text))
    return None


_MOVE_AGAIN = "Put the state of one coordinator there (`imbrex cluster move-state URL --replace`)"
