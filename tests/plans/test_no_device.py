"""Whoever waits is woken when the machines say so, and leaves nothing when it goes."""

from types import SimpleNamespace

import pytest

from coordinator.answers import PlanChoice
from coordinator.costs.cluster import Cluster
from coordinator.devices.announcements import Announcements
from coordinator.library.loaded import Library
from coordinator.library.naming import Names
from coordinator.plans.plan_making import PlanMaker
from coordinator.plans.plans import Plans
from coordinator.settings import CoordinatorSettings
from protos.errors import NotFound, Unavailable


@pytest.fixture
async def plans(tmp_path):
    """Without any device."""
    settings = CoordinatorSettings()
    news = Announcements()
    library = Library(Names(()), tmp_path, 10**9, news)
    maker = PlanMaker(library, ("ofl",), None, settings.objective)
    devices = SimpleNamespace(cluster=lambda **_: Cluster(()), plannable=dict)
    made = Plans(settings, library, maker, devices, news)
    yield made
    await made.close()


async def test_requests_for_a_plan_are_refused_without_any_device(plans) -> None:
    with pytest.raises(Unavailable, match="no worker is ready"):
        await plans.prepared("lenet5")
    assert not plans.in_use("lenet5")
    assert not plans._asked
    await plans.settled()
    with pytest.raises(NotFound):
        await plans.prepared("lenet5", PlanChoice("no such strategy"))
    assert not plans.book.knows("lenet5", PlanChoice("no such strategy"))
