import pytest

from benchmarks.lab.mixed import HOMES, run
from protos.errors import BadRequest


@pytest.mark.parametrize("home", ["two-pi5-two-pi3bplus", "nowhere"])
def test_a_home_that_the_switch_cannot_be_is_refused(home):
    with pytest.raises(BadRequest) as raised:
        run(home, ("digits",), 5)
    assert home in raised.value.cause
    assert all(each in raised.value.cure for each in HOMES)
