"""The class net inside one server on the CUDA target: FIFOs whose chunks go out of one network card and into another.

On the mock driver with couriers as they are, over UCX, whose TCP on the loopback takes the place of RDMA.
"""

from __future__ import annotations

import dataclasses
import os
import random
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from cuda_emulator import PackedTables, build_emulator, emulate
from emulated_calls import CHUNK_BYTES, differences, make_call, small_program
from mock_jobs import job
from support.cli import collc
from support.failures import a_killed_rank_is_named
from support.libraries import JOINT
from support.programs import TREE_COLLECTIVES
from support.ranks import REMOTE_ERROR, SUCCESS, Ranks
from test_cuda_runtime import HERE, compile_for_mock, mock_driver, written

from collc.bench.data import TYPES, Case
from collc.checker.library import check_library, read_manifest
from collc.choose import by_class
from collc.choose.joined import Cut
from collc.choose.library import library_contents
from collc.choose.request import LibraryRequest
from collc.collectives.model import Collective
from collc.ir.join_classes import join_classes
from collc.ir.verify import verify
from collc.network.ucx import find_ucx
from collc.options import CUDA
from collc.pipeline import Recorder

NRANKS = 4
CUTS = [
    Cut(0, {"nvlink": 3, "net": 1}, {"nvlink": 3, "net": 2}, 1024, "for small calls"),
    Cut(4096, {"nvlink": 2, "pcie": 3, "net": 2}, {"nvlink": 3, "pcie": 2, "net": 2}, 512, "for large calls"),
]
FEW = [["float", "sum"], ["half", "max"], ["int8", "avg"]]


@pytest.fixture
def cards() -> dict[str, str]:
    """Returns the variables that let UCX join the ranks of a server."""
    if find_ucx(os.environ) is None:
        pytest.skip("no UCX here (Debian: libucx0)")
    return {"COLLC_NET": "ucx:lo", "COLLC_UCX_UNSAFE_TCP": "1", "COLLC_SOCKET_IFNAME": "lo"}


@cache
def library() -> Path:
    """A CUDA library of NVLink, PCIe and NICs for four GPUs that cuts all calls."""
    with mock.patch.object(by_class, "find_cuts", return_value=CUTS):
        return compile_for_mock("joint-net-mock", written("joint", JOINT), chunk_bytes=1024, classes="all", roots=[1])


def over_cards(
    cards: dict[str, str], scenario: str, given: dict[str, object], **settings: str
) -> tuple[list[Any], list[str]]:
    """Returns each rank's answer to a scenario, and the logs."""
    log: list[str] = []
    chosen: dict[str, Any] = {**cards, "COLLC_DEBUG": "INFO", **settings}
    answers = job(scenario, NRANKS, given=given, made=library(), log=log, **chosen)
    return answers, log


@pytest.mark.parametrize("kinds", [FEW[:1], pytest.param(FEW[1:], marks=pytest.mark.slow)])
@pytest.mark.slow_for("kinds0")
def test_every_collective_and_random_weights(kinds: list[list[str]], cards: dict[str, str]) -> None:
    given = {"kinds": kinds, "counts": [1, 37, 777, 2500]}
    answers, log = over_cards(cards, "weighted_calls", given, COLLC_WEIGHTS="random:1")
    assert answers == [[]] * NRANKS, log
    assert all("NICs join it with the other ranks of its server over ucx" in text for text in log)


@pytest.mark.slow
def test_graphs_where_all_goes_over_cards(cards: dict[str, str]) -> None:
    answers, log = over_cards(cards, "weighted_graphs", {"count": 2000}, COLLC_WEIGHTS="net:1")
    assert answers == [[]] * NRANKS, log


def test_one_thread_with_all_ranks(cards: dict[str, str]) -> None:
    given = {"nranks": NRANKS, "count": 2000, "calls": 6}
    chosen: dict[str, Any] = {
        **cards,
        "COLLC_WEIGHTS": "net:1,nvlink:1",
        "MOCK_GPUS": str(NRANKS),
    }
    assert job("one_thread", 1, given=given, made=library(), **chosen) == [[]]


