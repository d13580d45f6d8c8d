"""Memory caps: fewer blocks on a small device, divided weights, and errors with the numbers."""

from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.costs.cluster import Cluster
from coordinator.planning.legal import check_plan
from coordinator.planning.plan_memory import needs
from coordinator.planning.planners.fused import fused
from coordinator.planning.search.block_costs import Stages
from coordinator.plans.named import strategy
from coordinator.tasks.task_graph import compile_plan
from models.catalogue import catalogue
from models.catalogue.loading import network_of
from models.cut.program import BlobSource
from models.onnx_file.mapped import MappedWeights, location_of
from protos.errors import Infeasible
from tests.planning.support import MEMORY, PERSISTENT, cluster, device, real


def capped(*memory_mb: int, gflops: float = 2.0) -> Cluster:
    """The first is the host."""
    return Cluster(
        tuple(
            device(f"d{i}", gflops, MEMORY if not i else PERSISTENT, host=not i, memory_mb=each)
            for i, each in enumerate(memory_mb)
        ),
        uplink=PERSISTENT,
    )


def test_a_small_device_gets_fewer_blocks_not_none() -> None:
    """All of VGG-16's convolutions are 59 MB of weights: 180 MB hold the early ones only."""
    network, some = real("vgg16-conv"), capped(0, 180, 0)
    plan = fused(network, some)
    check_plan(plan, network, some)
    blocks = [block for block in plan.blocks if "d1" in block.devices]
    assert blocks
    assert len(blocks) < len(plan.blocks)
    assert needs(network, plan)[plan.blocks[0].devices[0]].total_bytes() > 0
    assert "d1" not in strategy("aofl")(network, some).devices


def test_halo_and_auto_leave_out_what_they_would_overfill() -> None:
    """Every device of a `halo` plan holds all weights."""
    network, some = real("vgg16-conv"), capped(0, 130, 0)
    plan = strategy("halo")(network, some)
    check_plan(plan, network, some)
    assert plan.devices == ("d0", "d2")
    assert [each.device for each in plan.unused] == ["d1"]
    assert "has 130 MB" in plan.unused[0].reason
    check_plan(strategy("auto")(network, some), network, some)


def test_layer_that_fits_nowhere_whole_is_divided() -> None:
    """VGG-16's first fully connected layer is 411 MB, a third of it is 137 MB."""
    network, some = real("vgg16"), capped(520, 520, 520)
    plan = fused(network, some)
    check_plan(plan, network, some)
    assert len(plan.devices) == 3
    for each in ("aofl", "single", "lw"):
        with pytest.raises(Infeasible, match="MB"):
            strategy(each)(network, some)


def test_room_for_nobody_names_the_layer_and_the_numbers() -> None:
    network, some = real("vgg16"), capped(190, 190)
    with pytest.raises(Infeasible) as caught:
        fused(network, some)
    cause = caught.value.cause
    assert "411 MB" in cause
    assert "largest device has 82 MB" in cause
    assert "together 164 MB" in cause


def test_plan_within_ample_caps_is_the_one_without() -> None:
    network = real("vgg16-conv")
    plenty = replace(capped(4000, 4000, 4000))
    free = Cluster(cluster(2.0, 2.0, 2.0).devices, uplink=PERSISTENT)
    assert fused(network, plenty).blocks == fused(network, free).blocks


def test_a_plan_that_fits_is_taken_though_its_draft_was_estimated_not_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Stages, "overflow_bytes", lambda self, draft: 1.0)
    network, some = real("digits"), capped(400, 400)
    plan = fused(network, some)
    check_plan(plan, network, some)


def test_no_plan_holds_weights_beside_the_mapped_file(tmp_path: Path) -> None:
    loaded = catalogue.load("convnext-tiny")
    room = MappedWeights(tmp_path, loaded.stored.sizes)
    network = network_of(loaded, room=room.empty)
    blobs = BlobSource()
    plan = strategy("kcut")(network, capped(0, 0, 0))
    programs = compile_plan(plan, network, blobs).programs.values()
    named = {each.sha256 for program in programs for each in program.weights}
    held = [blobs.array_of(each) for each in named]
    beside = [each.nbytes for each in held if location_of(each) is None]
    assert sum(beside) < 1e-3 * sum(each.nbytes for each in held)
