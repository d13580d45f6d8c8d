"""Which plans the demo measures."""

import pytest

from imbrex.demo.demo_cluster import ClusterForm
from imbrex.demo.measurement import is_for_all


@pytest.mark.parametrize(
    ("speeds", "profile", "expected"),
    [
        (["measured", "measured"], True, True),
        (["measured", "assumed"], True, False),
        (["assumed", "assumed"], False, True),
        (["measured"], True, False),
        ([], False, False),
    ],
)
def test_a_plan_is_for_all_workers_and_their_measured_speeds(speeds, profile, expected, tmp_path):
    plan = {"made_for": [{"device": str(k), "speed": each} for k, each in enumerate(speeds)]}
    form = ClusterForm("digits", 2, "auto", None, profile, tmp_path)
    assert is_for_all(plan, form) is expected
