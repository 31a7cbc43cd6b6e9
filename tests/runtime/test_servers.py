"""Communicators over several machines: their results, and the errors of survivors when something goes wrong.

Groups of processes with one COLLC_HOSTID stand for a machine. They exchange data with other groups over TCP on the
loopback, and share memory only within the group.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.failures import a_killed_rank_is_named, a_silent_server_is_named
from support.leavings import holdings, nothing_more_in_the_end
from support.libraries import client, fake_nccl, library, run_client
from support.openssl import needs_tls
from support.ranks import INVALID_USAGE, REMOTE_ERROR, SUCCESS, Ranks

HERE = Path(__file__).parent
LOOPBACK = {"COLLC_SOCKET_IFNAME": "lo"}
TLS = {"COLLC_NET_TLS": "1"}
PARTED = "2+2:0-3/0,2/1,3/0-2/0-1/2-3"


@contextmanager
def machines(hosts: str, name: str = "2+2", inside: Sequence[str] = (), **environment: str) -> Iterator[Ranks]:
    """A process per letter; those with equal letters are one machine. The communicator is made."""
    team = Ranks(library(name), len(hosts), {**LOOPBACK, **environment}, hosts=hosts, inside=inside)
    try:
        assert [answer["result"] for answer in team.init()] == [SUCCESS] * len(hosts)
        yield team
    finally:
        team.close()


def on(hosts: str, **more: str) -> dict[str, str]:
    return {**LOOPBACK, "RANK_HOSTS": hosts, **more}


@pytest.mark.parametrize("hosts", ["aabb", pytest.param("abba", marks=pytest.mark.slow)])
def test_every_collective_type_operation_and_root(hosts: str) -> None:
    """Ranks of one machine need not be consecutive: they still become GPUs of one server."""
    run_client([client(HERE / "client.c", "2+2"), "processes", "4"], settings=on(hosts))


def test_groups_transfers_and_scaled_sums() -> None:
    run_client([client(HERE / "api.c", "2+2"), "processes", "4"], settings=on("aabb"))


@pytest.mark.parametrize("protocol", ["Simple", "LL"])
def test_slots_and_lines_alone(protocol: str) -> None:
    run_client([client(HERE / "api.c", "2+2"), "processes", "4"], settings=on("aabb", COLLC_PROTO=protocol))


def test_splits_and_shrinks() -> None:
    """Parts across machines, {0,2} and {1,3}, and inside each; three of four after one has gone."""
    program = client(HERE / "parts.c", PARTED)
    run_client([program, "processes", "4"], settings=on("aabb"))


@pytest.mark.parametrize(
    "settings",
    [{}, pytest.param(TLS, marks=needs_tls), pytest.param({**TLS, "COLLC_NET_STREAMS": "3"}, marks=needs_tls)],
    ids=["plain", "TLS", "TLS, rails"],
)
def test_the_same_bits_as_on_one_machine(settings: dict[str, str]) -> None:
    program = client(HERE / "bits.c", "2+2")
    several = run_client([program, "processes", "4"], "\n", on("aabb", **settings)).stdout
    assert several == run_client([program, "processes", "4"], "\n", on("aaaa")).stdout


@pytest.mark.parametrize("hosts", ["aaaa", "aabb"])
def test_a_rank_that_is_suspended_in_a_split_loses_nothing(hosts: str) -> None:
    """However many parts the others would make meanwhile."""
    run_client([client(HERE / "mail.c", PARTED), "processes", "4"], settings=on(hosts, COLLC_BOOTSTRAP_TIMEOUT="100"))


@pytest.mark.parametrize("hosts", ["aaaa", "aabb"])
def test_a_mistake_in_the_list_of_a_shrink_is_known_at_once(hosts: str) -> None:
    run_client(
        [client(HERE / "mail.c", PARTED), "processes", "4", "mistake"],
        settings=on(hosts, COLLC_BOOTSTRAP_TIMEOUT="100"),
    )


@needs_tls
def test_splits_transfers_and_a_killed_rank_with_tls() -> None:
    """Ids of parts travel over the parent's connections; what dies is named as without TLS."""
    run_client([client(HERE / "parts.c", PARTED), "processes", "4"], settings=on("aabb", **TLS))
    run_client([client(HERE / "api.c", "2+2"), "processes", "4"], settings=on("aabb", **TLS))
    for victim in (2, 3):
        with machines("aabb", **TLS) as team:
            a_killed_rank_is_named(team, victim, 100000)


