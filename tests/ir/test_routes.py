"""Routes: the links of every hop go from the plan to the FIFOs of the lowered program; nothing joins two servers."""

from __future__ import annotations

import dataclasses
from collections import Counter
from functools import cache
from typing import Any

import pytest
from support.machines import two_servers

from collc import packing
from collc.collectives.model import COMPILED, Collective
from collc.errors import IRError
from collc.ir.nodes import Program
from collc.ir.printer import parse_program, print_program
from collc.ir.routes import verify_routes
from collc.ir.verify import verify
from collc.options import CUDA, HOST, Target
from collc.packing.model import Plan
from collc.pipeline import PASSES, Recorder, lower, lower_by
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology
from collc.topology.model import CLASSES, LinkKind, PlanGraph

GPUS = {"dgx1v": ["gpu0", "gpu1", "gpu2", "gpu4"], "pcie-8x4090": ["gpu0", "gpu1", "gpu5"]}
MACHINES = (*GPUS, "two servers")


@cache
def graph_of(machine: str) -> PlanGraph:
    return plan_graph(load_topology(machine), GPUS[machine]) if machine in GPUS else plan_graph(two_servers())


@cache
def plan_of(machine: str, collective: Collective) -> Plan:
    return packing.plan(graph_of(machine), collective)


def lowered(machine: str, collective: Collective, target: Target = CUDA) -> Program:
    return lower(plan_of(machine, collective), graph_of(machine), target, Recorder())


def edges(program: Program) -> Counter[tuple[int, int, tuple[int, ...]]]:
    """(source, reader, route) over all FIFOs."""
    return Counter((f.src, dst, way) for f in program.fifos for dst, way in zip(f.dsts, f.routes, strict=True))


@pytest.mark.parametrize("target", [HOST, CUDA], ids=["host", "cuda"])
@pytest.mark.parametrize("collective", COMPILED, ids=lambda c: c.value)
@pytest.mark.parametrize("machine", MACHINES)
def test_fifos_have_the_links_of_the_plans_hops(machine: str, collective: Collective, target: Target) -> None:
    plan, program = plan_of(machine, collective), lowered(machine, collective, target)
    wanted = Counter((h.src, h.dst, h.links) for tree in plan.trees for h in (*tree.reduce, *tree.broadcast))
    assert edges(program) == wanted
    links = graph_of(machine).links
    for fifo in program.fifos:
        kinds = {links[link].kind for way in fifo.routes for link in way}
        assert fifo.link in kinds
        assert all(CLASSES.index(kind) <= CLASSES.index(fifo.link) for kind in kinds)
    assert parse_program(print_program(program)) == program


@pytest.mark.parametrize("collective", COMPILED, ids=lambda c: c.value)
def test_slots_are_shared_inside_a_server_alone(collective: Collective) -> None:
    program = lowered("two servers", collective, HOST)
    assert program.servers == (0, 0, 0, 1, 1, 1)
    assert all(len({program.servers[dst] for dst in fifo.dsts}) == 1 for fifo in program.fifos)
    crossing = [f for f in program.fifos if program.servers[f.src] != program.servers[f.dsts[0]]]
    assert crossing
    assert {fifo.link for fifo in crossing} == {LinkKind.NET}


@pytest.mark.parametrize("collective", COMPILED, ids=lambda c: c.value)
@pytest.mark.parametrize("name", PASSES)
def test_no_pass_joins_readers_on_different_servers(name: str, collective: Collective) -> None:
    """Every pass there is, after those that every target runs first."""
    graph, plan = graph_of("two servers"), plan_of("two servers", collective)
    before = ["fuse_copies", "pipeline_hops"][: list(PASSES).index(name)]
    chosen = [(one, PASSES[one].bound(HOST)) for one in (*before, name)]
    if name == "reduce_everywhere":
        with pytest.raises(IRError, match=r"several servers|is no all_reduce"):
            lower_by(plan, graph, chosen, HOST)
        return
    program = lower_by(plan, graph, chosen, HOST)
    assert program.servers == (0, 0, 0, 1, 1, 1)
    assert all(len({program.servers[dst] for dst in fifo.dsts}) == 1 for fifo in program.fifos)


def test_readers_on_two_servers_are_refused() -> None:
    """The program that share_slots would make if it ignored servers."""
    program = lowered("dgx1v", Collective.ALL_GATHER, HOST)
    joined = next(i for i, f in enumerate(program.fifos) if len(f.dsts) > 1)
    alone = program.fifos[joined].dsts[0]
    servers = tuple(int(rank == alone) for rank in range(program.nranks))
    with pytest.raises(IRError, match="joins readers on different servers"):
        verify(program.replace(servers=servers))


def change(program: Program, number: int = 0, **fields: object) -> Program:
    """The program with one FIFO changed."""
    fifos = list(program.fifos)
    fifos[number] = dataclasses.replace(fifos[number], **fields)  # type: ignore[arg-type]
    return program.replace(fifos=tuple(fifos))


def test_a_wrong_route_is_found() -> None:
    graph, program = graph_of("dgx1v"), lowered("dgx1v", Collective.ALL_REDUCE)
    verify_routes(program, graph)
    # A FIFO whose ends a third rank joins too.
    number, aside, through = next(
        (number, a, b)
        for number, fifo in enumerate(program.fifos)
        for a in graph.links
        for b in graph.links
        if a.src == fifo.src and a.dst == b.src and b.dst == fifo.dsts[0]
    )
    other = next(link for link in graph.links if link.src != program.fifos[number].src)
    for fields, said in (
        ({"routes": ((other.id,),)}, "does not go on from"),
        ({"routes": ((aside.id,),)}, "its route ends at"),
        ({"routes": ((aside.id, through.id),)}, "passes through rank"),
        ({"routes": ((len(graph.links),),)}, "does not go on from"),
        ({"link": LinkKind.PCIE}, "not of the class pcie"),
        ({"routes": (), "link": None}, "has no route"),
    ):
        with pytest.raises(IRError, match=said):
            verify_routes(change(program, number, **fields), graph)
    with pytest.raises(IRError, match="on servers"):
        verify_routes(program.replace(servers=(0, 0, 0, 1)), graph)


@pytest.mark.parametrize(
    "fields", [{"routes": ((1,), (2,))}, {"routes": ((),)}, {"link": None}], ids=["too many", "empty", "no class"]
)
def test_malformed_routes_are_refused(fields: dict[str, Any]) -> None:
    program = lowered("dgx1v", Collective.BROADCAST)
    with pytest.raises(IRError):
        change(program, **fields)


def test_reductions_everywhere_keep_their_routes() -> None:
    graph = plan_graph(load_topology("hgx-h100"), ["gpu0", "gpu1", "gpu2"])
    plan = packing.plan(graph, Collective.ALL_REDUCE)
    program = lower(plan, graph, HOST, Recorder(), everywhere=True)
    assert [fifo.dsts for fifo in program.fifos] == [(1, 2), (0, 2), (0, 1)]
    verify_routes(program, graph)
