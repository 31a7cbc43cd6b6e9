"""CUDA libraries over several servers on the mock driver: kernels, couriers and sockets are real, the GPUs are not.

Servers are groups of processes that name themselves by COLLC_HOSTID and share no memory with each other; what passes
between them goes over TCP on the loopback. GPUs of different servers have the same numbers and UUIDs.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mock_jobs import job
from mock_servers import library_of, made_from
from support.cli import collc
from support.failures import a_killed_rank_is_named, a_silent_server_is_named
from support.netlab import Lab, NoLab, lab
from support.ranks import INVALID_USAGE, REMOTE_ERROR, SUCCESS, Ranks
from test_cuda_runtime import HERE, mock_driver
from test_gpu_places import mock_nvml
from test_late_refusals import nothing_is_left

from collc.bench.data import OPS, TYPES
from collc.checker.library import read_manifest

LOOPBACK = {"COLLC_SOCKET_IFNAME": "lo"}
SHAPES = {"2+2": "aabb", "3+5": "aaabbbbb", "1+1+6": "abcccccc"}
FEW = [["float", "sum"], ["half", "max"], ["int8", "avg"]]


def gpus(hosts: str) -> str:
    return str(max(hosts.count(host) for host in hosts))


def over(hosts: str, scenario: str, name: str = "2+2", **more: Any) -> list[Any]:
    """Returns each rank's answer: a process per rank, equal letters on one server; `own`: settings of single ranks."""
    given = more.pop("own", {})
    own = {rank: {"COLLC_HOSTID": host, **given.get(rank, {})} for rank, host in enumerate(hosts)}
    settings = {**LOOPBACK, "MOCK_GPUS": gpus(hosts), **more.pop("settings", {})}
    made = more.pop("made", None) or library_of(name)
    return job(scenario, len(hosts), made=made, own=own, **more, **settings)


@pytest.mark.parametrize("hosts", ["aabb", pytest.param("abba", marks=pytest.mark.slow)])
def test_every_collective_type_and_operation(hosts: str) -> None:
    given = {"kinds": FEW, "counts": [777, 5001]}
    assert over(hosts, "weighted_calls", given=given) == [[]] * 4


@pytest.mark.slow
@pytest.mark.parametrize("name", list(SHAPES))
def test_all_types_and_sizes(name: str) -> None:
    kinds = [[kind, op] for kind in TYPES for op in OPS]
    hosts = SHAPES[name]
    given = {"kinds": kinds, "counts": [1, 33, 1000, 4001]}
    assert over(hosts, "weighted_calls", name, given=given, seconds=1500) == [[]] * len(hosts)


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "is_found"), [("NO_FAULT", False), ("CHUNK_BYTES", True)])
def test_chunks_whose_bytes_nobody_tells_are_noticed(fault: str, is_found: bool) -> None:
    """Only chunks of Simple need their bytes told: the flags of LL count them."""
    settings = {"COLLC_PROTO": "Simple", "LD_LIBRARY_PATH": str(mock_driver(fault=fault))}
    assert [bool(wrong) for wrong in over("aabb", "collectives", settings=settings)] == [is_found] * 4


def test_graphs_are_replayed() -> None:
    """Nobody is called by a replay: couriers find the chunks in memory."""
    assert over("aabb", "weighted_graphs", given={"count": 2000}) == [[]] * 4


def test_communicators_leave_nothing_behind() -> None:
    """Nobody on another server has this one's memory, so it goes with the communicator."""
    for answer in over("aabb", "left_by_communicators"):
        assert answer["said"] == ["ours"] * 6
        nothing_is_left(answer)


def test_transfers_in_groups_and_graphs() -> None:
    assert over("aabb", "many_in_a_group", given={"tensors": 6}) == [True] * 4


@pytest.mark.parametrize("scenario", ["ring_attention", "coalesced"])
def test_transfers_beside_collectives(scenario: str) -> None:
    assert over("aabb", scenario) == [True] * 4


def test_messages_of_many_slots() -> None:
    """Messages of 800 kB: slots of transfers between servers have less than 128 KiB."""
    assert over("aabb", "many_in_a_group", given={"tensors": 1, "count": 200_000, "once": True}) == [True] * 4


