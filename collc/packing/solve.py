"""Turns a graph and a collective into a checked plan."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from collc.collectives.model import Collective
from collc.errors import PackingError, UsageError
from collc.packing.check import check_packing
from collc.packing.model import Plan, PlanType, Prices
from collc.packing.solvers.by_servers import pack_by_servers
from collc.packing.solvers.columns import SPARSE_FROM, mirrored_links
from collc.packing.solvers.effort import Limits
from collc.packing.solvers.exact import Problem, Solution, needs_symmetry, new_problem, outward, solve_exact
from collc.packing.solvers.expand import expand
from collc.packing.solvers.flows import FlowSolution, solve_flows
from collc.packing.solvers.ilp import fewest_trees
from collc.packing.solvers.in_switch import in_switch_plan
from collc.packing.solvers.mwu import solve_mwu
from collc.packing.solvers.network import Net
from collc.packing.solvers.store import (
    SolutionStore,
    WriteOnly,
    flows_text,
    problem_key,
    read_flows,
    read_solution,
    solution_text,
)
from collc.packing.symmetry.fewer import limit_trees
from collc.packing.symmetry.orbits import as_orbits
from collc.packing.symmetry.relabel import canonical_graph, relabel_plan
from collc.topology.model import PlanGraph

SOLVERS = ("exact", "mwu", "ilp")
_DEFAULT_LIMITS = Limits()
# Plans of more ranks are returned as orbits, because their expanded trees have hundreds of millions of hops.
ORBITS_FROM = SPARSE_FROM
# Above this number of ranks, `ilp` minimizes orbits of trees under the symmetry instead of trees.
_FEW_LIMIT = 16
# Graphs with more orbits of ranks are first packed server by server. An LP with 16 groups of trees takes seconds.
_MOST_ORBITS = 16


def plan(
    graph: PlanGraph,
    collective: Collective,
    root: int | None = None,
    solver: str = "exact",
    tolerance: Fraction = Fraction(0),
    store: SolutionStore | None = None,
    *,
    orbits: bool = False,
    limits: Limits = _DEFAULT_LIMITS,
) -> Plan:
    """Packs `collective` on `graph` and returns the plan, which `check_packing` has accepted.

    Args:
        graph: the graph of the plan. Rate and bound hold for this graph only.
        root: the root rank of a rooted collective (default 0).
        solver: a name of SOLVERS. Flow collectives ignore it, because their only solver is exact.
        tolerance: the fraction of the rate that `ilp` may give up for fewer trees.
        store: keeps solutions for later processes. A stored solution is checked like a new one.
        orbits: represent trees that are images of each other under the graph's symmetry by orbits. Plans of thousands
            of GPUs need this. `collc.packing.symmetry.orbits.expand_orbits` expands them.
        limits: budgets after which the best plan so far is returned, with a proven gap.

    Raises:
        UsageError: no such root or solver, or a graph too large for the solver.
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
    if solver != "exact" and collective.uses_trees and graph.nranks > ORBITS_FROM:
        raise UsageError(
            f"the solver {solver} packs up to {ORBITS_FROM} GPUs, these are {graph.nranks}", hint="use the solver exact"
        )
    if graph.nranks == 1:
        return _check(graph, Plan(collective, root, PlanType.TREES, solver, None, None, True, None))
    request = _Request(collective, root, solver, tolerance, orbits and collective.uses_trees, limits)
    if limits.deadline is not None:
        store = None  # a result that depends on the clock is not stored: a later run may reach a better one
    try:
        packed = _pack(graph, request, store)
        packed = replace(packed, stopped_by_clock=not packed.optimal and limits.are_over())
        return _check(graph, _with_switch(graph, packed))
    except Exception as error:
        if store is None or isinstance(error, PackingError):
            raise
        # The stored solution is not a plan of this graph: solve again and store the result.
        return _check(graph, _with_switch(graph, _pack(graph, request, WriteOnly(store))))


def _with_switch(graph: PlanGraph, packed: Plan) -> Plan:
    """Adds the plan for copies and sums inside a switch. Stored solutions know only links, so they do not have it."""
    return replace(packed, in_switch=in_switch_plan(graph, packed.collective, packed.root))


def _check(graph: PlanGraph, packed: Plan) -> Plan:
    check_packing(graph, packed, where=packed.collective.value)
    return packed


@dataclass(frozen=True)
class _Request:
    """The arguments of `plan`, apart from the graph."""

    collective: Collective
    root: int | None
    solver: str
    tolerance: Fraction
    orbits: bool
    limits: Limits


def _pack(graph: PlanGraph, request: _Request, store: SolutionStore | None) -> Plan:
    """Packs a small graph in canonical numbering, so that isomorphic graphs are solved once, and others as they are.

    A large graph keeps its numbering, because the order of its ranks shows the symmetry. sendrecv keeps it, because the
    collective depends on the order of ranks.
    """
    Net.of(graph).require_connected()
    large = needs_symmetry(graph.nranks, len(graph.links))
    if large or request.orbits or request.collective is Collective.SENDRECV:
        return _pack_as_numbered(graph, request, store)
    alike, names = canonical_graph(graph, request.root)
    root = None if request.root is None else names.index(request.root)
    return relabel_plan(_pack_once(alike, replace(request, root=root), store), alike, graph, names)


