"""Serves Frigate's `zmq` detectors: one socket for each address, several detectors on each."""

import asyncio
import time
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import structlog
import zmq
import zmq.asyncio
from fastapi import FastAPI
from zmq.utils.monitor import parse_monitor_message

from coordinator.answers import ServedModel
from coordinator.doctor.frigate import InTime
from coordinator.serving.common.interface import OptionalInterface
from coordinator.serving.frigate import detector_messages
from coordinator.serving.frigate.detector_messages import DetectionRequest, ModelSent, ModelWanted
from coordinator.serving.frigate.model_folder import ModelFolder
from coordinator.serving.frigate.outputs import rows_of, selections_of
from models.graph.graph import Graph
from models.graph.sizes import layout_of
from models.vision.head import PictureSize
from protos.errors import BadConfiguration, BadRequest, ImbrexError

if TYPE_CHECKING:
    from coordinator.service import Coordinator
    from coordinator.serving.common.tls import WebTls
FOLDER = "frigate"
# Frigate waits 30 s for a model, and gives up if it is not loaded then; loading goes on.
LOAD_S = 25.0
# A home has a handful of detectors, each with one request at a time.
MOST_AT_ONCE = 16
# Messages that wait in the socket, each as large as a body.
_WAITING = 4
# A peer's identity, an empty part, a header and its data; one more shows that there are others.
MOST_PARTS = 5
# A size for networks that ask for it (D-FINE): the second input, of two integers.
_SIZE_SHAPE = (1, 2)
_LOCAL = ("tcp://127.", "tcp://[::1]", "tcp://localhost", "ipc://")
log = structlog.get_logger(__name__)


class DetectorConnections:
    """The messages of one socket that are being answered, by connection. A detector that has given
    up closes its connection; whoever is still there would wait behind its picture.
    """

    def __init__(self, socket: zmq.asyncio.Socket) -> None:
        self._closed = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._answering: dict[int, asyncio.Task[None]] = {}

    def answering(self, connection: int, task: asyncio.Task[None]) -> None:
        """The message that was last read of a connection is answered by `task`."""
        # The system gives a connection the number of one that was closed. ZeroMQ tells of that
        # before anything of the new one can be read.
        closed: zmq.Socket[bytes] = zmq.Socket.shadow(self._closed)
        while closed.poll(0):
            self._cancel(closed.recv_multipart())
        self._answering[connection] = task
        task.add_done_callback(lambda _: self._ended(connection, task))

    async def follow(self) -> None:
        """Cancels what nobody waits for any more, until it is cancelled itself."""
        while True:
            self._cancel(await self._closed.recv_multipart())

    def _cancel(self, told: list[bytes]) -> None:
        task = self._answering.pop(int(parse_monitor_message(told)["value"]), None)
        if task is not None:
            task.cancel()

    def _ended(self, connection: int, task: asyncio.Task[None]) -> None:
        if self._answering.get(connection) is task:
            del self._answering[connection]


