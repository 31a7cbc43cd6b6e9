"""CUDA libraries over several servers on the mock driver, over LL: lines up to the proxies, only data on the wire."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from mock_classes import COLLECTIVES
from mock_servers import library_of, made_from
from support.failures import a_killed_rank_is_named, a_silent_server_is_named
from support.libraries import topology_file
from support.ranks import SUCCESS, Ranks
from test_cuda_runtime import mock_driver
from test_cuda_servers import FEW, SHAPES, namespaces, over, processes

from collc.bench.data import OPS, TYPES
from collc.checker.library import read_library, read_manifest
from collc.collectives.model import Collective
from collc.ir.nodes import Program

LINED = {"COLLC_PROTO": "LL"}
LONG = 16 << 10  # of chunks that are cut


def settings_of(**more: str) -> dict[str, str]:
    return {**LINED, **more}


def over_lines(hosts: str, scenario: str) -> list[Any]:
    """Returns each rank's answer. All kernels ran over LL, except programs without lines, which use Simple."""
    answers = over(hosts, "kernels", given={"scenario": scenario}, settings=LINED)
    for answer in answers:
        assert (answer["Simple"], answer["LL128"]) == (0, 0), answer
        assert answer["LL"] > 0, answer
    return [answer["wrong"] for answer in answers]


def over_lines_and_simple(made: Path, kinds: list[list[str]], counts: list[int]) -> tuple[int, int]:
    """How many calls of the scenario `weighted_calls` run over each where LL is asked for.

    The size chooses the program as ever. It is Simple's if some FIFO between servers is of none over LL.
    """
    (held,) = read_library(made).tables.allocations
    lined = set().union(
        *(between_servers(one) for one, when in zip(held.programs, held.when, strict=True) if when.protocol == "LL")
    )
    found = [0, 0]
    for (kind, _), name, count in itertools.product(kinds, COLLECTIVES, counts):
        chosen = [
            one
            for one, when in zip(held.programs, held.when, strict=True)
            if one.collective is Collective(name)
            and one.root in (None, 1)
            and when.min_bytes is not None
            and when.min_bytes <= count * TYPES[kind].size
        ][-1]
        found[not between_servers(chosen) <= lined] += 1
    return found[0], found[1]


def between_servers(program: Program) -> set[object]:
    """The memory of these FIFOs."""
    return {one.memory for one in program.fifos if program.server(one.src) != program.server(one.dsts[0])}


def a_kernel_ran_over_lines(team: Ranks) -> None:
    """On each rank, and none over anything else."""
    for answer in team.all(do="kernels"):
        assert answer["LL"] > 0, answer
        assert (answer["Simple"], answer["LL128"]) == (0, 0), answer


@pytest.mark.parametrize("hosts", ["aabb", pytest.param("abba", marks=pytest.mark.slow)])
def test_every_collective_type_and_operation(hosts: str) -> None:
    """Counts of 1 element, part of a line, some lines, and many chunks."""
    given = {"kinds": FEW, "counts": [1, 33, 777, 5001]}
    answers = over(hosts, "kernels", given=given, settings=LINED)
    assert [(answer["wrong"], answer["Simple"], answer["LL"]) for answer in answers] == [([], 0, 60)] * 4


def test_small_calls_run_over_lines_by_default_and_large_ones_do_not() -> None:
    for count, runs, rests in ((100, "LL", "Simple"), (140_000, "Simple", "LL")):
        answers = over("aabb", "kernels", given={"kinds": [["float", "sum"]], "counts": [count]}, seconds=300)
        assert [answer["wrong"] for answer in answers] == [[]] * 4
        assert [(answer[runs], answer[rests], answer["LL128"]) for answer in answers] == [(5, 0, 0)] * 4


def test_simple_can_be_asked_for() -> None:
    given = {"kinds": [["float", "sum"]], "counts": [100]}
    answers = over("aabb", "kernels", given=given, settings={"COLLC_PROTO": "Simple"})
    assert [(answer["wrong"], answer["Simple"], answer["LL"]) for answer in answers] == [([], 5, 0)] * 4


@pytest.mark.slow
def test_calls_of_both_protocols_in_turn() -> None:
    """Both protocols have separate counters for their halves."""
    given = {"kinds": [["float", "sum"]], "counts": [100, 140_000, 7, 140_000, 33]}
    for answer in over("aabb", "kernels", given=given, seconds=400):
        assert answer["wrong"] == []
        assert answer["Simple"] >= 5
        assert answer["LL"] >= 15


def test_graphs_are_replayed() -> None:
    """Nobody is called by a replay: couriers find the lines in memory."""
    assert over("aabb", "weighted_graphs", given={"count": 2000}, settings=LINED) == [[]] * 4


def test_transfers_beside_collectives() -> None:
    assert over_lines("aabb", "coalesced") == [True] * 4


@pytest.mark.parametrize("setting", ["MOCK_NO_PEER", "MOCK_VMM"])
def test_gpus_of_one_server_that_do_not_share_memory(setting: str) -> None:
    value = {"MOCK_NO_PEER": "all", "MOCK_VMM": "0"}[setting]
    assert over("aabb", "collectives", settings=settings_of(**{setting: value})) == [[]] * 4


def test_servers_that_share_a_machine_need_no_courier() -> None:
    assert over("aaaa", "collectives", settings=settings_of(MOCK_GPUS="4")) == [[]] * 4


@pytest.mark.parametrize("chunk", ["64", "1048576"])
def test_chunks_of_other_sizes(chunk: str) -> None:
    """Larger ones than slots hold are cut."""
    assert over("aabb", "collectives", settings=settings_of(COLLC_CHUNK=chunk)) == [[]] * 4


