"""MIAD finds the top of a curve with few measurements, and never leaves what the library holds."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from collc.tune.miad import miad

K = 1024
CHUNKS = [8 * K, 16 * K, 32 * K, 48 * K, 64 * K, 96 * K, 128 * K]


def curve(times: dict[int, float]) -> Callable[[int, int], tuple[float, float]]:
    return lambda a, b: (times[a], times[b])


@pytest.mark.parametrize("best", CHUNKS)
@pytest.mark.parametrize("start", [None, *CHUNKS])
def test_finds_the_top_of_a_valley_from_anywhere(best: int, start: int | None) -> None:
    """Times that fall to one chunk and rise behind it. MIAD looks no further than one step past a loss, so from a
    start above twice the best it takes additive steps all the way down."""
    times = {chunk: 1.0 + abs(CHUNKS.index(chunk) - CHUNKS.index(best)) for chunk in CHUNKS}
    assert miad(CHUNKS, curve(times), start=start).chunk == best


def test_the_walk_of_figure_12() -> None:
    """Doubles while that helps, then comes down in steps: 8, 16, 32, 64, 128 (worse), 96 (better), and stays."""
    times = dict(zip(CHUNKS, [9.0, 7.0, 5.0, 4.5, 4.0, 3.0, 3.5], strict=True))
    walk = miad(CHUNKS, curve(times))
    assert [trial.other // K for trial in walk.trials if trial.phase == "increase"] == [16, 32, 64, 128]
    assert walk.trials[-1].phase == "decrease"
    assert walk.chunk == 96 * K


def test_random_valleys() -> None:
    rng = random.Random(7)
    for _ in range(200):
        chunks = sorted(rng.sample(range(1, 40), rng.randint(1, 9)))
        top = rng.choice(chunks)
        times = {c: 1 + abs(chunks.index(c) - chunks.index(top)) * 0.1 for c in chunks}
        walk = miad(chunks, curve(times), start=rng.choice([None, *chunks]))
        assert walk.chunk in chunks
        # Never worse than where it began, and no step was taken that did not pay.
        assert all(times[walk.chunk] <= times[trial.best] for trial in walk.trials)


def test_a_gain_below_the_threshold_is_none() -> None:
    times = {8: 1.0, 16: 0.995, 32: 0.99}
    assert miad([8, 16, 32], curve(times), gain=0.01).chunk == 8
    assert miad([8, 16, 32], curve(times)).chunk == 32


def test_one_chunk_needs_no_measurement() -> None:
    walk = miad([64], lambda a, b: pytest.fail("nothing to compare"))
    assert (walk.chunk, walk.trials) == (64, ())


def test_nothing_to_search() -> None:
    with pytest.raises(ValueError, match="no chunk sizes"):
        miad([], lambda a, b: (0.0, 0.0))
    with pytest.raises(ValueError, match="not in list"):
        miad([1, 2], lambda a, b: (0.0, 0.0), start=3)
