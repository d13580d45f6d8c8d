"""The worker daemon: assembles the parts, reports when it is ready, and stops cleanly.

When it is ready, it writes `ready.json` with {"address", "data_port", "id", "pid"} to the state
directory.
"""

from __future__ import annotations

import asyncio
import gc
import shutil
import signal
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

import structlog
import uvloop
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from models.tensors.memory import tensors_cap_bytes, weights_cap_bytes
from protos.daemon.files import alone_in
from protos.daemon.logs import log_to_stderr
from protos.daemon.ports import listen
from protos.daemon.process_memory import cap_memory, keep_buffers
from protos.daemon.supervision import ready_file, serving
from protos.errors import BadConfiguration
from protos.rpc.channels import Caller, make_gate, make_server, require_proof
from protos.rpc.serving import SERVICE, register
from protos.wire.endpoint import Endpoint
from worker.compute.compute import Compute, Throttle
from worker.compute.cores import settled
from worker.compute.measure import Measurer
from worker.compute.sessions import Sessions
from worker.engines import AUTO
from worker.engines.base import Engine, Place
from worker.engines.pick import pick_engine
from worker.engines.registry import DEFAULT, factory_of
from worker.engines.verified import Verified
from worker.exchange.exchange import TaskExchange
from worker.exchange.exchange_service import GrpcService, WorkerParts
from worker.machine.advertise import Advertisement
from worker.machine.device_identity import device_id
from worker.peers.listener import DataListener
from worker.peers.offers import Offers
from worker.programs.store import BlobStore
from worker.settings import WorkerSettings
from worker.tasks.state import Tasks
from worker.trust.certificate import TrustUpdates, credentials_in, watch_clock
from worker.trust.coordinators_seen import Hosts

READY_FILE = "ready.json"

# Grace period for a running task; after this long the host would consider it lost anyway.
_DRAIN_S = 5.0

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class WorkerHardware:
    """The throttle of runs, the name of the engine, and the cost of messages."""

    throttle: Throttle
    engine: str = DEFAULT
    endpoint: Endpoint = field(default_factory=Endpoint)

    @classmethod
    def of(cls, settings: WorkerSettings) -> WorkerHardware:
        """The hardware of this machine.

        Raises:
            BadConfiguration: no such engine, or one that cannot be paced.
        """
        name = settings.engine
        if settings.pace < 1 and name == AUTO:
            name = DEFAULT
        if settings.pace < 1 and name != DEFAULT:
            raise BadConfiguration(
                cause=f"the engine {name!r} cannot be slowed down to a pace of {settings.pace}",
                cure=f"Set pace = 1, or engine = {DEFAULT}: the CPU time of others is not known",
            )
        if name != AUTO:
            factory_of(name)
        return cls(Throttle(settings.pace), name)

    def make_engine(self, place: Place) -> Engine:
        """The engine.

        Raises:
            BadConfiguration: it cannot be used here.
        """
        return pick_engine(self.engine, place)


