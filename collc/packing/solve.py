"""`plan`: from a graph and a collective to a checked plan."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

from collc.errors import PackingError, UsageError
from collc.packing.check import check_packing
from collc.packing.columns import Column, Out, mirrored_links
from collc.packing.exact import Solved, outward, solve_exact
from collc.packing.flows import solve_flows
from collc.packing.model import Collective, Hop, Plan, Prices, Tree
from collc.packing.network import Net
from collc.topology.model import PlanGraph

SOLVERS = ("exact", "mwu", "ilp")


def plan(graph: PlanGraph, collective: Collective, root: int | None = None, solver: str = "exact") -> Plan:
    """Packs `collective` on `graph` and proves the rate.

    Args:
        graph: the graph of the plan; rates are about it alone.
        collective: what to pack.
        root: the root rank of a rooted collective (default 0).
        solver: one of SOLVERS; all answer to `check_packing`.

    Raises:
        UsageError: no such root or solver.
        PackingError: some GPU cannot be reached, or the solver failed.
    """
    if solver not in SOLVERS:
        raise UsageError(f"no solver {solver!r}", hint=f"choose one of {', '.join(SOLVERS)}")
    if collective.rooted:
        root = 0 if root is None else root
        if not 0 <= root < graph.nranks:
            raise UsageError(f"no rank {root} to be the root", hint=f"ranks are 0 to {graph.nranks - 1}")
    elif root is not None:
        raise UsageError(f"{collective.value} has no root")
    if graph.nranks == 1:
        made = Plan(collective, root, solver, None, None, True, None)
    else:
        made = _plan(graph, collective, root, solver)
    check_packing(graph, made, where=collective.value)
    return made


def _plan(graph: PlanGraph, collective: Collective, root: int | None, solver: str) -> Plan:
    if not collective.uses_trees:
        rate, flows, prices = solve_flows(Net.of(graph), collective, root)
        return Plan(collective, root, "exact", rate, rate, True, prices, flows=flows)
    if solver != "exact":
        raise PackingError(f"{solver} cannot pack {collective.value} yet")
    solved = _solve_trees(Net.of(graph), collective, root)
    trees = tuple(as_tree(column, weight, collective) for column, weight in solved.weights)
    return Plan(
        collective,
        root,
        solver,
        solved.rate,
        solved.bound,
        solved.rate == solved.bound,
        solved.certificate,
        trees=tuple(sorted(trees, key=_tree_order)),
    )


_TURNED = {Collective.REDUCE: Collective.BROADCAST, Collective.REDUCE_SCATTER: Collective.ALL_GATHER}


def _solve_trees(net: Net, collective: Collective, root: int | None) -> Solved:
    """On links that are equal both ways reduce is a mirrored broadcast, and reduce_scatter a mirrored all_gather."""
    mirror = mirrored_links(net) if collective in _TURNED else None
    if mirror is None:
        return _solve_once(net, collective, root)
    solved = _solve_once(net, _TURNED[collective], root)
    weights = tuple(
        (replace(c, out=tuple((u, v, tuple(mirror[x] for x in path)) for u, v, path in c.out)), w)
        for c, w in solved.weights
    )
    certificate = solved.certificate
    if isinstance(certificate, Prices):
        certificate = Prices(tuple(sorted((mirror[link], price) for link, price in certificate.prices)))
    return replace(solved, weights=weights, certificate=certificate)


@lru_cache(maxsize=8)
def _solve_once(net: Net, collective: Collective, root: int | None) -> Solved:
    return solve_exact(outward(net, collective), collective, root)


def as_tree(column: Column, weight: Fraction, collective: Collective) -> Tree:
    """A column of the outward net as a tree of the plan: hops and paths turned round where data flows to the root."""
    if collective is Collective.ALL_REDUCE:
        return Tree(column.root, weight, reduce=_inward(column.back), broadcast=_hops(column.out))
    if collective in (Collective.REDUCE, Collective.REDUCE_SCATTER):
        return Tree(column.root, weight, reduce=_inward(column.out))
    return Tree(column.root, weight, broadcast=_hops(column.out))


def _hops(out: Out) -> tuple[Hop, ...]:
    return tuple(Hop(parent, child, path) for parent, child, path in out)


def _inward(out: Out) -> tuple[Hop, ...]:
    """Child to parent, deepest first: the order in which data arrives."""
    return tuple(Hop(child, parent, tuple(reversed(path))) for parent, child, path in reversed(out))


def _tree_order(tree: Tree) -> tuple[object, ...]:
    shape = [(h.src, h.dst, h.links) for h in (*tree.reduce, *tree.broadcast)]
    return (tree.root, -tree.weight, shape)
