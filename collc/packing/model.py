"""The data types of plans: weighted trees or flows, their rate, and the certificate that bounds it.

Rates and weights are exact `Fraction`s in GB/s of the collective's buffer (nccl-tests' algbw). Vertices and links are
the numbers of a `topology.model.PlanGraph`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction

from collc.collectives.model import Collective


class PlanType(StrEnum):
    """The type of a plan: packed by a solver (or given by the user), conventional, or made from another plan.

    Attributes:
        EVERYWHERE: the plan of programs whose ranks all reduce all inputs, made from the one-hop plan.
        IN_SWITCH: the type of programs that run `Plan.in_switch`.
    """

    TREES = "trees"
    RING = "ring"
    RINGS = "rings"
    CHAIN = "chain"
    DOUBLE_BINARY = "double-binary"
    ONE_HOP = "one-hop"
    THREE_PHASE = "three-phase"
    HIERARCHICAL_RINGS = "hierarchical-rings"
    EVERYWHERE = "one-hop+everywhere"
    IN_SWITCH = "in-switch"


EVERYWHERE, IN_SWITCH = PlanType.EVERYWHERE, PlanType.IN_SWITCH
# The conventional plans that compete with packed trees (`collc.packing.candidates.plans`). No solver packs them.
CANDIDATES = tuple(kind for kind in PlanType if kind not in (PlanType.TREES, EVERYWHERE, IN_SWITCH))
# Candidates with one channel for the trees of all roots of a ring. The last one that a graph has is the fastest.
RINGS = (PlanType.RING, PlanType.RINGS)


@dataclass(frozen=True, slots=True)
class Hop:
    """An edge of a tree between two ranks. The path `links` passes through no other rank."""

    src: int
    dst: int
    links: tuple[int, ...]


def _height(root: int, edges: Iterable[tuple[int, int]]) -> int:
    """Returns the number of levels below `root` in a tree of (parent, child) edges."""
    children: dict[int, list[int]] = {}
    for parent, child in edges:
        children.setdefault(parent, []).append(child)
    level, height = children.pop(root, []), 0
    while level:
        height += 1
        level = [below for rank in level for below in children.pop(rank, ())]
    return height


@dataclass(frozen=True, slots=True)
class Tree:
    """A weighted spanning tree, or a pair of spanning trees with one root.

    Hops of `reduce` lead from child to parent, hops of `broadcast` from parent to child. A phase that the collective
    does not have is empty. The weight is in GB/s.
    """

    root: int
    weight: Fraction
    reduce: tuple[Hop, ...] = ()
    broadcast: tuple[Hop, ...] = ()

    @property
    def depth(self) -> int:
        """The number of hops between the root and the rank farthest from it, in the deeper phase."""
        return max(self._heights())

    @property
    def hops(self) -> int:
        """The number of hops in a row: to the root in the reduce phase, then to the farthest rank in the broadcast."""
        return sum(self._heights())

    def _heights(self) -> tuple[int, int]:
        up = _height(self.root, ((hop.dst, hop.src) for hop in self.reduce))
        return up, _height(self.root, ((hop.src, hop.dst) for hop in self.broadcast))


@dataclass(frozen=True, slots=True)
class Flow:
    """Data that moves at `weight` GB/s from one rank to another along a path of links."""

    src: int
    dst: int
    weight: Fraction
    links: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """A certificate: a vertex set that contains some but not all ranks."""

    side: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Partition:
    """A certificate for all_reduce: disjoint vertex sets with at least one rank each, which cover all ranks."""

    parts: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Prices:
    """A certificate: (link, price) pairs that solve the dual LP. Links that are not listed have price 0."""

    prices: tuple[tuple[int, Fraction], ...]


Certificate = Cut | Partition | Prices


@dataclass(frozen=True, slots=True)
class Orbit:
    """A tree that represents its `count` different images under the generators. Each has the weight of `tree`."""

    tree: Tree
    count: int


@dataclass(frozen=True, slots=True)
class OrbitLoad:
    """The load in GB/s that the trees of all orbits put on each link of one orbit of links.

    Attributes:
        link: the smallest id in the orbit of links.
        count: the number of links in the orbit.
    """

    link: int
    count: int
    load: Fraction


@dataclass(frozen=True)
class Orbits:
    """Trees of a plan up to symmetry.

    Each generator is an automorphism of the graph, given as the image of every vertex. Generators commute. A tree
    represents its images under all products of generators.
    """

    generators: tuple[tuple[int, ...], ...]
    orbits: tuple[Orbit, ...]
    loads: tuple[OrbitLoad, ...]

    @property
    def count(self) -> int:
        """The number of trees after expansion."""
        return sum(orbit.count for orbit in self.orbits)


@dataclass(frozen=True, slots=True)
class InSwitch:
    """A second plan of the same collective, with copies and sums inside one switch (NVLS).

    Attributes:
        switch: the vertex that copies and adds.
        rate, bound, optimal: as in a plan, among schedules whose parts cross this switch once each.
        prices: the certificate of `bound`.
        cut_bound: the GB/s that no schedule exceeds, whatever switches do.
        cut: the certificate of `cut_bound`.
        heads: (rank, GB/s) that the rank reads from the switch or stores through it; without ranks that have 0 GB/s.
    """

    switch: int
    rate: Fraction
    bound: Fraction
    optimal: bool
    prices: Prices
    cut_bound: Fraction
    cut: Cut
    heads: tuple[tuple[int, Fraction], ...]


@dataclass(frozen=True)
class Plan:
    """A packing for one collective with the certificate of its bound.

    Attributes:
        root: the root rank; None for a collective without a root.
        solver: the name of the solver that packed it, or `given` for a plan of the user; None for other types.
        rate, bound: GB/s, for switches that only forward; None for a single rank.
        trees, orbits: all trees; a large plan represents trees by orbits, and lists only the others in `trees`.
        in_switch: the plan for a switch that can copy and add, if there is one.
    """

    collective: Collective
    root: int | None
    kind: PlanType
    solver: str | None
    rate: Fraction | None
    bound: Fraction | None
    optimal: bool
    certificate: Certificate | None
    trees: tuple[Tree, ...] = ()
    flows: tuple[Flow, ...] = ()
    orbits: Orbits | None = None
    in_switch: InSwitch | None = None
    # True if a time limit ended the search. Another run may then find another plan.
    stopped_by_clock: bool = False
    # The solver's note about its result, such as "4 trees: proven". It is printed, but not written to plan files.
    remark: str = field(default="", compare=False)

    @property
    def origin(self) -> str:
        """The name of the solver, or of the plan type without a solver. Plan files contain it as `solver`."""
        return self.kind if self.solver is None else self.solver

    @property
    def tree_count(self) -> int:
        """The number of trees of the plan, including those that its orbits represent."""
        return len(self.trees) + (self.orbits.count if self.orbits else 0)


def parse_origin(name: str) -> tuple[PlanType, str | None]:
    """Returns the plan type and the solver of a `Plan.origin`."""
    return (PlanType(name), None) if name in CANDIDATES else (PlanType.TREES, name)
