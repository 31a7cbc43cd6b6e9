"""Plans: what a packing is, before any schedule or hardware.

Rates and weights are exact `Fraction`s in GB/s of the collective's buffer (nccl-tests' algbw). Vertices and links are
the numbers of a `topology.model.PlanGraph`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from collc.collectives.model import Collective

# Solvers that pack nothing: plans that libraries use by habit (`collc.packing.candidates`).
CANDIDATES = ("ring", "rings", "chain", "double-binary", "one-hop", "three-phase", "hierarchical-rings")
# A channel of these serves the trees of all roots of one ring. Where a graph has several rings, they replace one.
RINGS = ("ring", "rings")


@dataclass(frozen=True, slots=True)
class Hop:
    """One edge of a tree between two ranks; `links` is its path, which passes through no other rank."""

    src: int
    dst: int
    links: tuple[int, ...]


def _height(root: int, edges: Iterable[tuple[int, int]]) -> int:
    """Levels below `root` of the (parent, child) edges that lead away from it."""
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
    """A weighted spanning tree, or a pair of them with one root.

    `reduce` hops go child to parent, `broadcast` hops parent to child; a phase that the collective lacks is empty.
    """

    root: int
    weight: Fraction
    reduce: tuple[Hop, ...] = ()
    broadcast: tuple[Hop, ...] = ()

    @property
    def depth(self) -> int:
        """Hops between the root and the rank farthest from it, in the deeper of the phases."""
        return max(self._heights())

    @property
    def hops(self) -> int:
        """Hops that a chunk makes one after the other: up to the root in the reduce phase, down in the broadcast."""
        return sum(self._heights())

    def _heights(self) -> tuple[int, int]:
        up = _height(self.root, ((hop.dst, hop.src) for hop in self.reduce))
        return up, _height(self.root, ((hop.src, hop.dst) for hop in self.broadcast))


@dataclass(frozen=True, slots=True)
class Flow:
    """`weight` GB/s from one rank to another along a path of links."""

    src: int
    dst: int
    weight: Fraction
    links: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """A vertex set that holds some but not all ranks."""

    side: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Partition:
    """Disjoint vertex sets, each with a rank, all ranks covered (all_reduce only)."""

    parts: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Prices:
    """Link prices, an optimal solution of the dual LP; links that are not listed cost nothing."""

    prices: tuple[tuple[int, Fraction], ...]


Certificate = Cut | Partition | Prices


@dataclass(frozen=True, slots=True)
class Orbit:
    """One tree that stands for all its images under the generators: `count` different ones, of `tree.weight` each."""

    tree: Tree
    count: int


@dataclass(frozen=True, slots=True)
class OrbitLoad:
    """What the orbits' trees put on every link of one orbit of links, in GB/s.

    `link` is the smallest of its `count` links.
    """

    link: int
    count: int
    load: Fraction


@dataclass(frozen=True)
class Orbits:
    """Trees of a plan up to symmetry.

    Each of `generators` is an automorphism of the graph as the image of every vertex; they commute. A tree stands for
    its images under all products of them.
    """

    generators: tuple[tuple[int, ...], ...]
    orbits: tuple[Orbit, ...]
    loads: tuple[OrbitLoad, ...]

    @property
    def count(self) -> int:
        """The number of trees after expansion."""
        return sum(orbit.count for orbit in self.orbits)


# The kind of plan that a program is of by which every rank reduces all inputs itself; it comes from the one-hop plan.
EVERYWHERE = "one-hop+everywhere"
IN_SWITCH = "in-switch"  # the kind of plan that a program is of which runs `Plan.in_switch`


@dataclass(frozen=True, slots=True)
class InSwitch:
    """The collective with copies and sums inside one switch (NVLS), beside the trees of its plan.

    Args:
        switch: the vertex that copies and adds.
        rate, bound, optimal: as in a plan, among the ways to do it through this switch with every part crossing once.
        prices: what proves `bound`.
        cut_bound: what no schedule can exceed, whatever its switches do; `cut` proves it.
        heads: how many GB/s each rank asks the switch for, or stores through it; ranks with none are left out.
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
    """A packing for one collective with the proof of its rate. `rate` and `bound` are None for a single rank.

    Large plans hold their trees as `orbits`; what stands in `trees` is then what the orbits leave over. Rate and bound
    are of trees that switches only forward; `in_switch` is the other way to do it, where a switch can copy and add.
    """

    collective: Collective
    root: int | None
    solver: str
    rate: Fraction | None
    bound: Fraction | None
    optimal: bool
    certificate: Certificate | None
    trees: tuple[Tree, ...] = ()
    flows: tuple[Flow, ...] = ()
    orbits: Orbits | None = None
    in_switch: InSwitch | None = None
    # A time limit ended the search, so that another run may find another plan.
    stopped_by_clock: bool = False
    # For people only, not part of plan files: what the solver says of its own result, such as "fewest trees: proven".
    remark: str = field(default="", compare=False)

    @property
    def kind(self) -> str:
        """`trees` for what a solver packed, else the kind of candidate."""
        return self.solver if self.solver in CANDIDATES else "trees"

    @property
    def tree_count(self) -> int:
        """The number of trees of the plan, including those that its orbits represent."""
        return len(self.trees) + (self.orbits.count if self.orbits else 0)