@needs_tls
@pytest.mark.parametrize("without", [0, 1, 3])
def test_tls_on_some_ranks_is_an_error_on_all(without: int) -> None:
    """The ranks may differ inside one machine too."""
    team = Ranks(library("2+2"), 4, {**LOOPBACK, **TLS}, hosts="aabb", own={without: {"COLLC_NET_TLS": "0"}})
    try:
        answers = team.init()
    finally:
        team.close()
    assert [answer["result"] for answer in answers] == [INVALID_USAGE] * 4
    for answer in answers:
        assert "COLLC_NET_TLS=1 on rank " in answer["text"]
        assert f"not on rank {without} (" in answer["text"]


def pass_on(server: socket.socket, to: tuple[str, int], seen: bytearray) -> None:
    """Relays one connection, and keeps what passes."""
    caller, _ = server.accept()
    with caller, socket.create_connection(to) as listener:
        while True:
            for one, other in ((caller, listener), (listener, caller)):
                if select.select([one], [], [], 0.01)[0]:
                    data = one.recv(1 << 16)
                    if not data:
                        return
                    seen.extend(data)
                    other.sendall(data)


def test_the_secret_is_never_said() -> None:
    """The bytes that a rank sends to the listener on another machine do not contain the id's secret."""
    team, seen = Ranks(library("1+1"), 2, LOOPBACK, hosts="ab"), bytearray()
    try:
        unique = bytes.fromhex(str(team.ask(0, do="id")["id"]))
        (port,) = struct.unpack_from("!H", unique, 8)
        with socket.create_server(("127.0.0.1", 0)) as server:
            by_relay = unique[:8] + struct.pack("!H", server.getsockname()[1]) + unique[10:]
            relay = threading.Thread(target=pass_on, args=(server, ("127.0.0.1", port), seen))
            relay.start()
            team.tell(0, do="init", nranks=2, id=unique.hex(), rank=0)
            team.tell(1, do="init", nranks=2, id=by_relay.hex(), rank=1)
            assert [team.hear(rank)["result"] for rank in (0, 1)] == [SUCCESS] * 2
            relay.join(10)
    finally:
        team.close()
    secret = unique[32:48]
    assert len(seen) > 500
    assert secret not in seen
    assert secret.hex().encode() not in seen


@pytest.mark.parametrize("size", ["slot", *(pytest.param(size, marks=pytest.mark.slow) for size in ("line", "large"))])
def test_calls_that_differ(size: str) -> None:
    """Both calls are named on all ranks, whichever rank differs: every 997th of the pairs."""
    program = client(HERE / "mismatch.c", "2+2")
    done = run_client([program, "processes", "4", size, "malloc", "997", "3"], "all found\n", on("aabb"))
    assert int(done.stdout.split()[0]) > 0


@pytest.mark.parametrize("victim", [2, 3, *(pytest.param(rank, marks=pytest.mark.slow) for rank in (0, 1))])
def test_a_killed_rank_is_named_by_all(victim: int) -> None:
    """Ranks 0 and 2 have the couriers of their machines: with them the connection goes."""
    with machines("aabb") as team:
        for rank in a_killed_rank_is_named(team, victim, 100000):
            assert team.ask(rank, do="call")["result"] == REMOTE_ERROR
            assert team.ask(rank, do="destroy")["result"] == SUCCESS


@pytest.mark.parametrize(
    ("stopped", "seconds"), [(2, 2), *(pytest.param(rank, 10, marks=pytest.mark.slow) for rank in (1, 2))]
)
def test_a_stopped_process_that_goes_on_is_no_failure(stopped: int, seconds: int) -> None:
    with machines("aabb") as team:
        team.signal(stopped, signal.SIGSTOP)
        for rank in range(4):
            team.tell(rank, do="call", count=100000, times=3)
        time.sleep(seconds)
        team.signal(stopped, signal.SIGCONT)
        assert [team.hear(rank)["result"] for rank in range(4)] == [SUCCESS] * 4


