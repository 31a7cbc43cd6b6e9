"""MSCCL++ plans: by the rules of its loader and kernel they are right, in any order of the blocks, call after call."""

from __future__ import annotations

import copy
import json
import os
import subprocess
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cli import collc, refused
from support.libraries import topology_file

from collc.collectives.model import Collective
from collc.errors import IRError, PackingError
from collc.export.mscclpp import NAMES, write_plan
from collc.export.mscclpp_run import expected, prove_plan, read_plan, run_plan
from collc.export.parts import MAX_CHUNKS, Parts, cut_into_chunks
from collc.packing import plan
from collc.packing.model import Plan
from collc.topology.allocation import parse_gpus
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology
from collc.topology.model import PlanGraph

HERE = Path(__file__).parent
MACHINES = (("dgx1v", "0-7"), ("dgx1v", "3,1,6"), ("dgx1v", "0-4"), ("hgx-h100", "0-7"), ("hgx-h100", "5,2"))
SETS = [*MACHINES[:2], *(pytest.param(*one, marks=pytest.mark.slow) for one in MACHINES[2:])]
COLLECTIVES = tuple(NAMES)


@cache
def packed(machine: str, gpus: str, item: Collective) -> tuple[PlanGraph, Plan]:
    topology = load_topology(machine)
    graph = plan_graph(topology, parse_gpus(topology, gpus))
    return graph, plan(graph, item, None)


def text_of(machine: str, gpus: str, item: Collective, **options: Any) -> str:
    graph, best = packed(machine, gpus, item)
    cut = cut_into_chunks(graph, best, options.pop("chunks", None))
    return write_plan("x", item, graph.nranks, cut, **options)


def calls(plan: dict[str, Any], units: int, count: int, seed: int) -> list[list[np.ndarray]]:
    numbers = np.random.default_rng(seed)
    size = plan["gpus"][0]["input_chunks"] * units
    return [[numbers.integers(0, 1 << 40, size) for _ in plan["gpus"]] for _ in range(count)]


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("item", COLLECTIVES)
@pytest.mark.parametrize(("machine", "gpus"), SETS)
def test_the_file_run_by_the_rules_of_its_executor_is_right(
    machine: str, gpus: str, item: Collective, in_place: bool
) -> None:
    # Units of 32 bytes: several rounds of each pipeline, the last one shorter.
    made = read_plan(text_of(machine, gpus, item, in_place=in_place, unit_bytes=32, chunks=8))
    assert made["inplace"] is in_place
    for seed in range(2):
        given = calls(made, 3, 3, seed)
        for inputs, outputs in zip(given, run_plan(made, 3, given, seed), strict=True):
            for found, want in zip(outputs, expected(item, inputs), strict=True):
                assert np.array_equal(found, want)


@pytest.mark.parametrize("item", COLLECTIVES)
@pytest.mark.parametrize(("machine", "gpus"), SETS)
def test_what_rounding_the_weights_costs_is_exact(machine: str, gpus: str, item: Collective) -> None:
    graph, best = packed(machine, gpus, item)
    assert best.rate is not None
    chosen = cut_into_chunks(graph, best)
    assert Fraction(99, 100) * best.rate <= chosen.rate <= best.rate
    for chunks in (1, 5, 12, 64):
        cut = cut_into_chunks(graph, best, chunks)
        assert cut.chunks == chunks
        check_chunks(cut, graph.nranks if item.per_rank else 1)
        assert cut.rate == rate_by_hand(graph, cut, item)
        assert cut.rate <= best.rate


def check_chunks(cut: Parts, blocks: int) -> None:
    """Every chunk of every block belongs to one tree."""
    taken = sorted((part.block, at) for part in cut.parts for at in range(part.first, part.first + part.count))
    assert taken == [(block, at) for block in range(blocks) for at in range(cut.chunks)]


def rate_by_hand(graph: PlanGraph, cut: Parts, item: Collective) -> Fraction:
    """The size of a buffer over the time of its fullest link, when every chunk is one GB."""
    gigabytes: dict[int, int] = {}
    for part in cut.parts:
        for hop in (*part.tree.reduce, *part.tree.broadcast):
            for link in hop.links:
                gigabytes[link] = gigabytes.get(link, 0) + part.count
    time = max(Fraction(amount) / graph.links[link].gbps for link, amount in gigabytes.items())
    return cut.chunks * (graph.nranks if item.per_rank else 1) / time


def test_weights_that_chunks_can_carry_cost_nothing() -> None:
    graph, best = packed("dgx1v", "0-7", Collective.ALL_GATHER)
    assert cut_into_chunks(graph, best, 12).rate == best.rate == Fraction(1200, 7)


