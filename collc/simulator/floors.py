"""Computes a time that no simulated call undercuts from only its plan: nothing is lowered or run.

A resource that many hops share, such as a link, cannot begin before the first chunk has come to it, moves its bytes at
its capacity, and the last chunk that leaves it has a way before it. The largest of these sums over all resources is the
floor, as the bound of Jackson's one-machine problem in scheduling (Carlier 1982). A FIFO is such a resource as well: it
moves one chunk after the other, and as many within the time that a slot is away as it has slots. The thread block of a
channel does one step after the other, and reads and writes at its own rate.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collc.packing.candidates.plans import MOST_CHANNELS, is_rings, rings_of
from collc.packing.model import EVERYWHERE, Hop, Plan, Tree
from collc.simulator.params import BYTES_PER_US, Machine, Protocol
from collc.simulator.rails import PARTS, Joined, Pair, Rails
from collc.topology.model import PlanGraph

# Shares end on multiples of this many bytes.
_UNIT = 16
# Extrapolated calls may be slightly faster than the floor.
_SURE = 0.98

_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Way:
    """The fixed cost of a hop, the cost of a byte, and the part of a byte that each resource carries.

    `each_us` is the time that a chunk occupies its mover in addition to its bytes. `slot_us` is the time from taking a
    slot until its writer has it back.
    """

    lag_us: float
    each_us: float
    slot_us: float
    us_per_byte: float
    resources: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class _Before:
    """The longest way of a chunk to a place: its hops' lags and, with them, what each of its bytes costs."""

    lag_us: float = 0.0
    us_per_byte: float = 0.0

    def then(self, way: _Way) -> _Before:
        return _Before(self.lag_us + way.lag_us, self.us_per_byte + way.us_per_byte)


class Floor:
    """The floors of one plan in one protocol, by bytes and chunk."""

    def __init__(
        self, plan: Plan, graph: PlanGraph, machine: Machine, protocol: Protocol, slots: int, rails: Rails | None = None
    ) -> None:
        assert plan.rate is not None
        self.start_us = machine.launch_us + protocol.start_us
        self.shares = np.array([float(tree.weight / plan.rate) for tree in plan.trees])
        ways = _Ways(plan, graph, machine, protocol, rails or Rails(graph))
        shapes: dict[tuple[int, int], list[tuple[_Way, _Before, float]]] = {}
        for tree in plan.trees:
            if _shape(tree) not in shapes:
                shapes[_shape(tree)] = list(_rows(tree, ways))
        rows = [(t, *row) for t, tree in enumerate(plan.trees) for row in shapes[_shape(tree)]]
        crossings = [(i, *crossed) for i, row in enumerate(rows) for crossed in row[1].resources]
        self.tree: _Ints = np.array([row[0] for row in rows], np.int64)
        self.head_us: _Floats = np.array([row[2].lag_us for row in rows])
        self.head_per_byte: _Floats = np.array([row[2].us_per_byte for row in rows])
        self.own_per_byte: _Floats = np.array([row[1].us_per_byte for row in rows])
        self.each_us: _Floats = np.array([row[1].each_us for row in rows])
        self.slot_us: _Floats = np.array([row[1].slot_us for row in rows])
        self.slots = slots
        self.tail_us: _Floats = np.array([row[1].lag_us + row[3] for row in rows])
        self.longest_us: _Floats = np.zeros(len(plan.trees))
        np.maximum.at(self.longest_us, self.tree, self.head_us + self.tail_us)
        self.row: _Ints = np.array([i for i, _, _ in crossings], np.int64)
        self.resource: _Ints = np.array([resource for _, resource, _ in crossings], np.int64)
        self.carried: _Floats = np.array([share for _, _, share in crossings])
        self.per_byte: _Floats = 1 / np.array(ways.capacity)
        self.blocks = _Blocks(plan, machine, protocol)

    def time_us(self, size: int, chunk_bytes: int) -> float:
        """The floor of a call of `size` bytes (nccl-tests' meaning) in chunks of at most `chunk_bytes`."""
        moved = np.maximum(0.0, size * self.shares * _SURE - _UNIT)
        used = moved > 0
        if not used.any():
            # Which trees carry so few bytes depends on how the shares end.
            return self.start_us + float(self.longest_us.min())
        least = np.ceil(moved / chunk_bytes)
        # Chunks of a share are equal up to one unit, all but the last.
        chunk = np.maximum(0.0, moved / np.ceil(size * self.shares / chunk_bytes + 1e-9) - _UNIT)
        rows = used[self.tree]
        kept = rows[self.row]
        head = self.head_us + self.head_per_byte * chunk[self.tree]
        number, own = least[self.tree], self.own_per_byte * chunk[self.tree]
        turns = np.maximum(
            (number - 1) * self.each_us + number * own, (number - 1) // self.slots * (self.slot_us + own)
        )
        longest = float((head + turns + self.tail_us)[rows].max())
        n = len(self.per_byte)
        load, first, last = np.zeros(n), np.full(n, np.inf), np.full(n, np.inf)
        resource, row = self.resource[kept], self.row[kept]
        np.add.at(load, resource, moved[self.tree[row]] * self.carried[kept])
        np.minimum.at(first, resource, head[row])
        np.minimum.at(last, resource, self.tail_us[row])
        busy = load > 0
        links_us = float((first + load * self.per_byte + last)[busy].max(initial=0.0))
        return self.start_us + max(longest, links_us, self.blocks.time_us(moved, least))