def test_a_silent_machine_has_its_own_time_limit() -> None:
    with machines("aabb", COLLC_NET_TIMEOUT="2") as team:
        a_silent_server_is_named(team, 100000)


def test_a_rank_that_leaves_or_aborts_is_known_everywhere() -> None:
    with machines("aabb") as team:
        assert team.ask(3, do="destroy")["result"] == SUCCESS
        for rank in (0, 1, 2):
            team.tell(rank, do="call", count=100000)
        for rank in (0, 1, 2):
            answer = team.hear(rank)
            assert answer["result"] == REMOTE_ERROR
            assert "rank 3" in answer["text"]
    with machines("aabb") as team:
        for rank in (0, 1, 2):
            team.tell(rank, do="call", count=100000)
        assert team.ask(3, do="abort")["result"] == SUCCESS
        for rank in (0, 1, 2):
            answer = team.hear(rank)
            assert answer["result"] == REMOTE_ERROR
            assert "rank 3: ncclCommAbort was called" in answer["text"]


def test_what_a_process_has_sent_arrives_after_its_exit() -> None:
    """The root writes, leaves and exits at once, while the others have not begun to read."""
    with machines("aabb") as team:
        team.tell(0, do="call", collective="broadcast", count=20, root=0)
        assert team.hear(0)["result"] == SUCCESS
        assert team.ask(0, do="destroy")["result"] == SUCCESS
        pipe = team.processes[0].stdin
        assert pipe is not None
        pipe.close()
        time.sleep(0.3)
        for rank in (1, 2, 3):
            team.tell(rank, do="call", collective="broadcast", count=20, root=0)
        assert [team.hear(rank)["result"] for rank in (1, 2, 3)] == [SUCCESS] * 3
        for rank in (1, 2, 3):
            assert team.ask(rank, do="destroy")["result"] == SUCCESS
        assert team.processes[0].wait(20) == 0


def test_machines_that_no_set_of_gpus_fits() -> None:
    team = Ranks(library("2+2"), 4, LOOPBACK, hosts="abbb")
    try:
        answers = team.init()
    finally:
        team.close()
    assert [answer["result"] for answer in answers] == [INVALID_USAGE] * 4
    assert all("1 + 3 ranks" in answer["text"] for answer in answers)


def test_what_no_set_of_gpus_fits_goes_to_the_real_nccl() -> None:
    """Its id travels over our bootstrap to the other machine."""
    team = Ranks(library("2+2"), 4, {**LOOPBACK, "COLLC_NCCL": str(fake_nccl(HERE / "fake_nccl.c"))}, hosts="abbb")
    try:
        assert [answer["result"] for answer in team.init()] == [SUCCESS] * 4
        # The one that plays the real NCCL has no broadcast.
        refused = team.all(do="call", collective="broadcast")
    finally:
        team.close()
    assert all("ncclBroadcast: this NCCL does not have it" in answer["text"] for answer in refused), refused


def shared_bytes(process: int) -> int:
    """Returns the bytes of its machine's shared memory that a process has mapped."""
    found = 0
    for line in Path(f"/proc/{process}/maps").read_text().splitlines():
        if "memfd:collc" in line:
            begin, end = line.split()[0].split("-")
            found += int(end, 16) - int(begin, 16)
    return found


def test_a_rank_has_memory_for_the_fifos_of_its_own_machine_alone() -> None:
    """On four machines of two ranks, each rank maps less than half of the memory of a rank on one machine of eight."""
    mapped = {}
    for hosts in ("aaaaaaaa", "aabbccdd"):
        with machines(hosts, "2+2+2+2") as team:
            mapped[hosts] = [shared_bytes(process.pid) for process in team.processes]
    assert min(mapped["aaaaaaaa"]) > 0
    assert max(mapped["aabbccdd"]) < min(mapped["aaaaaaaa"]) / 2, mapped


