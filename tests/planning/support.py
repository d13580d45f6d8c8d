"""Clusters and networks that the planners' tests share."""

from dataclasses import replace
from functools import cache

import numpy as np
from hypothesis import strategies as st
from onnx import ModelProto

from coordinator.costs.cluster import Cluster, Device, EndpointOverhead, Link
from coordinator.costs.rates import RateCosts
from coordinator.planning.search.division_options import Option
from coordinator.planning.search.tables import Tables
from coordinator.tasks.plan import Plan
from models.catalogue import catalogue
from models.cut.tiles import MapTile, tile_boxes
from models.cut.units import Network, divide
from models.onnx_file.builder import NetworkBuilder as Builder
from models.onnx_file.builder import square
from models.onnx_file.importer import load_graph
from models.operators.geometry import extent
from models.operators.work import tile_works
from protos.wire.facts import DeviceId

PERSISTENT = Link(93.7e6 / 8, message_s=1e-3, latency_s=2e-3)
# AOFL's prototype opened a connection for every transfer.
PUBLISHED = Link(93.7e6 / 8, message_s=77.5e-3)
MEMORY = Link(1e9, message_s=4e-4)


def device(
    name: str,
    gflops: float,
    link: Link = PERSISTENT,
    *,
    host: bool = False,
    memory_mb: int = 0,
    costs: RateCosts | None = None,
) -> Device:
    costs = costs or RateCosts(gflops)
    return Device(
        DeviceId(name), name, costs, link, costs.gflops * 1e9, memory_mb * 10**6, host=host
    )


def cluster(*gflops: float, link: Link = PERSISTENT, host: bool = True) -> Cluster:
    """The first device is the host, unless told otherwise."""
    return Cluster(
        tuple(
            device(f"d{i}", rate, MEMORY if host and i == 0 else link, host=host and i == 0)
            for i, rate in enumerate(gflops)
        )
    )


CLUSTERS = {
    "one": cluster(4.0),
    "alike": cluster(*[4.0] * 8),
    "unlike": cluster(4.0, 6.5, 3.0, 2.0, 1.0, 0.5),
    "no host": cluster(*[2.0] * 4, host=False),
    "far": cluster(*[50.0] * 3, link=Link(1e6, message_s=0.05)),
}


@cache
def real(name: str) -> Network:
    """A network of the catalogue, made once per process; its weights have shapes, and no values
    to hold in memory (but for settings, such as the scales of a Resize or the pads of a Pad).
    """
    loaded = catalogue.load(name)
    graph = load_graph(loaded.proto, loaded.name)
    light = {
        k: v if v.size <= 16 else np.broadcast_to(v.dtype.type(0), v.shape)
        for k, v in graph.constants.items()
    }
    return divide(replace(graph, constants=light))


@cache
def small_model() -> ModelProto:
    """Convolutions, a residual block, a concat and two fully connected layers; quick to plan."""
    net = Builder("small", seed=3)
    x = net.input("image", (1, 3, 32, 32))
    x = x.conv("conv1", 8, square(3)).relu().max_pool("pool1", square(2, 2))
    skip = x.conv("conv2", 16, square(3)).relu()
    x = skip.conv("conv3", 16, square(3)).relu().conv("conv4", 16, square(3))
    x = x.add("add", skip).relu()
    x = net.concat("join", [x, x.conv("conv5", 8, square(3)).relu()])
    x = x.conv("conv6", 32, square(3, 2, pad=1)).relu()
    return net.model(x.flatten("flat").gemm("fc1", 32).gemm("fc2", 10))


@cache
def small() -> Network:
    """The same, divided into units."""
    return divide(load_graph(small_model(), "small"))


def block_s(network: Network, tables: Tables, option: Option, start: int, end: int) -> float:
    """Eq. 3 by its definition: exact extents of every tile, no tables."""
    edges = tables.geometry.boundaries
    begin, stop = edges[start], edges[end]
    graph, nodes = network.graph, network.nodes(begin, stop)
    moving, computing = 0.0, [0.0]
    for where, part in option.shares(start, end):
        assert isinstance(part, MapTile)
        boxes = tile_boxes(network, begin, stop, part)
        reach = extent(graph, nodes, boxes)
        for side in (reach.inputs, boxes):
            size = sum(box.volume * graph.tensors[name].itemsize for name, box in side.items())
            moving += where.link.transfer_s(size)
        computing.append(where.costs.block_s(tile_works(graph, nodes, boxes)))
    return moving + max(computing)


def flop(plan: Plan) -> int:
    return sum(tile.flop for block in plan.blocks for tile in block.tiles)


@st.composite
def clusters(draw: st.DrawFn, most: int = 4) -> Cluster:
    """Up to `most` devices of rates, links and weights of any proportion."""
    devices = []
    for index in range(draw(st.integers(1, most))):
        costs = RateCosts(
            draw(st.floats(0.01, 1.0)),
            rate_1x1=draw(st.sampled_from([1.0, 0.3])),
            map_byte_ns=draw(st.sampled_from([0.0, 0.5])),
            weight_ns=draw(st.sampled_from([0.0, 5.0])),
            run_s=draw(st.sampled_from([0.0, 1e-5])),
        )
        link = Link(
            draw(st.sampled_from([1e6, 1e7, 1e9])),
            message_s=draw(st.sampled_from([0.0, 1e-5, 1e-3])),
            latency_s=draw(st.sampled_from([0.0, 1e-4])),
            near=EndpointOverhead(byte_s=draw(st.sampled_from([0.0, 1e-8]))),
            far=EndpointOverhead(
                draw(st.sampled_from([0.0, 2e-4])), 0.0, draw(st.sampled_from([0, 1e-4]))
            ),
        )
        host = index == 0 and draw(st.booleans())
        devices.append(device(f"d{index}", 0, link, host=host, costs=costs))
    return Cluster(tuple(devices))
