"""Plans inside switches: closed forms, agreement with an LP, and every lie in their proof is found."""

from __future__ import annotations

import copy
import json
import random
from dataclasses import replace
from fractions import Fraction
from typing import Any

import highspy
import pytest
from graphs import star

from collc.collectives.model import Collective
from collc.errors import CertificateError
from collc.packing import plan
from collc.packing.document import parse_plan, plan_file, to_json, verify_document
from collc.packing.model import InSwitch, Plan
from collc.packing.solvers.in_switch import in_switch_plan
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology
from collc.topology.model import GraphLink, LinkKind, PlanGraph, Vertex, VertexKind

TREES = [c for c in Collective if c.uses_trees]


def box(up: list[int], down: list[int], *, multicast: bool = True, reduce: bool = True) -> PlanGraph:
    """Ranks behind one switch, each with its speeds towards it and from it."""
    n = len(up)
    vertices = [Vertex(f"gpu{r}", VertexKind.GPU) for r in range(n)]
    vertices.append(Vertex("nvs0", VertexKind.SWITCH, multicast, reduce))
    links = []
    for r in range(n):
        links.append(GraphLink(2 * r, r, n, LinkKind.NVSWITCH, Fraction(up[r])))
        links.append(GraphLink(2 * r + 1, n, r, LinkKind.NVSWITCH, Fraction(down[r])))
    return PlanGraph("box", n, tuple(vertices), ("",) * (n + 1), tuple(links))


def planned(graph: PlanGraph, collective: Collective) -> Plan:
    return plan(graph, collective)


def switched(graph: PlanGraph, collective: Collective) -> InSwitch:
    made = planned(graph, collective).in_switch
    assert made is not None
    return made


def test_eight_h100() -> None:
    """450 x 8/9 for all_reduce, whose cut is 450; one way all others are at 450."""
    graph = box([450] * 8, [450] * 8)
    found = switched(graph, Collective.ALL_REDUCE)
    assert found.optimal
    assert [found.rate, found.bound, found.cut_bound] == [Fraction(400), Fraction(400), Fraction(450)]
    assert found.heads == tuple((r, Fraction(50)) for r in range(8))
    gathered = switched(graph, Collective.ALL_GATHER)
    assert [gathered.rate, gathered.cut_bound] == [Fraction(450), Fraction(3600, 7)]
    for rooted in (Collective.BROADCAST, Collective.REDUCE):
        made = switched(graph, rooted)
        assert [made.rate, made.cut_bound] == [Fraction(450)] * 2
        assert made.heads == ((0, Fraction(450)),)


@pytest.mark.parametrize("collective", TREES, ids=lambda c: c.value)
@pytest.mark.parametrize("seed", range(6))
def test_as_good_as_the_lp(collective: Collective, seed: int) -> None:
    """On unequal links the closed form is the optimum of the LP that it stands for, and its prices prove that."""
    rng = random.Random(seed)
    n = rng.randrange(2, 7)
    up, down = ([rng.choice([1, 2, 3, 7, 20]) for _ in range(n)] for _ in range(2))
    made = in_switch_plan(box(up, down), collective, 0 if collective.rooted else None)
    assert made is not None
    assert made.optimal
    assert float(made.rate) == pytest.approx(_best(up, down, collective), abs=1e-6)
    assert made.rate <= made.cut_bound


def _best(up: list[int], down: list[int], collective: Collective) -> float:
    """The most that the parts of the heads come to, by HiGHS."""
    n = len(up)
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.silent()
    parts = [solver.addVariable(lb=0) for _ in range(n)]
    rate = sum(parts[1:], parts[0] * 1)
    for r in range(n):
        if collective.rooted and r:
            solver.addConstr(parts[r] * 1 == 0)
        if collective.per_rank and r:
            solver.addConstr(parts[r] - parts[0] == 0)
        solver.addConstr(rate * int(collective.reduces) + parts[r] * int(collective.spreads) <= up[r])
        solver.addConstr(rate * int(collective.spreads) + parts[r] * int(collective.reduces) <= down[r])
    solver.maximize(rate)
    return float(solver.getObjectiveValue())


def test_only_what_the_switch_can_do() -> None:
    copies = box([4] * 3, [4] * 3, reduce=False)
    has = {c for c in TREES if planned(copies, c).in_switch is not None}
    assert has == {Collective.ALL_GATHER, Collective.BROADCAST}
    sums = box([4] * 3, [4] * 3, multicast=False)
    assert {c for c in TREES if planned(sums, c).in_switch is not None} == {
        Collective.REDUCE,
        Collective.REDUCE_SCATTER,
    }
    assert planned(star(4), Collective.ALL_REDUCE).in_switch is None
    assert planned(box([4] * 3, [4] * 3), Collective.ALLTOALL).in_switch is None


