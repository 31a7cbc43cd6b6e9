"""`plan`: from a graph and a collective to a checked plan."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

from collc.collectives.model import Collective
from collc.errors import UsageError
from collc.packing.check import check_packing
from collc.packing.columns import mirrored_links
from collc.packing.effort import efforts
from collc.packing.exact import Solved, new_problem, outward, solve_exact, worth_symmetry
from collc.packing.expand import expand
from collc.packing.flows import solve_flows
from collc.packing.minimize import fewest_trees
from collc.packing.model import Plan, Prices
from collc.packing.mwu import solve_mwu
from collc.packing.network import Net
from collc.packing.relabel import canonical_graph, relabelled
from collc.topology.model import PlanGraph

SOLVERS = ("exact", "mwu", "ilp")
# Above, `ilp` minimises orbits of trees under the symmetry instead of trees.
_FEW_LIMIT = 16


def plan(
    graph: PlanGraph,
    collective: Collective,
    root: int | None = None,
    solver: str = "exact",
    tolerance: Fraction = Fraction(0),
) -> Plan:
    """Packs `collective` on `graph` and proves the rate.

    Args:
        graph: the graph of the plan; rates are about it alone.
        collective: what to pack.
        root: the root rank of a rooted collective (default 0).
        solver: one of SOLVERS; all answer to `check_packing`. Flow collectives are always exact.
        tolerance: the share of the rate that `ilp` may give up for fewer trees.

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
        made = _planned(graph, collective, root, solver, tolerance)
    check_packing(graph, made, where=collective.value)
    return made


def _planned(graph: PlanGraph, collective: Collective, root: int | None, solver: str, tolerance: Fraction) -> Plan:
    """Small graphs in canonical numbering; larger ones as they are, where the order of ranks shows the symmetry.

    sendrecv is about that order, so it keeps it too.
    """
    Net.of(graph).require_connected()
    if worth_symmetry(graph.nranks, len(graph.links)) or collective is Collective.SENDRECV:
        return _plan(graph, collective, root, solver, tolerance)
    alike, names = canonical_graph(graph, root)
    made = _cached(alike, collective, None if root is None else names.index(root), solver, tolerance)
    return relabelled(made, alike, graph, names)


@lru_cache(maxsize=256)
def _cached(graph: PlanGraph, collective: Collective, root: int | None, solver: str, tolerance: Fraction) -> Plan:
    return _plan(graph, collective, root, solver, tolerance)


def _plan(graph: PlanGraph, collective: Collective, root: int | None, solver: str, tolerance: Fraction) -> Plan:
    if not collective.uses_trees:
        made = solve_flows(Net.of(graph), collective, root, graph.servers)
        proven = made.rate == made.bound
        return Plan(collective, root, "exact", made.rate, made.bound, proven, made.prices, flows=made.flows)
    solved, mirror, remark = _solve_trees(graph, collective, root, solver, tolerance)
    return Plan(
        collective,
        root,
        solver,
        solved.rate,
        solved.bound,
        solved.rate == solved.bound,
        solved.certificate,
        trees=tuple(expand(solved, collective, mirror)),
        remark=remark,
    )


def _solve_trees(
    graph: PlanGraph, collective: Collective, root: int | None, solver: str, tolerance: Fraction
) -> tuple[Solved, list[int] | None, str]:
    """The solution, the mirrored link of each link if it is one of the opposite collective, and a remark.

    On links that are equal both ways reduce is a mirrored broadcast, and reduce_scatter a mirrored all_gather.
    """
    net = Net.of(graph)
    mirror = mirrored_links(net) if collective.inward else None
    if mirror is None:
        solved, remark = _solve_once(net, collective, root, graph.servers, solver, tolerance)
        return solved, None, remark
    solved, remark = _solve_once(net, collective.mirror, root, graph.servers, solver, tolerance)
    certificate = solved.certificate
    if isinstance(certificate, Prices):
        certificate = Prices(tuple(sorted((mirror[link], price) for link, price in certificate.prices)))
    return replace(solved, certificate=certificate), mirror, remark


@lru_cache(maxsize=8)
def _solve_once(
    net: Net, collective: Collective, root: int | None, servers: tuple[str, ...], solver: str, tolerance: Fraction
) -> tuple[Solved, str]:
    outer = outward(net, collective)
    outer.require_connected()
    few = solver == "ilp" and net.nranks <= _FEW_LIMIT
    problem = new_problem(outer, collective, root, servers, symmetric=not few)
    if solver == "mwu":
        return solve_mwu(problem, servers), ""
    solved = solve_exact(problem, servers)
    if solved.rate != solved.bound:
        # The exact search ended at its limit: the other solver may have come nearer, from either side.
        near = solve_mwu(problem, servers, effort=efforts(net.nranks)[0])
        better = max(solved, near, key=lambda s: s.rate)
        proof = min(solved, near, key=lambda s: s.bound)
        solved = replace(better, bound=proof.bound, certificate=proof.certificate)
    if solver == "exact":
        return solved, ""
    fewest = fewest_trees(problem, solved, tolerance)
    return replace(solved, rate=fewest.rate, weights=fewest.weights), fewest.remark