def test_nothing_is_left_behind() -> None:
    """Descriptors, threads and shared memory of communicators that are gone."""
    with machines("aabb") as team:
        assert [answer["result"] for answer in team.all(do="call")] == [SUCCESS] * 4
        team.all(do="destroy")
        time.sleep(1.5)  # the listener of the id closes after a second, so it does not count as left behind
        before = holdings(team, [0, 1, 2, 3])
        assert [answer["result"] for answer in team.init()] == [SUCCESS] * 4
        team.all(do="call")
        team.all(do="destroy")
        nothing_more_in_the_end(team, [0, 1, 2, 3], before)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "hosts"), [("3+5", "aaabbbbb"), ("1+1+6", "abcccccc"), ("2+2+2+2", "aabbccdd")])
def test_other_shapes(name: str, hosts: str) -> None:
    run_client([client(HERE / "client.c", name), "processes", "8"], settings=on(hosts), timeout=1200)
    run_client([client(HERE / "api.c", name), "processes", "8"], settings=on(hosts), timeout=1200)


def test_waits_for_other_machines_do_not_spin() -> None:
    """Where more threads wait than there are cores, one that spins takes the core of the one that it waits for.

    In the best of several rounds: where others use the cores, each change of threads costs more.
    """
    with machines("ab", "1+1") as team:
        assert all(answer["result"] == SUCCESS for answer in team.all(do="call", count=256, times=50))
        rounds: list[float] = []
        while len(rounds) < 10 and not any(worst < 300 * 0.5e-3 for worst in rounds):
            before = [answer["seconds"] for answer in team.all(do="cpu")]
            assert all(answer["result"] == SUCCESS for answer in team.all(do="call", count=256, times=300))
            after = [answer["seconds"] for answer in team.all(do="cpu")]
            rounds.append(max(end - begin for begin, end in zip(before, after, strict=True)))
    assert min(rounds) < 300 * 0.5e-3, rounds


# The process sees cores, "0" in a shell's words, near the loopback.
NEAR = """
set -e
mount -t tmpfs none /sys/class
mkdir -p /sys/class/net/lo/device
echo "$0" > /sys/class/net/lo/device/local_cpulist
exec "$@"
"""


def cores_of_threads(process: int) -> list[str]:
    """Returns the allowed cores of each thread, in the form of the kernel."""
    told = [(task / "status").read_text() for task in Path(f"/proc/{process}/task").iterdir()]
    return [text.split("Cpus_allowed_list:")[1].split()[0] for text in told]


def test_a_courier_is_bound_near_its_card() -> None:
    """The first rank of each machine has one; no other thread is bound."""
    core = str(max(os.sched_getaffinity(0)))
    near = ["unshare", "-m", "sh", "-c", NEAR, core]
    if len(os.sched_getaffinity(0)) == 1 or subprocess.run([*near, "true"], check=False).returncode != 0:
        pytest.skip("one core, or no namespace for mounts")
    with machines("aabb", inside=near) as team:
        found = [cores_of_threads(process.pid).count(core) for process in team.processes]
        assert found == [1, 0, 1, 0]
        assert all(answer["result"] == SUCCESS for answer in team.all(do="call", count=5000))


def test_an_idle_courier_costs_little_and_finds_work_soon() -> None:
    """Nobody calls it; after a pause it looks into memory now and then. In the best of several rounds."""
    costs: list[float] = []
    waits: list[float] = []
    with machines("ab", "1+1") as team:
        while len(costs) < 5 and not (costs and min(costs) < 0.05 and min(waits) < 0.1):
            assert all(answer["result"] == SUCCESS for answer in team.all(do="call", count=256, times=50))
            time.sleep(0.2)
            began, before = time.monotonic(), [answer["seconds"] for answer in team.all(do="cpu")]
            time.sleep(0.5)
            spent = [answer["seconds"] - old for answer, old in zip(team.all(do="cpu"), before, strict=True)]
            costs.append(max(spent) / (time.monotonic() - began))
            waits.append(max(answer["seconds"] for answer in team.all(do="call", count=256)))
    assert min(costs) < 0.05, costs
    assert min(waits) < 0.1, waits  # a nap is 1 ms at most, and the rest is what else the machine does
