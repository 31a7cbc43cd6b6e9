"""Communicators over the engine `plugin`, by a network plugin of the tests' own that judges who calls it."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.failures import kill_amid_a_call
from support.libraries import client, library, run_client
from support.net_plugin import VERSIONS, Judge, net_plugin
from support.ranks import INVALID_USAGE, REMOTE_ERROR, SUCCESS, SYSTEM_ERROR, Ranks

from collc.build.toolchain import find_cxx

HERE = Path(__file__).parent
CALLS = HERE.parent / "netlab" / "calls.py"
LOOPBACK = {"COLLC_SOCKET_IFNAME": "lo"}
MACHINES = 2
COMMS = 2  # of a machine to another


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    return Judge(tmp_path / "judge.log")


@contextmanager
def machines(
    environment: Mapping[str, str],
    own: Mapping[int, Mapping[str, str]] | None = None,
    hosts: str = "aabb",
    program: Path = HERE / "rank_process.py",
    name: str = "2+2",
) -> Iterator[Ranks]:
    settings = {**LOOPBACK, **environment}
    team = Ranks(library(name), len(hosts), settings, program, hosts=hosts, own=own)
    try:
        yield team
    finally:
        team.close()


def made(team: Ranks) -> None:
    assert {answer["result"] for answer in team.init()} == {SUCCESS}


def closed_in_order(judge: Judge, comms: int) -> list[str]:
    """So many comms each way are closed, with nothing posted."""
    closed = [line for kind in ("closeSend", "closeRecv") for line in judge.wait_for(kind, comms)]
    assert len(closed) == 2 * comms
    assert all(line.endswith("outstanding 0") for line in closed), closed
    assert judge.lines("went on") == []
    return closed


def none_is_made(team: Ranks, result: int, *texts: str) -> None:
    answers = team.init()
    assert SUCCESS not in [answer["result"] for answer in answers]
    said = [answer["text"] for answer in answers if answer["result"] == result]
    assert any(all(text in one for text in texts) for one in said), answers


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_carries_calls(version: int, tmp_path: Path) -> None:
    """Collectives, types and operations, every element compared; at the end all is closed, and nothing comes after."""
    judge = Judge(tmp_path / "judge.log", version)
    eager = {"JUDGE_EAGER": str(version % 2)}
    with machines({**judge.settings, **eager, "COLLC_TIMEOUT": "60"}, program=CALLS) as team:
        made(team)
        answers = team.all(None, do="calls", seed=str(version), parts=None, first=0, last=40)
        assert [(answer["wrong"], answer["calls"]) for answer in answers] == [([], 40)] * 4
        assert [answer["result"] for answer in team.all(None, do="destroy")] == [SUCCESS] * 4
        closed = closed_in_order(judge, MACHINES * COMMS)
        assert all(int(line.split()[2]) > 0 for line in closed), closed


@pytest.mark.parametrize("hosts", ["abc", pytest.param("abcd", marks=pytest.mark.slow)])
def test_machines_that_end_together(judge: Judge, hosts: str) -> None:
    """Again and again, in whatever order they come to it: nothing is posted where a comm is closed.

    Old plugins would wait for the other end there, all of them for each other.
    """
    n = len(hosts)
    with machines({**judge.settings, "JUDGE_WAITS": "1"}, hosts=hosts, name="+".join("1" * n)) as team:
        for turn in range(1, 9):
            made(team)
            assert {answer["result"] for answer in team.all(None, do="call", count=1000)} == {SUCCESS}
            assert {answer["result"] for answer in team.all(None, do="destroy")} == {SUCCESS}
            closed_in_order(judge, turn * n * (n - 1) * COMMS)
        assert judge.lines("closed alone") == []


def test_an_end_waits_until_what_the_other_sent_has_ended(judge: Judge) -> None:
    """With some networks that takes an answer, which nobody gives for a comm that is closed."""
    with machines({**judge.settings, "JUDGE_ANSWERS": "200"}, hosts="ab", name="1+1") as team:
        made(team)
        assert team.ask(0, do="destroy")["result"] == SUCCESS
        time.sleep(0.5)
        assert team.ask(1, do="destroy")["result"] == SUCCESS
        closed_in_order(judge, MACHINES * COMMS)


def test_a_process_that_exits_without_destroy_ends_what_another_one_has_begun_to_end(judge: Judge) -> None:
    with machines({**judge.settings, "JUDGE_ANSWERS": "400"}, hosts="ab", name="1+1") as team:
        made(team)
        assert team.ask(1, do="destroy")["result"] == SUCCESS
        pipe = team.processes[0].stdin
        assert pipe is not None
        pipe.close()
        assert team.processes[0].wait(60) == 0
        closed_in_order(judge, MACHINES * COMMS)


@pytest.mark.slow
def test_an_exit_waits_ten_seconds_for_a_plugin_that_does_not_return(judge: Judge) -> None:
    with machines(judge.settings, {1: {"JUDGE_HANGS": "test:2000"}}, hosts="ab", name="1+1") as team:
        made(team)
        judge.wait_for("hangs", 1)
        pipe = team.processes[1].stdin
        assert pipe is not None
        pipe.close()
        begin = time.monotonic()
        assert team.processes[1].wait(60) == 0
        assert time.monotonic() - begin < 14


def test_an_end_does_not_hold_up_other_communicators(judge: Judge) -> None:
    """Machine c is stopped while a and b say goodbye to it: what they have with each other goes on."""
    with machines(judge.settings, hosts="abc", name="1+1+1", program=HERE / "two_comms.py") as team:
        for which in ("whole", "other"):
            unique = team.ask(0, do="id")["id"]
            for rank in range(3):
                team.tell(rank, do="init", which=which, nranks=3, id=unique, rank=rank)
            assert [team.hear(rank)["result"] for rank in range(3)] == [SUCCESS] * 3
        team.signal(2, signal.SIGSTOP)
        assert [answer["result"] for answer in team.all([0, 1], do="destroy", which="whole")] == [SUCCESS] * 2
        # Each transfer needs both couriers several times.
        for rank, peer in ((0, 1), (1, 0)):
            kind = ("send", "recv")[rank]
            team.tell(rank, do="call", which="other", collective=kind, root=peer, count=300000, times=20)
        assert [team.hear(rank)["result"] for rank in (0, 1)] == [SUCCESS] * 2
        team.signal(2, signal.SIGCONT)
        assert team.ask(2, do="destroy", which="whole")["result"] == SUCCESS
        closed_in_order(judge, 6 * COMMS)


@pytest.mark.parametrize("how", ["exit", "kill"])
def test_a_process_that_goes_amid_the_end(judge: Judge, how: str) -> None:
    """By exit() it goes once its comms are closed, with all others; a killed one holds up nobody."""
    with machines(judge.settings, hosts="abc", name="1+1+1") as team:
        made(team)
        for rank in (0, 1, 2):
            team.tell(rank, do="destroy")
        if how == "kill":
            team.signal(0, signal.SIGKILL)
        else:
            pipe = team.processes[0].stdin
            assert pipe is not None
            pipe.close()
        assert [team.hear(rank)["result"] for rank in (1, 2)] == [SUCCESS] * 2
        assert team.processes[0].wait(60) == (0 if how == "exit" else -signal.SIGKILL)
        if how == "exit":
            closed_in_order(judge, 6 * COMMS)
        else:
            judge.wait_for("closeRecv", 4 * COMMS)
        assert [team.ask(rank, do="id")["result"] for rank in (1, 2)] == [SUCCESS] * 2
    judge.lines()


def test_a_process_exits_after_its_comms_are_closed(judge: Judge) -> None:
    """Old plugins would wait for the other end for ever."""
    with machines({**judge.settings, "JUDGE_WAITS": "1"}, hosts="ab", name="1+1") as team:
        for turn in range(1, 4):
            made(team)
            assert [answer["result"] for answer in team.all(None, do="destroy")] == [SUCCESS] * 2
            closed_in_order(judge, turn * MACHINES * COMMS)
        made(team)
        for rank in (0, 1):
            team.tell(rank, do="destroy")
        pipe = team.processes[0].stdin
        assert pipe is not None
        pipe.close()
        assert team.processes[0].wait(60) == 0
        assert team.hear(1)["result"] == SUCCESS
        closed_in_order(judge, 4 * MACHINES * COMMS)
        assert judge.lines("closed alone") == []


def test_children_of_a_busy_process_end_and_make_no_communicator(judge: Judge) -> None:
    """What is registered they do not have; a thread that they do not have either may be in the plugin."""
    settings = {**judge.settings, "JUDGE_DONTFORK": "1"}
    with machines(settings, hosts="ab", name="1+1", program=HERE / "plugin_rank.py") as team:
        made(team)
        assert team.ask(0, do="children", times=10)["result"] == SUCCESS
        assert [one["result"] for one in team.all(None, do="call", count=300000, times=20)] == [SUCCESS] * 2
        assert team.ask(0, do="ended")["statuses"] == [0] * 10
        unique = team.ask(0, do="id")["id"]
        for rank in range(2):
            team.tell(rank, do="child_init", nranks=2, id=unique, rank=rank)
        answers = [team.hear(rank) for rank in range(2)]
        assert [answer["result"] for answer in answers] == [SYSTEM_ERROR] * 2
        assert all("engine plugin: not in a forked child" in answer["text"] for answer in answers), answers
        assert [one["result"] for one in team.all(None, do="call", count=1000)] == [SUCCESS] * 2
        assert [answer["result"] for answer in team.all(None, do="destroy")] == [SUCCESS] * 2
        closed_in_order(judge, MACHINES * COMMS)


def test_a_process_that_exits_while_machines_join(judge: Judge) -> None:
    """Another thread of it is in the creation: nothing of a plugin is called that its process has taken down."""
    settings = {**judge.settings, "JUDGE_LATE": "1000000"}
    with machines(settings, hosts="ab", name="1+1", program=HERE / "plugin_rank.py") as team:
        unique = team.ask(0, do="id")["id"]
        for rank in range(2):
            team.tell(rank, do="init_beside", nranks=2, id=unique, rank=rank)
            assert team.hear(rank)["result"] == SUCCESS
        judge.wait_for("start of version", 2)
        for process in team.processes:
            assert process.stdin is not None
            process.stdin.close()
        assert [process.wait(60) for process in team.processes] == [0, 0]
    judge.lines()


@pytest.mark.parametrize("version", [pytest.param(10, marks=pytest.mark.slow), 11, 12])
def test_a_plugin_that_starts_once(version: int, tmp_path: Path) -> None:
    """Some cannot be started again once their last context was closed: it stays."""
    judge = Judge(tmp_path / "judge.log", version)
    with machines({**judge.settings, "JUDGE_ENDS": "1"}, hosts="ab", name="1+1") as team:
        for turn in range(1, 4):
            made(team)
            assert [answer["result"] for answer in team.all(None, do="destroy")] == [SUCCESS] * 2
            closed_in_order(judge, turn * MACHINES * COMMS)
    assert len(judge.lines("start")) == MACHINES
    assert judge.lines("finalize") == []


@pytest.mark.parametrize("version", [8, 10])
def test_a_plugin_that_another_library_has_started(version: int, tmp_path: Path) -> None:
    """Before version 11 its start answers an error then, and its devices are there."""
    judge = Judge(tmp_path / "judge.log", version)
    with machines({**judge.settings, "JUDGE_STARTED": "1"}, hosts="ab", name="1+1") as team:
        made(team)
        assert [one["result"] for one in team.all(None, do="call", count=1000)] == [SUCCESS] * 2


@pytest.mark.parametrize("own", [None, "LL"])
def test_what_a_plugin_sets_is_left_alone_and_not_followed(judge: Judge, own: str | None) -> None:
    """NCCL_PROTO, for the NCCL of its process; ranks whose processes have no plugin agree with those that have one."""
    settings = {**judge.settings, **({} if own is None else {"NCCL_PROTO": own})}
    with machines(settings, program=HERE / "plugin_rank.py") as team:
        for _ in range(2):
            made(team)
            values = [answer["value"] for answer in team.all(None, do="variable", name="NCCL_PROTO")]
            assert values == ["simple", own, "simple", own]
            assert {one["result"] for one in team.all(None, do="call", count=1000)} == {SUCCESS}
            assert {one["result"] for one in team.all(None, do="destroy")} == {SUCCESS}


@pytest.mark.parametrize("slow", [{"JUDGE_LATE": "3000"}, {"JUDGE_SLOW": "300"}], ids=["joining", "registering memory"])
def test_a_slow_machine_is_not_silent(judge: Judge, slow: dict[str, str]) -> None:
    """Machines that are joined hear from each other while a third one is not, or registers memory for any of them."""
    settings = {**judge.settings, "COLLC_NET_TIMEOUT": "2"}
    with machines(settings, {2: slow}, hosts="abc", name="1+1+1") as team:
        begin = time.monotonic()
        made(team)
        assert time.monotonic() - begin > 3
        assert {one["result"] for one in team.all(None, do="call", count=1000)} == {SUCCESS}


def test_groups_transfers_and_scaled_sums(judge: Judge) -> None:
    settings = {**LOOPBACK, "RANK_HOSTS": "aabb", **judge.settings}
    run_client([client(HERE / "api.c", "2+2"), "processes", "4"], settings=settings)
    assert judge.lines("closeSend")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "hosts"), [("2+2", "abba"), ("3+5", "aaabbbbb"), ("2+2+2+2", "aabbccdd")])
def test_every_collective_type_operation_and_root(judge: Judge, name: str, hosts: str) -> None:
    settings = {**LOOPBACK, "RANK_HOSTS": hosts, **judge.settings}
    run_client([client(HERE / "client.c", name), "processes", str(len(hosts))], settings=settings, timeout=3000)
    assert judge.lines("closeSend")


@pytest.mark.parametrize("eager", ["0", "1"])
@pytest.mark.parametrize("victim", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_killed_rank_is_named_by_all(judge: Judge, victim: int, eager: str) -> None:
    """Rank 2 has the courier of its machine; amid a call, with bodies on their way."""
    with machines({**judge.settings, "JUDGE_EAGER": eager}) as team:
        made(team)
        others = kill_amid_a_call(team, victim, 4000000)
        # The plugin goes on with what was posted: the memory of it is there, also when nobody has the communicator.
        for rank in others:
            assert team.ask(rank, do="abort")["result"] == SUCCESS
        judge.wait_for("closeRecv", COMMS)
        time.sleep(1.5)
        assert [team.ask(rank, do="id")["result"] for rank in others] == [SUCCESS] * 3
    judge.lines()


def test_a_rank_that_is_killed_while_machines_join(judge: Judge) -> None:
    with machines({**judge.settings, "JUDGE_LATE": "1000000"}) as team:
        unique = team.ask(0, do="id")["id"]
        for rank in range(4):
            team.tell(rank, do="init", nranks=4, id=unique, rank=rank)
        time.sleep(1)
        team.signal(2, signal.SIGKILL)
        since = time.monotonic()
        for rank in (0, 1, 3):
            assert team.hear(rank)["result"] != SUCCESS
        assert time.monotonic() - since < 30
    judge.lines()


def test_comms_that_never_come_end_by_the_deadline(judge: Judge) -> None:
    with machines({**judge.settings, "JUDGE_LATE": "1000000", "COLLC_BOOTSTRAP_TIMEOUT": "4"}) as team:
        none_is_made(team, SYSTEM_ERROR, "engine plugin: Judge (version 12, ", "did not connect with", "within 4 s")


def test_a_stopped_process_goes_on(judge: Judge) -> None:
    with machines(judge.settings) as team:
        made(team)
        for rank in (0, 1, 3):
            team.tell(rank, do="call", count=1000000)
        team.signal(2, signal.SIGSTOP)
        time.sleep(2)
        team.signal(2, signal.SIGCONT)
        team.tell(2, do="call", count=1000000)
        assert [team.hear(rank)["result"] for rank in range(4)] == [SUCCESS] * 4


def test_a_machine_that_is_silent_is_lost(judge: Judge) -> None:
    with machines({**judge.settings, "COLLC_NET_TIMEOUT": "3"}) as team:
        made(team)
        team.signal(2, signal.SIGSTOP)
        for rank in (0, 1):
            team.tell(rank, do="call", count=1000000)
        for rank in (0, 1):
            answer = team.hear(rank)
            assert answer["result"] == REMOTE_ERROR
            assert "COLLC_NET_TIMEOUT" in answer["text"], answer


@pytest.mark.parametrize("function", ["init", "devices", "getProperties", "listen", "connect", "accept", "regMr"])
def test_a_plugin_that_fails_while_machines_join(judge: Judge, function: str) -> None:
    with machines(judge.settings, {2: {"JUDGE_FAIL": f"{function}:1"}}) as team:
        none_is_made(team, SYSTEM_ERROR, "engine plugin: ", "a system error")
    judge.lines()


@pytest.mark.parametrize("call", [2, 3, 5])
def test_memory_that_is_not_registered_is_no_communicator(judge: Judge, call: int) -> None:
    """Of heads, or of chunks. Where it fails nothing has been posted yet."""
    with machines(judge.settings, {1: {"JUDGE_FAIL": f"regMr:{call}"}}, hosts="ab", name="1+1") as team:
        none_is_made(team, SYSTEM_ERROR, "engine plugin: ", "127.0.0.1", "regMr of Judge: a system error")
        closed = [line for kind in ("closeSend", "closeRecv") for line in judge.wait_for(kind, 1)]
        assert closed
    judge.lines()


@pytest.mark.parametrize("failing", ["isend:20", "irecv:60", "test:300"])
def test_a_plugin_that_fails_later(judge: Judge, failing: str) -> None:
    """An error with the peer and the plugin's function on the machine where it fails, an error on all others."""
    with machines(judge.settings, {2: {"JUDGE_FAIL": failing}}) as team:
        if SUCCESS not in [answer["result"] for answer in team.init()]:
            return  # it has failed while messages of the creation passed
        for rank in range(4):
            team.tell(rank, do="call", count=1000000, times=100)
        answers = [team.hear(rank) for rank in range(4)]
        assert [answer["result"] for answer in answers] == [REMOTE_ERROR] * 4
        expected = f"{failing.split(':')[0]} of Judge: a system error"
        assert any(expected in answer["text"] and "127.0.0.1" in answer["text"] for answer in answers), answers
    judge.lines()


