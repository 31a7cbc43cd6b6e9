"""The contents of a library: the model's table, the rule's table, candidates for tuning. `verify` demands all of it."""

from __future__ import annotations

import copy
import json
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.libraries import ODD

from collc.build.compile import Contents, generate
from collc.build.manifest import make_manifest, slot_bytes
from collc.build.toolchain import Compiler
from collc.checker.layout import NEVER, mbps
from collc.checker.library import check_allocation
from collc.checker.manifest import read_claims
from collc.checker.tables import Allocation as Decoded
from collc.choose.library import choose_programs
from collc.choose.programs import Chosen
from collc.choose.rules import chunk_rule
from collc.choose.strategy import Strategy
from collc.codegen.context import TableBuilder
from collc.collectives.model import COMPILED, Collective
from collc.errors import CollcError
from collc.ir.verify import verify
from collc.options import CUDA, HOST, Target
from collc.packing.candidates.plans import candidate, with_proof
from collc.packing.check import check_packing
from collc.packing.document import PlanFile, from_json, to_json
from collc.packing.model import Plan
from collc.packing.sets.gpu_sets import written_set
from collc.pipeline import Recorder, pack, wanted_programs
from collc.schedule.trees import schedule_trees
from collc.topology.canonical import fingerprint
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology
from collc.topology.model import PlanGraph

FEW = (Collective.ALL_REDUCE, Collective.BROADCAST, Collective.REDUCE, Collective.ALL_GATHER)


@cache
def graph_of(machine: str, gpus: str = "") -> PlanGraph:
    topology = load_topology(machine)
    return plan_graph(topology, gpus.split(",") if gpus else None)


@cache
def packed(graph: PlanGraph, collectives: tuple[Collective, ...] = FEW) -> tuple[Plan, ...]:
    return pack(graph, wanted_programs(collectives, graph.nranks), Recorder())


@cache
def held(way: Strategy, target: Target = CUDA, for_tuning: bool = False, gpus: str = "gpu0,gpu1,gpu2,gpu3") -> Chosen:
    graph = graph_of("dgx1v", gpus)
    return choose_programs(graph, packed(graph), target, way, for_tuning=for_tuning)


