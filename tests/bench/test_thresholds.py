"""bench-thresholds runs the command again until it has seen the cores as far apart as at first."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("benchmarks/ is not part of the installed package", allow_module_level=True)
sys.path.insert(0, str(BENCHMARKS))

import thresholds  # noqa: E402

# Modules of benchmarks/ have names of packages of the tests.
sys.path.remove(str(BENCHMARKS))


@pytest.mark.parametrize(
    ("seen", "runs"),
    [([{"near": 1}], 1), ([{"far": 2}, {"far": 3}, {"near": 4, "far": 3}], 3), ([{"far": 5}] * 9, None)],
)
def test_found_again(monkeypatch: pytest.MonkeyPatch, seen: list[dict[str, int]], runs: int | None) -> None:
    left = list(seen)
    monkeypatch.setattr(thresholds, "TRIES", len(seen))
    monkeypatch.setattr(thresholds, "tune_machine", lambda *_: SimpleNamespace(thresholds=left.pop(0)))
    monkeypatch.setattr("time.sleep", lambda _: None)
    if runs is None:
        with pytest.raises(SystemExit, match="never near"):
            thresholds.found_again(Path("lib"), Path("file"), {"near"})
        return
    found: dict[str, object] = dict(thresholds.found_again(Path("lib"), Path("file"), {"near"}))
    assert found == {name: value for one in seen for name, value in one.items()}
    assert len(seen) - len(left) == runs