def test_chunks_that_are_too_large_are_refused(judge: Judge) -> None:
    with machines({**judge.settings, "JUDGE_MOST": "5000"}) as team:
        none_is_made(team, INVALID_USAGE, "bytes are more than Judge takes at once (5000)")


def test_a_device_must_send_from_host_memory(judge: Judge) -> None:
    with machines({**judge.settings, "JUDGE_MEMORY": "2", "JUDGE_SPEEDS": "1,2"}) as team:
        none_is_made(team, SYSTEM_ERROR, "has 2 devices, and none that sends from host memory")


def test_machines_must_have_the_same_plugin(judge: Judge) -> None:
    other = {"JUDGE_NAME": "Another"}
    with machines(judge.settings, {2: other, 3: other}) as team:
        none_is_made(team, INVALID_USAGE, "uses the network plugin", "Judge", "Another")


def test_machines_must_have_the_same_engine(judge: Judge) -> None:
    with machines({}, {2: judge.settings, 3: judge.settings}) as team:
        none_is_made(team, INVALID_USAGE, "joins over the engine ", "tcp", "plugin", ": set COLLC_NET alike")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"NCCL_NET_PLUGIN": ""}, "no network plugin of NCCL was found (libnccl-net.so: "),
        ({"NCCL_NET_PLUGIN": "none"}, "no network plugin of NCCL was found (none)"),
        ({"NCCL_NET_PLUGIN": "/nowhere/a.so"}, "no network plugin of NCCL was found (/nowhere/a.so: "),
        ({"COLLC_NET": "plugin:nowhere"}, "no network plugin of NCCL was found (nowhere: "),
        ({"NCCL_NET_PLUGIN": "libc.so.6"}, "libc.so.6 is no network plugin of NCCL: it has no ncclNetPlugin_v12"),
        ({"COLLC_NET": "plugin:libc.so.6,lo"}, "versions 8 to 12 can be used"),
    ],
)
def test_no_plugin_is_said(settings: Mapping[str, str], text: str) -> None:
    with machines({"COLLC_NET": "plugin", **settings}) as team:
        none_is_made(team, SYSTEM_ERROR, "engine plugin: ", text)


