"""Settings of the coordinator, as flags, environment and file give them."""

from pathlib import Path

import pytest

from coordinator.settings import load_settings
from protos.channels import is_loopback
from protos.errors import BadConfiguration


def test_nobody_else_reaches_it_unless_somebody_says_so() -> None:
    settings = load_settings({})
    assert is_loopback(settings.host)
    assert is_loopback(settings.host_worker)


@pytest.mark.parametrize(
    ("given", "seconds"), [("off", 0.0), ("0", 0.0), ("12.5", 12.5), (30, 30.0)]
)
def test_replanning_is_a_period_or_off(given: object, seconds: float) -> None:
    assert load_settings({"replan": given}).replan == seconds


def test_off_in_a_file_and_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "coordinator.toml"
    file.write_text('replan = "off"\n')
    assert load_settings({}, file).replan == 0.0
    monkeypatch.setenv("IMBREX_COORDINATOR_REPLAN", "off")
    assert load_settings({}).replan == 0.0


@pytest.mark.parametrize("given", ["never", "-1", "nan"])
def test_other_words_are_refused(given: str) -> None:
    with pytest.raises(BadConfiguration, match="replan"):
        load_settings({"replan": given})
