"""The plans that a graph has for a collective, by kind: what the simulator compares."""

from __future__ import annotations

import dataclasses
from functools import cached_property

from collc.build.plans import SolutionCache
from collc.collectives.model import Collective
from collc.errors import CollcError, PackingError, UsageError
from collc.packing import plan as packed_plan
from collc.packing.candidates.paths import Paths, shortest_paths
from collc.packing.candidates.plans import KINDS, candidate, everywhere, spread
from collc.packing.candidates.ring_search import LISTED
from collc.packing.model import EVERYWHERE, IN_SWITCH, Plan, PlanType
from collc.topology.model import PlanGraph

# Sums and copies inside a switch are simulated where they are asked for, and no candidate: not every machine runs them.
PLANS = ("trees", *KINDS, EVERYWHERE, IN_SWITCH)


class Plans:
    """The plans of one collective on one graph. Each is computed on first use."""

    def __init__(self, graph: PlanGraph, collective: Collective, root: int | None = None) -> None:
        self.graph, self.collective = graph, collective
        self.root = (0 if root is None else root) if collective.rooted else None
        self.plans: dict[str, Plan] = {}
        self.spreads: dict[tuple[str, int], Plan] = {}
        self._heights: dict[str, tuple[int, ...]] = {}

    def plan(self, kind: str) -> Plan:
        """The plan of a kind, packed or made on first use.

        Raises:
            PackingError: this graph has none.
        """
        if kind not in self.plans:
            if kind not in PLANS:
                raise UsageError(f"no plan {kind!r}", hint=f"choose one of {', '.join(PLANS)}")
            if kind == IN_SWITCH:
                made = self.plan("trees")
                if made.in_switch is None:
                    raise PackingError(f"no switch that joins all GPUs can do {self.collective.value}")
            elif kind == EVERYWHERE:
                made = everywhere(self.graph, self.plan("one-hop"))
            elif kind == "trees":
                made = packed_plan(self.graph, self.collective, self.root, store=SolutionCache())
            elif kind == "rings" and self.graph.nranks > LISTED:
                # Beyond `LISTED` ranks only one ring is searched for.
                made = dataclasses.replace(self.plan("ring"), kind=PlanType.RINGS)
            else:
                made = candidate(self.graph, self.collective, self.root, kind, self.paths)
            self.plans[kind] = made
        return self.plans[kind]

    def heights(self, kind: str) -> tuple[int, ...]:
        """Per tree of the plan, how many hops follow each other: up the longest way, then down it."""
        if kind not in self._heights:
            self._heights[kind] = tuple(tree.hops for tree in self.plan(kind).trees)
        return self._heights[kind]

    @cached_property
    def paths(self) -> Paths:
        """The shortest paths between ranks."""
        return shortest_paths(self.graph)

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of plan that this graph has."""
        return tuple(kind for kind in PLANS if kind != IN_SWITCH and self.has(kind))

    def has(self, kind: str) -> bool:
        """Returns whether this graph has a plan of a type."""
        try:
            self.plan(kind)
        except UsageError:
            raise
        except CollcError:
            return False
        return True

    def spread(self, kind: str, channels: int) -> Plan:
        """The plan cut into parts for a number of channels."""
        key = (kind, channels)
        if key not in self.spreads:
            self.spreads[key] = spread(self.plan(kind), channels)
        return self.spreads[key]

    def shares(self, kind: str, channels: int) -> int:
        """Into how many parts of each rank's data the plan, so cut, cuts a call."""
        trees = len(self.spread(kind, channels).trees)
        return trees // self.graph.nranks if kind == EVERYWHERE else trees

    def fifos(self, kind: str, channels: int) -> int:
        """The number of FIFOs of the program: one per hop."""
        return sum(len(tree.reduce) + len(tree.broadcast) for tree in self.spread(kind, channels).trees)
