"""Downloads one file over HTTP: resumable, and accepted only if its hash is right.

A partial download is kept beside the target as `.part`. It is hashed again before more is appended,
so a part of another file ends with a wrong hash and never as a model.
"""

import hashlib
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import httpx

from models.catalogue.installed import SPARE_BYTES
from models.tensors.memory import megabytes
from protos.daemon.urls import shown
from protos.errors import BadConfiguration, NotFound, PeerViolation, Unavailable

CONNECT_S, READ_S = 10.0, 30.0
# Attempts in a row without progress; Wi-Fi may drop several times during hundreds of megabytes.
ATTEMPTS = 4
WAIT_S = 1.0

Told = Callable[[int], None]
"""A callback with the number of bytes so far."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """The file: its URL, size and hash."""

    url: str
    size_bytes: int
    sha256: str

    @property
    def shown(self) -> str:
        """Its URL for people."""
        return shown(self.url, port=True, path=True)


class _Broken(Exception):
    """The connection ended early."""


def download(
    wanted: RemoteFile, target: Path, told: Told, wait: Callable[[float], None] = time.sleep
) -> None:
    """Downloads the file to `target`, continuing an earlier attempt.

    Raises:
        NotFound: the server does not have it.
        PeerViolation: the server has another file.
        Unavailable: the server does not answer, or the connection breaks repeatedly.
        BadConfiguration: the disk is full or cannot be written, or the URL is invalid.
    """
    part = target.with_name(f"{target.name}.part")
    _require_space(wanted, part)
    failures, least = 0, _size(part)
    with _client(wanted) as client:
        while _size(part) != wanted.size_bytes:
            try:
                _fetch(client, wanted, part, told)
            except (httpx.TransportError, _Broken) as error:
                now = _size(part)
                failures = 0 if now > least else failures + 1
                least = max(now, least)
                if failures >= ATTEMPTS:
                    raise Unavailable(
                        cause=f"{wanted.shown} could not be downloaded "
                        f"({str(error) or type(error).__name__})",
                        cure="Check the network and try again: it continues where it stopped",
                    ) from error
                wait(WAIT_S * 2**failures)
    _require_right(part, wanted)
    part.replace(target)


def is_right(file: Path, sha256: str) -> bool:
    """Whether a file has this hash."""
    return _hash(file) == sha256


def _require_right(part: Path, wanted: RemoteFile) -> None:
    """Removes a wrong file: the next attempt starts from the beginning."""
    found = _hash(part)
    if found != wanted.sha256:
        part.unlink()
        raise PeerViolation(
            cause=f"{wanted.shown} is another file: its SHA-256 is {found}, not {wanted.sha256}",
            cure="Try again; if it happens again, do not trust this server with this file",
        )


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetch(client: httpx.Client, wanted: RemoteFile, part: Path, told: Told) -> None:
    """Appends the missing bytes to the part, as far as they arrive."""
    there = _size(part)
    if there > wanted.size_bytes:
        part.unlink()
        there = 0
    headers = {"Accept-Encoding": "identity"}
    if there:
        headers["Range"] = f"bytes={there}-"
    with client.stream("GET", wanted.url, headers=headers) as response:
        if response.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            part.unlink(missing_ok=True)
            raise _Broken("the partial download is of another file")
        _require_ok(response, wanted)
        # Whether the response continues the part; a server without ranges sends everything again.
        resumed = (
            there > 0
            and response.status_code == HTTPStatus.PARTIAL_CONTENT
            and response.headers.get("content-range", "").startswith(f"bytes {there}-")
        )
        if not resumed:
            there = 0
        with _writing(part, append=resumed) as write:
            for chunk in response.iter_raw():  # unbuffered, so that everything received is kept
                there += len(chunk)
                if there > wanted.size_bytes:
                    raise _wrong_size(wanted, f"more than {wanted.size_bytes}")
                write(chunk)
                told(there)
    if there < wanted.size_bytes:
        announced = response.headers.get("content-length")
        if announced is not None and not resumed and int(announced) == there:
            part.unlink()
            raise _wrong_size(wanted, str(there))
        raise _Broken(f"it ended after {there} of {wanted.size_bytes} bytes")


def _require_ok(response: httpx.Response, wanted: RemoteFile) -> None:
    status = response.status_code
    if status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
        raise NotFound(
            cause=f"there is nothing at {wanted.shown}", cure="Name another server with --base-url"
        )
    if status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise _Broken(f"the server says {status}")
    if not response.is_success:
        raise Unavailable(
            cause=f"{wanted.shown} is refused: {status} {response.reason_phrase}",
            cure="Name another server with --base-url",
        )


def _wrong_size(wanted: RemoteFile, found: str) -> PeerViolation:
    return PeerViolation(
        cause=f"{wanted.shown} is another file: it has {found} bytes, not {wanted.size_bytes}",
        cure="Name another server with --base-url",
    )


def _require_safe_way(response: httpx.Response) -> None:
    """Follows a redirect. From TLS it may not lead to a server without TLS: others could see and
    change the request. Nor may it lead to anything but an HTTP server.
    """
    if not response.has_redirect_location:
        return
    following = response.url.join(response.headers["location"])
    if following.scheme == "https" or following.scheme == response.url.scheme == "http":
        return
    where = following.copy_with(username=None, password=None, query=None, fragment=None)
    raise Unavailable(
        cause=f"{shown(str(response.url), port=True, path=True)} redirects to {where}, which does "
        "not use TLS",
        cure="Name another server with --base-url",
    )


def _require_space(wanted: RemoteFile, part: Path) -> None:
    missing = wanted.size_bytes - _size(part) + SPARE_BYTES
    free = shutil.disk_usage(part.parent).free
    if free < missing:
        raise BadConfiguration(
            cause=f"{part.parent} needs {megabytes(missing)}, but has {megabytes(free)} free",
            cure="Free some space, or set another folder with IMBREX_MODELS",
        )


def _size(part: Path) -> int:
    try:
        return part.stat().st_size
    except FileNotFoundError:
        return 0


@contextmanager
def _writing(part: Path, *, append: bool) -> Iterator[Callable[[bytes], int]]:
    """Writes to the part; if the disk is full, what was written stays."""
    try:
        with part.open("ab" if append else "wb") as file:
            yield file.write
    except OSError as error:
        raise BadConfiguration(
            cause=f"{part} cannot be written ({error.strerror})",
            cure="Free some space and try again: it continues where it stopped",
        ) from error


@contextmanager
def _client(wanted: RemoteFile) -> Iterator[httpx.Client]:
    try:
        if httpx.URL(wanted.url).scheme not in ("http", "https"):
            raise httpx.InvalidURL("it does not begin with https://")
        timeout = httpx.Timeout(READ_S, connect=CONNECT_S)
        hooks = {"response": [_require_safe_way]}
        with httpx.Client(timeout=timeout, follow_redirects=True, event_hooks=hooks) as client:
            yield client
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise BadConfiguration(
            cause=f"{wanted.shown} is not a URL", cure="Write it as https://HOST/PATH"
        ) from error
    except httpx.TooManyRedirects as error:
        raise Unavailable(
            cause=f"{wanted.shown} redirects in a circle",
            cure="Name another server with --base-url",
        ) from error
