"""Plans survive JSON exactly, and files that are not plans are refused with their fault."""

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coordinator.planning.plan_json import parse_plan, plan_json, save_plan
from coordinator.plans.named import strategy
from coordinator.tasks.plan import Block, MadeFor, Plan, Tile, TrafficBytes, Unused
from models.cut.units import layers_of
from models.tensors.boxes import Box, Span
from protos.errors import BadRequest
from protos.wire.facts import DeviceId
from tests.examples import examples
from tests.planning.support import CLUSTERS, small

NAMES = st.text(min_size=1, max_size=12)
SECONDS = st.floats(0, 1e6, allow_nan=False)


def boxes(rank: int) -> st.SearchStrategy[Box]:
    span = st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda ab: Span(*sorted(ab)))
    return st.lists(span, min_size=rank, max_size=rank).map(lambda spans: Box(tuple(spans)))


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Any plan object for the small network, legal or not."""
    network = small()
    count = len(network.units)
    blocks = []
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, count - 1))
        stop = draw(st.integers(start + 1, count))
        outputs = network.outputs(start, stop)
        tiles = [
            Tile(
                DeviceId(draw(NAMES)),
                {name: draw(boxes(len(network.graph.shape(name)))) for name in outputs},
                draw(st.integers(0, 10**12)),
                draw(st.none() | boxes(2)),
            )
            for _ in range(draw(st.integers(0, 2)))
        ]
        exchange = draw(st.sampled_from(["none", "host", "peer"]))
        blocks.append(Block(start, stop, tuple(tiles), draw(st.booleans()), exchange))
    traffic = TrafficBytes(*draw(st.tuples(*[st.integers(0, 10**12)] * 3)))
    unused = draw(st.lists(st.builds(Unused, NAMES.map(DeviceId), NAMES), max_size=2))
    return Plan(
        network.name,
        draw(NAMES),
        tuple(blocks),
        draw(SECONDS),
        draw(SECONDS),
        DeviceId(draw(NAMES)),
        draw(st.integers(0, 10**15)),
        draw(st.integers(-(10**15), 10**15)),
        traffic,
        tuple(unused),
        draw(st.integers(0, 10**9)),
        tuple(draw(st.lists(NAMES, max_size=2))),
        made_for=tuple(
            draw(st.lists(st.builds(MadeFor, NAMES.map(DeviceId), st.booleans()), max_size=2))
        ),
    )


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(plans())
def test_any_plan_survives_exactly(plan: Plan) -> None:
    text = json.dumps(plan_json(plan, small()))
    assert parse_plan(text, small()) == plan
    saved = save_plan(plan_json(plan, small()))
    assert parse_plan(saved, small()) == replace(plan, made_for=())


def made() -> Plan:
    return strategy("aofl")(small(), CLUSTERS["no host"])


def test_the_object_of_the_contract() -> None:
    plan, network = made(), small()
    shown = plan_json(plan, network)
    assert json.loads(json.dumps(shown)) == shown
    assert shown["model"] == "small"
    assert shown["devices_used"] == list(plan.devices)
    assert shown["bytes"] == asdict(plan.traffic)
    for block, each in zip(plan.blocks, shown["blocks"], strict=True):
        assert each["layers"] == layers_of(network.units[block.start : block.stop])
        assert each["exchange"] == "host"
        for tile, one in zip(block.tiles, each["tiles"], strict=True):
            main = tile.boxes[network.outputs(block.start, block.stop)[-1]]
            assert one["n"] == [0, 1]
            assert one["channels"] == [main[1].start, main[1].stop]
            rows = [main[2].start, main[2].stop] if len(main) > 2 else [0, 1]
            assert one["rows"] == rows
            assert one["in_channels"] is None
            assert one["reduce"] is False
            assert one["flop"] == tile.flop


def test_a_file_has_the_keys_of_its_format_and_no_others() -> None:
    """The version before reads format 1, and refuses a key that it does not know."""
    plan = made()
    told = plan_json(replace(plan, made_for=(MadeFor(plan.devices[0], True),)), small())
    assert told["made_for"] == [{"device": plan.devices[0], "speed": "measured"}]
    assert "made_for" not in plan_json(plan, small())
    assert json.loads(save_plan(told)).keys() == {
        *("format", "model", "strategy", "version", "blocks", "wire", "bytes", "notes"),
        *("predicted_latency_s", "single_device_latency_s", "baseline_device"),
        *("devices_used", "devices_unused", "total_flop", "redundant_flop"),
    }


def test_a_plan_written_by_hand_may_leave_boxes_out() -> None:
    shown = plan_json(made(), small())
    for block in shown["blocks"]:
        for tile in block["tiles"]:
            del tile["boxes"]
    assert parse_plan(json.dumps(shown), small()) == made()


def changed(path: str, value: Any) -> str:
    shown = plan_json(made(), small())
    at: Any = shown
    *before, last = path.split(".")
    for key in before:
        at = at[int(key)] if isinstance(at, list) else at[key]
    at[int(last) if isinstance(at, list) else last] = value
    return json.dumps(shown)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "json"),
        ("[]", "object"),
        ("{}", "model"),
        (changed("surprise", 1), "surprise"),
        (changed("format", 2), "format"),
        (changed("model", "other"), "'other'"),
        (changed("predicted_latency_s", "fast"), "predicted_latency_s"),
        (changed("total_flop", 1.5), "total_flop"),
        (changed("blocks.0.start", -1), "blocks.0.start"),
        (changed("blocks.0.stop", 99), "no units"),
        (changed("blocks.0.layers", ["conv9"]), "layers"),
        (changed("blocks.0.exchange", "pigeon"), "exchange"),
        (changed("blocks.0.tiles.0.rows", [0, 3, 4]), "rows"),
        (changed("blocks.0.tiles.0.rows", [5, 6]), "otherwise"),
        (changed("blocks.0.tiles.0.colour", "red"), "colour"),
        (changed("bytes", {"scatter": 1}), "bytes"),
    ],
)
def test_files_that_are_no_plans(text: str, fault: str) -> None:
    with pytest.raises(BadRequest, match=fault) as caught:
        parse_plan(text, small())
    assert "imbrex plan" in caught.value.cure


def test_latencies_are_numbers() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        save_plan(plan_json(replace(made(), predicted_latency_s=float("inf")), small()))