class FrigateServer(OptionalInterface):
    """The sockets of one coordinator."""

    def __init__(self, app: FastAPI, coordinator: "Coordinator") -> None:
        super().__init__(app, coordinator)
        self._kept = ModelFolder(coordinator.settings.state_dir / FOLDER)
        self._context: zmq.asyncio.Context | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._free = asyncio.Semaphore(MOST_AT_ONCE)
        self._source = ""
        self._loading: asyncio.Task[None] | None = None
        self._refused_s = 0.0

    async def start(self, tls: "WebTls | None") -> Mapping[str, str]:
        """Listens on every endpoint of the settings, `tcp://ADDRESS:PORT` or `ipc://PATH`.

        Raises:
            BadConfiguration: one is not usable, taken, or open to every network.
        """
        self._context = zmq.asyncio.Context()
        for endpoint in self.coordinator.settings.frigate_zmq:
            socket = self._context.socket(zmq.ROUTER)
            socket.setsockopt(zmq.MAXMSGSIZE, self.coordinator.settings.max_body_bytes)
            socket.setsockopt(zmq.RCVHWM, _WAITING)
            socket.setsockopt(zmq.LINGER, 0)
            try:
                if not endpoint.startswith(("tcp://", "ipc://")) or "://*" in endpoint:
                    raise BadConfiguration(
                        cause=f"frigate_zmq: {endpoint!r} names no address of this device",
                        cure="Use tcp://127.0.0.1:5555, an address of this device, or ipc://PATH.",
                    )
                socket.bind(endpoint)
            except zmq.ZMQError as error:
                socket.close()
                raise BadConfiguration(
                    cause=f"cannot listen on {endpoint}: {error}",
                    cure="Choose another address or port for frigate_zmq.",
                ) from error
            if not endpoint.startswith(_LOCAL):
                log.warning("open without key or TLS", endpoint=endpoint, cure="docs/frigate.md")
            log.info("frigate's detectors", endpoint=endpoint)
            self._start(self._serve(socket))
        return await super().start(tls)

    async def stop(self) -> None:
        """Closes every socket."""
        for task in self._tasks | ({self._loading} if self._loading else set()):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._context is not None:
            self._context.destroy(linger=0)

    def _start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _serve(self, socket: zmq.asyncio.Socket) -> None:
        connections = DetectorConnections(socket)
        self._start(connections.follow())
        while True:
            await self._free.acquire()
            connection, frames = await _received(socket)
            task = self._start(self._answer(socket, frames))
            task.add_done_callback(lambda _: self._free.release())
            connections.answering(connection, task)

    async def _answer(self, socket: zmq.asyncio.Socket, frames: list[bytes]) -> None:
        """A peer's identity, an empty frame, and a message; the same for the answer."""
        answer = await self._answered(frames[2:])
        # A peer that has given up is not there any more: ZeroMQ drops its answer.
        await socket.send_multipart([*frames[:2], *answer])

    async def _answered(self, frames: list[bytes]) -> list[bytes]:
        try:
            message = detector_messages.read(frames)
            match message:
                case ModelWanted(name):
                    path = await asyncio.to_thread(self._kept.find, name)
                    loaded = path is not None and await self._loaded(path)
                    return detector_messages.availability(available=path is not None, loaded=loaded)
                case ModelSent(name, data):
                    loaded = await self._loaded(await asyncio.to_thread(self._kept.add, name, data))
                    log.info("frigate sent a model", model=name, bytes=len(data), loaded=loaded)
                    return detector_messages.receipt(saved=True, loaded=loaded)
                case DetectionRequest():
                    return detector_messages.detections(await self._detected(message))
        except ImbrexError as error:
            # At most once a second: cameras ask many times.
            now = time.monotonic()
            if now - self._refused_s >= 1.0:
                self._refused_s = now
                log.warning("frigate gets no answer", cause=error.cause, cure=error.cure)
        except Exception:
            log.exception("a message of frigate cannot be answered")
        return detector_messages.NOTHING

    async def _loaded(self, path: Path) -> bool:
        """Whether the model is ready in time. Loading goes on if not; a model that cannot be used
        is removed.
        """
        if str(path) != self._source or self._loading is None:
            if self._loading is not None:
                self._loading.cancel()
            self._source = str(path)
            self._loading = asyncio.create_task(self.coordinator.served.load(str(path)))
            self._loading.add_done_callback(lambda _: None)
        try:
            await asyncio.wait_for(asyncio.shield(self._loading), LOAD_S)
        except TimeoutError:
            log.warning("a model is still being loaded", model=path.name, after_s=LOAD_S)
            return False
        except BadRequest as error:
            log.error("frigate's model cannot be used", cause=error.cause, cure=error.cure)
            self._loading, self._source = None, ""
            await asyncio.to_thread(self._kept.drop, path)
            return False
        except ImbrexError as error:
            log.error("frigate's model is not ready", cause=error.cause, cure=error.cure)
            self._loading = None
            return False
        with suppress(ImbrexError):  # a plan that is lost is made anew with the first picture
            log_in_time(await self.coordinator.doctor.frigate_in_time(self._source))
        return True

    async def _detected(self, picture: DetectionRequest) -> np.ndarray:
        served = await self._served()
        graph = served.network.graph
        feeds, size = _feeds(graph, picture.tensor)
        selections = selections_of(picture.model_type, graph.output_shapes)
        async with self.coordinator.answering(served, feeds, selections=selections) as answer:
            outputs = [answer.outputs[name] for name in graph.outputs]
            return await asyncio.to_thread(rows_of, picture.model_type, outputs, size)

    async def _served(self) -> ServedModel:
        """The model in use; after a restart of the coordinator, the latest that was sent."""
        if not self._source:
            path = await asyncio.to_thread(self._kept.find, "")
            if path is None:
                raise BadRequest(
                    cause="a picture before any model", cure="Restart Frigate: it sends the model."
                )
            await self._loaded(path)
        return await self.coordinator.library.get(self._source)


def log_in_time(found: InTime) -> None:
    """Says whether Frigate waits for answers, and the timeout to set."""
    told = log.info if found.holds else log.warning
    told(
        "frigate's timeout",
        detectors=found.detectors,
        predicted_ms=round(found.predicted_s * 1e3),
        in_time=found.holds,
        cure=found.cure,
    )


async def _received(socket: zmq.asyncio.Socket) -> tuple[int, list[bytes]]:
    """The next message's connection and its parts, as many as count; ZeroMQ itself sets no limit.
    Once the first is there all are, and are read at once.
    """
    first = await socket.recv(copy=False)
    parts = [first.bytes]
    rest: zmq.Socket[bytes] = zmq.Socket.shadow(socket)
    while socket.getsockopt(zmq.RCVMORE):
        part = rest.recv(zmq.NOBLOCK)
        if len(parts) < MOST_PARTS:
            parts.append(part)
    return int(first.get(zmq.SRCFD)), parts


def _feeds(graph: Graph, tensor: np.ndarray) -> tuple[dict[str, np.ndarray], PictureSize]:
    """The network's inputs for a picture, and the picture's (height, width).

    Raises:
        BadRequest: the network takes something else.
    """
    name, *others = graph.inputs
    info = graph.tensors[name]
    layout = layout_of(info.shape)
    if tensor.ndim == 4:
        # Frigate's layout is a setting of its own.
        turns = (tensor, tensor.transpose(0, 3, 1, 2), tensor.transpose(0, 2, 3, 1))
        ways = (way for turn in turns for way in (turn, turn[0]))
        tensor = np.ascontiguousarray(
            next((way for way in ways if way.shape == info.shape), tensor)
        )
    if tensor.shape != info.shape or tensor.dtype != info.dtype or layout is None:
        raise BadRequest(
            cause=f"Frigate sends {tensor.dtype} {tensor.shape}, the model takes {info.dtype} "
            f"{info.shape}",
            cure="Set width, height, input_tensor and input_dtype in Frigate's `model:` section.",
        )
    size = (info.shape[layout.index("H")], info.shape[layout.index("W")])
    feeds = {name: tensor}
    for other in others:
        if graph.tensors[other].shape == _SIZE_SHAPE:
            feeds[other] = np.array([size[::-1]], graph.tensors[other].dtype)  # width first
    return feeds, size
