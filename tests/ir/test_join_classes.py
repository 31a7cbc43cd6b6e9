"""A program of several classes of links is right for every weighting, and one that is not is rejected."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from support.programs import CUDA, HOST, TREE_COLLECTIVES, chain, check_sets, final, random_schedule, schedule_of

from collc.collectives.blocks import block_layout
from collc.collectives.model import Collective
from collc.errors import IRError
from collc.ir.arithmetic import reduction
from collc.ir.interpret import cut_part, cut_share, run, run_on_sets
from collc.ir.join_classes import join_classes
from collc.ir.nodes import Channel, Program
from collc.ir.printer import parse_program, parse_weights, print_program
from collc.ir.verify import verify
from collc.options import Target
from collc.topology.model import JOINT, LinkKind

WEIGHTS = [(1, 1, 1), (3, 1, 0), (0, 1, 0), (255, 1, 1), (0, 7, 200), (1, 0, 255), (0, 0, 9)]


def joined(collective: Collective, nranks: int, seed: int, target: Target = HOST) -> Program:
    """Three classes with other trees each."""
    rooted = seed * len(JOINT)
    programs = {
        name: final(random_schedule(collective, nranks, rooted + i * nranks, trees=i + 1), target)
        for i, name in enumerate(JOINT)
    }
    return join_classes(programs, dict(zip(JOINT, (5, 2, 1), strict=True)))


@pytest.mark.parametrize("collective", TREE_COLLECTIVES, ids=lambda c: c.value)
@pytest.mark.parametrize("target", [HOST, CUDA], ids=["host", "cuda"])
def test_every_weighting_computes_the_collective(collective: Collective, target: Target) -> None:
    for nranks, seed in ((2, 0), (5, 1)):
        program = joined(collective, nranks, seed, target)
        verify(program)
        for resident, weights in itertools.product((1, None), WEIGHTS):
            check_sets(program, run_on_sets(program, chunks=5, seed=seed, resident=resident, weights=weights))


@pytest.mark.parametrize("collective", TREE_COLLECTIVES, ids=lambda c: c.value)
@pytest.mark.parametrize("count", [0, 1, 7, 1001])
def test_numbers_in_place_for_random_weights(collective: Collective, count: int) -> None:
    """In place, with small chunks and numbers: all weights give the same result as a single class."""
    nranks = 4
    layout = block_layout(collective, nranks, 0 if collective.rooted else None)
    program = joined(collective, nranks, 0).replace(chunk_bytes=128)
    drawn = random.Random(count)
    results = []
    for weights in [(1, 0, 0), *(tuple(drawn.choices(range(256), k=3)) for _ in range(4))]:
        rng = np.random.default_rng(count)
        memory = [rng.integers(-1000, 1000, count * nranks) for _ in range(nranks)]
        at_in, at_out = (
            [r * count if len(blocks[r]) < len(others[r]) else 0 for r in range(nranks)]
            for blocks, others in ((layout.in_blocks, layout.out_blocks), (layout.out_blocks, layout.in_blocks))
        )
        inputs = [one[at:] for one, at in zip(memory, at_in, strict=True)]
        outputs = [one[at:] for one, at in zip(memory, at_out, strict=True)]
        run(program, inputs, outputs, reduction("sum"), count=count, weights=weights)
        stored = [
            outputs[r][at * count : (at + 1) * count] for r in range(nranks) for at in layout.out_blocks[r].values()
        ]
        results.append(np.concatenate([*stored, np.zeros(0, dtype=int)]))
    for other in results[1:]:
        assert np.array_equal(results[0], other)


def test_parts_cover_every_count() -> None:
    for weights, count, unit in itertools.product(WEIGHTS, (0, 1, 15, 64, 1000, (1 << 62) + 5), (1, 4, 16)):
        parts = [cut_part(weights, part, count, unit) for part in range(3)]
        filled = sorted((lo, hi) for (lo, hi), weight in zip(parts, weights, strict=True) if weight)
        assert filled[0][0] == 0
        assert filled[-1][1] == count
        assert all(before[1] == after[0] for before, after in itertools.pairwise(filled))
        assert all(lo % unit == 0 for lo, _ in filled)
        assert all(lo == hi for (lo, hi), weight in zip(parts, weights, strict=True) if not weight)


def test_text_and_back() -> None:
    program = joined(Collective.ALL_REDUCE, 3, 0)
    text = print_program(program)
    assert "weights=nvlink:5,pcie:2,net:1" in text
    assert ") pcie\n" in text
    assert parse_program(text) == program
    for wrong in ("weights=nvlink:5,nvlink:1", "weights=rail:5", "weights=nvlink:300"):
        with pytest.raises(IRError, match="weights"):
            parse_program(text.replace("weights=nvlink:5,pcie:2,net:1", wrong))
    assert parse_weights("pcie:4") == (0, 4, 0)


def is_right(program: Program, weights: Sequence[int]) -> bool:
    try:
        check_sets(program, run_on_sets(program, weights=weights))
    except AssertionError:
        return False
    return True


def test_a_program_that_is_wrong_for_some_weightings_only() -> None:
    """The programs of one class cover half of its share, so results are right only if the class has weight 0."""
    program = joined(Collective.ALL_REDUCE, 3, 0)
    for part in (0, 1):
        own = [s for s, share in enumerate(program.shares) if share.part == part]
        shares = list(program.shares)
        last = max(own, key=lambda s: shares[s].hi)
        shares[last] = dataclasses.replace(shares[last], hi=(shares[last].lo + 1) / 2)
        planted = program.replace(shares=tuple(shares))
        wrong = [weights for weights in WEIGHTS if not is_right(planted, weights)]
        assert wrong == [weights for weights in WEIGHTS if weights[part]]
        with pytest.raises(IRError, match=rf"shares of block 0 of {JOINT[part]} end at"):
            verify(planted)


def test_a_program_that_is_right_for_one_weighting_only() -> None:
    """Shares that cover the block together, at equal weights, and not each class what it gets."""
    base = final(schedule_of(Collective.BROADCAST, 3, [chain(3, 0), chain(3, 0)], 0))
    shares = (
        dataclasses.replace(base.shares[0], lo=Fraction(0), hi=Fraction(1, 2)),
        dataclasses.replace(base.shares[1], lo=Fraction(1, 2), hi=Fraction(1), part=1),
    )
    with pytest.raises(IRError, match="of nvlink end at 1/2"):
        verify(base.replace(shares=shares, weights=(1, 1, 0)))


def test_a_class_that_lacks_a_block() -> None:
    program = joined(Collective.ALL_GATHER, 3, 0)
    shares = [s for s, share in enumerate(program.shares) if share.part == 2 and share.block == 1]
    kept = tuple(
        dataclasses.replace(share, block=0) if s in shares else share for s, share in enumerate(program.shares)
    )
    with pytest.raises(IRError, match="of net"):
        verify(program.replace(shares=kept))


def test_weights_name_exactly_the_classes_of_the_shares() -> None:
    program = joined(Collective.REDUCE, 3, 0)
    with pytest.raises(IRError, match="is of the class net, which has no weight"):
        verify(program.replace(weights=(1, 1, 0)))
    with pytest.raises(IRError, match="is of the class pcie, which has no weight"):
        verify(program.replace(weights=()))
    two = join_classes({"pcie": final(random_schedule(Collective.REDUCE, 3, 0))}, {"pcie": 1})
    with pytest.raises(IRError, match="shares of block 0 of nvlink end at 0"):
        verify(two.replace(weights=(1, 1, 0)))
    for weights in ((1, 2), (0, 0, 0), (256, 1, 1), (-1, 2, 2)):
        with pytest.raises(IRError, match="weights of nvlink, pcie, net"):
            program.replace(weights=weights)


def test_channels_and_links_belong_to_one_class() -> None:
    program = joined(Collective.BROADCAST, 3, 0)
    verify(program)
    first, *_, last = program.channels
    both = Channel(tuple(a + b for a, b in zip(first.steps, last.steps, strict=True)))
    merged = program.replace(channels=(*program.channels[1:-1], both))
    with pytest.raises(IRError, match=r"channel \d+: works for nvlink and net"):
        verify(merged)
    fifos = tuple(
        dataclasses.replace(fifo, routes=((0,),) * len(fifo.dsts), index=f, link=LinkKind.NVSWITCH)
        for f, fifo in enumerate(program.fifos)
    )
    with pytest.raises(IRError, match="carries a share of pcie over nvswitch"):
        verify(program.replace(fifos=fifos))


def test_unlike_programs_are_not_joined() -> None:
    one, other = (final(random_schedule(Collective.ALL_REDUCE, n, 0)) for n in (3, 4))
    with pytest.raises(IRError, match="another collective, root or shape"):
        join_classes({"nvlink": one, "pcie": other}, {"nvlink": 1, "pcie": 1})
    with pytest.raises(IRError, match="weights of nvlink"):
        join_classes({"nvlink": one, "pcie": one}, {"nvlink": 1})


def test_shares_stay_within_their_part() -> None:
    program = joined(Collective.ALL_REDUCE, 4, 2)
    for s, share in enumerate(program.shares):
        for count in (1, 63, 4097):
            found = cut_share(program, s, count, 4)
            lo, hi = cut_part(program.weights, share.part, count, 4)
            assert lo <= found.begin <= found.end <= hi
