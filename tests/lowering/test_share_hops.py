"""Rings whose roots share the FIFO of a hop: proved, run, and refused where an end is out of turn."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from support.programs import check_sets, in_rounds

from collc.checker.tables import decode
from collc.codegen.context import TableBuilder
from collc.collectives.model import Collective
from collc.errors import IRError
from collc.ir.arithmetic import reduction
from collc.ir.build import build
from collc.ir.interpret import run, run_on_sets
from collc.ir.join_classes import join_classes
from collc.ir.nodes import Channel, Fifo, Program, Step
from collc.ir.printer import parse_program, print_program
from collc.ir.verify import verify
from collc.lowering.share_hops import share_hops
from collc.lowering.share_slots import share_slots
from collc.schedule.model import Part, Schedule

RINGS = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
ORDERS = ((0, 1), (2, 0, 1), (0, 2, 3, 1), (0, 1, 2, 3, 4), (7, 2, 0, 5, 3, 1, 6, 4))
SHAPES = ((1, 1), (2, 1), (2, 2), (4, 2))


def memories(program: Program) -> int:
    return len({fifo.memory for fifo in program.fifos})


@pytest.mark.parametrize("collective", [*RINGS, Collective.ALL_REDUCE])
@pytest.mark.parametrize("order", ORDERS, ids=len)
def test_the_proof_agrees_with_running(collective: Collective, order: tuple[int, ...]) -> None:
    """With one slot all ranks of a ring wait for each other, where roots take turns; two are enough."""
    n = len(order)
    for parts, channels in SHAPES:
        for slots in (1, 2, 3, 4, 16):
            program = in_rounds(collective, order, parts, channels, slots, 64)
            assert parse_program(print_program(program)) == program
            if collective in RINGS:
                assert memories(program) == parts * n == len(program.fifos) // (n - 1)
            if slots == 1 and n > 2 and collective in RINGS:
                with pytest.raises(IRError, match="deadlock with 1 slots"):
                    verify(program)
                with pytest.raises(IRError, match="deadlock"):
                    run_on_sets(program)
                continue
            verify(program)
            for seed in range(3):
                check_sets(program, run_on_sets(program, seed=seed, resident=1 + seed % channels))


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("count", [1, 7, 64, 1001])
def test_numbers_for_any_count(count: int, in_place: bool) -> None:
    order = (0, 2, 3, 1)
    n = len(order)
    rng = np.random.default_rng(count)
    blocks = [rng.integers(0, 1000, (n, count)) for _ in range(n)]
    for seed in range(3):
        program = in_rounds(Collective.REDUCE_SCATTER, order, 4, 2, 2 + seed, 32)
        inputs = [b.reshape(-1).copy() for b in blocks]
        outputs = [i[r * count : (r + 1) * count] if in_place else np.zeros(count, int) for r, i in enumerate(inputs)]
        run(program, inputs, outputs, reduction("sum"), count=count, seed=seed)
        for rank, output in enumerate(outputs):
            assert (output == sum(b[rank] for b in blocks)).all()
        program = in_rounds(Collective.ALL_GATHER, order, 4, 2, 2 + seed, 32)
        gathered = [np.zeros(n * count, int) for _ in range(n)]
        for rank, whole in enumerate(gathered):
            whole[rank * count : (rank + 1) * count] = blocks[rank][0]
        own = [whole[r * count : (r + 1) * count] if in_place else blocks[r][0] for r, whole in enumerate(gathered)]
        run(program, own, gathered, reduction("sum"), count=count, seed=seed)
        for whole in gathered:
            assert (whole == np.concatenate([b[0] for b in blocks])).all()


def moved(program: Program, rank: int, change: Callable[[list[Step]], list[Step]]) -> Program:
    """The program with the steps of a rank in its first channel changed."""
    steps = list(program.channels[0].steps)
    steps[rank] = tuple(change(list(steps[rank])))
    return program.replace(channels=(Channel(tuple(steps)), *program.channels[1:]))


def with_fifo(program: Program, number: int, **changes: object) -> Program:
    fifos = list(program.fifos)
    fifos[number] = dataclasses.replace(fifos[number], **changes)  # type: ignore[arg-type]
    return program.replace(fifos=tuple(fifos))


def later(number: int, rounds: int) -> Callable[[list[Step]], list[Step]]:
    def change(steps: list[Step]) -> list[Step]:
        steps[number] = dataclasses.replace(steps[number], lag=steps[number].lag + rounds)
        return steps

    return change


def swapped(first: int, second: int) -> Callable[[list[Step]], list[Step]]:
    def change(steps: list[Step]) -> list[Step]:
        steps[first], steps[second] = steps[second], steps[first]
        return steps

    return change


@pytest.mark.parametrize("collective", RINGS)
@pytest.mark.parametrize("rank", range(4))
def test_wrong_orders_are_refused(collective: Collective, rank: int) -> None:
    program = in_rounds(collective, (0, 1, 2, 3), 1, 1, 4, 64)
    verify(program)
    changes = [swapped(first, second) for second in range(4) for first in range(second)]
    for change in (*changes, *(later(number, 1) for number in range(4))):
        wrong = moved(program, rank, change)
        with pytest.raises(IRError, match="is out of turn"):
            verify(wrong)
        with pytest.raises(IRError, match=r"is out of turn: \d+ went before|deadlock"):
            run_on_sets(wrong, chunks=9)


def refused(program: Program) -> bool:
    try:
        verify(program)
    except IRError:
        return True
    return False


@pytest.mark.parametrize("seed", range(60))
def test_what_the_proof_accepts_runs(seed: int) -> None:
    """Rounds that begin elsewhere at some ranks, and steps that are late."""
    rng = random.Random(seed)
    program = in_rounds(rng.choice(RINGS), (0, 1, 2, 3), 1, 1, rng.randrange(2, 9), 64)
    for rank in range(4):
        begin = rng.randrange(4)
        late = rng.randrange(3)

        def turned(steps: list[Step], begin: int = begin, late: int = late) -> list[Step]:
            tail = [dataclasses.replace(step, lag=step.lag + late) for step in steps[:begin]]
            return [*(dataclasses.replace(s, lag=s.lag + rng.choice([0, late])) for s in steps[begin:]), *tail]

        program = moved(program, rank, turned)
    if refused(program):
        with pytest.raises(IRError, match=r"out of turn|deadlock"):
            run_on_sets(program, chunks=9)
        return
    for order in range(3):
        check_sets(program, run_on_sets(program, seed=order, chunks=9))


def test_wrong_groups_are_refused() -> None:
    program = in_rounds(Collective.ALL_GATHER, (0, 1, 2, 3), 2, 1, 2, 64)
    wrong = "does not have one turn for each of several equal shares"
    for number, fifo in enumerate(program.fifos):
        with pytest.raises(IRError, match=wrong):
            verify(with_fifo(program, number, index=9))  # alone, with three turns
        with pytest.raises(IRError, match="is the same memory as fifo"):
            verify(with_fifo(program, number, turn=(fifo.turn + 1) % 3))
    first = program.fifos[0].share
    halves = {
        (share.lo, share.hi): s for s, share in enumerate(program.shares) if share.block == program.shares[first].block
    }
    assert len(halves) == 2
    low, high = halves.values()
    exchanged = list(program.shares)
    exchanged[low], exchanged[high] = exchanged[high], exchanged[low]
    with pytest.raises(IRError, match=wrong):
        verify(program.replace(shares=tuple(exchanged)))
    with pytest.raises(IRError, match=wrong):
        verify(program.replace(servers=(0, 0, 1, 1)))
    with pytest.raises(IRError, match="below its 3 turns, not 3"):
        Fifo(0, (1,), 0, turn=3, turns=3)


def test_tables_hold_the_turns_and_both_collectives_share_slots() -> None:
    programs = [in_rounds(collective, (0, 2, 3, 1), 4, 2, 2, 128) for collective in RINGS]
    builder = TableBuilder()
    builder.add_allocation(programs, slot_bytes=128)
    (held,) = decode(builder.image()).allocations
    assert len(held.fifos) == len(programs[0].fifos) == len(programs[1].fifos)
    assert len({fifo.memory for fifo in held.fifos}) == memories(programs[0]) == memories(programs[1])
    for before, after in zip(programs, held.programs, strict=True):
        verify(after)
        turns = [sorted((f.src, f.dsts, f.share, f.turn, f.turns) for f in one.fifos) for one in (before, after)]
        assert turns[0] == turns[1]
        for rank, steps in enumerate(after.channels[0].steps):
            assert [s.name for s in steps] == [s.name for s in before.channels[0].steps[rank]]


def test_several_classes() -> None:
    """Programs over two classes of links keep their turns."""
    one = in_rounds(Collective.ALL_GATHER, (0, 1, 2), 2, 1, 2, 64)
    joined = join_classes({"nvlink": one, "pcie": one}, {"nvlink": 3, "pcie": 1})
    verify(joined)
    assert memories(joined) == 2 * memories(one)
    for weights in ((3, 1, 0), (0, 1, 0), (1, 0, 0)):
        check_sets(joined, run_on_sets(joined, weights=weights))
    with pytest.raises(IRError, match="FIFOs of the network cannot be interleaved"):
        join_classes({"nvlink": one, "net": one}, {"nvlink": 3, "net": 1})


def test_switches_take_no_turns() -> None:
    schedule = Schedule(
        Collective.BROADCAST, 0, 2, (Part(0, Fraction(0), Fraction(1), 0, (), ((0, 0), (0, 1)), (), True),)
    )
    with pytest.raises(IRError, match="no chunks take turns on their way through a switch"):
        share_hops(build(schedule, chunk_bytes=64, slots=2), limit=1)


def test_hosts_have_no_turns() -> None:
    program = in_rounds(Collective.ALL_GATHER, (0, 1, 2), 1, 1, 2, 64)
    with pytest.raises(IRError, match="no shares take turns"):
        share_slots(program)
