"""The tables of one allocation as the model chooses them, with chunks whose FIFOs fit the memory.

Slots are as large as the largest chunk that goes through them, and collectives share FIFOs. Where memory for FIFOs is
short, chunks get smaller in steps: of the collectives whose calls then lose least time for the memory they give back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from math import log

from collc.choose.given import GIVEN
from collc.choose.programs import LEAST_SLOT, ProgramList
from collc.choose.rules import LARGE_TOO, SIZES
from collc.choose.search import but_chunk
from collc.choose.table import Table, choose, in_turns
from collc.choose.turned import equal_both_ways
from collc.collectives.model import COMPILED, Collective
from collc.collectives.sizes import short_size
from collc.ir.nodes import MAX_CHUNK_BYTES, Program
from collc.options import Target, TargetKind
from collc.packing.candidates.plans import MOST_CHANNELS, best_rings
from collc.packing.model import RINGS, Plan
from collc.simulator.engine import Outcome
from collc.simulator.params import Machine
from collc.simulator.run import STEP_WORK, Prediction, Simulator, Variant, own_channels, variants
from collc.topology.model import PlanGraph

# Between servers: with smaller chunks, headers and the counts that come back take more than a hundredth of the network.
_LEAST_WIRED_CHUNK = 16 << 10
# Bytes. The times of smaller calls consist mostly of hops.
_LARGE = 1 << 20
# Chunks of each share that surely fill pipelines: twice the number that `Simulator.predict` asks for.
_FULL_CHUNKS = 16
# The work of choosing one table, and of one simulated call (`Simulator.work`): about 10 and 1 s of a 3 GHz core.
TABLE_WORK, RUN_WORK = 600_000_000, 100_000_000
# Times of calls above `LONG` bytes with more than `_FEW_STEPS` steps are extended from calls of LONG and LONG / 4
# bytes.
LONG = 256 << 20
_FEW_STEPS = 1 << 19
# A collective and its mirror (such as broadcast and reduce) share most FIFOs and most choices, so they get one limit.
_FAMILIES = tuple(dict.fromkeys(tuple(c for c in COMPILED if c in (one, one.mirror)) for one in COMPILED))


class ModelTables:
    """The tables of one allocation: of each collective for the first of its roots, kept for the others.

    Args:
        beside: the kinds of plans that are compared with the packed trees [all]; these have a channel for each tree.
        most: the largest chunk of a collective [whatever its protocols take].
    """

    def __init__(
        self,
        graph: PlanGraph,
        packed: Sequence[Plan],
        target: Target,
        machine: Machine,
        beside: Sequence[str] = (),
        *,
        most: Mapping[Collective, int] | None = None,
    ) -> None:
        self.graph, self.packed, self.target, self.machine, self.beside = graph, packed, target, machine, beside
        self.most = dict(most or {})
        self.sizes = SIZES if beside else LARGE_TOO
        self.simulators: dict[Collective, _Remembering] = {}
        self.tables: dict[Collective, Table] = {}
        self.own: dict[tuple[Collective, int | None], Table] = {}
        self.both_ways = equal_both_ways(graph)

    def limited(self, collectives: Sequence[Collective], chunk_bytes: int) -> ModelTables:
        """Returns the same with other chunks, at most, of some collectives, whose tables are chosen again."""
        most = {**self.most, **dict.fromkeys(collectives, chunk_bytes)}
        made = ModelTables(self.graph, self.packed, self.target, self.machine, self.beside, most=most)
        # Simulated times stay.
        made.simulators = self.simulators
        made.tables = {c: table for c, table in self.tables.items() if c not in collectives}
        made.own = {key: table for key, table in self.own.items() if key[0] not in collectives}
        return made

    def lowered(self, plan: Plan, kind: str, channels: int) -> Program | None:
        """Returns the program of a plan type and a number of channels for the collective and root of a packed plan.

        The result is None if that program was not simulated as it is compiled.
        """
        simulator = self.simulators.get(plan.collective)
        if self.target.kind is not TargetKind.CUDA or simulator is None or simulator.plans["trees"] is not plan:
            return None
        _, program = simulator.programs.get((kind, channels), (None, None))
        return program if program is not None and len(program.channels) <= self.target.max_channels else None

    def time(self) -> float:
        """Returns the sum of the logarithms of the times of large calls, to compare with other tables."""
        return sum(
            log(prediction.time_us)
            for table in self.tables.values()
            for prediction in table.predictions
            if prediction.bytes >= _LARGE
        )

    def chunk(self, collectives: Sequence[Collective]) -> int:
        """The largest chunk that the tables of these collectives ask for; 0 where there are none."""
        found = [self.tables[c].choices for c in collectives if c in self.tables]
        found += [table.choices for (c, _), table in self.own.items() if c in collectives]
        return max((min(c.variant.chunk_bytes, self.target.chunk_bytes) for rows in found for c in rows), default=0)

    def table(self, plan: Plan) -> Table:
        """The choices for a plan."""
        if plan.solver == GIVEN:
            key = (plan.collective, plan.root)
            if key not in self.own:
                simulator = self._simulator(plan)
                self.own[key] = self._choose_among(simulator, self._grid(simulator, ["trees"]))
            return self.own[key]
        others = [p for p in self.packed if p.solver != GIVEN]
        first = next(p for p in others if p.collective is plan.collective)
        mirror = plan.collective.mirror if plan.collective.inward and self.both_ways else None
        turned = next((p for p in others if p.collective is mirror), None)
        if turned is not None and self.beside:
            # Between servers links take most of the time, and a sum takes as long as a copy.
            return self.table(turned)
        if first.collective not in self.tables:
            self.tables[first.collective] = self._choose(first, None if turned is None else self.table(turned))
        return self.tables[first.collective]

    def _choose(self, plan: Plan, mirrors: Table | None) -> Table:
        """Returns the table of a plan.

        Args:
            mirrors: the table of the collective's mirror, if all links are equal both ways. Only its programs are
                tried, each with chunks of any size: a call takes about as long, but a sum takes longer than a copy.
        """
        simulator = self._kept_simulator(plan)
        grid = self._grid(simulator, self._kinds(simulator))
        if mirrors is not None:
            programs = {but_chunk(choice.variant) for choice in mirrors.choices}
            grid = [v for v in grid if but_chunk(v) in programs] or grid
        return self._choose_among(simulator, grid)

    def _kept_simulator(self, plan: Plan) -> _Remembering:
        if plan.collective not in self.simulators:
            self.simulators[plan.collective] = self._simulator(plan)
        return self.simulators[plan.collective]

    def _kinds(self, simulator: Simulator) -> list[str]:
        """The kinds of plans that are compared."""
        if self.beside:
            return ["trees", *filter(simulator.has, self.beside)]
        # A ring is one of the rings, and a chain is never chosen.
        left_out = {"chain", *RINGS} - {best_rings(simulator.kinds)}
        return [kind for kind in simulator.kinds if kind not in left_out]

    def _simulator(self, plan: Plan) -> _Remembering:
        slots, few = self.target.slots, self.target.round_slots
        made = _Remembering(self.graph, plan.collective, plan.root, self.machine, slots=slots, round_slots=few)
        made.plans["trees"] = plan
        return made

    def _choose_among(self, simulator: Simulator, grid: Sequence[Variant]) -> Table:
        favored = "trees" if self.beside else None
        timed = partial(call_time, simulator, bool(self.beside))
        return choose(simulator, self.sizes, among=grid, favored=favored, timed=timed, budget=TABLE_WORK)

    def _grid(self, simulator: Simulator, kinds: Sequence[str]) -> list[Variant]:
        """Returns the candidates."""
        can = {name.lower() for name in self.target.protocols}
        # Until memory says otherwise a protocol's own largest chunk may be above the target's.
        most = self.most.get(simulator.collective, MAX_CHUNK_BYTES)

        def allowed(variant: Variant) -> bool:
            fits = True
            if self.beside:
                # Channels of the host are no thread blocks: more of them move nothing faster.
                own = own_channels(simulator.plan(variant.plan))
                fits = variant.channels <= own and variant.chunk_bytes >= _LEAST_WIRED_CHUNK
            return fits and variant.protocol.lower() in can and variant.chunk_bytes <= most

        slot = MAX_CHUNK_BYTES if self.beside else most
        return [v for v in (*variants(simulator, kinds, slot), *in_turns(simulator, kinds, slot)) if allowed(v)]


def call_time(simulator: Simulator, by_floor: bool, variant: Variant, size: int) -> Prediction:
    """Returns the time of a call. Calls of more work than about `RUN_WORK` are extended from smaller ones.

    Args:
        by_floor: True extends calls as their floors grow. False does so only if `RUN_WORK` does not fill the pipelines,
            and extends other calls by the same time for every byte.
    """
    loops = simulator.graph.nranks * min(variant.channels, MOST_CHANNELS)
    most = RUN_WORK // (STEP_WORK + loops)
    if by_floor or _FULL_CHUNKS * simulator.fifos(variant.plan, variant.channels) > most:
        return simulator.estimate(variant, size, most)
    if size <= LONG or simulator.steps(variant, size) <= _FEW_STEPS:
        return simulator.predict(variant, size)
    return simulator.extended(variant, size, LONG)


class _Remembering(Simulator):
    """A simulator that is asked again and again: it keeps what it predicted, without the steps of the runs."""

    @cached_property
    def known(self) -> dict[tuple[Variant, int], Prediction]:
        """The prediction of each variant and size asked for."""
        return {}

    def predict(self, variant: Variant, size: int, *, whole: bool = False) -> Prediction:
        assert not whole
        key = (variant, size)
        if key not in self.known:
            found = super().predict(variant, size)
            self.known[key] = dataclasses.replace(found, outcome=Outcome(found.outcome.time, (), ()))
        return self.known[key]

    @cached_property
    def least(self) -> dict[tuple[Variant, int], float]:
        """The floor of each variant and size asked for."""
        return {}

    def floor_us(self, variant: Variant, size: int) -> float:
        key = (variant, size)
        if key not in self.least:
            self.least[key] = super().floor_us(variant, size)
        return self.least[key]


def fit(
    fill: Callable[[ModelTables], ProgramList], model: ModelTables, status: Callable[[str], None]
) -> tuple[ProgramList, ModelTables]:
    """The programs of the tables, with chunks that fit the memory for FIFOs as far as smaller chunks can help.

    Args:
        fill: from tables to programs.
        model: the tables without limits.
    """
    found = fill(model)
    while (taken := found.memory()) > 1:
        ways = []
        for family in _FAMILIES:
            if (chunk := model.chunk(family)) > LEAST_SLOT:
                ways.append((family, chunk))
        if not ways:
            break
        tried = [_less(fill, model, [way]) for way in ways]
        useful = [(made, tables) for made, tables in tried if made.memory() < taken]
        if useful:
            found, model = min(useful, key=lambda one: (one[1].time() - model.time()) / log(taken / one[0].memory()))
        else:
            # All of them share their slots.
            most = max(chunk for _, chunk in ways)
            found, model = _less(fill, model, [way for way in ways if way[1] == most])
        _tell(status, found, model)
    return found, model


def _tell(status: Callable[[str], None], found: ProgramList, model: ModelTables) -> None:
    chunks = ", ".join(short_size(chunk) for family in _FAMILIES if (chunk := model.chunk(family)))
    status(f"choosing again: chunks of at most {chunks}, for {found.memory():.2f} of the memory for FIFOs")


def _less(
    fill: Callable[[ModelTables], ProgramList], model: ModelTables, ways: Sequence[tuple[tuple[Collective, ...], int]]
) -> tuple[ProgramList, ModelTables]:
    """Returns the programs with smaller chunks of some families."""
    for family, chunk in ways:
        model = model.limited(family, _next_smaller(chunk))
    return fill(model), model


def _next_smaller(chunk: int) -> int:
    """Returns the largest power of two, or 1.5 times one, below a chunk.

    Halves are too coarse: on hgx-b200 an all_gather of 64 MiB takes 102 us with chunks of 96 KiB, 124 us with 64 KiB
    (simulated).
    """
    power = 1 << ((chunk - 1).bit_length() - 1)
    return power * 3 // 2 if power * 3 // 2 < chunk else power
