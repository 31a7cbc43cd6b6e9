"""Chunks and channels by size without the model: the time of a pipeline in closed form, microseconds per plan."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from collc.choose.search import GAIN
from collc.collectives.sizes import short_size, size_series
from collc.options import Target
from collc.packing.candidates.plans import MOST_CHANNELS, PARTS_IN_TURNS
from collc.packing.model import Plan, Tree
from collc.simulator.params import BYTES_PER_US, GENERIC, Machine

# Choices are made at these sizes (bytes).
SIZES = size_series(1 << 10, 256 << 20, 4)
# The same if the model chooses for GPUs.
LARGE_TOO = (*SIZES, 1 << 30)
# (least bytes of calls whose parts take turns, bytes of their chunks).
_TURNS_FROM = ((4 << 20, 16 << 10), (48 << 20, 64 << 10))


@dataclass(frozen=True)
class ChunkRule:
    """From `min_bytes` (nccl-tests' bytes) on: chunks of `chunk_bytes`, trees spread to `channels` (0: as they are)."""

    min_bytes: int
    chunk_bytes: int
    why: str
    channels: int = 0


def rules(plan: Plan, target: Target, machine: Machine = GENERIC) -> list[ChunkRule]:
    """Chunk sizes by size and, for large calls of trees whose blocks would go up and down by turns, parts that take
    turns (`collc.lowering.take_turns`): in the model 1.1 to 1.4 times as fast from 4 MiB on, 1.3 to 1.9 times from
    64 MiB on, on DGX-1V and its allocations, DGX-1P and AC922; trees of one hop gain nothing."""
    found = chunk_rule(plan, target, machine)
    if target.shares_slots or len(plan.trees) > PARTS_IN_TURNS or not any(map(_alternates, plan.trees)):
        return found
    parts = PARTS_IN_TURNS
    turning = [
        ChunkRule(least, chunk, f"{parts} parts that take turns in {MOST_CHANNELS} channels, by a rule", parts)
        for least, chunk in _TURNS_FROM
    ]
    return [rule for rule in found if rule.min_bytes < turning[0].min_bytes] + turning


def everywhere_below(plan: Plan, everywhere: Plan, machine: Machine) -> int:
    """Returns the least bytes of an all_reduce over the packed trees: smaller calls take one hop of all inputs
    (`collc.lowering.reduce_everywhere`), by launch, hops and bytes over LL.

    Args:
        everywhere: what `collc.packing.candidates.plans.everywhere` says of it.
    """
    protocol = machine.protocol("LL")
    hops = max(tree.hops for tree in plan.trees)

    def time_us(hops: int, rate: Fraction | None, size: int) -> float:
        assert rate is not None
        moved = size / (float(rate) * protocol.efficiency * BYTES_PER_US)
        return machine.launch_us + hops * max(protocol.hop_us, machine.step_us) + moved

    def pays(size: int) -> bool:
        return time_us(1, everywhere.rate, size) * (1 + GAIN) <= time_us(hops, plan.rate, size)

    below = 0
    for size in SIZES:
        if not pays(size):
            return below
        below = 2 * size if pays(2 * size) else size
    return below


def _alternates(tree: Tree) -> bool:
    """Returns True if some rank hands partial results up and finished ones down."""
    return not {hop.src for hop in tree.reduce}.isdisjoint(hop.src for hop in tree.broadcast)


def chunk_rule(plan: Plan, target: Target, machine: Machine = GENERIC) -> list[ChunkRule]:
    """Chunk sizes for the packed trees as they are, by the time of a pipeline in closed form.

    A tree of weight w GB/s with h hops in a row takes h * (hop + chunk/w) for its first chunk and step + chunk/w for
    every later one. All trees end together, so the heaviest with the longest way stands for all. A later size keeps the
    chunk of the size before it unless another is faster by `GAIN`.
    """
    assert plan.rate is not None
    protocol = machine.protocol("Simple")
    hops = max(tree.hops for tree in plan.trees)
    heaviest = max(tree.weight for tree in plan.trees)
    chunks = [c for c in target.tuning_chunks if c <= target.chunk_bytes]

    def time_us(size: int, chunk: int) -> float:
        share = max(float(Fraction(size) * heaviest / (plan.rate or 1)), 1.0)
        each = min(chunk, share) / (float(heaviest) * BYTES_PER_US)
        later = max(share / chunk, 1.0) - 1
        return hops * (protocol.hop_us + each) + later * (machine.step_us + each)

    found: list[ChunkRule] = []
    for at, size in enumerate(SIZES):
        best = min(chunks, key=lambda chunk: (time_us(size, chunk), chunk))
        if not found:
            found.append(ChunkRule(0, best, f"trees of {hops} hops, by a rule"))
        elif time_us(size, best) * (1 + GAIN) < (kept := time_us(size, found[-1].chunk_bytes)):
            start = round((SIZES[at - 1] * size) ** 0.5)
            gain = kept / time_us(size, best) - 1
            old, new = short_size(found[-1].chunk_bytes), short_size(best)
            why = f"{gain:.0%} faster at {short_size(size)} by a rule: chunks of {new} instead of {old}"
            found.append(ChunkRule(start, best, why))
    return found
