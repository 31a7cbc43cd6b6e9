"""Searches for the fastest variant at a size: lower bounds discard variants, and a budget of work limits the rest.

Work is counted (`Simulator.work`), never timed: the same input gives the same choice on a busy machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from collc.simulator.run import Prediction, Simulator, Variant

# A size keeps the choice of the size before it unless another is faster by this share: fewer programs in a library.
GAIN = 0.03
# If a share has more chunks, smaller chunks gain nothing: filling the pipeline costs less than 1/128 of the time.
MAX_CHUNKS_PER_SHARE = 128

Timed = Callable[[Variant, int], Prediction]


class Search:
    """The searches of one table, size by size.

    Args:
        timed: the time of a variant at a size.
        budget: work of all sizes together. A size whose share is used up takes the best simulated variant. Every size
            simulates at least one.
    """

    def __init__(self, simulator: Simulator, timed: Timed, budget: float = inf) -> None:
        self.simulator, self.timed = simulator, timed
        self.end = self.until = simulator.work + budget
        # The last simulated time over its floor, and its size: by variant, and by program with a chunk or a protocol.
        self.over_floor: dict[object, tuple[float, int]] = {}

    def share_with(self, nsizes: int) -> None:
        """Gives the next size an equal share of the work that is left for `nsizes` sizes."""
        work = self.simulator.work
        self.until = work + max(0.0, self.end - work) / nsizes

    def fastest(self, grid: Sequence[Variant], size: int, kept: Prediction | None = None) -> Prediction:
        """The fastest variant at a size; on a tie the earlier one in the grid; `kept`, unless another is faster by
        `GAIN`.

        Variants that by their floor cannot win are not simulated. The others are simulated in the order of the times
        that they are expected to take.
        """
        simulator = self.simulator
        grid = sensible(simulator, grid, size)
        floors = {v: simulator.floor_us(v, size) for v in grid}
        if kept is not None:
            grid = [v for v in grid if floors[v] * (1 + GAIN) < kept.time_us]
        best: Prediction | None = None
        least = inf if kept is None else kept.time_us
        for variant in sorted(grid, key=lambda v: floors[v] * self._over_floor(v, size)):
            if floors[variant] >= least:
                continue
            if simulator.work > self.until and (best or kept):
                break
            found = self.timed(variant, size)
            ratio = found.time_us / floors[variant] if floors[variant] else 1.0
            self.over_floor |= dict.fromkeys(_alike(variant), (ratio, size))
            if best is None or (found.time_us, grid.index(variant)) < (best.time_us, grid.index(best.variant)):
                best, least = found, min(least, found.time_us)
        if kept is not None and (best is None or kept.time_us <= best.time_us * (1 + GAIN)):
            return kept
        assert best is not None, "a grid has at least one variant"
        return best

    def _over_floor(self, variant: Variant, size: int) -> float:
        """The expected time of a variant over its floor.

        The ratio is known from the variant at another size, or from its program with another protocol or other chunks.
        The excess over 1 is halved for each factor of four between the two sizes beyond the first.
        """
        found = (self.over_floor[key] for key in _alike(variant) if key in self.over_floor)
        ratio, known = next(found, (1.0, size))
        return 1 + (ratio - 1) * 0.5 ** max(0, abs(size.bit_length() - known.bit_length()) // 2 - 1)


def _alike(variant: Variant) -> tuple[object, ...]:
    """A variant, its program with these chunks over any protocol, and with any chunks over its protocol."""
    return (variant, (variant.plan, variant.channels, variant.chunk_bytes), but_chunk(variant))


def fastest(simulator: Simulator, grid: Sequence[Variant], size: int) -> Prediction:
    """The fastest variant at one size."""
    return Search(simulator, simulator.predict).fastest(grid, size)


def sensible(simulator: Simulator, grid: Sequence[Variant], size: int) -> list[Variant]:
    """The grid without chunks that cannot matter at a size.

    Chunks that hold a whole share all make one program, so only the smallest of them stays. A chunk goes if a
    share has more than `MAX_CHUNKS_PER_SHARE` of it and a larger one exists.
    """
    kept = []
    for variant in grid:
        same = [v.chunk_bytes for v in grid if v != variant and but_chunk(v) == but_chunk(variant)]
        share = size / simulator.shares(variant.plan, variant.channels)
        if any(share <= chunk < variant.chunk_bytes for chunk in same):
            continue
        if share > MAX_CHUNKS_PER_SHARE * variant.chunk_bytes and any(chunk > variant.chunk_bytes for chunk in same):
            continue
        kept.append(variant)
    return kept


def but_chunk(variant: Variant) -> tuple[str, str, int]:
    """Returns a variant without its chunk size, which needs no other program."""
    return (variant.plan, variant.protocol, variant.channels)
