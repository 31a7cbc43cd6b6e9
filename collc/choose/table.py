"""Chooses plan, protocol, chunk size and channels for every message size, with a reason.

The model is asked for every variant at every size of a series; variants that cannot win (`collc.simulator.floors`) are
not run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import inf

from collc.choose.search import GAIN, Search, Timed
from collc.collectives.model import Collective
from collc.collectives.sizes import near_size, short_size, size_series
from collc.ir.nodes import MAX_CHUNK_BYTES
from collc.packing.candidates.plans import MOST_CHANNELS, PARTS_IN_TURNS, RING_TURNS, best_rings, rings_of
from collc.packing.model import RINGS
from collc.pipeline import takes_rounds
from collc.simulator.run import MOST_FIFOS, Prediction, Simulator, Variant, variants

# Bytes of calls of a few chunks for each FIFO, whose time over servers the model overstates for plans of several hops.
FEW_CHUNKS = 256 << 10
# The proven rate depends on no parameters of the model, and the parameters of proxy threads are guesses: a smaller gain
# is within their error.
LOWER_RATE_GAIN = 0.05
# Chunks of parts that take turns: many in flight, so none may be large.
_TURN_CHUNKS = (16 << 10, 32 << 10, 64 << 10, 128 << 10)
_ROUND_CHUNKS = (16 << 10, 64 << 10, 96 << 10, 128 << 10, 256 << 10, 512 << 10)
# The most shares of a program whose steps and FIFO ends fit the memory of a block (layout.h).
_MOST_SHARES = 800


@dataclass(frozen=True)
class Choice:
    """From `min_bytes` on (nccl-tests' bytes), until the next choice: this variant. `why` is one line for people."""

    min_bytes: int
    variant: Variant
    time_us: float
    why: str

    def to_json(self) -> dict[str, object]:
        """The choice as JSON values."""
        return {
            "min_bytes": self.min_bytes,
            "plan": self.variant.plan,
            "proto": self.variant.protocol,
            "chunk_bytes": self.variant.chunk_bytes,
            "channels": self.variant.channels,
            "time_us": self.time_us,
            "why": self.why,
        }


@dataclass(frozen=True)
class Table:
    """The choices of one collective and root, sorted by min_bytes from 0, and the predictions behind them."""

    collective: Collective
    root: int | None
    choices: tuple[Choice, ...]
    predictions: tuple[Prediction, ...]


def choose(
    simulator: Simulator,
    sizes: Sequence[int] | None = None,
    *,
    kinds: Sequence[str] | None = None,
    only: Callable[[Variant], bool] = lambda variant: True,
    among: Sequence[Variant] | None = None,
    favored: str | None = None,
    timed: Timed | None = None,
    budget: float = inf,
    status: Callable[[str], None] = lambda text: None,
) -> Table:
    """The table of a collective.

    Args:
        sizes: ascending bytes to decide at; default 1 KiB to 1 GiB in factors of four. Between two sizes with different
            choices the crossover is taken at their geometric mean.
        kinds: plans to consider; default every kind that the graph has.
        only: a further condition on variants, such as a fixed protocol.
        among: only these variants, in place of the variants of `kinds`.
        favored: the kind of plan that is taken first, and up to `FEW_CHUNKS`, unless another is faster by `GAIN`.
            Calls of any larger size do not run over a plan of a lower proven rate, unless it is faster by
            `LOWER_RATE_GAIN` at the last of `sizes`.
        timed: the time of a variant at a size [as it is simulated].
        budget: the work (`Simulator.work`) after which only one more variant is simulated for each size.
    """
    sizes = size_series(1 << 10, 1 << 30, 4) if sizes is None else sizes
    grid = among or [variant for variant in (*variants(simulator, kinds), *in_turns(simulator, kinds)) if only(variant)]
    timed = timed or simulator.predict
    search = Search(simulator, timed, budget)
    choices: list[Choice] = []
    predictions: list[Prediction] = []
    before: Prediction | None = None
    mine = [variant for variant in grid if variant.plan == favored]
    for number, size in enumerate(sizes):
        status(short_size(size))
        search.share_with(len(sizes) - number)
        kept = None if before is None else timed(before.variant, size)
        best = search.fastest(grid, size, kept)
        if best.variant not in mine and mine and (before is None or size <= FEW_CHUNKS):
            same = kept if kept is not None and kept.variant in mine else None
            own = search.fastest(mine, size, same)
            best = own if own.time_us <= best.time_us * (1 + GAIN) else best
        if before is not None and kept is not None and best.variant != kept.variant:
            start = round((sizes[len(predictions) - 1] * size) ** 0.5)
            choices.append(Choice(start, best.variant, best.time_us, _why(simulator, kept, best)))
        if before is None:
            choices.append(Choice(0, best.variant, best.time_us, _first(simulator, best)))
        predictions.append(best)
        before = best
    if mine and _rate(simulator, predictions[-1]) < (rate := simulator.plan(mine[0].plan).rate or 0):
        last = search.fastest(mine, sizes[-1])
        first = next(n for n in range(len(sizes)) if all(_rate(simulator, p) < rate for p in predictions[n:]))
        if first and last.time_us <= predictions[-1].time_us * (1 + LOWER_RATE_GAIN):
            start = round((sizes[first - 1] * sizes[first]) ** 0.5)
            choices = [choice for choice in choices if choice.min_bytes < start]
            predictions[first:] = [timed(last.variant, size) for size in sizes[first:]]
            if last.variant != choices[-1].variant:
                choices.append(Choice(start, last.variant, predictions[first].time_us, "of a higher proven rate"))
    return Table(simulator.collective, simulator.root, tuple(choices), tuple(predictions))


def _rate(simulator: Simulator, found: Prediction) -> Fraction:
    """The proven rate of the plan of a call, in GB/s."""
    rate = simulator.plan(found.variant.plan).rate
    assert rate is not None
    return rate


def in_turns(simulator: Simulator, kinds: Sequence[str] | None = None, most: int = MAX_CHUNK_BYTES) -> list[Variant]:
    """The packed trees, and the rings, cut into more parts than there are channels, which take turns: for calls that
    fill pipelines.

    Args:
        most: bytes of a slot, at most [what the protocol has].
    """
    found = []
    for kind in simulator.kinds if kinds is None else kinds:
        ways: list[tuple[int, Sequence[int], Collection[str]]] = []
        # LL, which halves the bandwidth, is for calls of a few chunks.
        wide = {protocol.name for protocol in simulator.protocols} - {"LL"}
        if kind == "trees" and 2 * len(simulator.plan(kind).trees) <= PARTS_IN_TURNS:
            ways = [(PARTS_IN_TURNS, _TURN_CHUNKS, wide)]
        elif kind == best_rings(simulator.kinds):
            ways = [(_ring_parts(simulator, kind), _ROUND_CHUNKS, wide)]
        found += [
            Variant(kind, protocol.name, chunk, parts)
            for parts, chunks, names in ways
            if parts and simulator.fifos(kind, parts) <= MOST_FIFOS
            for protocol in simulator.protocols
            if protocol.name in names
            for chunk in sorted({min(chunk, most) for chunk in chunks})
            if chunk <= protocol.max_chunk
        ]
    return found


def _ring_parts(simulator: Simulator, kind: str) -> int:
    """Returns the number of parts of rings whose roots share FIFOs, equal for each ring; 0 if they share none."""
    plan, graph = simulator.plan(kind), simulator.graph
    own = rings_of(plan)
    rings = min(MOST_CHANNELS, _MOST_SHARES // RING_TURNS // graph.nranks) // own
    parts = RING_TURNS * rings * own
    return parts if parts and takes_rounds(simulator.spread(kind, parts), graph, simulator.target) else 0


def _first(simulator: Simulator, best: Prediction) -> str:
    depth = max(simulator.heights(best.variant.plan))
    return f"small calls pay for hops: {depth} of {best.variant.plan} over {best.variant.protocol}"


def _channels(variant: Variant) -> str:
    if variant.channels > MOST_CHANNELS:
        blocks = variant.channels // RING_TURNS if variant.plan in RINGS else MOST_CHANNELS
        return f"{variant.channels} parts that take turns in {blocks} channels"
    return f"{variant.channels} channels"


def _why(simulator: Simulator, kept: Prediction, best: Prediction) -> str:
    old, new = kept.variant, best.variant
    reasons = []
    if old.plan != new.plan:
        a, b = simulator.plan(old.plan), simulator.plan(new.plan)
        assert a.rate is not None
        assert b.rate is not None
        reasons.append(
            f"{new.plan} instead of {old.plan} (at most {float(b.rate):.4g} against {float(a.rate):.4g} GB/s, "
            f"{max(simulator.heights(new.plan))} against {max(simulator.heights(old.plan))} hops)"
        )
    if old.protocol != new.protocol:
        p, q = simulator.machine.protocol(old.protocol), simulator.machine.protocol(new.protocol)
        reasons.append(
            f"{q.name} carries {q.efficiency:.0%} of a link where {p.name} carries {p.efficiency:.0%}, "
            f"for {q.hop_us:g} instead of {p.hop_us:g} us per hop"
        )
        if (courier := simulator.machine.courier) is not None:
            before, now = (2 * courier.late_us(protocol) for protocol in (p, q))
            reasons[-1] += f" inside a server; between servers couriers and flags add {now:g} instead of {before:g} us"
    if old.chunk_bytes != new.chunk_bytes and not reasons:
        reasons.append(f"chunks of {short_size(new.chunk_bytes)} instead of {short_size(old.chunk_bytes)}")
    if old.channels != new.channels and not reasons:
        reasons.append(f"{_channels(new)} instead of {old.channels}")
    gain = kept.time_us / best.time_us - 1
    how = f"{gain:.0%} faster" if gain > GAIN else f"within {GAIN:.0%}"
    return f"{how} at {near_size(best.bytes)}: " + "; ".join(reasons)