class _Blocks:
    """The least work of the busiest thread block: its steps, and the bytes that they read and write.

    If the plan does not assign channels to trees, all blocks of a rank get their mean work. Programs in which every
    rank reduces all inputs have other steps than their trees, so they are left out.
    """

    def __init__(self, plan: Plan, machine: Machine, protocol: Protocol) -> None:
        trees = () if plan.kind == EVERYWHERE or machine.courier is not None else plan.trees
        channels = rings_of(plan) if is_rings(plan) else len(trees)
        shapes: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        for tree in trees:
            if _shape(tree) not in shapes:
                shapes[_shape(tree)] = _steps(tree)
        rows = [
            (t, rank if channels > MOST_CHANNELS else (rank, t % channels), *row)
            for t, tree in enumerate(trees)
            for rank, *row in shapes[_shape(tree)]
        ]
        numbers: dict[object, int] = {}
        self.tree: _Ints = np.array([row[0] for row in rows], np.int64)
        self.block: _Ints = np.array([numbers.setdefault(row[1], len(numbers)) for row in rows], np.int64)
        each = max(1, min(channels, MOST_CHANNELS)) if channels > MOST_CHANNELS else 1
        self.steps_us: _Floats = np.array([row[2] for row in rows]) * (machine.step_us / each)
        rate = np.inf if protocol.block_gbps is None else protocol.block_gbps * BYTES_PER_US * each
        self.us_per_byte: _Floats = np.array([row[3] for row in rows]) / rate
        self.nblocks = len(numbers)

    def time_us(self, moved: _Floats, chunks: _Floats) -> float:
        """The time of the busiest block, for the bytes and chunks of each tree."""
        busy = chunks[self.tree] * self.steps_us + moved[self.tree] * self.us_per_byte
        return float(np.bincount(self.block, busy, self.nblocks).max(initial=0.0))


def _steps(tree: Tree) -> list[tuple[int, int, int]]:
    """For every rank of a tree: its steps for a chunk, and how many times they read or write a byte, at least.

    A rank that reduces reads its input and the data of its children. A rank that is not the root writes the data of its
    parent. The root writes a sum.
    """
    into = Counter(hop.dst for hop in tree.reduce)
    out = Counter(hop.src for hop in tree.broadcast)
    found: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for rank in {tree.root, *(hop.src for hop in tree.reduce), *(hop.dst for hop in tree.broadcast)}:
        at_root = rank == tree.root
        if tree.reduce:
            found[rank][0] += 1
            found[rank][1] += into[rank] + 2 + (out[rank] if at_root else 0)
        if tree.broadcast and not (at_root and tree.reduce):
            found[rank][0] += 1
            found[rank][1] += out[rank] + (1 if at_root else 2)
    return [(rank, steps, touched) for rank, (steps, touched) in found.items()]


def _shape(tree: Tree) -> tuple[int, int]:
    """Equal for the copies of a tree, which share its hops."""
    return id(tree.reduce), id(tree.broadcast)