def small(item: Collective = Collective.ALL_REDUCE) -> dict[str, Any]:
    return copy.deepcopy(read_plan(text_of("dgx1v", "0-4", item, unit_bytes=32, chunks=4)))


def pipelines(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [op for gpu in plan["gpus"] for block in gpu["threadblocks"] for op in block["ops"] if "ops" in op]


def first(plan: dict[str, Any], name: str) -> dict[str, Any]:
    return next(op for loop in pipelines(plan) for op in loop["ops"] if op["name"] == name)


def without(plan: dict[str, Any], name: str) -> None:
    """Takes the first operation of a name out of a pipeline."""
    ops = next(loop["ops"] for loop in pipelines(plan) if any(op["name"] == name for op in loop["ops"]))
    ops.remove(next(op for op in ops if op["name"] == name))


def without_greeting(plan: dict[str, Any]) -> None:
    """No block waits until the GPU that it sends to has begun the call."""
    for gpu in plan["gpus"]:
        for block in gpu["threadblocks"]:
            block["ops"] = [op for op in block["ops"] if not op["name"].startswith("rlx")]


def of_block(key: str, value: object) -> Callable[[dict[str, Any]], None]:
    return lambda plan: plan["gpus"][0]["threadblocks"][0].update({key: value})


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda p: p["gpus"].reverse(), "its id is 4"),
        (lambda p: p.pop("inplace"), "KeyError"),
        (lambda p: p.update(protocol="LL"), "with protocol LL"),
        (of_block("id", 1), "has the id 1"),
        (of_block("ops", [{"name": "nop"}] * 65), "65 operations"),
        (of_block("ops", [{"name": "jump"}]), "jump is no operation"),
        (lambda p: first(p, "signal").update(channel_ids=[99]), "names channel 99"),
        (lambda p: first(p, "signal").update(channel_ids=[0] * 9), "more than 8 channels"),
        (lambda p: first(p, "put")["dst_buff"][0].update(buffer_id=9), "buffer 9 of a block"),
        (lambda p: first(p, "put")["dst_buff"][0].update(index=1000), "beyond the end"),
        (lambda p: first(p, "put")["src_buff"].append(first(p, "put")["src_buff"][0]), "a source for each"),
        (lambda p: first(p, "res").update(channel_type="port"), "over no memory channel"),
        (lambda p: pipelines(p)[0]["iter_context"].update(unit_size=20), "no multiples of 16"),
        (lambda p: pipelines(p)[0]["iter_context"].update(num_chunks=3), "several sizes"),
        (lambda p: p["gpus"][0]["channels"][0]["connected_to"].append(1), "channels from GPU"),
        (lambda p: p["gpus"][0]["remote_buffers"][0].update(rank=0), "a remote buffer that does not exist"),
        (lambda p: without(p, "nop"), "without a nop"),
    ],
)
def test_what_its_loader_would_refuse_or_misread_is_refused(
    damage: Callable[[dict[str, Any]], object], words: str
) -> None:
    made = small()
    prove_plan(made, Collective.ALL_REDUCE)
    damage(made)
    with pytest.raises(IRError, match=words):
        read_plan(json.dumps(made))


def test_what_is_no_json_is_refused() -> None:
    for text in ("", "[]", "{}", "nan", '{"name": 1}'):
        with pytest.raises(IRError):
            read_plan(text)


def goes_wrong(damage: Callable[[dict[str, Any]], object], item: Collective = Collective.ALL_REDUCE) -> set[str]:
    """Returns the errors of a damaged plan that runs in several orders."""
    found = set()
    made = small(item)
    damage(made)
    for seed in range(30):
        given = calls(made, 3, 3, seed)
        try:
            results = run_plan(made, 3, given, seed)
        except IRError as error:
            found.add(str(error))
            continue
        wants = [expected(item, inputs) for inputs in given]
        if any(
            not np.array_equal(a, b) for r, w in zip(results, wants, strict=True) for a, b in zip(r, w, strict=True)
        ):
            found.add("wrong")
    return found


def test_the_run_sees_what_the_rules_of_the_file_do_not_forbid() -> None:
    assert goes_wrong(lambda plan: None) == set()
    assert any("for ever" in line for line in goes_wrong(lambda plan: without(plan, "signal")))
    assert goes_wrong(lambda plan: without(plan, "wait")) != set()
    # A root that waits for nobody would write into a GPU whose last call has not ended.
    assert goes_wrong(lambda plan: None, Collective.ALL_GATHER) == set()
    assert "wrong" in goes_wrong(without_greeting, Collective.ALL_GATHER)


def test_more_neighbors_than_a_thread_block_has_channels_are_refused() -> None:
    with pytest.raises(PackingError, match="needs 30 channels"):
        text_of("dgx2", "0-15", Collective.ALL_REDUCE)
    prove_plan(read_plan(text_of("dgx2", "0-15", Collective.ALL_GATHER)), Collective.ALL_GATHER)


