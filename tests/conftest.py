"""Fixtures for the whole suite."""

from __future__ import annotations

from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files instead of comparing")


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
