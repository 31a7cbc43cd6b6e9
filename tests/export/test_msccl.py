"""MSCCL's XML: by the rules of its reader and interpreter it computes the collective, in any order of the blocks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.cli import collc, refused

from collc.collectives.model import Collective
from collc.errors import CollcError, IRError, PackingError
from collc.export.msccl import NAMES, write_algorithm
from collc.export.msccl_run import prove_algorithm, read_algorithm, run_algorithm
from collc.export.mscclpp_run import expected
from collc.export.parts import cut_into_chunks
from collc.packing import plan
from collc.topology.allocation import parse_gpus
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology

MACHINES = (("dgx1v", "0-7"), ("dgx1v", "3,1,6"), ("dgx1v", "0-4"), ("hgx-h100", "0-7"), ("hgx-h100", "5,2"))
SETS = [*MACHINES[:2], *(pytest.param(*one, marks=pytest.mark.slow) for one in MACHINES[2:])]


def text_of(machine: str, gpus: str, item: Collective, chunks: int | None, **options: Any) -> str:
    topology = load_topology(machine)
    graph = plan_graph(topology, parse_gpus(topology, gpus))
    return write_algorithm("x", item, graph.nranks, cut_into_chunks(graph, plan(graph, item, None), chunks), **options)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("item", NAMES)
@pytest.mark.parametrize(("machine", "gpus"), SETS)
def test_the_file_run_by_the_rules_of_its_interpreter_is_right(
    machine: str, gpus: str, item: Collective, in_place: bool
) -> None:
    # 8 chunks; and so many that a tree's are more than one step counts.
    for chunks in (8, 200):
        made = read_algorithm(text_of(machine, gpus, item, chunks, in_place=in_place))
        assert (made.collective, made.in_place) == (item, in_place)
        for seed in range(2):
            numbers = np.random.default_rng(seed)
            inputs = [numbers.integers(0, 1 << 40, made.chunks["i"] * 2) for _ in made.blocks]
            outputs = run_algorithm(made, 2, inputs, seed)
            for found, want in zip(outputs, expected(item, inputs), strict=True):
                assert np.array_equal(found, want)


def swap(pattern: str, new: str) -> Callable[[str], str]:
    return lambda text: re.sub(pattern, new, text, count=1)


GOOD = ("dgx1v", "0-4", Collective.ALL_REDUCE, 4)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (swap("<algo", "<algorithm"), "not XML"),
        (swap('proto="Simple"', 'proto="LL"'), "protocol Simple"),
        (swap('coll="allreduce"', 'coll="alltoall"'), "is not run here"),
        (swap('ngpus="5"', 'ngpus="6"'), "not those from 0 on"),
        (swap('nchunksperloop="4"', 'nchunksperloop="5"'), "do not fit"),
        (swap('<tb id="0"', '<tb id="7"'), "thread block 0 is missing"),
        (swap('chan="0"', 'chan="31"'), "`chan`"),
        (swap('cnt="[0-9]+"', 'cnt="72"'), "`cnt`"),
        (swap('srcoff="[0-9]+" dstbuf="i"', 'srcoff="4" dstbuf="i"'), "beyond the end"),
        (swap('type="s"', 'type="jump"'), "is not run here"),
        (swap('type="s"', 'type="rcs"'), "without that peer"),
        (swap('hasdep="1"', 'hasdep="0"'), "does not say when it is done"),
        (swap('send="[0-9]"', 'send="0"'), "whose peer is its own GPU"),
    ],
)
def test_what_its_reader_would_refuse_or_misread_is_refused(damage: Callable[[str], str], words: str) -> None:
    text = text_of(*GOOD)
    prove_algorithm(read_algorithm(text))
    assert damage(text) != text
    with pytest.raises(CollcError, match=words):
        read_algorithm(damage(text))


def test_the_run_sees_what_the_rules_of_the_file_do_not_forbid() -> None:
    text = text_of(*GOOD)
    damage = swap('type="rrs" srcbuf="i"', 'type="rrs" srcbuf="o"')
    with pytest.raises(IRError, match="is not that of all_reduce"):
        prove_algorithm(read_algorithm(damage(text)))
    # A block that receives nothing leaves its chunks behind.
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if 'type="r"' in line)
    with pytest.raises(IRError, match=r"for ever|nobody received"):
        prove_algorithm(read_algorithm("\n".join(lines[:at] + lines[at + 1 :])))


def test_what_msccl_has_too_few_of_is_refused() -> None:
    with pytest.raises(PackingError, match=r"rank 0 needs [0-9]+ thread blocks; MSCCL has 127"):
        text_of("gb200-nvl72", "0-71", Collective.ALL_GATHER, 1)
    with pytest.raises(PackingError, match="chunks; MSCCL has 32767"):
        text_of("dgx1v", "0-7", Collective.REDUCE_SCATTER, 4096)


def test_the_command_says_what_the_file_carries() -> None:
    argv = ["export", "dgx1v", "--format", "msccl", "--collective", "all_gather", "--chunks", 12]
    result = collc(*argv)
    assert read_algorithm(result.out).collective is Collective.ALL_GATHER
    assert "for calls out of place of multiples of 96 elements" in result.err
    assert "weights of the trees in 12 chunks: 1200/7 of 1200/7 GB/s (100.0%)" in result.err
    told = json.loads(collc(*argv, "--json").out)
    assert told["text"] == result.out
    assert (told["format"], told["multiple"]) == ("msccl", "96 elements")
    assert "a file of MSCCL is for one collective" in refused(collc("export", "dgx1v", "--format", "msccl"), code=2)