@pytest.mark.slow
def test_lines_whose_bytes_nobody_tells_are_noticed() -> None:
    settings = settings_of(LD_LIBRARY_PATH=str(mock_driver(fault="LINE_BYTES")))
    assert all(over("aabb", "collectives", settings=settings))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["3+5", "1+1+6"])
def test_other_shapes(name: str) -> None:
    hosts = SHAPES[name]
    given = {"kinds": FEW, "counts": [777, 5001], "count": 2000}
    for scenario in ("weighted_calls", "weighted_graphs"):
        answers = over(hosts, scenario, name, given=given, seconds=500, settings=LINED)
        assert answers == [[]] * len(hosts), scenario


@pytest.mark.parametrize("victim", [2, *(pytest.param(rank, marks=pytest.mark.slow) for rank in (0, 1, 3))])
def test_a_killed_rank_is_named_by_all(victim: int) -> None:
    """Ranks 0 and 2 have the couriers of their servers. What a kernel has stored of a chunk is never sent."""
    with processes("aabb", **LINED) as team:
        assert [answer["result"] for answer in team.all(do="call", count=3000, seconds=0)] == [SUCCESS] * 4
        a_kernel_ran_over_lines(team)
        others = a_killed_rank_is_named(team, victim, 3000)
        assert [team.ask(rank, do="destroy")["result"] for rank in others] == [SUCCESS] * 3


@pytest.mark.slow
def test_a_silent_server_is_named() -> None:
    with processes("aabb", COLLC_NET_TIMEOUT="2", **LINED) as team:
        a_silent_server_is_named(team, 100)


@pytest.mark.parametrize(
    ("name", "rates"),
    [
        pytest.param("2+2", (1000, 300), id="2+2 over two rails"),
        pytest.param("2+2", (1000,), marks=pytest.mark.slow, id="2+2"),
        pytest.param("3+5", (1000, 300), marks=pytest.mark.slow, id="3+5 over two rails"),
    ],
)
@pytest.mark.slow_for("2+2 over two rails")
def test_calls_and_graphs_over_network_namespaces(name: str, rates: tuple[int, ...]) -> None:
    """Every element is compared. Chunks of more than 2 KiB are cut into pieces for rails."""
    hosts = SHAPES[name]
    given = {"kinds": FEW[:1], "counts": [777, 20001], "count": 20000}
    with namespaces(hosts, *rates) as (made, settings):
        spaces = [f"{made.name}-{host}" for host in hosts]
        for scenario in ("weighted_calls", "weighted_graphs"):
            answers = over(
                hosts, scenario, name, given=given, seconds=500, spaces=spaces, settings={**settings, **LINED}
            )
            assert answers == [[]] * len(hosts), scenario


def with_chunks_for_two_rails() -> Path:
    """Rails get pieces of 8 KiB or more."""
    made = made_from(topology_file("2+2"), 4, chunk_bytes=LONG)
    (allocation,) = read_manifest(made)["allocations"]
    assert max(one["chunk_bytes"] for one in allocation["programs"] if one["proto"] == "LL") == LONG
    return made


@pytest.mark.slow
def test_chunks_that_are_cut_for_rails_of_different_rates() -> None:
    """Every element is compared. A large all_reduce has no lines."""
    kinds, counts = [["float", "sum"], ["half", "max"]], [777, 30_001, 200_003]
    with namespaces("aabb", 1000, 300) as (lab, settings):
        spaces = [f"{lab.name}-{host}" for host in "aabb"]
        made = with_chunks_for_two_rails()
        answers = over(
            "aabb",
            "kernels",
            made=made,
            given={"kinds": kinds, "counts": counts},
            seconds=300,
            spaces=spaces,
            settings={**settings, **LINED},
        )
        lined, simple = over_lines_and_simple(made, kinds, counts)
        assert lined > simple > 0
        for answer in answers:
            assert answer == {"wrong": [], "LL": lined, "Simple": simple, "LL128": 0}
        sent = [lab.sent(rail)["a"] for rail in (0, 1)]
        assert 0.1 < sent[1] / sum(sent) < 0.5, sent


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [None, LONG])
def test_rails_that_are_lost(chunk: int | None) -> None:
    """The missing part of a chunk is sent again over another rail, from the copy without lines.

    The rails are lost amid calls, and before them.
    """
    made = None if chunk is None else with_chunks_for_two_rails()
    # A large all_reduce has no lines.
    call: dict[str, Any] = {"do": "call", "seconds": 3}
    call |= {"count": 3000} if chunk is None else {"count": 100_000, "collective": "broadcast"}
    with (
        namespaces("aabb", 1000, 1000) as (lab, settings),
        processes("aabb", space=lab.name, made=made, COLLC_NET_TIMEOUT="3", **settings, **LINED) as team,
    ):
        for lost in (None, 1, None, 0, None):
            for rank in range(4):
                team.tell(rank, **call)
            for rail in (0, 1):
                lab.drop("b", rail, lost=rail == lost)
            for answers in ([team.hear(rank) for rank in range(4)], team.all(**call)):
                assert [answer["result"] for answer in answers] == [SUCCESS] * 4, (lost, answers)
        a_kernel_ran_over_lines(team)


@pytest.mark.slow
@pytest.mark.parametrize("kind", TYPES)
def test_all_types_and_operations(kind: str) -> None:
    kinds, counts = [[kind, op] for op in OPS], [1, 33, 1000, 4001]
    given = {"kinds": kinds, "counts": counts}
    lined, simple = over_lines_and_simple(library_of("2+2"), kinds, counts)
    for answer in over("aabb", "kernels", given=given, seconds=500, settings=LINED):
        assert answer == {"wrong": [], "LL": lined, "Simple": simple, "LL128": 0}