def test_tcp_is_no_card() -> None:
    log: list[str] = []
    given = {"kinds": FEW[:1], "counts": [777]}
    settings: dict[str, Any] = {"COLLC_SOCKET_IFNAME": "lo", "COLLC_DEBUG": "WARN", "COLLC_WEIGHTS": "net:1"}
    assert job("weighted_calls", NRANKS, given=given, made=library(), log=log, **settings) == [[]] * NRANKS
    said = r"net has failed, it joins no ranks of a server \(rank \d: TCP within a server does not go through NICs"
    assert len(re.findall(said, "".join(log))) == 1, log


@pytest.mark.parametrize("collective", TREE_COLLECTIVES, ids=lambda c: c.value)
def test_kernels_move_every_weighting_of_three_classes(collective: Collective) -> None:
    """On the emulator, where what one GPU writes for a card is at once what the other reads."""
    for seed in range(3):
        drawn = random.Random(seed)
        names = ("nvlink", "pcie", "net")
        programs = {name: small_program(collective, 3, seed + 21 * i) for i, name in enumerate(names)}
        program = join_classes(programs, {"nvlink": 3, "pcie": 1, "net": 1})
        verify(program)
        op = "sum" if collective.reduces else None
        made = []
        for weights in ((0, 0, 1), (drawn.randint(1, 255), 0, drawn.randint(1, 255)), (2, 3, drawn.randint(1, 255))):
            case = Case(collective, 3, program.root or 0, drawn.randint(200, 900), TYPES["float"], op)
            call, wanted = make_call(case, in_place=seed % 2 == 0)
            made.append((dataclasses.replace(call, weights=weights), wanted))
        outcome = emulate(
            build_emulator(),
            PackedTables([program], CHUNK_BYTES),
            [call for call, _ in made],
            seed=seed,
            report_races=seed == 0,
            protocol="LL" if seed == 1 else "Simple",
        )
        assert (outcome.failure, differences(made)) == ("", []), seed


ALL_NET = {"COLLC_WEIGHTS": "net:1"}


# UCX 1.13 notices a lost connection of an idle communicator too late for this test; 1.22 notices it in time.
@pytest.mark.slow
def test_a_wire_lost_between_calls(cards: dict[str, str]) -> None:
    answers, log = over_cards(cards, "wire_lost_between_calls", {}, **ALL_NET)
    assert answers == [[]] * NRANKS, log
    said = [line for text in log for line in text.splitlines() if "net has failed, " in line]
    assert len(said) == 1, said
    assert "the connection was ended there" in said[0]
    assert said[0].endswith("calls from call 4 on run without it")


@pytest.mark.slow
def test_a_graph_that_holds_the_lost_class_ends_with_its_name(cards: dict[str, str]) -> None:
    answers, log = over_cards(cards, "wire_lost_between_calls", {"replay": True}, **ALL_NET)
    assert all("cannot go on over net, which has failed: " in text for (text,) in answers), (answers, log)


@pytest.mark.slow
def test_a_wire_lost_amid_a_call(cards: dict[str, str]) -> None:
    answers, log = over_cards(cards, "wire_lost_amid_a_call", {}, **ALL_NET)
    assert all("cannot go on over net, which has failed: " in text for text in answers), (answers, log)


@contextmanager
def processes(cards: dict[str, str], **settings: str) -> Iterator[Ranks]:
    own = {"LD_LIBRARY_PATH": str(mock_driver()), "MOCK_GPUS": str(NRANKS), "MOCK_PATIENCE_MS": "30000"}
    given = {**cards, **own, **ALL_NET, **settings}
    team = Ranks(library(), NRANKS, given, HERE / "mock_rank.py")
    try:
        assert [answer["result"] for answer in team.init()] == [SUCCESS] * NRANKS
        yield team
    finally:
        team.close()


