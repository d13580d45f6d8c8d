"""The HTTP layer alone: an object with the coordinator's methods that runs models in place."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import PurePath
from typing import ClassVar

import numpy as np
from PIL import Image

from coordinator.answers import (
    IN_FORCE,
    Answer,
    Baseline,
    DeviceStatus,
    ModelStatus,
    PlanChoice,
    PlanNow,
    ServedModel,
)
from coordinator.library.naming import Names
from coordinator.planning.planners.aofl import aofl
from coordinator.planning.published import equal_cluster
from coordinator.requests.input_variants import FeedReader, check_feeds
from coordinator.requests.journal import Journal, RequestRecord
from coordinator.settings import CoordinatorSettings
from coordinator.tasks.plan import Plan, TrafficBytes
from coordinator.tasks.timeline import Timing
from coordinator.trust.cluster_state import ClusterState
from coordinator.trust.roster import Member
from models.cut.units import Network, divide
from models.onnx_file.builder import NetworkBuilder as Builder
from models.onnx_file.builder import square
from models.onnx_file.importer import load_graph
from models.run.reference import WholeModel
from models.tensors.arrays import Arrays
from models.tensors.selection import NO_SELECTION, Selections
from models.vision.classes import ClassScores
from models.vision.image_input import ImageInput
from models.vision.pixels import as_values, with_pixels
from models.vision.sidecar import Sidecar
from protos.errors import ImbrexError, NotFound, Unavailable
from protos.wire.facts import DeviceId

LIMIT_BYTES = 500_000


def tiny_model(name: str = "tiny"):
    net = Builder(name, seed=7)
    x = net.input("image", (1, 3, 16, 16)).conv("conv1", 4, square(3)).relu()
    x = x.global_average_pool("pool").flatten("flatten").gemm("fc", 3)
    return net.model(x)


SIDECAR = Sidecar(
    name="tiny",
    task="classification",
    description="a test",
    licence="none",
    source="a test",
    trained=False,
    labels=("ant", "bee", "cat"),
    input=ImageInput("image", (16, 16), "stretch", "RGB", 1 / 255, (0.5,) * 3, (0.25,) * 3, 114),
    head=ClassScores("logits", top=2),
)


@dataclass
class InPlace:
    """`tiny` with a sidecar, `bare` without; `fails_with` is raised instead of an answer."""

    settings: CoordinatorSettings = field(
        default_factory=lambda: CoordinatorSettings(
            max_body_bytes=LIMIT_BYTES,
            models=("tiny", "/somewhere/bare.onnx"),
            host_names=("test", "x"),
        )
    )
    no_workers: bool = False
    waiting: int = 0
    running: int = 0
    frigate: None = None
    fails_with: Exception | None = None

    def __post_init__(self) -> None:
        proto = tiny_model()
        self.names = Names(self.settings.models)
        self.journal = Journal()
        self.library = self.served = self.plans = self.doctor = self.admission = self
        self.measuring = self.devices = self.pool = self
        graph = load_graph(proto, "tiny")
        self.network, self.bare = divide(with_pixels(graph, SIDECAR)), divide(graph)
        self.whole = WholeModel(proto, threads=1)
        self.baselines: dict[str, Baseline] = {}

    @property
    def state(self) -> ClusterState:
        return ClusterState(self.settings.state_dir)

    def settle(self) -> None:
        """Nothing waits here."""

    def readiness_of(self, model: str) -> tuple[bool, str]:
        return self.readiness()

    def readiness(self) -> tuple[bool, str]:
        return (False, "no worker is connected") if self.no_workers else (True, "")

    weight_bytes = 0
    losses: ClassVar[dict[str, int]] = {"lost_worker": 1}

    def statuses(self) -> list[ModelStatus]:
        return [ModelStatus("tiny", True, "ready", "classification", False, 3)]

    def device_statuses(self) -> list[DeviceStatus]:
        return [
            DeviceStatus(
                id="0123456789abcdef",
                name="pi-1",
                address="127.0.0.1:8470",
                state="ready",
                reason="",
                source="mdns",
                host=False,
                cpu="Cortex-A53",
                cores=4,
                mhz=1200.0,
                memory_bytes=1 << 30,
                pace=1.0,
                gflops=1.85,
                mbps=float("nan"),
                profiled=True,
                correction=1.0,
                last_seen_s=0.1,
            )
        ]

    async def get(self, name: str) -> ServedModel:
        if name not in self.settings.models:
            raise NotFound(cause=f"{name!r} cannot be loaded", cure="Load something else.")
        if name == "tiny":
            return ServedModel(name, name, self.network, SIDECAR, False)
        return ServedModel(PurePath(name).stem, name, self.bare, None, False)

    def is_loaded(self, model: str) -> bool:
        return model in self.settings.models

    def members(self) -> list[Member]:
        return [Member(DeviceId("a"), "pi", datetime.now(UTC), datetime.now(UTC))]

    async def made(self, model: str, choice: PlanChoice = IN_FORCE) -> tuple[Plan, Network]:
        return await self.current(model, choice)

    async def current(self, model: str, choice: PlanChoice = IN_FORCE) -> tuple[Plan, Network]:
        if self.no_workers:
            raise Unavailable(cause="no device is ready", cure="Start `imbrex worker` on one")
        await self.get(model)
        made = aofl(self.network, equal_cluster(2))
        return replace(made, version=3), self.network

    async def now(self, model: str, choice: PlanChoice = IN_FORCE) -> PlanNow:
        plan, _ = await self.made(model, choice)
        return PlanNow(model, plan.version, plan.predicted_latency_s, 0.5)

    @asynccontextmanager
    async def answering(
        self,
        model: str | ServedModel,
        feeds: Arrays | FeedReader,
        request_id: str | None = None,
        choice: PlanChoice = IN_FORCE,
        *,
        selections: Selections = NO_SELECTION,
    ) -> AsyncIterator[Answer]:
        model = model.source if isinstance(model, ServedModel) else model
        if self.fails_with is not None:
            if isinstance(self.fails_with, ImbrexError):
                self.journal.add(
                    RequestRecord("failed", model, 1.0, 1.01, None, (), self.fails_with)
                )
            raise self.fails_with
        if self.no_workers:
            raise Unavailable(cause="no device is ready", cure="Start `imbrex worker` on one")
        given = await feeds() if callable(feeds) else feeds
        check_feeds(self.bare if model != "tiny" else self.network, given)
        answer = Answer(
            request_id=request_id or "made-here",
            outputs=self.whole.run(as_values(self.network.graph, given)),
            timing=Timing(0.001, 0.002, 0.003, 0.004, 0.010),
            plan_version=3,
            devices=("0123456789abcdef",),
            traffic=TrafficBytes(10, 20, 0),
        )
        self.journal.add(RequestRecord(answer.request_id, model, 1.0, 1.01, answer, (), None))
        yield answer

    async def baseline(self, model: str) -> Baseline:
        self.baselines[model] = Baseline("pi-1", 0.5, 4)
        return self.baselines[model]


def picture(width: int = 40, height: int = 30, kind: str = "PNG") -> bytes:
    pixels = np.random.default_rng(1).integers(0, 256, (height, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def blank(width: int, height: int) -> bytes:
    """Many pixels in few bytes."""
    file = io.BytesIO()
    Image.new("1", (width, height)).save(file, "PNG")
    return file.getvalue()
