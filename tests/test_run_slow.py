"""The runner of the slow tests: its condition for a pass, and the rows that its page keeps."""

from __future__ import annotations

from pathlib import Path

import pytest
import run_slow


def test_the_page_keeps_passes_and_names_parts_without_one() -> None:
    passes = {"cuda/test_a": run_slow.Pass("2026-11-28", "abc1234", 12, 3, 4.5)}
    page = run_slow.write_page(["cuda/test_a", "fuzz"], passes)
    assert run_slow.read_page(page) == passes
    assert "| fuzz |" in page


def test_the_tracked_page_is_one_that_the_runner_wrote() -> None:
    page = run_slow.PAGE.read_text(encoding="utf-8")
    parts = [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| ")][1:]
    assert run_slow.write_page(parts, run_slow.read_page(page)) == page
    assert set(run_slow.COMMANDS) < set(parts)


@pytest.mark.parametrize(
    ("body", "counts"),
    [
        ("assert True", (1, 0)),
        ("assert False", None),
        ("pytest.skip('nothing to test here')", None),
    ],
)
def test_a_part_passes_only_if_a_test_ran_and_none_failed(
    body: str, counts: tuple[int, int] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    (folder / "test_one.py").write_text(f"import pytest\n@pytest.mark.slow\ndef test_it():\n    {body}\n")
    monkeypatch.setattr(run_slow, "ROOT", tmp_path)
    monkeypatch.setattr(run_slow, "REPORT", tmp_path / "report.xml")
    assert run_slow.run_part("test_one") == counts


def test_a_command_passes_by_its_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_slow, "COMMANDS", {"good": ["-c", "pass"], "bad": ["-c", "raise SystemExit(1)"]})
    assert run_slow.run_part("good") == (1, 0)
    assert run_slow.run_part("bad") is None
