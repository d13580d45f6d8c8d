"""Groups are planned anew, and those that are ready stay unless others are clearly better."""

import pytest

from coordinator.costs.cluster import Cluster
from coordinator.devices.announcements import Announcements
from coordinator.library.loaded import Library
from coordinator.library.naming import Names
from coordinator.planning.groups import Grouping
from coordinator.plans.plan_making import PlanMaker
from coordinator.plans.steps import Divide, Work
from coordinator.settings import CoordinatorSettings
from models.catalogue import catalogue
from models.catalogue.loading import network_of
from tests.planning.support import cluster

MODEL = "squeezenet"


@pytest.fixture
def maker(tmp_path) -> PlanMaker:
    library = Library(Names(()), tmp_path, 10**9, Announcements())
    return PlanMaker(library, ("ofl",), None, CoordinatorSettings().objective)


async def divided(
    maker: PlanMaker, devices: Cluster, ready: tuple[Grouping, ...] = ()
) -> dict[int, Grouping]:
    network = network_of(catalogue.load(MODEL))
    plan = maker.planner("")(network, devices)
    asked = Divide(Work(1), MODEL, plan, ready)
    return dict((await maker.divide(asked, devices)).groupings)


@pytest.mark.parametrize(
    ("speeds", "stay"),
    [
        ((2.0, 2.0, 2.0, 2.0), True),
        ((2.02, 2.0, 1.98, 2.0), True),
        ((2.0, 2.0, 2.0, 0.4), False),  # one device has become slow: other tiles, other groups
        ((2.0, 2.0, 2.0), False),  # one has gone
    ],
)
async def test_groups_stay_unless_others_are_clearly_better(
    maker: PlanMaker, speeds: tuple[float, ...], *, stay: bool
) -> None:
    before = await divided(maker, cluster(2.0, 2.0, 2.0, 2.0))
    assert set(before) == {1, 2, 4}
    after = await divided(maker, cluster(*speeds), tuple(before.values()))
    assert (after[2].plans == before[2].plans) == stay
    assert after[2].devices <= {each.id for each in cluster(*speeds).devices}