@pytest.mark.slow
@pytest.mark.parametrize("sweep", range(5))
def test_random_transfers(sweep: int) -> None:
    given = {"seeds": list(range(10 * sweep, 10 * sweep + 10))}
    assert over("aabb", "random_transfers", given=given, seconds=300, settings={"MOCK_SEED": str(sweep)}) == [[]] * 4


def test_splits_and_shrinks() -> None:
    """Into any parts, over servers and inside of one."""
    every = "2+2:0-3/0,2/0-2/0-1/2-3"
    assert over("aabb", "split_and_shrink", every, settings={"MOCK_SEED": "3"}) == [True] * 4


@pytest.mark.parametrize("setting", ["MOCK_NO_PEER", "MOCK_VMM"])
def test_gpus_of_one_server_that_do_not_share_memory(setting: str) -> None:
    """Then slots inside a server are pinned memory of that server too, or shared by IPC handles."""
    value = {"MOCK_NO_PEER": "all", "MOCK_VMM": "0"}[setting]
    assert over("aabb", "collectives", settings={setting: value}) == [[]] * 4


def test_servers_that_share_a_machine_need_no_courier() -> None:
    log: list[str] = []
    assert over("aaaa", "collectives", log=log, settings={"COLLC_DEBUG": "INFO", "MOCK_GPUS": "4"}) == [[]] * 4
    assert not any("tcp" in said for said in log)


def test_rank_0_says_what_stays_on_simple() -> None:
    log: list[str] = []
    assert over("aabb", "collectives", log=log, settings={"COLLC_DEBUG": "INFO", "COLLC_PROTO": "LL"}) == [[]] * 4
    (allocation,) = read_manifest(library_of("2+2"))["allocations"]
    held = [program["proto"] for program in allocation["programs"]]
    said = [re.search(r"(\d+) of (\d+) programs have no lines between machines", text) for text in log]
    assert said[0] is not None, log[0]
    assert 0 < int(said[0][1]) <= held.count("Simple")
    assert int(said[0][2]) == len(held)
    assert said[1:] == [None] * 3


def test_lines_of_a_warp_do_not_cross_servers() -> None:
    for answer in over("aabb", "collectives", settings={"COLLC_PROTO": "LL128"}):
        assert "between machines, chunks of this library travel over Simple and LL" in answer["error"]


def test_a_library_without_lines_says_so() -> None:
    """Of several sets of GPUs: there the model does not choose."""
    for answer in over("aabb", "collectives", "2+2:0-3/0,2/0-2/0-1/2-3", settings={"COLLC_PROTO": "LL"}):
        assert "between machines, chunks of this library travel over Simple alone" in answer["error"]


def test_nccl_proto_gives_way() -> None:
    log: list[str] = []
    settings = {"NCCL_PROTO": "LL128", "COLLC_DEBUG": "WARN"}
    assert over("aabb", "collectives", log=log, settings=settings) == [[]] * 4
    assert "NCCL_PROTO is not followed: between machines" in log[0]


@pytest.mark.parametrize("setting", [{"MOCK_NO_REGISTER": "1"}])
def test_all_ranks_learn_that_no_memory_can_be_pinned(setting: dict[str, str]) -> None:
    for answer in over("aabb", "collectives", settings=setting):
        assert "what goes to other machines needs pinned host memory" in answer["error"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["3+5", "1+1+6"])
def test_other_shapes(name: str) -> None:
    hosts = SHAPES[name]
    given = {"kinds": FEW, "counts": [777, 5001], "count": 2000, "tensors": 3}
    for scenario in ("weighted_calls", "weighted_graphs"):
        assert over(hosts, scenario, name, given=given, seconds=500) == [[]] * len(hosts), scenario
    for scenario in ("many_in_a_group", "ring_attention", "coalesced"):
        assert over(hosts, scenario, name, given=given, seconds=500) == [True] * len(hosts), scenario


LINE = """
format: collc-topology/1
name: lines
gpus: 6
nics: [nic0, nic1]
cpus: [cpu0, cpu1]
switches: [net]
servers: {s0: [gpu0, gpu1, gpu2, nic0, cpu0], s1: [gpu3, gpu4, gpu5, nic1, cpu1]}
links:
  - {between: [gpu0, gpu1], kind: nvlink, gbps: 50}
  - {between: [gpu1, gpu2], kind: nvlink, gbps: 25}
  - {between: [gpu3, gpu4], kind: nvlink, gbps: 50}
  - {between: [gpu4, gpu5], kind: nvlink, gbps: 25}
  - {between: [gpu0, nic0], kind: pcie, gbps: 12}
  - {between: [gpu3, nic1], kind: pcie, gbps: 12}
  - {between: [nic0, net], kind: net, gbps: 10}
  - {between: [nic1, net], kind: net, gbps: 10}
"""