class _Ways:
    """The costs and resources of hops, and the capacity of every resource in bytes per microsecond."""

    def __init__(self, plan: Plan, graph: PlanGraph, machine: Machine, protocol: Protocol, rails: Rails) -> None:
        self.graph, self.machine, self.protocol = graph, machine, protocol
        self.capacity = [
            float(link.gbps) * BYTES_PER_US * protocol.efficiency * machine.link_class(link.kind).efficiency
            for link in graph.links
        ]
        self.rails: dict[Pair, Joined] = {}
        self.threads: dict[int, int] = {}
        numbers = {name: number for number, name in enumerate(dict.fromkeys(graph.servers))}
        self.server = [numbers[name] for name in graph.servers]
        if machine.courier is not None:
            hops = [hop for tree in plan.trees for hop in (*tree.reduce, *tree.broadcast)]
            self.rails = rails.joined((self._servers(hop), hop.links) for hop in hops)
            for link in {link for joined in self.rails.values() for link in joined.links}:
                self.capacity[link] /= protocol.efficiency  # only data cross the network
            for server in sorted({server for pair in self.rails for server in pair}):
                self.threads[server] = len(self.capacity)
                self.capacity.append(machine.courier.gbps * BYTES_PER_US)
        self.made: dict[Hop, _Way] = {}

    def __getitem__(self, hop: Hop) -> _Way:
        if hop not in self.made:
            self.made[hop] = self._way(hop)
        return self.made[hop]

    def _servers(self, hop: Hop) -> Pair:
        return self.server[hop.src], self.server[hop.dst]

    def _way(self, hop: Hop) -> _Way:
        machine, links = self.machine, hop.links
        step, credit = machine.step_us, machine.credit_us
        pair = self._servers(hop)
        courier = machine.courier if pair in self.rails else None
        if courier is None:
            late = sum(float(self.graph.links[i].latency_us) for i in links)
            lag = max(self.protocol.hop_us, step) + late
            lag += sum(machine.link_class(self.graph.links[i].kind).hop_us for i in links)
            each, slot = step, lag + step + credit
            resources = tuple((link, 1.0) for link in dict.fromkeys(links))
        else:
            over = self.rails[pair]
            late_us, touched = courier.late_us(self.protocol), float(courier.touched(self.protocol))
            late = over.latency_us + late_us
            each = step + courier.chunk_us
            lag = step + late_us + each + late
            slot = lag + step + credit + over.latency_us + courier.wake_us
            parts = ((link, part / PARTS) for link, part in zip(over.links, over.parts, strict=True))
            resources = (*parts, *((self.threads[server], touched) for server in pair))
        us_per_byte = max((share / self.capacity[r] for r, share in resources), default=0.0)
        return _Way(lag, each, slot, us_per_byte, resources)


def _rows(tree: Tree, ways: _Ways) -> Iterator[tuple[_Way, _Before, float]]:
    """For every hop of a tree: its way, the longest way of a chunk to it, and the lags of the longest way after it."""
    down = _below(tree.root, tree.broadcast, ways)
    top = _Before()
    if tree.reduce:
        into: dict[int, list[Hop]] = {}
        for hop in tree.reduce:
            into.setdefault(hop.dst, []).append(hop)
        order = [tree.root]
        for rank in order:
            order += [hop.src for hop in into.get(rank, ())]
        at: dict[int, _Before] = {}
        for rank in reversed(order):
            arrived = [at[hop.src].then(ways[hop]) for hop in into.get(rank, ())]
            at[rank] = max(arrived, key=lambda before: before.lag_us, default=_Before())
        top = at[tree.root]
        after = {tree.root: down[tree.root]}
        for rank in order:
            for hop in into.get(rank, ()):
                after[hop.src] = after[rank] + ways[hop].lag_us
                yield ways[hop], at[hop.src], after[rank]
    yield from _rows_down(tree, ways, top, down)


def _rows_down(tree: Tree, ways: _Ways, top: _Before, down: dict[int, float]) -> Iterator[tuple[_Way, _Before, float]]:
    out: dict[int, list[Hop]] = {}
    for hop in tree.broadcast:
        out.setdefault(hop.src, []).append(hop)
    at, order = {tree.root: top}, [tree.root]
    for rank in order:
        for hop in out.get(rank, ()):
            at[hop.dst] = at[rank].then(ways[hop])
            order.append(hop.dst)
            yield ways[hop], at[rank], down[hop.dst]


def _below(root: int, broadcast: Sequence[Hop], ways: _Ways) -> dict[int, float]:
    """Per rank, the lags of the longest way down from it."""
    out: dict[int, list[Hop]] = {}
    for hop in broadcast:
        out.setdefault(hop.src, []).append(hop)
    order = [root]
    for rank in order:
        order += [hop.dst for hop in out.get(rank, ())]
    found: dict[int, float] = {}
    for rank in reversed(order):
        found[rank] = max((ways[hop].lag_us + found[hop.dst] for hop in out.get(rank, ())), default=0.0)
    return found