CASES = {
    "one": (Strategy.PACKED, HOST, False),
    "model": (Strategy.MODEL, CUDA, False),
    "rule": (Strategy.RULE, CUDA, False),
    "tuned host": (Strategy.PACKED, HOST, True),
    "tuned cuda": (Strategy.MODEL, CUDA, True),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.slow_for("tuned cuda")
def test_every_collective_and_root_has_a_program_for_every_size(name: str) -> None:
    found = held(*CASES[name])
    last: dict[object, int | None] = {}
    for entry in found.entries:
        plan = found.plans[entry.plan]
        key = (plan.collective, plan.root)
        least = entry.when.min_bytes
        if key not in last:
            assert least == 0
        else:
            before = last[key]
            assert least is None or (before is not None and least > before)
        last[key] = least
        assert (entry.program.collective, entry.program.root) == key
        assert entry.program.chunk_bytes % 16 == 0
        verify(entry.program)
    assert set(last) == {(plan.collective, plan.root) for plan in packed(graph_of("dgx1v", "gpu0,gpu1,gpu2,gpu3"))}


@pytest.mark.parametrize("name", CASES)
def test_every_plan_is_feasible_with_a_proof(name: str) -> None:
    """A candidate keeps its own rate, and the bound and certificate of the packed plan: both are recomputed."""
    found = held(*CASES[name])
    graph = graph_of("dgx1v", "gpu0,gpu1,gpu2,gpu3")
    for plan in found.plans:
        check_packing(graph, plan)
        if plan.kind != "trees":
            assert plan.origin == plan.kind
            assert plan.optimal == (plan.rate == plan.bound)
    again = from_json(to_json(PlanFile(graph.name, fingerprint(graph), graph, found.plans)), "x")
    assert again.plans == found.plans


def test_the_model_chooses_by_size_and_says_why() -> None:
    found = held(Strategy.MODEL)
    rows = [e for e in found.entries if found.plans[e.plan].collective is Collective.ALL_REDUCE]
    assert len(rows) > 1
    assert all(e.why for e in rows)
    chunks = [e.program.chunk_bytes for e in rows]
    assert chunks[0] < chunks[-1]
    assert {e.when.protocol for e in found.entries} <= set(CUDA.protocols)


def test_one_root_decides_for_all() -> None:
    found = held(Strategy.MODEL)
    by_root: dict[int | None, list[object]] = {}
    for entry in found.entries:
        plan = found.plans[entry.plan]
        if plan.collective is Collective.BROADCAST:
            row = (entry.when, plan.kind, entry.program.chunk_bytes)
            by_root.setdefault(plan.root, []).append(row)
    assert len(by_root) == 4
    assert len({tuple(rows) for rows in by_root.values()}) == 1


def test_per_rank_collectives_count_bytes_per_rank() -> None:
    """The table's bytes are nccl-tests' bytes divided by the number of ranks."""
    graph = graph_of("dgx1v", "gpu0,gpu1,gpu2,gpu3")
    plan = next(p for p in packed(graph) if p.collective is Collective.ALL_GATHER)
    rules = chunk_rule(plan, CUDA)
    found = held(Strategy.RULE)
    mine = [e.when.min_bytes for e in found.entries if found.plans[e.plan].collective is Collective.ALL_GATHER]
    assert mine == [-(-rule.min_bytes // 4) for rule in rules]


def test_the_rule_grows_chunks_with_the_size() -> None:
    for plan in packed(graph_of("dgx1v", "gpu0,gpu1,gpu2,gpu3")):
        rules = chunk_rule(plan, CUDA)
        assert rules[0].min_bytes == 0
        assert [r.min_bytes for r in rules] == sorted({r.min_bytes for r in rules})
        assert [r.chunk_bytes for r in rules] == sorted({r.chunk_bytes for r in rules})
        assert rules[-1].chunk_bytes >= 128 << 10


def test_chunks_shrink_until_the_fifos_fit() -> None:
    graph = graph_of("dgx1v", "gpu0,gpu1,gpu2,gpu3")
    small = Target(CUDA.kind, 8, 512 << 10, 32, False, tuning_chunks=CUDA.tuning_chunks, fifo_bytes=4 << 20)
    tight = choose_programs(graph, packed(graph), small, Strategy.RULE)
    programs = [entry.program for entry in tight.entries]
    fifos = {fifo.memory for program in programs for fifo in program.fifos}
    assert len(fifos) * 8 * slot_bytes(programs) <= 4 * (4 << 20)
    assert slot_bytes(programs) < slot_bytes([entry.program for entry in held(Strategy.RULE).entries])


def test_candidates_for_tuning_share_steps_with_what_differs_in_chunks() -> None:
    found = held(Strategy.PACKED, HOST, True)
    rows = [e for e in found.entries if found.plans[e.plan].collective is Collective.ALL_REDUCE]
    assert [e.when.min_bytes for e in rows] == [0] + [None] * (len(rows) - 1)
    assert {found.plans[e.plan].kind for e in rows} >= {"trees", "rings"}
    variants = {(e.plan, e.program.chunk_bytes) for e in rows}
    assert len(variants) == len(rows)
    tables = TableBuilder()
    programs = [e.program for e in found.entries]
    tables.add_allocation(programs, slot_bytes=HOST.chunk_bytes, when=[e.when for e in found.entries])
    alone = TableBuilder()
    once = {id(p.channels): p for p in programs}
    alone.add_allocation(list(once.values()), slot_bytes=HOST.chunk_bytes)
    assert len(once) < len(programs)
    assert tables.counts()["steps"] == alone.counts()["steps"]
    assert tables.counts()["programs"] == len(programs)
    assert any(row.cells.startswith(f"{NEVER}u") for row in tables.rows["programs"])


def test_plans_of_equal_trees_are_held_once() -> None:
    """Two ranks have one tree: rings, double binary trees and stars are the same."""
    graph = graph_of("dgx1v", "gpu0,gpu3")
    found = choose_programs(graph, packed(graph), HOST, Strategy.PACKED, for_tuning=True)
    for collective in FEW:
        own = [e for e in found.entries if found.plans[e.plan].collective is collective and e.when.min_bytes is None]
        shapes: dict[tuple[int | None, frozenset[object]], set[int]] = {}
        for entry in own:
            parts = schedule_trees(found.plans[entry.plan], 2).parts
            key = (found.plans[entry.plan].root, frozenset((p.lo, p.hi, p.reduce, p.broadcast, p.block) for p in parts))
            shapes.setdefault(key, set()).add(entry.plan)
        assert all(len(plans) == 1 for plans in shapes.values())


def test_a_candidate_with_a_proof_says_how_far_below_the_best_it_is(tmp_path: Path) -> None:
    source = tmp_path / "odd.yaml"
    source.write_text(ODD)
    graph = plan_graph(load_topology(str(source)))
    best = pack(graph, [(Collective.ALL_REDUCE, None)], Recorder())[0]
    ring = with_proof(candidate(graph, Collective.ALL_REDUCE, None, "ring"), best)
    check_packing(graph, ring)
    assert ring.rate is not None
    assert ring.bound is not None
    assert ring.bound == best.rate
    assert ring.rate < ring.bound
    assert not ring.optimal


@cache
def _allocation() -> tuple[PlanFile, Chosen, dict[str, Any]]:
    graph = graph_of("dgx1v", "gpu0,gpu1,gpu2,gpu3")
    found = held(Strategy.PACKED, HOST, True)
    document = PlanFile(graph.name, fingerprint(graph), graph, found.plans)
    sets = written_set(load_topology("dgx1v"), ["gpu0", "gpu1", "gpu2", "gpu3"])
    manifest = make_manifest((document,), (found.entries,), sets, HOST, "c++", "0")
    return document, found, manifest | {"sources": {"runtime": "0"}}


def check(document: PlanFile, found: Chosen, manifest: dict[str, Any]) -> None:
    claims = read_claims(json.dumps(manifest).encode(), Path("lib"))["allocations"][0]
    programs = tuple(entry.program for entry in found.entries)
    when = tuple(entry.when for entry in found.entries)
    graph = document.graph
    links = tuple((link.src, link.dst, link.kind, mbps(link.gbps)) for link in graph.links)
    servers = (0,) * graph.nranks
    decoded = Decoded(graph.nranks, links, servers, HOST.slots, claims["slot_bytes"], programs, when, ())
    check_allocation(document, decoded, claims, "host", Path("lib"))


def test_verify_takes_a_library_for_tuning() -> None:
    check(*_allocation())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("plan", "trees"),
        ("optimal", True),
        ("rate_gbps", "1000"),
        ("bound_gbps", "1"),
        ("min_bytes", 0),
        ("chunk_bytes", 1 << 20),
        ("proto", "LL"),
        ("channels", 99),
        ("links", {"nvlink": 1}),
        ("links", {"pcie": 24}),
        ("links", {}),
        ("plan_number", 0),
        ("plan_number", -1),
        ("plan_number", None),
        ("spread", 8),
        ("spread", None),
        ("collective", "broadcast"),
        ("root", 0),
    ],
)
def test_verify_refuses_a_manifest_that_tells_another_story(field: str, value: bool | int | str | None) -> None:
    document, found, claims = _allocation()
    changed = copy.deepcopy(claims)
    row = next(row for row in changed["allocations"][0]["programs"] if row["plan"] == "double-binary")
    assert row[field] != value
    row[field] = value
    with pytest.raises(CollcError):
        check(document, found, changed)


def test_verify_refuses_a_plan_that_claims_too_much() -> None:
    document, found, claims = _allocation()
    number = next(i for i, plan in enumerate(found.plans) if plan.kind == "double-binary")
    plan = found.plans[number]
    assert plan.rate is not None
    value = to_json(document)
    value["plans"][number]["rate_gbps"] = str(plan.rate * Fraction(3, 2))
    with pytest.raises(CollcError):
        check(from_json(value, "x"), found, claims)


def test_verify_refuses_a_table_out_of_order() -> None:
    document, found, claims = _allocation()
    changed = copy.deepcopy(claims)
    rows = changed["allocations"][0]["programs"]
    rows[0], rows[1] = rows[1], rows[0]
    entries = (found.entries[1], found.entries[0], *found.entries[2:])
    with pytest.raises(CollcError, match="not for all sizes"):
        check(document, Chosen(found.plans, entries), changed)


def test_the_generated_source_is_the_same_every_time() -> None:
    graph = graph_of("dgx1v", "gpu0,gpu1,gpu2,gpu3")
    sets = written_set(load_topology("dgx1v"), ["gpu0", "gpu1", "gpu2", "gpu3"])
    texts = []
    for _ in range(2):
        made = choose_programs(graph, packed(graph), HOST, Strategy.PACKED, for_tuning=True)
        document = PlanFile(graph.name, fingerprint(graph), graph, made.plans)
        texts.append(generate(Contents((document,), (made.entries,), sets), HOST, Compiler("g++", "g++ 0")))
    assert texts[0] == texts[1]


def test_all_collectives_are_held() -> None:
    graph = graph_of("dgx1v", "gpu0,gpu3")
    found = choose_programs(graph, packed(graph, COMPILED), CUDA, Strategy.MODEL)
    assert {found.plans[e.plan].collective for e in found.entries} == set(COMPILED)
