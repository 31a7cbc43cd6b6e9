"""Programs that add and copy inside a switch: run on sets and on numbers, and every planted fault is named."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from support.programs import CUDA, HOST, TREE_COLLECTIVES, check_sets

from collc import packing
from collc.collectives.model import Collective
from collc.errors import IRError
from collc.ir.arithmetic import reduction
from collc.ir.interpret import run, run_on_sets
from collc.ir.nodes import Channel, Fifo, Program, Step, Through
from collc.ir.printer import parse_program, print_program
from collc.ir.routes import verify_routes
from collc.ir.verify import verify
from collc.lowering.share_slots import share_slots
from collc.pipeline import Recorder, lower_in_switch
from collc.topology.model import GraphLink, LinkKind, PlanGraph, Vertex, VertexKind


def box(gbps: tuple[int, ...]) -> PlanGraph:
    """Ranks behind a switch that copies and adds, each with its own speed."""
    n = len(gbps)
    switch = Vertex("nvs0", VertexKind.SWITCH, multicast=True, reduce=True)
    links = []
    for rank, speed in enumerate(gbps):
        links.append(GraphLink(2 * rank, rank, n, LinkKind.NVSWITCH, Fraction(speed)))
        links.append(GraphLink(2 * rank + 1, n, rank, LinkKind.NVSWITCH, Fraction(speed)))
    gpus = tuple(Vertex(f"gpu{rank}", VertexKind.GPU) for rank in range(n))
    return PlanGraph("box", n, (*gpus, switch), ("",) * (n + 1), tuple(links))


@cache
def made(collective: Collective, gbps: tuple[int, ...], channels: int = 1, root: int | None = None) -> Program:
    graph = box(gbps)
    if collective.rooted and root is None:
        root = len(gbps) - 1
    return lower_in_switch(packing.plan(graph, collective, root), graph, CUDA, channels, Recorder())


@pytest.mark.parametrize("collective", TREE_COLLECTIVES, ids=lambda c: c.value)
@pytest.mark.parametrize("gbps", [(4, 4), (4, 4, 4), (9, 7, 8, 9, 9)], ids=["2", "3", "unequal"])
@pytest.mark.parametrize("channels", [1, 3])
def test_it_computes_the_collective(collective: Collective, gbps: tuple[int, ...], channels: int) -> None:
    program = made(collective, gbps, channels)
    assert len(program.channels) == channels
    for seed in range(4):
        for resident in (1, None):
            check_sets(program, run_on_sets(program, chunks=7, seed=seed, resident=resident))
    assert parse_program(print_program(program)) == program


@pytest.mark.parametrize("count", [0, 1, 7, 1001])
def test_all_ranks_have_the_same_bits_in_an_order_that_nobody_knows(count: int) -> None:
    """Sums of floats differ between runs, as the switch adds in any order, and never between ranks."""
    program = made(Collective.ALL_REDUCE, (4,) * 6, 2).replace(chunk_bytes=64)
    inputs = [np.random.default_rng(r).normal(size=count).astype(np.float32) for r in range(6)]
    seen = set()
    for seed in range(6):
        outputs = [np.zeros(count, np.float32) for _ in range(6)]
        run(program, [part.copy() for part in inputs], outputs, reduction("sum"), count=count, seed=seed)
        np.testing.assert_allclose(outputs[0], np.sum(inputs, axis=0), rtol=1e-4, atol=1e-5)
        assert len({output.tobytes() for output in outputs}) == 1
        seen.add(outputs[0].tobytes())
    assert (len(seen) > 1) == (count >= 7)


def test_in_place() -> None:
    for seed in range(4):
        program = made(Collective.ALL_REDUCE, (4,) * 4, 2).replace(chunk_bytes=64)
        buffers = [np.arange(301) * (r + 1) for r in range(4)]
        run(program, buffers, buffers, reduction("sum"), count=301, seed=seed)
        for buffer in buffers:
            np.testing.assert_array_equal(buffer, np.arange(301) * 10)


def test_each_part_crosses_the_switch_once() -> None:
    """A head reads one sum and stores one copy of each chunk. Every rank writes and reads only its own slots."""
    program = made(Collective.ALL_REDUCE, (4,) * 4)
    sums = [(r, s) for r, steps in enumerate(program.channels[0].steps) for s in steps if program.sums_in_switch(s)]
    assert [rank for rank, _ in sums] == [0, 1, 2, 3]
    assert all(program.copies_in_switch(step) and step.name == "recvSend" for _, step in sums)
    assert {fifo.through for fifo in program.fifos} == {Through.SUM, Through.COPY}
    assert len(program.fifos) == 4 * (4 + 4)


@pytest.fixture
def program() -> Program:
    return made(Collective.ALL_REDUCE, (4,) * 3)


def edit(program: Program, rank: int, change: Callable[[list[Step]], Iterable[Step]]) -> Program:
    ranks = list(program.channels[0].steps)
    ranks[rank] = tuple(change(list(ranks[rank])))
    return program.replace(channels=(Channel(tuple(ranks)),))


def with_fifo(program: Program, number: int, **changes: object) -> Program:
    fifos = list(program.fifos)
    fifos[number] = dataclasses.replace(fifos[number], **changes)  # type: ignore[arg-type]
    return program.replace(fifos=tuple(fifos))


def head_step(program: Program, rank: int, **changes: object) -> Program:
    """Returns the program with other fields in the step that reads the sum."""
    return edit(
        program,
        rank,
        lambda steps: [
            dataclasses.replace(s, **changes) if program.sums_in_switch(s) else s  # type: ignore[arg-type]
            for s in steps
        ],
    )


def rejects(program: Program, message: str) -> None:
    with pytest.raises(IRError, match=message):
        verify(program)


def test_a_rank_is_missing_in_the_sum(program: Program) -> None:
    rejects(head_step(program, 0, recv=(0, 1)), "rank 0 never receives from it")
    shorter = edit(head_step(program, 0, recv=(0, 1)), 2, lambda steps: [s for s in steps if s.send != (2,)])
    kept = [f for f in range(len(program.fifos)) if f != 2]
    place = {f: i for i, f in enumerate(kept)}
    channel = Channel(
        tuple(
            tuple(
                dataclasses.replace(s, recv=tuple(place[f] for f in s.recv), send=tuple(place[f] for f in s.send))
                for s in steps
            )
            for steps in shorter.channels[0].steps
        )
    )
    rejects(
        program.replace(fifos=tuple(program.fifos[f] for f in kept), channels=(channel,)),
        r"the switch serves all ranks, and its FIFOs \[0, 1\] leaves out ranks \[2\]",
    )


def test_a_head_does_not_wait(program: Program) -> None:
    """It stores its own input through the switch, and the sum is nobody's."""
    rejects(head_step(program, 0, recv=(), input=True), "rank 0 never receives from it")


