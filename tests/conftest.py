"""Fixtures for the whole suite."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# Commands that take long on a busy machine print no lines that tests do not expect.
os.environ["COLLC_PROGRESS"] = "0"

# No test is timed: beside other jobs one example may take as long as it likes.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files instead of comparing")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks as slow the cases that `slow_for` names; the other cases of the family stay in the default run."""
    unknown: dict[str, set[str]] = {}
    for item in items:
        for mark in item.iter_markers("slow_for"):
            if not isinstance(item, pytest.Function):
                continue
            case = item.callspec.id
            unknown.setdefault(item.nodeid.partition("[")[0], set(mark.args)).discard(case)
            if case in mark.args:
                item.add_marker(pytest.mark.slow)
    unknown = {name: cases for name, cases in unknown.items() if cases}
    # A name with "::" collects a part of a family.
    if unknown and not any("::" in arg for arg in config.args):
        raise pytest.UsageError(f"slow_for names cases that do not exist: {unknown}")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fails a run that skipped all its tests, as pytest fails a run without tests: it checked nothing."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    is_worker = hasattr(session.config, "workerinput")
    if reporter is None or is_worker or exitstatus != pytest.ExitCode.OK:
        return
    if reporter.stats.get("skipped") and not reporter.stats.get("passed"):
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


class Golden:
    """Compares texts with the files under tests/golden/<stage>/."""

    def __init__(self, update: bool) -> None:
        self.update = update

    def check(self, name: str, text: str) -> None:
        path = GOLDEN / name
        if self.update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        assert path.is_file(), f"no golden file {name}: run pytest --update-golden and read what it writes"
        assert text == path.read_text(encoding="utf-8"), f"{name} differs: run pytest --update-golden and read the diff"


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(request.config.getoption("--update-golden"))


@pytest.fixture(autouse=True, scope="session")
def _build_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests share one build cache of their own unless the caller chose one."""
    import os

    os.environ.setdefault("COLLC_CACHE", str(Path(__file__).parent.parent / "build" / "test-cache"))
