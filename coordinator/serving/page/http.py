"""The page's files, its events, and the plan for drawing over a picture."""

import time
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import FileResponse, RedirectResponse, StreamingResponse

from coordinator.plans.named import names as strategies
from coordinator.serving.common.access import asks
from coordinator.serving.common.body import BodyKind
from coordinator.serving.common.interface import OptionalInterface
from coordinator.serving.common.parameters import Chosen, ModelName, TheCoordinator
from coordinator.serving.common.plan_picture import Rect, image_tiles
from coordinator.serving.page.day import told
from coordinator.serving.page.hub import Hub
from models.digits.examples import examples
from models.graph.sizes import layout_of
from protos.errors import NotFound

if TYPE_CHECKING:
    from coordinator.service import Coordinator

STATIC = Path(__file__).parent / "static"
KINDS = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
FILES = {path.name: path for path in STATIC.iterdir() if path.suffix in KINDS}
# Only the page's own files, nothing inline, and no frames: the page shows what cameras see.
SECURITY = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}

router = APIRouter(include_in_schema=False)


class Page(OptionalInterface):
    """The page, and the hub of its events."""

    router = router
    with_slash = frozenset({"/docs/"})

    def __init__(self, app: FastAPI, coordinator: "Coordinator") -> None:
        super().__init__(app, coordinator)
        app.state.page = Hub(coordinator)

    def close(self) -> None:
        """Ends every watch."""
        self.app.state.page.close()


@router.get("/")
@asks
async def index() -> Response:
    """The page."""
    return _file("index.html")


@router.get("/docs")
@asks
async def reference() -> Response:
    """The OpenAPI document for people."""
    return _file("reference.html")


@router.get("/docs/")
@asks
async def moved_reference() -> Response:
    """Leads to the reference, whose links are relative to a path without a slash at its end."""
    return RedirectResponse("../docs", HTTPStatus.PERMANENT_REDIRECT)


@router.get("/page/events")
@asks
async def events(request: Request) -> Response:
    """Server-sent events with the cluster's state and each request."""
    hub: Hub = request.app.state.page
    hub.require_room()
    return StreamingResponse(hub.watch(), media_type="text/event-stream", headers=SECURITY)


@router.get("/page/day")
@asks
async def day(request: Request) -> dict[str, Any]:
    """Answers, errors and latencies of the last day, in columns of some minutes."""
    hub: Hub = request.app.state.page
    return {"columns": [*told(hub.day.columns(time.time()))]}


@router.get("/page/sample")
@asks
async def sample() -> Response:
    """A sample picture to try."""
    return FileResponse(examples()[0].path, media_type="image/png", headers=SECURITY)


@router.get("/page/strategies")
@asks
async def planners() -> dict[str, Any]:
    """Lists the available strategies."""
    return {"strategies": list(strategies())}


@router.post("/page/plans/{model}")
@asks.taking(BodyKind.NONE)
async def plan(model: ModelName, coordinator: TheCoordinator, chosen: Chosen) -> dict[str, Any]:
    """A plan as the page draws it, made if necessary: its predictions, and its first block's tiles,
    without and with halo, as fractions of the model's input.
    """
    source = coordinator.names.source(model)
    served = await coordinator.library.get(source)
    made, network = await coordinator.plans.current(source, chosen)
    shape = network.graph.shape(network.graph.inputs[0])
    layout = layout_of(shape)
    width, height = (shape[layout.index(axis)] for axis in "WH") if layout else (1, 1)
    tiles = image_tiles(made, network, (width, height))
    form = served.sidecar.input if served.sidecar else None
    return {
        "model": model,
        "strategy": made.strategy,
        "version": made.version,
        "predicted_ms": round(made.predicted_latency_s * 1000, 2),
        "alone_ms": round(made.single_device_latency_s * 1000, 2),
        "blocks": len(made.blocks),
        "devices": list(made.devices),
        "unused": [{"device": unused.device, "reason": unused.reason} for unused in made.unused],
        "input": {"width": width, "height": height},
        "resize": form.resize if form else None,
        "resize_shorter": form.resize_shorter if form else None,
        "tiles": [
            {"device": tile.device, "own": _box(tile.own), "read": _box(tile.read)}
            for tile in tiles
        ],
    }


@router.get("/page/{name}")
@asks
async def asset(name: str) -> Response:
    """A file of the page."""
    return _file(name)


def _file(name: str) -> Response:
    if name not in FILES:
        raise NotFound(cause=f"the page has no file {name[:80]!r}", cure="Open /")
    path = FILES[name]
    return FileResponse(path, media_type=KINDS[path.suffix], headers=SECURITY)


def _box(rect: Rect) -> list[float]:
    return [round(value, 2) for value in (rect.x, rect.y, rect.width, rect.height)]