def test_gpus_get_the_part_of_their_links_inside_their_server(tmp_path: Path) -> None:
    """Bus ids are the same on all servers, and say nothing from one about another."""
    source = tmp_path / "lines.yaml"
    source.write_text(LINE)
    log: list[str] = []
    settings = {
        "LD_LIBRARY_PATH": f"{mock_driver()}:{mock_nvml()}",
        "MOCK_LINKS": "2-0,2-0,0-1",
        "COLLC_DEBUG": "INFO",
    }
    answers = over("aaabbb", "collectives", made=made_from(source, 6), log=log, settings=settings)
    assert answers == [[]] * 6
    assert "by their NVLinks the ranks are the plan's ranks 1,2,0,4,5,3" in log[0]


@contextmanager
def processes(hosts: str, name: str = "2+2", space: str = "", **more: Any) -> Iterator[Ranks]:
    environment = {"LD_LIBRARY_PATH": str(mock_driver()), "MOCK_GPUS": gpus(hosts), "MOCK_PATIENCE_MS": "30000"}
    made = more.pop("made", None) or library_of(name)
    given = {**LOOPBACK, **environment, **more}
    team = Ranks(made, len(hosts), given, HERE / "mock_rank.py", hosts=hosts, lab=space)
    try:
        assert [answer["result"] for answer in team.init()] == [SUCCESS] * len(hosts)
        yield team
    finally:
        team.close()


@pytest.mark.parametrize("victim", [2, 3, *(pytest.param(rank, marks=pytest.mark.slow) for rank in (0, 1))])
def test_a_killed_rank_is_named_by_all(victim: int) -> None:
    """Ranks 0 and 2 have the couriers of their servers: with them the connection goes."""
    with processes("aabb") as team:
        others = a_killed_rank_is_named(team, victim, 3000)
        assert [team.ask(rank, do="destroy")["result"] for rank in others] == [SUCCESS] * 3


@pytest.mark.parametrize(
    ("farewell", "words"),
    [("abort", "rank 3: ncclCommAbort was called"), ("destroy", "has destroyed its communicator")],
)
def test_abort_and_departure_free_the_others(farewell: str, words: str) -> None:
    with processes("aabb") as team:
        for rank in range(3):
            team.tell(rank, do="call")
        time.sleep(0.2)
        assert team.ask(3, do=farewell)["result"] == SUCCESS
        answers = [team.hear(rank) for rank in range(3)]
        assert [answer["result"] for answer in answers] == [REMOTE_ERROR] * 3
        assert any(words in answer["text"] for answer in answers)
        assert all("rank 3" in answer["text"] for answer in answers)


def test_calls_that_differ_are_named_everywhere() -> None:
    with processes("aabb") as team:
        for rank in range(4):
            team.tell(rank, do="call", count=101 if rank == 3 else 100)
        for rank in range(4):
            answer = team.hear(rank)
            assert answer["result"] == INVALID_USAGE
            assert "calls differ" in answer["text"]
            assert "all_reduce of 101 elements" in answer["text"]


def test_a_stopped_process_that_goes_on_is_no_failure() -> None:
    with processes("aabb") as team:
        team.signal(2, signal.SIGSTOP)
        for rank in range(4):
            team.tell(rank, do="call", count=3000, seconds=0)
        time.sleep(2)
        team.signal(2, signal.SIGCONT)
        for rank in range(4):
            team.hear(rank)
        assert [team.ask(rank, do="error")["result"] for rank in range(4)] == [SUCCESS] * 4


def test_a_silent_server_has_its_own_time_limit() -> None:
    with processes("aabb", COLLC_NET_TIMEOUT="2") as team:
        a_silent_server_is_named(team, 100)


def test_a_courier_that_ends_after_its_rank_has_left() -> None:
    """Rank 2, which has the courier of its server, is not missed by the transfer of rank 3, but the courier is."""
    answer = over("aabb", "courier_leaves")[3]
    assert answer["code"] == REMOTE_ERROR
    assert "the process of rank 2" in answer["text"]
    assert "which joined this machine with others, has ended" in answer["text"]


