"""Engines that take whole networks only: what they declare, and what reaches the coordinator."""

import hashlib

import pytest

from models.catalogue.catalogue import load
from models.catalogue.loading import network_of
from models.cut.cutter import cut
from models.cut.program import BlobSource, whole_network
from models.digits import MODEL as DIGITS
from models.onnx_file.importer import load_graph
from models.tensors.boxes import Box
from protos import imbrex_pb2 as pb
from protos.errors import BadConfiguration, PeerViolation
from protos.rpc.channels import Caller
from protos.rpc.worker_client import WorkerClient
from protos.wire.facts import Facts
from protos.wire.limits import Limits
from tests.planning.support import small_model
from tests.worker.plugged import plug
from tests.worker.support import process
from worker.engines.base import Place
from worker.engines.pick import pick_engine
from worker.engines.trial import Trials
from worker.programs.store import BlobStore

TOY = "limited_engine"
HASH = hashlib.sha256(DIGITS.read_bytes()).hexdigest()


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path, BlobStore(tmp_path, 1), 1)


async def facts_of(state, **changes):
    with process(state, **changes) as running:
        async with WorkerClient(running.address, Caller("host")) as client:
            return (await client.hello("test")).facts


async def test_limits_of_an_engine_reach_the_coordinator(tmp_path, monkeypatch):
    plug(tmp_path, monkeypatch, compiled=f"{TOY}:Compiled")
    compiled = tmp_path / "state" / "optimised" / "compiled"
    compiled.mkdir(parents=True)
    (compiled / f"{HASH}.toy").write_bytes(b"")
    facts = Facts.of(await facts_of(tmp_path / "state", ENGINE="compiled", THREADS="0"))
    assert facts.limits == Limits(networks=[HASH], dtypes=["uint8", "float32"])
    assert (facts.concurrency, facts.gflops) == (1, 1000.0)
    assert str(facts.limits) == "whole networks only, 1 of them"
    assert Facts.of(await facts_of(tmp_path / "other")).limits is None


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Misnamed", "networks name 'yolov8n', which is not the SHA-256"),
        ("Shapeless", r"shapes name '1x3x\?x640', which is not a shape"),
        ("Typeless", "dtypes name 'float8', which is not one of"),
        ("Unlisted", "networks are not a collection of at most 256 texts"),
        ("Endless", "networks are not a collection of at most 256 texts"),
        ("Yes", "its limits are of type bool"),
        ("Traitless", "its traits are of type dict"),
        ("Compiled", "there is no compiled network in"),
    ],
)
def test_an_engine_that_declares_nonsense_is_refused_by_name(
    tmp_path, monkeypatch, place, name, told
):
    plug(tmp_path, monkeypatch, odd=f"{TOY}:{name}")
    with pytest.raises(BadConfiguration, match=rf"engine 'odd'.*{told}"):
        pick_engine("odd", place)


def test_a_device_that_reports_nonsense_is_refused():
    usual = {"id": "a", "cores": 1, "pace": 1}
    limits = pb.DeviceFacts.Limits(networks=["x"])
    with pytest.raises(PeerViolation, match="networks name 'x'"):
        Facts.of(pb.DeviceFacts(**usual, limits=limits))
    assert Facts.of(pb.DeviceFacts(**usual, limits=pb.DeviceFacts.Limits())).limits == Limits()


def test_auto_leaves_it_out_and_says_how_to_use_it(tmp_path, monkeypatch, place):
    plug(tmp_path, monkeypatch, wholeonly=f"{TOY}:WholeOnly")
    trials = Trials()
    told = trials.result("wholeonly", place, [])
    trials.end()
    assert "it computes whole networks only. Set engine = wholeonly" in told


def program(graph, rows=None):
    boxes = {name: Box.whole(graph.shape(name)) for name in graph.results}
    nodes = graph.nodes if rows is None else graph.nodes[:rows]
    if rows is not None:
        made = nodes[-1].outputs[0]
        boxes = {made: Box.whole(graph.shape(made))}
    return cut(graph, nodes, boxes, BlobSource()).program


def test_a_program_says_which_network_it_computes_all_of():
    built = load_graph(small_model(), "small")
    assert whole_network(program(built)) == ""
    assert whole_network(program(built, 3)) is None
    digits = network_of(load("digits")).graph
    assert whole_network(program(digits)) == HASH
    assert whole_network(program(digits, 3)) is None
