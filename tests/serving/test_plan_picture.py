"""Pictures of plans are well-formed, and show every tile."""

from xml.dom import minidom

import pytest

from coordinator.costs.cluster import Cluster
from coordinator.plans.named import strategy
from coordinator.serving.common.plan_picture import image_tiles, plan_svg
from tests.planning.support import CLUSTERS, cluster, device, real, small


def rects(svg: str) -> list[minidom.Element]:
    document = minidom.parseString(svg).documentElement
    assert document.tagName == "svg"
    return list(document.getElementsByTagName("rect"))


@pytest.mark.parametrize("name", ["single", "lw", "aofl"])
def test_every_tile_is_drawn(name: str) -> None:
    plan = strategy(name)(small(), CLUSTERS["unlike"])
    tiles = sum(len(block.tiles) for block in plan.blocks)
    assert len(rects(plan_svg(plan, small()))) == 2 * tiles + len(plan.devices)


def test_many_devices_have_different_colours() -> None:
    plan = strategy("ofl")(real("vgg16-conv"), cluster(*[1.0] * 14))
    legend = rects(plan_svg(plan, real("vgg16-conv")))[-len(plan.devices) :]
    colours = {rect.getAttribute("fill") for rect in legend}
    assert len(colours) == len(plan.devices) > 8


def test_names_are_escaped() -> None:
    odd = Cluster((device("<pi & 'co'>", 1.0), device("b", 1.0)))
    plan = strategy("lw")(small(), odd)
    svg = plan_svg(plan, small(), {"b": '"<b>"'})
    assert "<b>" not in svg
    rects(svg)


def test_over_an_image_own_parts_tile_it_and_halos_reach_beyond() -> None:
    plan = strategy("aofl")(real("vgg16-conv"), CLUSTERS["alike"])
    tiles = image_tiles(plan, real("vgg16-conv"), (640, 480))
    assert len(tiles) == len(plan.blocks[0].tiles) > 1
    assert sum(tile.own.width * tile.own.height for tile in tiles) == pytest.approx(640 * 480)
    assert sum(tile.read.width * tile.read.height for tile in tiles) > 640 * 480
    for tile in tiles:
        assert tile.read.x <= tile.own.x + 1e-9
        assert tile.read.y <= tile.own.y + 1e-9