async def run(
    settings: WorkerSettings,
    stop: asyncio.Event | None = None,
    hardware: WorkerHardware | None = None,
) -> None:
    """Serves until `stop` is set, or SIGTERM or SIGINT comes; on this computer, or as `hardware`.

    Raises:
        BadConfiguration: a setting, the state directory or the port cannot be used.
    """
    stop = stop or _stop_on_signals()
    hardware = hardware or WorkerHardware.of(settings)
    own_id = device_id(settings.state_dir)
    version = installed_version("imbrex")
    keep_buffers(settings.memory_bytes)
    async with AsyncExitStack() as stack:
        stack.enter_context(alone_in(settings.state_dir, "worker"))
        credentials = await credentials_in(
            settings.state_dir, settings.join, own_id, settings.shown_name
        )
        require_proof(settings.host, settings.secret, credentials)
        if credentials is not None:
            stack.callback(asyncio.create_task(watch_clock(credentials)).cancel)
        store = BlobStore(settings.state_dir, settings.disk_mb * 1_000_000)
        settings, engine = await asyncio.to_thread(_engine, settings, store, hardware, stack)
        compute = Compute(hardware.throttle, settings.nice, settings.concurrency)
        stack.callback(compute.close)
        memory_bytes = engine.memory_bytes(settings.memory_bytes)
        sessions = Sessions(engine, store, weights_cap_bytes(memory_bytes))
        store.in_use = sessions.blobs_in_use
        # Half for tensors, half for weights; the runtime's own memory is in the 25 % left out.
        tasks = Tasks(own_id, tensors_cap_bytes(memory_bytes))
        caller = Caller(own_id, settings.secret, hardware.endpoint, credentials)
        gate, offers = make_gate(settings.secret, credentials), Offers()
        exchange = TaskExchange(tasks, sessions, compute, caller, version)
        stack.push_async_callback(exchange.close)
        stack.push_async_callback(offers.close)
        listener = DataListener(
            settings.host, settings.wanted_data_port, caller, exchange.receive_piece, offers
        )
        stack.callback(listener.close)
        # A wrong address is an error before the worker serves; the network may come up later.
        advertisement = Advertisement(settings.host, settings.mdns_interfaces, settings.mdns)
        parts = WorkerParts(
            settings=settings,
            own_id=own_id,
            version=version,
            engine=engine,
            store=store,
            sessions=sessions,
            measurer=Measurer(store, compute, engine),
            exchange=exchange,
            endpoint=hardware.endpoint,
            trust=TrustUpdates(caller, gate, (exchange.neighbours, listener), settings.state_dir),
            hosts=Hosts(),
            advertisement=advertisement,
            data_port=listener.port,
            offers=offers,
        )
        service = GrpcService(parts)
        stack.callback(service.close)
        server, healthy = make_server(gate), _health()
        register(service, server)
        health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
        await _say(healthy, health_pb2.HealthCheckResponse.NOT_SERVING)
        proof = credentials.of_server() if credentials else None
        port = listen(server, settings.host, settings.port, ("--host", "--port"), proof)
        await server.start()
        stack.push_async_callback(server.stop, 1.0)
        stack.push_async_callback(exchange.drain, _DRAIN_S)
        await _say(healthy, health_pb2.HealthCheckResponse.SERVING)
        ready = {"address": f"{settings.host}:{port}", "data_port": listener.port, "id": own_id}
        stack.enter_context(ready_file(settings.state_dir / READY_FILE, ready))
        _log.info(
            "ready",
            **ready,
            engine=engine.traits.name,
            pace=settings.pace,
            threads=settings.task_threads,
            concurrency=settings.concurrency,
        )
        advertising = advertisement.run(parts.facts(), version, settings.cluster, port)
        stack.push_async_callback(_ended, asyncio.create_task(advertising))
        async with serving():
            await stop.wait()
        _log.info("stopping")
        await _say(healthy, health_pb2.HealthCheckResponse.NOT_SERVING)


def main(file: Path | None = None, overrides: Mapping[str, Any] | None = None) -> int:
    """Runs a worker with settings from all sources; returns the exit code.

    Raises:
        BadConfiguration: a setting, the state directory or the port cannot be used.
    """
    settings = WorkerSettings.load(file, overrides)
    return serve(settings, WorkerHardware.of(settings))


def serve(settings: WorkerSettings, hardware: WorkerHardware) -> int:
    """Runs a worker on the given `hardware`; returns the exit code.

    Raises:
        BadConfiguration: a setting, the state directory or the port cannot be used.
    """
    log_to_stderr(as_json=settings.log_json, level=settings.log_level)
    cap_memory(settings.memory_bytes)
    gc.freeze()  # full collections, which pause everything, pass over what is imported
    uvloop.run(run(settings, hardware=hardware))
    return 0


def join_cluster(file: Path | None = None, overrides: Mapping[str, Any] | None = None) -> int:
    """Joins a cluster with the token in the settings, without serving; returns the exit code.

    Raises:
        ImbrexError: the token or the state directory cannot be used, or the coordinator refuses.
    """
    settings = WorkerSettings.load(file, overrides)
    log_to_stderr(as_json=settings.log_json, level=settings.log_level)
    own_id = device_id(settings.state_dir)
    with alone_in(settings.state_dir, "worker"):
        asyncio.run(credentials_in(settings.state_dir, settings.join, own_id, settings.shown_name))
    return 0


def _engine(
    settings: WorkerSettings, store: BlobStore, hardware: WorkerHardware, stack: AsyncExitStack
) -> tuple[WorkerSettings, Engine]:
    """The engine, which `stack` closes, and the settings with the best threads and concurrency for
    it.
    """
    folder = settings.state_dir / "optimised"
    for leftover in folder.glob(".*"):
        shutil.rmtree(leftover, ignore_errors=True)

    def engine_for(threads: int) -> Engine:
        place = Place(folder, store, threads, settings.memory_bytes, settings.nice)
        return hardware.make_engine(place)

    settings = settled(settings, engine_for(1))
    engine = engine_for(settings.task_threads)
    if isinstance(engine, Verified):
        stack.callback(engine.close)
    return settings, engine


async def _ended(task: asyncio.Task[None]) -> None:
    """Ends a task, and waits for what it does at its end."""
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def _health() -> Any:
    return health.aio.HealthServicer()  # type: ignore[attr-defined, unused-ignore]


async def _say(healthy: Any, status: int) -> None:
    for name in ("", SERVICE):
        await healthy.set(name, status)


def _stop_on_signals() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop
