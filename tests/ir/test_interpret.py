"""Every stage of the lowering, run: the interpreter computes each collective on sets and on numbers."""

from __future__ import annotations

import numpy as np
import pytest
from support.programs import CUDA, HOST, TREE_COLLECTIVES, chain, check_sets, lowered, random_schedule, schedule_of

from collc.collectives.model import Collective
from collc.errors import IRError
from collc.ir import interpret
from collc.ir.arithmetic import reduction
from collc.ir.build import build
from collc.ir.interpret import ShareRange, cut_share, run, run_on_sets
from collc.ir.nodes import Program
from collc.ir.printer import parse_program
from collc.options import Target


@pytest.mark.parametrize("collective", TREE_COLLECTIVES, ids=lambda c: c.value)
@pytest.mark.parametrize("target", [HOST, CUDA], ids=["host", "cuda"])
@pytest.mark.parametrize("nranks", [1, 2, 3, 6])
def test_every_stage_computes_the_collective_on_sets(collective: Collective, target: Target, nranks: int) -> None:
    for seed in range(4):
        for _, program in lowered(random_schedule(collective, nranks, seed), target):
            for resident in (1, 2, None):
                check_sets(program, run_on_sets(program, chunks=7, seed=seed, resident=resident))


def reference(program: Program, inputs: list[np.ndarray], count: int) -> list[np.ndarray | None]:
    nranks, root = program.nranks, program.root
    total = np.sum(inputs, axis=0)
    match program.collective:
        case Collective.ALL_REDUCE:
            return [total] * nranks
        case Collective.REDUCE:
            return [total if r == root else None for r in range(nranks)]
        case Collective.BROADCAST:
            assert root is not None
            return [inputs[root]] * nranks
        case Collective.ALL_GATHER:
            return [np.concatenate(inputs)] * nranks
        case _:
            return [total[r * count : (r + 1) * count] for r in range(nranks)]


@pytest.mark.parametrize("collective", TREE_COLLECTIVES, ids=lambda c: c.value)
@pytest.mark.parametrize("count", [0, 1, 7, 64, 1001])
@pytest.mark.parametrize("in_place", [False, True], ids=["out-of-place", "in-place"])
def test_numbers_for_any_count(collective: Collective, count: int, in_place: bool) -> None:
    nranks = 5
    for seed in range(3):
        program = lowered(random_schedule(collective, nranks, seed))[-1][1].replace(chunk_bytes=128)
        rng = np.random.default_rng(seed)
        size_in = count * (nranks if collective is Collective.REDUCE_SCATTER else 1)
        size_out = count * (nranks if collective is Collective.ALL_GATHER else 1)
        inputs = [rng.integers(-1000, 1000, size_in) for _ in range(nranks)]
        wanted = reference(program, inputs, count)
        memory = [np.full(max(size_in, size_out), -7) for _ in range(nranks)]
        outputs = []
        sources = []
        for r in range(nranks):
            if in_place:
                at_in = r * count if collective is Collective.ALL_GATHER else 0
                at_out = r * count if collective is Collective.REDUCE_SCATTER else 0
                sources.append(memory[r][at_in : at_in + size_in])
                outputs.append(memory[r][at_out : at_out + size_out])
                sources[r][:] = inputs[r]
            else:
                sources.append(inputs[r].copy())
                outputs.append(np.full(size_out, -7))
        run(program, sources, outputs, reduction("sum"), count=count, seed=seed)
        for r in range(nranks):
            if wanted[r] is not None:
                np.testing.assert_array_equal(outputs[r], wanted[r])
            elif not in_place:
                assert (outputs[r] == -7).all()


def test_the_order_of_reduction_is_fixed() -> None:
    program = lowered(random_schedule(Collective.ALL_REDUCE, 6, seed=1))[-1][1].replace(chunk_bytes=64)
    inputs = [np.random.default_rng(r).normal(size=333).astype(np.float32) for r in range(6)]
    seen: set[bytes] = set()
    for seed in range(5):
        outputs = [np.zeros(333, np.float32) for _ in range(6)]
        run(program, inputs, outputs, reduction("sum"), count=333, seed=seed, resident=1 + seed % 3)
        seen.update(o.tobytes() for o in outputs)
    assert len(seen) == 1


def test_too_few_slots_deadlock_when_run() -> None:
    program = lowered(schedule_of(Collective.ALL_REDUCE, 3, [chain(3, 0)]))[-1][1]
    with pytest.raises(IRError, match=r"deadlock.*waits for a free slot"):
        run_on_sets(program.replace(slots=1), chunks=20)


@pytest.mark.parametrize("element_bytes", [1, 2, 4, 8])
def test_cut_covers_every_element_once(element_bytes: int) -> None:
    program = lowered(random_schedule(Collective.ALL_REDUCE, 4, seed=3, trees=5))[-1][1].replace(chunk_bytes=256)
    for count in [*range(70), 997, 4096, 123457]:
        at = 0
        for share in range(len(program.shares)):
            r = cut_share(program, share, count, element_bytes)
            assert r.begin == at
            assert r.chunk * element_bytes <= 256
            if r.nchunks:
                assert (r.nchunks - 1) * r.chunk < r.end - r.begin <= r.nchunks * r.chunk
            else:
                assert r.begin == r.end
            at = r.end
        assert at == count


def test_a_call_without_elements_ends() -> None:
    program = build(schedule_of(Collective.BROADCAST, 3, [chain(3, 0)], root=0), chunk_bytes=64)
    empty = [np.empty(0, np.float32) for _ in range(3)]
    run(program, empty, empty, reduction("sum"), count=0)


def test_sets_reach_every_share_although_boundaries_are_rounded_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts of the path classes and the shares in them are rounded down to whole elements."""
    chunks = []

    def record(program: Program, share: int, count: int, element_bytes: int) -> ShareRange:
        found = cut_share(program, share, count, element_bytes)
        chunks.append(found.nchunks)
        return found

    monkeypatch.setattr(interpret, "cut_share", record)
    shares = ["[0, 2/5) nvlink", "[2/5, 1) nvlink", "[0, 1) pcie"]
    lines = ["collc-ir/1 broadcast root=0 ranks=2 slots=1 chunk=16 weights=nvlink:2,pcie:1"]
    lines += [f"share {number}: block 0 {share}" for number, share in enumerate(shares)]
    lines += [f"fifo {number}: 0 -> 1 share {number} index {number}" for number in range(3)]
    for number in range(3):
        lines += [f"channel {number}", "rank 0", f"copySend share {number} lag 0 send {number}"]
        lines += ["rank 1", f"recv share {number} lag 0 recv {number}"]
    check_sets(program := parse_program("\n".join(lines)), run_on_sets(program, chunks=1))
    assert len(chunks) == 3
    assert min(chunks) >= 1