def test_a_killed_rank_is_named_and_the_others_end_in_order(cards: dict[str, str]) -> None:
    with processes(cards) as team:
        others = a_killed_rank_is_named(team, 2, 3000)
        assert [team.ask(rank, do="destroy")["result"] for rank in others] == [SUCCESS] * 3


@pytest.mark.slow
def test_abort_frees_the_others(cards: dict[str, str]) -> None:
    with processes(cards) as team:
        for rank in range(3):
            team.tell(rank, do="call")
        time.sleep(0.2)
        assert team.ask(3, do="abort")["result"] == SUCCESS
        answers = [team.hear(rank) for rank in range(3)]
        assert all(a["result"] == REMOTE_ERROR and "rank 3: ncclCommAbort" in a["text"] for a in answers), answers


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"MOCK_NO_REGISTER": "1"}, "the class net needs pinned host memory"),
        ({"COLLC_NET": "ucx:none"}, "no network interface called none is up"),
    ],
    ids=["no pinned memory", "no card"],
)
def test_a_class_that_some_rank_cannot_have(setting: dict[str, str], words: str, cards: dict[str, str]) -> None:
    """Nobody uses it, and nobody waits."""
    log: list[str] = []
    chosen: dict[str, Any] = {**cards, **ALL_NET, "COLLC_DEBUG": "WARN"}
    given = {"kinds": FEW[:1], "counts": [777]}
    answers = job("weighted_calls", NRANKS, given=given, made=library(), log=log, own={2: setting}, **chosen)
    assert answers == [[]] * NRANKS, log
    assert "net has failed, it joins no ranks of a server (rank 2: " in "".join(log), log
    assert words in "".join(log), log


@pytest.mark.slow
def test_bytes_of_chunks_that_nobody_tells_are_noticed(cards: dict[str, str]) -> None:
    """A planted fault of the kernels."""
    settings: dict[str, Any] = {
        "LD_LIBRARY_PATH": str(mock_driver(fault="CHUNK_BYTES")),
        "COLLC_TIMEOUT": "2",
        **ALL_NET,
    }
    answers, _ = over_cards(cards, "weighted_calls", {"kinds": FEW[:1], "counts": [777]}, **settings)
    assert all(answers)


def test_the_library_proves_itself_and_tells_what_its_server_pins(cards: dict[str, str]) -> None:
    """The ranks register exactly that memory: their halves, next to the pairs of PCIe."""
    held = check_library(library())
    assert {program.weights for program in held.tables.allocations[0].programs} == {(3, 0, 1), (2, 3, 2)}
    (allocation,) = read_manifest(library())["allocations"]
    settings: dict[str, Any] = cards
    pinned = job("pinned_memory", NRANKS, made=library(), **settings)
    assert sum(pinned) == 2 * allocation["host_bytes"] + allocation["server_bytes"] > 2 * allocation["host_bytes"]
    assert "over network cards inside the server: couriers and pinned host" in collc("inspect", library()).out


@pytest.mark.parametrize(
    ("classes", "cuts", "said"),
    [
        ("all", CUTS, by_class.OVER_CARDS),
        ("all", [Cut(0, {"nvlink": 3, "pcie": 1}, {"nvlink": 3, "pcie": 2}, 512, "")], by_class.NO_CARDS),
        ("nvlink,pcie", [Cut(0, {"nvlink": 3, "pcie": 1}, {"nvlink": 3, "pcie": 2}, 512, "")], None),
    ],
    ids=["used", "not used", "not asked for"],
)
def test_who_asked_for_cards_hears_whether_they_carry_anything(classes: str, cuts: list[Cut], said: str | None) -> None:
    request = LibraryRequest(str(written("joint", JOINT)), collectives=[Collective.ALL_GATHER], classes=classes)
    with mock.patch.object(by_class, "find_cuts", return_value=cuts):
        contents = library_contents(request, CUDA, recorder=Recorder())
    assert by_class.said_of_cards(request, CUDA, contents) == said