@contextmanager
def namespaces(hosts: str, *rates: int) -> Iterator[tuple[Lab, dict[str, str]]]:
    """Yields a lab whose servers have these letters, and the settings that connect ranks over all its rails."""
    try:
        with lab("".join(sorted(set(hosts))), *rates) as made:
            yield made, {"COLLC_SOCKET_IFNAME": ",".join(f"e{rail}" for rail in range(len(rates)))}
    except NoLab as error:
        pytest.skip(f"no network namespaces here: {error}")


@pytest.mark.parametrize(
    ("name", "rates"),
    [
        pytest.param("2+2", (1000, 300), id="2+2 over two rails"),
        pytest.param("2+2", (1000,), marks=pytest.mark.slow, id="2+2"),
        pytest.param("3+5", (1000,), marks=pytest.mark.slow, id="3+5"),
        pytest.param("3+5", (1000, 300), marks=pytest.mark.slow, id="3+5 over two rails"),
    ],
)
@pytest.mark.slow_for("2+2 over two rails")
def test_calls_graphs_and_transfers_over_network_namespaces(name: str, rates: tuple[int, ...]) -> None:
    """Every element is compared."""
    hosts = SHAPES[name]
    given = {"kinds": FEW[:1], "counts": [777, 20001], "count": 20000, "tensors": 3}
    with namespaces(hosts, *rates) as (made, settings):
        spaces = [f"{made.name}-{host}" for host in hosts]
        for scenario in ("weighted_calls", "weighted_graphs", "many_in_a_group"):
            answers = over(hosts, scenario, name, given=given, seconds=500, spaces=spaces, settings=settings)
            assert answers == [True if scenario == "many_in_a_group" else []] * len(hosts), scenario
        for rail in range(len(rates)):
            assert made.sent(rail)["a"] > 100_000, rail


KILLED = [("2+2", 0), ("2+2", 1), ("2+2", 3), ("3+5", 0), ("3+5", 2), ("3+5", 3), ("3+5", 7)]


@pytest.mark.parametrize(
    ("name", "victim"), [("2+2", 2), *(pytest.param(*case, marks=pytest.mark.slow) for case in KILLED)]
)
def test_a_killed_rank_is_named_over_network_namespaces(name: str, victim: int) -> None:
    hosts = SHAPES[name]
    with (
        namespaces(hosts, 1000, 1000) as (made, settings),
        processes(hosts, name, space=made.name, **settings) as team,
    ):
        others = a_killed_rank_is_named(team, victim, 3000)
        assert [team.ask(rank, do="destroy")["result"] for rank in others] == [SUCCESS] * len(others)


@pytest.mark.slow
def test_rails_that_are_lost_under_cuda() -> None:
    """Rails are lost one after the other, and calls go on; after both are lost, the ranks get an error in time."""
    with (
        namespaces("aabb", 1000, 1000) as (made, settings),
        processes("aabb", space=made.name, COLLC_NET_TIMEOUT="3", **settings) as team,
    ):
        for lost in (None, 1, None, 0, None):
            for rail in (0, 1):
                made.drop("b", rail, lost=rail == lost)
            answers = team.all(do="call", count=3000, seconds=3)
            assert [answer["result"] for answer in answers] == [SUCCESS] * 4, (lost, answers)
        for rail in (0, 1):
            made.drop("b", rail)
        a_silent_network_is_named(team)


def a_silent_network_is_named(team: Ranks) -> None:
    for rank in range(4):
        team.tell(rank, do="call", count=3000)
    for rank in range(4):
        answer = team.hear(rank)
        assert answer["result"] == REMOTE_ERROR
        assert ("ranks 2, 3" if rank < 2 else "ranks 0, 1") in answer["text"]


@pytest.mark.parametrize("name", ["2+2", pytest.param("3+5", marks=pytest.mark.slow)])
def test_a_communicator_takes_what_its_manifest_says(name: str) -> None:
    (allocation,) = read_manifest(library_of(name))["allocations"]
    assert max(over(SHAPES[name], "memory", name, settings={"MOCK_VMM": "0"})) == allocation["gpu_bytes"] > 0
    assert max(over(SHAPES[name], "pinned_memory", name)) == allocation["server_bytes"] > 0
    words = f"between servers: a courier and pinned host memory, at most {allocation['server_bytes'] / 1e6:.1f} MB"
    assert words in collc("inspect", library_of(name)).out
