"""Whoever waits is woken when the machines say so, and leaves nothing when it goes."""

from types import SimpleNamespace

import pytest

from coordinator.costs.cluster import Cluster
from coordinator.devices.announcements import Announcements
from coordinator.library.loaded import Library
from coordinator.library.naming import Names
from coordinator.plans.choice import Choice
from coordinator.plans.controller import Controller
from coordinator.plans.plan_making import PlanMaker
from coordinator.settings import CoordinatorSettings
from protos.errors import NotFound, Unavailable


@pytest.fixture
async def controller(tmp_path):
    """Without any device."""
    settings = CoordinatorSettings()
    library = Library(Names(()), tmp_path, 10**9, lambda _: False)
    maker = PlanMaker(library, ("ofl",), None, settings.objective)
    devices = SimpleNamespace(cluster=lambda: Cluster(()), plannable=dict)
    made = Controller(settings, maker, devices, Announcements())
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
