"""The optimal rates by another method than ours: compact flow LPs on scipy, no trees and no prices.

`u` is the use of every link, balanced at every switch; a rank receives the rate iff that much flow reaches it within
`u`
(Edmonds; Frank and Jackson for the switches). See the docstring of each function.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from graphs import graph
from scipy.optimize import linprog
from scipy.sparse import lil_matrix

from collc.collectives.model import Collective
from collc.topology.model import PlanGraph

C = Collective


class Lp:
    """maximize x[0] under rows added one by one; all variables are at least 0."""

    def __init__(self) -> None:
        self.size = 1
        self.rows: list[tuple[dict[int, float], float, bool]] = []

    def block(self, count: int) -> range:
        self.size += count
        return range(self.size - count, self.size)

    def at_most(self, terms: dict[int, float], value: float) -> None:
        self.rows.append((terms, value, False))

    def equal(self, terms: dict[int, float], value: float) -> None:
        self.rows.append((terms, value, True))

    def best(self) -> float:
        parts = {}
        for kind in (False, True):
            rows = [(t, v) for t, v, k in self.rows if k is kind]
            matrix = lil_matrix((len(rows), self.size))
            for i, (terms, _) in enumerate(rows):
                for j, value in terms.items():
                    matrix[i, j] = value
            parts[kind] = (matrix.tocsr(), np.array([v for _, v in rows])) if rows else (None, None)
        cost = np.zeros(self.size)
        cost[0] = -1.0
        found = linprog(
            cost, A_ub=parts[False][0], b_ub=parts[False][1], A_eq=parts[True][0], b_eq=parts[True][1], method="highs"
        )
        assert found.status == 0, found.message
        return float(-found.fun)


def _uses(lp: Lp, g: PlanGraph, phases: int) -> list[range]:
    """`phases` uses of the links that share the capacities, each balanced at every switch."""
    uses = [lp.block(len(g.links)) for _ in range(phases)]
    for link in g.links:
        lp.at_most({use[link.id]: 1.0 for use in uses}, float(link.gbps))
    for use in uses:
        for switch in g.forwarders:
            terms: dict[int, float] = {}
            for link in g.links:
                if link.src == switch:
                    terms[use[link.id]] = -1.0
                elif link.dst == switch:
                    terms[use[link.id]] = 1.0
            if terms:
                lp.equal(terms, 0.0)
    return uses


def _flow(lp: Lp, g: PlanGraph, use: range, supply: dict[int, dict[int, float]], sink: int, *, turned: bool) -> None:
    """A flow within `use` that leaves each vertex v with supply[v] (terms of the LP) and ends in `sink`."""
    flow = lp.block(len(g.links))
    for link in g.links:
        lp.at_most({flow[link.id]: 1.0, use[link.id]: -1.0}, 0.0)
    for v in range(len(g.vertices)):
        if v == sink:
            continue
        terms = {k: -x for k, x in supply.get(v, {}).items()}
        for link in g.links:
            src, dst = (link.dst, link.src) if turned else (link.src, link.dst)
            if src == v:
                terms[flow[link.id]] = terms.get(flow[link.id], 0.0) + 1.0
            if dst == v:
                terms[flow[link.id]] = terms.get(flow[link.id], 0.0) - 1.0
        lp.equal(terms, 0.0)


def best_rate(g: PlanGraph, collective: Collective, root: int = 0) -> float:
    """The optimal rate of any collective, GB/s."""
    lp = Lp()
    n = g.nranks
    turned = collective in (C.REDUCE, C.REDUCE_SCATTER)
    if collective in (C.BROADCAST, C.REDUCE):
        (use,) = _uses(lp, g, 1)
        for v in range(n):
            if v != root:
                _flow(lp, g, use, {root: {0: 1.0}}, v, turned=turned)
    elif collective in (C.ALL_GATHER, C.REDUCE_SCATTER):
        (use,) = _uses(lp, g, 1)
        for v in range(n):
            _flow(lp, g, use, {r: {0: 1.0 / n} for r in range(n)}, v, turned=turned)
    elif collective is C.ALL_REDUCE:
        out, into = _uses(lp, g, 2)
        share = lp.block(n)
        lp.equal({0: -1.0} | dict.fromkeys(share, 1.0), 0.0)
        supply = {r: {share[r]: 1.0} for r in range(n)}
        for v in range(n):
            _flow(lp, g, out, supply, v, turned=False)
            _flow(lp, g, into, supply, v, turned=True)
    else:
        _commodities(lp, g, collective, root)
    return lp.best()


def _commodities(lp: Lp, g: PlanGraph, collective: Collective, root: int) -> None:
    """One flow per ordered pair; flows add up on the links."""
    n = g.nranks
    pairs = {
        C.SCATTER: [(root, v) for v in range(n) if v != root],
        C.GATHER: [(v, root) for v in range(n) if v != root],
        C.ALLTOALL: [(u, v) for u in range(n) for v in range(n) if u != v],
        C.SENDRECV: [(u, (u + 1) % n) for u in range(n)],
    }[collective]
    amount = 1.0 if collective is C.SENDRECV else 1.0 / n
    flows = []
    for src, dst in pairs:
        flow = lp.block(len(g.links))
        flows.append(flow)
        for v in range(len(g.vertices)):
            if v == dst:
                continue
            terms = {0: -amount} if v == src else {}
            for link in g.links:
                if link.src == v:
                    terms[flow[link.id]] = 1.0
                elif link.dst == v:
                    terms[flow[link.id]] = -1.0
            if terms:
                lp.equal(terms, 0.0)
    for link in g.links:
        lp.at_most({flow[link.id]: 1.0 for flow in flows}, float(link.gbps))


def random_graph(seed: int, most: int, speeds: Sequence[str] = ("1", "2", "3", "5", "0.5", "7/3", "25")) -> PlanGraph:
    """A strongly connected graph: directed unequal links, symmetric ones, or switches, balanced or not."""
    rng = random.Random(seed)
    n = rng.randint(3, most)
    style = rng.choice(["directed", "symmetric", "switched", "unbalanced"])
    forwarders = rng.randint(1, 3) if style in ("switched", "unbalanced") else 0
    links: dict[tuple[int, int], str] = {}

    def join(a: int, b: int) -> None:
        speed = rng.choice(speeds)
        links[a, b] = speed
        links[b, a] = rng.choice(speeds) if style == "unbalanced" else speed

    order = rng.sample(range(n), n)
    if style == "directed":
        for a, b in zip(order, order[1:] + order[:1], strict=True):
            links[a, b] = rng.choice(speeds)
        for _ in range(rng.randint(n, 3 * n)):
            a, b = rng.sample(range(n), 2)
            links[a, b] = rng.choice(speeds)
    else:
        for i in range(1, n):
            join(order[i], rng.choice(order[:i]))
        for _ in range(rng.randint(1, 2 * n)):
            join(*rng.sample(range(n), 2))
        for s in range(n, n + forwarders):
            for v in rng.sample(range(n), rng.randint(2, n)):
                join(v, s)
            if s > n and rng.random() < 0.5:
                join(s, s - 1)
    return graph(n, [(a, b, Fraction(x)) for (a, b), x in links.items()], forwarders=forwarders, name=f"random{seed}")