def test_the_command_says_what_the_file_carries(tmp_path: Path) -> None:
    argv = ["export", "dgx1v", "--format", "mscclpp", "--collective", "all_gather"]
    result = collc(*argv)
    assert result.code == 0
    made = read_plan(result.out)
    assert (made["name"], made["collective"], made["inplace"]) == ("collc_all_gather_dgx1v", "allgather", False)
    assert made["min_message_size"] == 32 * 16 * 8
    assert "weights of the trees in 32 chunks: 512/3 of 1200/7 GB/s (99.6%)" in result.err
    path = tmp_path / "plan.json"
    told = json.loads(collc(*argv, "--chunks", 12, "--in-place", "-o", path, "--json").out)
    assert told["text"] is None
    assert told["rate_gbps"] == told["optimum_gbps"] == "1200/7"
    assert (told["chunks"], told["multiple"]) == (12, f"{12 * 16 * 8} bytes")
    again = read_plan(path.read_text())
    assert again["inplace"] is True
    assert max(len(gpu["threadblocks"]) for gpu in again["gpus"]) == told["thread_blocks"]


@pytest.mark.parametrize(
    ("argv", "words", "code"),
    [
        (["dgx1v", "--format", "mscclpp"], "is for one collective", 2),
        (["dgx1v", "--format", "mscclpp", "--collective", "reduce"], "no file of MSCCL++ is written for reduce", 2),
        (["dgx1v", "--format", "mscclpp", "--collective", "all_gather", "--root", "1"], "belongs to a rooted", 2),
        (["dgx1v", "--format", "mscclpp", "--collective", "all_gather", "--chunks", "0"], "--chunks", 2),
        (["dgx1v", "--format", "mscclpp", "--collective", "all_gather", "--chunks", MAX_CHUNKS + 1], "--chunks", 2),
        (["dgx1v", "--format", "mscclpp", "--collective", "all_gather", "--gpus", "3"], "two GPUs or more", 2),
        (["dgx1v", "--format", "dot", "--chunks", "2"], "belongs to --format mscclpp", 2),
        (["dgx1v", "--format", "nccl-graph", "--in-place"], "belongs to --format mscclpp", 2),
        ([topology_file("2+2"), "--format", "mscclpp", "--collective", "all_gather"], "inside one server", 1),
    ],
)
def test_what_cannot_be_is_one_line(argv: list[object], words: str, code: int) -> None:
    assert words in refused(collc("export", *argv), code=code)


@pytest.mark.skipif("COLLC_MSCCLPP_SOURCE" not in os.environ, reason="COLLC_MSCCLPP_SOURCE names no checkout")
def test_mscclpps_own_loader_accepts_the_files(tmp_path: Path) -> None:
    """Built from its sources; CPATH must lead to the headers of CUDA and of nlohmann's JSON."""
    source = Path(os.environ["COLLC_MSCCLPP_SOURCE"])
    version = (source / "include" / "mscclpp" / "version.hpp.in").read_text()
    for word in ("MAJOR", "MINOR", "PATCH"):
        version = version.replace(f"@MSCCLPP_{word}@", "0")
    (tmp_path / "mscclpp").mkdir()
    (tmp_path / "mscclpp" / "version.hpp").write_text(version)
    driver = tmp_path / "loader"
    folders = [tmp_path, source / "include", source / "src" / "core" / "include"]
    units = [HERE / "mscclpp_loader.cpp", source / "src/core/executor/execution_plan.cc", source / "src/core/errors.cc"]
    # The plan's parts are private to the library.
    flags = ["-std=c++17", "-w", "-fno-access-control", "-DMSCCLPP_USE_CUDA", *(f"-I{folder}" for folder in folders)]
    subprocess.run(["g++", *flags, *units, "-o", driver], check=True)
    path = tmp_path / "plan.json"
    for machine, gpus in MACHINES:
        for item in COLLECTIVES:
            path.write_text(text_of(machine, gpus, item))
            made = read_plan(path.read_text())
            one = made["gpus"][0]
            sizes = [str(one[key] * 16 * 1024) for key in ("input_chunks", "output_chunks")]
            done = subprocess.run([driver, path, str(len(made["gpus"])), *sizes], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            blocks = [line.split()[0] for line in done.stdout.splitlines()]
            assert blocks == [str(len(gpu["threadblocks"])) for gpu in made["gpus"]]
            refusal = subprocess.run([driver, path, "2", "17", "17"], capture_output=True, text=True)
            assert refusal.returncode == 1
            assert "not aligned" in refusal.stderr
