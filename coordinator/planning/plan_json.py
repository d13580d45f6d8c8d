"""Plans as JSON, as printed by `imbrex plan --json` and stored by `--save` for `--plan`.

One format serves both. For people and scripts a tile has `n`, `rows`, `cols` and `channels` of its
block's main output. `boxes` holds what it owns of every output, and is what is executed (with
`part`, the box of the block's input that a partial sum is over). A plan written by hand may omit
`boxes`.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coordinator.tasks.plan import Block, ExchangeMode, MadeFor, Plan, Tile, TrafficBytes, Unused
from models.cut.tiles import MapTile, tile_boxes
from models.cut.units import Network, layers_of
from models.graph.graph import CHANNELS, COLS, ROWS
from models.tensors.boxes import Box, Span
from models.tensors.precision import Wire
from protos.daemon.documents import first_problem
from protos.daemon.files import decoded
from protos.errors import BadRequest
from protos.wire.facts import DeviceId

FORMAT = 1
# What answers tell of a plan and files do not: it is about the cluster of that moment, and versions
# that do not know a key refuse the file.
_NOT_SAVED = frozenset({"made_for"})

_Count = Annotated[int, Field(ge=0)]
_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Range = Annotated[list[_Count], Field(min_length=2, max_length=2)]


def plan_json(plan: Plan, network: Network) -> dict[str, Any]:
    """The JSON object, from which `parse_plan` makes the same plan. `made_for` is left out if it is
    empty.
    """
    shown = {
        "format": FORMAT,
        "model": plan.model,
        "strategy": plan.strategy,
        "version": plan.version,
        "predicted_latency_s": plan.predicted_latency_s,
        "single_device_latency_s": plan.single_device_latency_s,
        "baseline_device": plan.baseline_device,
        "devices_used": list(plan.devices),
        "devices_unused": [
            {"device": unused.device, "reason": unused.reason} for unused in plan.unused
        ],
        "blocks": [_block_json(block, network) for block in plan.blocks],
        "total_flop": plan.total_flop,
        "redundant_flop": plan.redundant_flop,
        "bytes": asdict(plan.traffic),
        "wire": plan.wire,
        "notes": list(plan.notes),
    }
    if plan.made_for:
        shown["made_for"] = [
            {"device": entry.device, "speed": "measured" if entry.measured else "assumed"}
            for entry in plan.made_for
        ]
    return shown


def save_plan(shown: Mapping[str, Any]) -> str:
    """The text of a plan file, for what `plan_json` made."""
    kept = {key: value for key, value in shown.items() if key not in _NOT_SAVED}
    return json.dumps(kept, indent=1, allow_nan=False) + "\n"


def parse_plan(text: str | bytes, network: Network) -> Plan:
    """The plan of a file, for this network; `legal.check_plan` decides whether it is legal.

    Raises:
        BadRequest: not a plan, an unknown key, a wrong type, or another network's plan.
    """
    try:
        file = PlanFile.model_validate_json(text if isinstance(text, str) else decoded(text))
    except UnicodeDecodeError as error:
        raise _bad("it is not text in UTF-8") from error
    except ValidationError as error:
        raise _bad(first_problem(error)) from error
    if file.model != network.name:
        raise _bad(f"it is a plan for {file.model!r}, not for {network.name!r}")
    blocks = tuple(_block(i, block, network) for i, block in enumerate(file.blocks))
    return Plan(
        model=file.model,
        strategy=file.strategy,
        blocks=blocks,
        predicted_latency_s=file.predicted_latency_s,
        single_device_latency_s=file.single_device_latency_s,
        baseline_device=DeviceId(file.baseline_device),
        total_flop=file.total_flop,
        redundant_flop=file.redundant_flop,
        traffic=TrafficBytes(file.bytes.scatter, file.bytes.gather, file.bytes.halo),
        unused=tuple(Unused(DeviceId(u.device), u.reason) for u in file.devices_unused),
        version=file.version,
        notes=tuple(file.notes),
        wire=file.wire,
        made_for=tuple(
            MadeFor(DeviceId(entry.device), entry.speed == "measured") for entry in file.made_for
        ),
    )


def _block_json(block: Block, network: Network) -> dict[str, Any]:
    return {
        "start": block.start,
        "stop": block.stop,
        "layers": layers_of(network.units[block.start : block.stop]),
        "barrier": block.barrier,
        "exchange": block.exchange,
        "tiles": [_tile_json(tile, network, block.start, block.stop) for tile in block.tiles],
    }


def _tile_json(tile: Tile, network: Network, start: int, stop: int) -> dict[str, Any]:
    main = network.outputs(start, stop)[-1]
    box = tile.boxes.get(main, Box.of(*((0, 0) for _ in network.graph.shape(main))))
    return {
        "device": tile.device,
        "n": _range(box, 0),
        "rows": _range(box, network.graph.axis(main, ROWS)),
        "cols": _range(box, network.graph.axis(main, COLS)),
        "channels": _range(box, network.graph.axis(main, CHANNELS)),
        "in_channels": _range(tile.part, 1) if tile.part else None,
        "reduce": tile.reduce,
        "flop": tile.flop,
        "part": _ranges(tile.part) if tile.part else None,
        "boxes": {name: _ranges(box) for name, box in tile.boxes.items()},
    }


def _range(box: Box, axis: int | None) -> list[int]:
    span = Span(0, 1) if axis is None or axis >= len(box) else box[axis]
    return [span.start, span.stop]


def _ranges(box: Box) -> list[list[int]]:
    return [[span.start, span.stop] for span in box]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _TileFile(_Strict):
    device: str
    n: _Range = [0, 1]
    rows: _Range
    cols: _Range
    channels: _Range | None = None
    in_channels: _Range | None = None
    reduce: bool | None = None
    flop: _Count = 0
    part: list[_Range] | None = None
    boxes: dict[str, list[_Range]] | None = None


class _BlockFile(_Strict):
    start: _Count
    stop: _Count
    layers: list[str] | None = None
    barrier: bool = True
    exchange: ExchangeMode = "host"
    tiles: list[_TileFile]


class _UnusedFile(_Strict):
    device: str
    reason: str


class _MadeForFile(_Strict):
    device: str
    speed: Literal["measured", "assumed"]


class _BytesFile(_Strict):
    scatter: _Count
    gather: _Count
    halo: _Count


class PlanFile(_Strict):
    """A plan as it is written and read."""

    format: Literal[1] = 1
    model: str
    strategy: str
    version: _Count = 0
    predicted_latency_s: _Seconds
    single_device_latency_s: _Seconds
    baseline_device: str
    devices_used: list[str] = []
    devices_unused: list[_UnusedFile] = []
    blocks: list[_BlockFile]
    total_flop: _Count
    redundant_flop: int
    bytes: _BytesFile
    notes: list[str] = []
    made_for: list[_MadeForFile] = []
    # Added by `imbrex plan --explain --json`, for people.
    explanation: list[str] = []
    wire: Wire = "exact"


def _block(index: int, block: _BlockFile, network: Network) -> Block:
    if not 0 <= block.start < block.stop <= len(network.units):
        raise _bad(f"blocks.{index}: the network has no units [{block.start}, {block.stop})")
    layers = layers_of(network.units[block.start : block.stop])
    if block.layers is not None and block.layers != layers:
        raise _bad(f"blocks.{index}.layers: these units of the network are {', '.join(layers)}")
    tiles = []
    for k, tile in enumerate(block.tiles):
        made = _tile(tile, network, block)
        shown = _tile_json(made, network, block.start, block.stop)
        for key in ("n", "rows", "cols", "channels", "in_channels", "reduce"):
            if getattr(tile, key) is not None and getattr(tile, key) != shown[key]:
                raise _bad(f"blocks.{index}.tiles.{k}.{key}: it says otherwise than boxes and part")
        tiles.append(made)
    return Block(block.start, block.stop, tuple(tiles), block.barrier, block.exchange)


def _tile(tile: _TileFile, network: Network, block: _BlockFile) -> Tile:
    boxes: Mapping[str, Box]
    if tile.boxes is None:
        part = MapTile(Span(*tile.rows), Span(*tile.cols))
        boxes = tile_boxes(network, block.start, block.stop, part)
        if tile.channels is not None:
            boxes = {
                name: box.replace(1, Span(*tile.channels)) if len(box) > 1 else box
                for name, box in boxes.items()
            }
    else:
        boxes = {name: _box(ranges) for name, ranges in tile.boxes.items()}
    return Tile(
        device=DeviceId(tile.device),
        boxes=boxes,
        flop=tile.flop,
        part=_box(tile.part) if tile.part else None,
    )


def _box(ranges: list[list[int]]) -> Box:
    return Box(tuple(Span(*bounds) for bounds in ranges))


def _bad(what: str) -> BadRequest:
    return BadRequest(
        cause=f"this is not a plan that can be used: {what}",
        cure="Make one with `imbrex plan MODEL --save PLAN.json`.",
    )
