"""Whoever waits is woken when the machines say so, and leaves nothing when it goes."""

from functools import partial
from types import SimpleNamespace

import pytest

from coordinator.costs.cluster import Cluster
from coordinator.library.loaded import Library
from coordinator.planning.planners.named import planner_of
from coordinator.plans.choice import Choice
from coordinator.plans.controller import Controller
from coordinator.plans.plan_making import PlanMaker
from coordinator.settings import CoordinatorSettings
from protos.errors import NotFound, Unavailable


@pytest.fixture
async def controller(tmp_path):
    """Without any device."""
    settings = CoordinatorSettings()
    library = Library(str, tmp_path, 10**9, lambda _: False)
    maker = PlanMaker(library, partial(planner_of, ("ofl",)), None, settings.objective)
    devices = SimpleNamespace(cluster=lambda: Cluster(()), present=list)
    made = Controller(settings, maker, devices, lambda *_: None)
    yield made
    await made.close()


async def test_without_any_device_who_wants_a_plan_is_told_so(controller) -> None:
    with pytest.raises(Unavailable, match="no worker is ready"):
        await controller.current("lenet5")
    assert not controller.is_busy("lenet5")
    assert not controller._works
    assert not controller._asked
    await controller.settled()
    with pytest.raises(NotFound):
        await controller.current("lenet5", Choice("no such strategy"))
    assert not controller.plans.knows("lenet5", Choice("no such strategy"))
