"""What holds for every test: models and state of whoever runs them are neither seen nor changed;
and where somebody asked for tests by name, or for a browser in CI, one that cannot run has failed.
"""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from imbrex.cli.app import YOUNG_OBJECTS
from models.catalogue.installed import VARIABLE
from protos.daemon.logs import log_to_stderr
from protos.rooms import is_installed
from tests import forked
from tests.durations import Durations
from tests.examples import PUSH

# `--hypothesis-profile=night` is loaded after this.
settings.load_profile(PUSH)

# As the command line does.
gc.set_threshold(YOUNG_OBJECTS)

# As the daemons log: structlog by itself draws every local variable of an exception, for seconds.
log_to_stderr()

# Set by the targets of the Makefile whose whole purpose are tests that need something installed.
MUST_RUN = "IMBREX_MUST_RUN"

# Networks and strategies of the room that a copy of the tree lacks, with spaces between them.
LACKING = "IMBREX_LACKING"
IS_LACKING = re.compile(r"this installation of imbrex lacks|there is no strategy")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option of `make durations`."""
    parser.addoption("--durations-to", type=Path, help="seconds by directory, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    """Where tests run in several processes, the one that gets all reports has no `workerinput`."""
    if (target := config.getoption("--durations-to")) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Durations(target))


def lacking_names(item: pytest.Item, report: pytest.TestReport) -> str:
    """Those that the test's file mentions, if it has failed since they are not installed."""
    names = os.environ.get(LACKING, "").split()
    if not names or not IS_LACKING.search(report.longreprtext):
        return ""
    text = item.path.read_text()
    return " ".join(name for name in names if re.search(rf"\b{name}\b", text))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """`tests/whole/test_without_rooms.py` runs the tests in a copy that lacks an optional room."""
    forked.forget_ended()
    for mark in item.iter_markers("needs_room"):
        if not is_installed(mark.args[0].replace("/", ".")):
            pytest.skip(f"{mark.args[0]} is not installed")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A check that cannot fail is none. A failure shows what its daemons have logged."""
    report = yield
    if report.failed:
        report.sections += [(f"log of {name}", text) for name, text in forked.logs()]
    if report.failed and (lacking := lacking_names(item, report)):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), 0, f"Skipped: not installed: {lacking}")
    required = MUST_RUN in os.environ or ("CI" in os.environ and "needs_browser" in item.keywords)
    if report.skipped and required:
        _, _, reason = report.longrepr if isinstance(report.longrepr, tuple) else ("", 0, "")
        report.outcome = "failed"
        report.longrepr = f"this has to run here. {reason.removeprefix('Skipped: ')}"
    return report


@pytest.fixture(scope="session", autouse=True)
def _models_of_our_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(tmp_path_factory.mktemp("models") / "none"))
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        # Trials of engines, and of cores, would disturb the other tests, which all share a few.
        patch.setenv("IMBREX_WORKER_ENGINE", "onnxruntime")
        patch.setenv("IMBREX_WORKER_CONCURRENCY", "1")
        yield


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty folder of models, for this test and the processes that it starts."""
    folder = str(tmp_path_factory.mktemp("models"))
    monkeypatch.setenv(VARIABLE, folder)
    return folder