def test_a_plugin_is_found_by_a_part_of_its_name(judge: Judge, tmp_path: Path) -> None:
    """Of a list the first that can be used: one has an interface that is too old."""
    (tmp_path / "old.c").write_text("int ncclNetPlugin_v6;\n")
    old = tmp_path / "old.so"
    subprocess.run([find_cxx().path, "-x", "c", "-shared", "-fPIC", tmp_path / "old.c", "-o", old], check=True)
    (tmp_path / "libnccl-net-judge.so").symlink_to(net_plugin())
    found = {**judge.settings, "COLLC_NET": "plugin:,lo", "LD_LIBRARY_PATH": str(tmp_path)}
    with machines({**found, "NCCL_NET_PLUGIN": str(old)}) as team:
        none_is_made(team, SYSTEM_ERROR, "old.so has ncclNetPlugin_v6 at most; versions 8 to 12 can be used")
    with machines({**found, "NCCL_NET_PLUGIN": f"{old},judge"}) as team:
        made(team)


@pytest.mark.parametrize("how", ["init", "devices", "none"])
def test_a_list_is_searched_as_nccl_does(judge: Judge, how: str) -> None:
    """Past plugins that do not start, do not tell their devices, or have none."""
    settings = {**judge.settings, "COLLC_NET": "plugin:,lo", "JUDGE_REFUSES": f"{how}:12"}
    texts = {"init": "does not start: a system error", "devices": "does not tell its devices", "none": "has no devices"}
    with machines({**settings, "NCCL_NET_PLUGIN": str(net_plugin())}, hosts="ab", name="1+1") as team:
        none_is_made(team, SYSTEM_ERROR, "engine plugin: Judge (version 12, ", texts[how])
    both = f"{net_plugin()},{net_plugin(9)}"
    with machines({**settings, "NCCL_NET_PLUGIN": both}, hosts="ab", name="1+1") as team:
        made(team)
        assert len(judge.lines("start of version 9")) == MACHINES