@pytest.mark.parametrize(
    "name", ["hgx-h100", "hgx-b200", "gb200-nvl72", "gb300-nvl72", "aws-p5-48xlarge", "azure-ndv5"]
)
def test_machines(name: str) -> None:
    graph = plan_graph(load_topology(name))
    each = graph.links[0].gbps
    found = switched(graph, Collective.ALL_REDUCE)
    n = graph.nranks
    assert (found.rate, found.cut_bound) == (each * n / (n + 1), each)


def document() -> dict[str, Any]:
    graph = box([450] * 4, [450] * 4)
    made: dict[str, Any] = to_json(plan_file(graph, tuple(plan(graph, c) for c in TREES)))
    return made


def test_what_is_written_is_read_back() -> None:
    graph = box([3, 4, 5], [5, 4, 3])
    file = plan_file(graph, tuple(plan(graph, c) for c in TREES))
    again = parse_plan(json.dumps(to_json(file)))
    verify_document(again)
    assert again.plans == file.plans


LIES = [
    ({"rate_gbps": "401"}, "add up"),
    ({"bound_gbps": "450"}, "the certificate proves"),
    ({"optimal": False}, "optimal says otherwise"),
    ({"cut_gbps": "451"}, "the cut proves"),
    ({"cut": {"kind": "cut", "side": ["nvs0"]}}, "a cut contains some"),
    ({"cut": {"kind": "prices", "prices": {"0": "1"}}}, "expected prices as the certificate, and a cut"),
    ({"certificate": {"kind": "prices", "prices": {}}}, "served for free"),
    ({"certificate": {"kind": "prices", "prices": {"0": "-1", "1": "3"}}}, "negative price"),
    ({"switch": "gpu0"}, "cannot reduce"),
    ({"heads": [[0, "180"], [1, "180"]]}, r"link \d carries 540 GB/s of 450"),
    ({"heads": [[0, "180"], [0, "180"]]}, "listed twice"),
    ({"heads": [[0, "400"], [1, "-40"]]}, "not positive"),
    ({"heads": [[9, "360"]]}, "no rank 9"),
    ({"more": 1}, "unknown key"),
]


@pytest.mark.parametrize(("change", "message"), LIES, ids=[message for _, message in LIES])
def test_lies_are_found(change: dict[str, Any], message: str) -> None:
    made = document()
    made["plans"][0]["in_switch"] |= change
    with pytest.raises(CertificateError, match=message):
        verify_document(parse_plan(json.dumps(made)))


def test_parts_of_the_wrong_ranks_are_found() -> None:
    made = document()
    broadcast, gather = (next(p for p in made["plans"] if p["collective"] == c) for c in ("broadcast", "all_gather"))
    wrong = copy.deepcopy(made)
    next(p for p in wrong["plans"] if p["collective"] == "broadcast")["in_switch"]["heads"] = [[1, "450"]]
    with pytest.raises(CertificateError, match="the head of all data is the root 0"):
        verify_document(parse_plan(json.dumps(wrong)))
    assert broadcast["in_switch"]["heads"] == [[0, "450"]]
    gather["in_switch"]["heads"] = [[0, "225"], [1, "225"]]
    with pytest.raises(CertificateError, match="every rank is the head of rate/N"):
        verify_document(parse_plan(json.dumps(made)))


def test_a_switch_that_cannot_is_found() -> None:
    made = document()
    made["switches"][0]["multicast"] = False
    with pytest.raises(CertificateError, match="nvs0 cannot multicast"):
        verify_document(parse_plan(json.dumps(made)))


def test_a_rank_without_the_switch_is_found() -> None:
    graph = box([450] * 4, [450] * 4)
    good = plan(graph, Collective.BROADCAST)
    extra = Vertex("nvs1", VertexKind.SWITCH, multicast=True, reduce=True)
    wider = replace(graph, vertices=(*graph.vertices, extra), servers=(*graph.servers, ""))
    assert good.in_switch is not None
    lie = replace(good, in_switch=replace(good.in_switch, switch=5))
    with pytest.raises(CertificateError, match="nvs1 does not join every rank"):
        verify_document(plan_file(wider, (lie,)))
