"""The verifier accepts what the compiler makes and names the place of every planted fault."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable
from fractions import Fraction

import pytest
from support.programs import CUDA, HOST, TREE_COLLECTIVES, chain, final, lowered, random_schedule, schedule_of

from collc.collectives.model import Collective
from collc.errors import IRError
from collc.ir.interpret import run_on_sets
from collc.ir.nodes import Channel, Program, Step
from collc.ir.verify import verify


@pytest.mark.parametrize("collective", TREE_COLLECTIVES, ids=lambda c: c.value)
def test_accepts_every_stage(collective: Collective) -> None:
    for target in (HOST, CUDA):
        for nranks in (1, 2, 5, 9):
            for name, program in lowered(random_schedule(collective, nranks, nranks), target):
                verify(program)
                assert program.nranks == nranks, name


def edit(program: Program, channel: int, rank: int, change: Callable[[list[Step]], Iterable[Step]]) -> Program:
    """The program with the steps of one rank changed."""
    channels = list(program.channels)
    ranks = list(channels[channel].steps)
    ranks[rank] = tuple(change(list(ranks[rank])))
    channels[channel] = Channel(tuple(ranks))
    return program.replace(channels=tuple(channels))


@pytest.fixture
def all_reduce() -> Program:
    """Two chains of three ranks, rooted at their ends."""
    return final(schedule_of(Collective.ALL_REDUCE, 3, [chain(3, 0), chain(3, 2)]))


def rejects(program: Program, message: str) -> None:
    with pytest.raises(IRError, match=message):
        verify(program)


def test_a_dropped_step(all_reduce: Program) -> None:
    rejects(edit(all_reduce, 0, 2, lambda steps: steps[:1]), r"fifo \d+ .*: rank 2 never receives from it")


def test_a_dropped_receive(all_reduce: Program) -> None:
    def drop(steps: list[Step]) -> list[Step]:
        return [dataclasses.replace(s, recv=()) if s.reduces and not s.output else s for s in steps]

    rejects(edit(all_reduce, 0, 1, drop), "never receives from it")


def test_a_dropped_send(all_reduce: Program) -> None:
    rejects(edit(all_reduce, 0, 2, lambda steps: steps[1:]), "nobody sends into it")


def test_a_swapped_share(all_reduce: Program) -> None:
    def swap(steps: list[Step]) -> list[Step]:
        return [dataclasses.replace(steps[0], share=1), *steps[1:]]

    rejects(edit(all_reduce, 0, 2, swap), r"channel 0, rank 2, step 0 \(send\): works on share 1 but fifo \d carries 0")


def test_swapped_chunks(all_reduce: Program) -> None:
    """Storing a chunk before the send that reads it would lose the input of an in-place call."""

    def swap(steps: list[Step]) -> list[Step]:
        return [dataclasses.replace(s, lag=60 - s.lag) for s in steps]

    rejects(edit(all_reduce, 0, 2, swap), "in place|deadlock")


def test_a_slot_too_few(all_reduce: Program) -> None:
    verify(all_reduce)
    least = next(s for s in range(1, 9) if accepted(all_reduce.replace(slots=s)))
    assert 1 < least <= all_reduce.slots
    place = r"channel \d, rank \d, step \d \(\w+\)"
    rejects(all_reduce.replace(slots=least - 1), rf"{place}: deadlock with {least - 1} slots: .*{place}")


def accepted(program: Program) -> bool:
    try:
        verify(program)
    except IRError:
        return False
    return True


def test_a_rank_counted_twice() -> None:
    program = final(schedule_of(Collective.ALL_REDUCE, 3, [chain(3, 0)]))

    def again(steps: list[Step]) -> list[Step]:
        return [dataclasses.replace(s, input=True) if s.name == "recvCopySend" else s for s in steps]

    rejects(edit(program, 0, 1, again), "the input of rank 1 is reduced twice")


def test_an_incomplete_result() -> None:
    program = final(schedule_of(Collective.ALL_REDUCE, 2, [chain(2, 0)]))

    def forget(steps: list[Step]) -> list[Step]:
        return [dataclasses.replace(s, input=False) for s in steps]

    rejects(edit(program, 0, 0, forget), r"lacks the input of ranks \[0\]")


def test_a_missing_output() -> None:
    program = final(schedule_of(Collective.BROADCAST, 3, [chain(3, 0)], root=0))

    def keep(steps: list[Step]) -> list[Step]:
        return [dataclasses.replace(s, output=False) for s in steps]

    rejects(edit(program, 0, 0, keep), "rank 0 never stores share 0")


def test_a_gap_between_shares(all_reduce: Program) -> None:
    first, second = all_reduce.shares
    shares = (first, dataclasses.replace(second, lo=second.lo + Fraction(1, 9)))
    rejects(all_reduce.replace(shares=shares), "leave a gap at 1/3")


def test_fifos_that_are_one_memory(all_reduce: Program) -> None:
    fifos = tuple(dataclasses.replace(f, index=0) for f in all_reduce.fifos)
    rejects(all_reduce.replace(fifos=fifos), "is the same memory as fifo")


def test_a_wait_for_oneself() -> None:
    program = final(schedule_of(Collective.ALL_REDUCE, 3, [chain(3, 0)]), CUDA)
    up = next(i for i, f in enumerate(program.fifos) if (f.src, f.dsts) == (1, (0,)))
    down = next(i for i, f in enumerate(program.fifos) if (f.src, f.dsts) == (0, (1,)))

    def cross(steps: list[Step]) -> list[Step]:
        first = next(s for s in steps if up in s.send)
        return [
            dataclasses.replace(first, recv=(*first.recv, down)),
            *(dataclasses.replace(s, recv=(), input=True) for s in steps if down in s.recv),
        ]

    rejects(edit(program, 0, 1, cross), "waits for its own result through fifo")


@pytest.mark.parametrize("seed", range(60))
def test_the_static_proof_agrees_with_running(seed: int) -> None:
    """A random fault is either found by the verifier, or the program still runs right in every order tried."""
    rng = random.Random(seed)
    collective = rng.choice(TREE_COLLECTIVES)
    program = final(random_schedule(collective, 4, seed), rng.choice([HOST, CUDA]))
    channel = rng.randrange(len(program.channels))
    rank = rng.choice([r for r in range(4) if program.channels[channel].steps[r]])

    def damage(steps: list[Step]) -> list[Step]:
        i = rng.randrange(len(steps))
        kind = rng.randrange(4)
        if kind == 0:
            steps[i] = dataclasses.replace(steps[i], lag=rng.randrange(12))
        elif kind == 1:
            rng.shuffle(steps)
        elif kind == 2:
            del steps[i]
        else:
            steps[i] = dataclasses.replace(steps[i], output=not steps[i].output, input=True)
        return steps

    try:
        damaged = edit(program, channel, rank, damage).replace(slots=rng.randint(1, 4))
        verify(damaged)
    except IRError:
        return
    for order in range(3):
        outputs = run_on_sets(damaged, chunks=11, seed=order)
        assert all(None not in set(output) for output in outputs)