@lru_cache(maxsize=256)
def _pack_once(graph: PlanGraph, request: _Request, store: SolutionStore | None) -> Plan:
    return _pack_as_numbered(graph, request, store)


def _pack_as_numbered(graph: PlanGraph, request: _Request, store: SolutionStore | None) -> Plan:
    collective, root = request.collective, request.root
    if not collective.uses_trees:
        flows = _solve_flows(graph, request, store)
        proven = flows.rate == flows.bound
        return Plan(
            collective,
            root,
            PlanType.TREES,
            "exact",
            flows.rate,
            flows.bound,
            proven,
            flows.prices,
            flows=flows.flows,
        )
    solution, mirror, remark = _solve_trees(graph, request, store)
    packed = Plan(
        collective,
        root,
        PlanType.TREES,
        request.solver,
        solution.rate,
        solution.bound,
        solution.rate == solution.bound,
        solution.certificate,
        remark=remark,
    )
    if request.orbits:
        return replace(packed, orbits=as_orbits(graph, solution, collective, mirror))
    return replace(packed, trees=tuple(expand(solution, collective, mirror)))


def _solve_flows(graph: PlanGraph, request: _Request, store: SolutionStore | None) -> FlowSolution:
    net, collective, root = Net.of(graph), request.collective, request.root
    if store is None:
        return solve_flows(net, collective, root, graph.servers, request.limits)
    key = problem_key(net, graph.servers, collective.value, root, request.limits.work)
    text = store.get(key)
    if text is not None:
        with suppress(Exception):
            return read_flows(text)
    solution = solve_flows(net, collective, root, graph.servers, request.limits)
    store.put(key, flows_text(solution))
    return solution


def _solve_trees(
    graph: PlanGraph, request: _Request, store: SolutionStore | None
) -> tuple[Solution, list[int] | None, str]:
    """Returns the solution, the mirrored link of each link, and a remark.

    If links are equal in both directions, reduce is solved as broadcast and reduce_scatter as all_gather. The solution
    then has trees of the opposite collective, and its prices are already mirrored. Otherwise there are no mirrored
    links (None).
    """
    net = Net.of(graph)
    mirror = mirrored_links(net) if request.collective.inward else None
    request = replace(request, orbits=False)  # both forms of a plan have one solution
    if mirror is None:
        solution, remark = _solve_once(net, graph.servers, request, store)
        return solution, None, remark
    opposite = replace(request, collective=request.collective.mirror)
    solution, remark = _solve_once(net, graph.servers, opposite, store)
    certificate = solution.certificate
    if isinstance(certificate, Prices):
        certificate = Prices(tuple(sorted((mirror[link], price) for link, price in certificate.prices)))
    return replace(solution, certificate=certificate), mirror, remark


@lru_cache(maxsize=8)
def _solve_once(
    net: Net, servers: tuple[str, ...], request: _Request, store: SolutionStore | None
) -> tuple[Solution, str]:
    if store is None:
        return _solve(net, servers, request)
    key = problem_key(
        net, servers, request.collective.value, request.root, request.solver, request.tolerance, request.limits.work
    )
    text = store.get(key)
    if text is not None:
        with suppress(Exception):
            return read_solution(net, text)
    solution, remark = _solve(net, servers, request)
    store.put(key, solution_text(solution, remark))
    return solution, remark


def _is_uneven(problem: Problem) -> bool:
    """Returns True if the ranks have too many orbits for an LP over all their trees."""
    return problem.net.nranks <= ORBITS_FROM and len(set(problem.symmetry.rank_orbit)) > _MOST_ORBITS


def _solve(net: Net, servers: tuple[str, ...], request: _Request) -> tuple[Solution, str]:
    solver, limits = request.solver, request.limits
    outer = outward(net, request.collective)
    outer.require_connected()
    few = solver == "ilp" and net.nranks <= _FEW_LIMIT
    problem = new_problem(outer, request.collective, request.root, servers, symmetric=not few)
    if solver == "mwu":
        return limit_trees(problem, solve_mwu(problem, servers)), ""
    by_servers = pack_by_servers(problem, servers, limits.goal_effort()) if _is_uneven(problem) else None
    if by_servers is not None and by_servers.rate == by_servers.bound:
        return by_servers, ""
    solution = solve_exact(problem, servers, limits)
    if by_servers is not None and by_servers.rate > solution.rate:
        solution = replace(by_servers, bound=solution.bound, certificate=solution.certificate)
    if solution.rate != solution.bound and net.nranks <= ORBITS_FROM:
        # The exact search ended at its limit. The other solver may reach a higher rate or a lower bound.
        near = solve_mwu(problem, servers, effort=limits.goal_effort().left)
        better = max(solution, near, key=lambda s: s.rate)
        proof = min(solution, near, key=lambda s: s.bound)
        solution = replace(better, bound=proof.bound, certificate=proof.certificate)
    if solver == "exact":
        return limit_trees(problem, solution), ""
    fewest = fewest_trees(problem, solution, request.tolerance)
    return limit_trees(problem, replace(solution, rate=fewest.rate, weights=fewest.weights)), fewest.remark