def test_a_wrong_share(program: Program) -> None:
    rejects(head_step(program, 0, share=1), "works on share 1 but fifo 0 carries 0")


def test_one_offset_for_all(program: Program) -> None:
    rejects(with_fifo(program, 1, index=5), r"the FIFOs \[0, 1, 2\] lie at one offset, and have several indices")


def test_ordinary_fifos_are_not_mixed_in(program: Program) -> None:
    rejects(with_fifo(program, 1, through=None), r"mixes FIFOs through the switch with others: \[0, 1, 2\]")
    rejects(with_fifo(program, 1, through=Through.COPY, index=7), "mixes FIFOs through the switch with others")
    rejects(with_fifo(program, 4, through=Through.SUM, index=7), "mixes FIFOs through the switch with others")


def test_own_input_beside_the_sum(program: Program) -> None:
    rejects(head_step(program, 0, input=True), "adds its own input to what the switch has added up")


def test_several_receives_are_one_sum_in_a_switch_alone(program: Program) -> None:
    with pytest.raises(IRError, match="receives from one FIFO, not 3"):
        with_fifo(with_fifo(program, 0, through=Through.SUM), 0, src=1, through=None)


def test_two_sums_of_one_share_are_not_the_same_bits() -> None:
    """Both ranks ask the switch for the whole sum and store it: the orders may differ."""
    both = """
collc-ir/1 all_reduce ranks=2 slots=4 chunk=256
share 0: block 0 [0, 1)
fifo 0: 0 -> 0 share 0 index 0 through sum
fifo 1: 1 -> 0 share 0 index 0 through sum
fifo 2: 0 -> 1 share 0 index 0 through sum
fifo 3: 1 -> 1 share 0 index 0 through sum
channel 0
  rank 0
    send share 0 lag 0 send 0,2
    recv share 0 lag 1 recv 0,1
  rank 1
    send share 0 lag 0 send 1,3
    recv share 0 lag 1 recv 2,3
"""
    rejects(parse_program(both), "reduces in another order than channel 0, rank 0")


def test_slots_too_few(program: Program) -> None:
    verify(program)
    rejects(program.replace(slots=1), "deadlock with 1 slots")
    with pytest.raises(IRError, match=r"deadlock: .* waits for"):
        run_on_sets(program.replace(slots=1), chunks=9)


def test_a_fifo_to_oneself_goes_through_a_switch() -> None:
    with pytest.raises(IRError, match="to other, distinct ranks"):
        Fifo(0, (0,), 0)
    with pytest.raises(IRError, match="a FIFO through a switch has one reader"):
        Fifo(0, (0, 1), 0, through=Through.COPY)


def test_ranks_on_several_servers(program: Program) -> None:
    rejects(program.replace(servers=(0, 0, 1)), "goes through the switch of one server")


def test_switches_that_cannot() -> None:
    graph, program = box((4, 4, 4)), made(Collective.ALL_REDUCE, (4,) * 3)
    verify_routes(program, graph)
    for flag, said in (("multicast", "nvs0 does not copy"), ("reduce", "nvs0 does not add up")):
        switch = dataclasses.replace(graph.vertices[3], **{flag: False})  # type: ignore[arg-type]
        with pytest.raises(IRError, match=said):
            verify_routes(program, dataclasses.replace(graph, vertices=(*graph.vertices[:3], switch)))


def test_hosts_have_no_such_switch(program: Program) -> None:
    assert HOST.shares_slots
    with pytest.raises(IRError, match="no switch copies or adds"):
        share_slots(program)


@pytest.mark.parametrize("seed", range(40))
def test_the_proof_agrees_with_running(seed: int) -> None:
    """Random lags and slots: programs that the verifier accepts give right results; it refuses deadlocks."""
    rng = random.Random(seed)
    base = made(rng.choice(TREE_COLLECTIVES), (4,) * rng.randrange(2, 5), rng.randrange(1, 3))
    channels = tuple(
        Channel(
            tuple(
                tuple(dataclasses.replace(s, lag=max(0, s.lag + rng.choice([0, 0, -2, -1, 1]))) for s in steps)
                for steps in channel.steps
            )
        )
        for channel in base.channels
    )
    changed = base.replace(channels=channels, slots=rng.randrange(1, 5))
    try:
        verify(changed)
    except IRError as error:
        if "deadlock" in str(error):
            with pytest.raises(IRError, match="deadlock"):
                run_on_sets(changed, chunks=40, seed=seed)
        return
    for order in range(3):
        check_sets(changed, run_on_sets(changed, chunks=9, seed=order))
