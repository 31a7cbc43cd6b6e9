"""COLLC_CHECK and `collc doctor --job`: every pair of the plan carries what is sent, and one that does not is named."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.cli import collc, refused
from support.libraries import library, shared_library
from support.netlab import NoLab, lab
from support.ranks import INVALID_USAGE, SUCCESS, SYSTEM_ERROR, Ranks, ranks

BAD_LINK = Path(__file__).parent / "bad_link.c"
LOOPBACK = {"COLLC_SOCKET_IFNAME": "lo"}


def pairs_of(found: str) -> dict[tuple[int, int], dict[str, object]]:
    return {(one["source"], one["target"]): one for one in json.loads(found)["pairs"]}


@pytest.mark.parametrize(
    ("machine", "nranks", "count"), [("odd", 3, 6), pytest.param("dgx1v", 8, 32, marks=pytest.mark.slow)]
)
def test_all_pairs_of_a_plan_are_checked(machine: str, nranks: int, count: int) -> None:
    """DGX-1V: each GPU has NVLinks to four others, and the plan uses both directions of all of them."""
    pairs = pairs_of(collc("doctor", "--job", library(machine), "--json").out)
    assert len(pairs) == count
    for (source, target), one in pairs.items():
        assert (target, source) in pairs
        assert one["link"] == "nvlink"
        assert one["verdict"] == "good"
        assert one["gbps"]
        # Shared memory stands for the links: there is nothing to compare with.
        assert one["topology_gbps"] is None
    assert {source for source, _ in pairs} == {*range(nranks)}


def test_one_rank_that_asks_makes_all_check_and_the_communicator_works_after_it() -> None:
    with ranks(library("odd"), 3) as team:
        team.ask(1, do="environment", name="COLLC_CHECK", value="1")
        assert [answer["result"] for answer in team.init()] == [SUCCESS] * 3
        assert [answer["result"] for answer in team.all(do="call", count=1000)] == [SUCCESS] * 3
        assert [answer["result"] for answer in team.all(do="split", color=0)] == [SUCCESS] * 3


def test_a_wrong_value_is_told_on_all_ranks() -> None:
    with ranks(library("pair"), 2) as team:
        team.ask(1, do="environment", name="COLLC_CHECK", value="yes")
        answers = team.init()
    assert answers[1]["result"] == INVALID_USAGE
    for answer in answers:
        assert answer["result"] != SUCCESS
        assert "COLLC_CHECK=yes is not a number from 0 to 1" in answer["text"]


def test_a_pair_whose_copies_are_wrong_is_named_on_all_ranks() -> None:
    environment = {"LD_PRELOAD": str(shared_library(BAD_LINK)), "COLLC_CHECK": "1"}
    with ranks(library("odd"), 3, **environment) as team:
        team.ask(2, do="environment", name="BAD_PEER", value=str(team.processes[1].pid))
        team.ask(2, do="environment", name="BAD_LINK", value="copy")
        answers = team.init()
    for answer in answers:
        assert answer["result"] == SYSTEM_ERROR
        assert re.search(
            r"COLLC_CHECK: from rank 1 \(gpu1\) to rank 2 \(gpu2\), gpu1 -nvlink- gpu2: 1 of \d+ bytes are wrong, "
            r"the first is byte \d+, 0x(..) for 0x(..) \(read out of the sender's memory\)$",
            answer["text"],
        ), answer["text"]
    # The same plant with nothing told: the other pairs are good, and so is this one by slots.
    with ranks(library("odd"), 3, **environment, COLLC_DIRECT="0") as team:
        team.ask(2, do="environment", name="BAD_PEER", value=str(team.processes[1].pid))
        team.ask(2, do="environment", name="BAD_LINK", value="copy")
        assert [answer["result"] for answer in team.init()] == [SUCCESS] * 3


@pytest.mark.slow
def test_a_wire_that_turns_bits_is_named() -> None:
    """Rank 2 is the courier of its machine: what goes there is wrong, what comes from there is not."""
    environment = {**LOOPBACK, "LD_PRELOAD": str(shared_library(BAD_LINK)), "COLLC_CHECK": "1"}
    team = Ranks(library("2+2"), 4, environment, hosts="aabb")
    try:
        for rank in (2, 3):
            team.ask(rank, do="environment", name="BAD_LINK", value="wire")
        answers = team.init()
    finally:
        team.close()
    for answer in answers:
        assert answer["result"] == SYSTEM_ERROR
        wrong = re.findall(
            r"from rank (\d) \(gpu\d\) on \S+ to rank (\d) \(gpu\d\) on \S+, gpu\d -pcie- nic0 -net-", answer["text"]
        )
        assert wrong, answer["text"]
        assert {source for source, _ in wrong} <= {"0", "1"}
        assert {target for _, target in wrong} <= {"2", "3"}


def job_on_two_machines(
    command: list[str | Path], environment: dict[str, str], where: Sequence[list[str]] = ([], [])
) -> list[subprocess.CompletedProcess[str]]:
    """Four processes, as mpiexec starts them; two of them on each of two machines, which `where` enters."""
    started = []
    for rank in range(4):
        place = {"PMI_RANK": str(rank), "PMI_SIZE": "4", "PMI_JOBID": f"check-{os.getpid()}"}
        env = {**os.environ, **place, "COLLC_HOSTID": "aabb"[rank], **environment}
        pipe = subprocess.PIPE
        full = [*where[rank // 2], sys.executable, "-m", "collc", *map(str, command)]
        started.append(subprocess.Popen(full, stdout=pipe, stderr=pipe, text=True, env=env))
    try:
        said = [process.communicate(timeout=150) for process in started]
    finally:
        for process in started:
            process.kill()
    done = zip(started, said, strict=True)
    return [subprocess.CompletedProcess(p.args, p.returncode, out, err) for p, (out, err) in done]


def check_slow_wires(done: list[subprocess.CompletedProcess[str]]) -> None:
    """Rank 0 says that the pairs between the machines are slow, and no others."""
    assert [one.returncode for one in done] == [0] * 4, done
    assert [one.stdout for one in done[1:]] == [""] * 3
    pairs = pairs_of(done[0].stdout)
    assert any(source // 2 != target // 2 for source, target in pairs)
    for (source, target), one in pairs.items():
        crosses = source // 2 != target // 2
        assert one["verdict"] == ("slow" if crosses else "good")
        assert one["topology_gbps"] == (10 if crosses else None)
        assert (f"slow from rank {source} (gpu{source}) on " in done[0].stderr) or not crosses, done[0].stderr
    assert "the topology says 10" in done[0].stderr


@pytest.mark.slow
def test_a_slow_rail_is_warned_of_under_a_launcher() -> None:
    """Each read takes 20 ms where the topology predicts 0.1 ms: the wires are slow, and the other pairs are not."""
    environment = {**LOOPBACK, "LD_PRELOAD": str(shared_library(BAD_LINK)), "BAD_LINK": "slow"}
    check_slow_wires(job_on_two_machines(["doctor", "--job", library("2+2"), "--json"], environment))


@pytest.mark.slow
def test_a_throttled_rail_of_a_lab() -> None:
    """Links of 100 Mbit/s where the topology says 80 Gbit/s."""
    command: list[str | Path] = ["doctor", "--job", library("2+2"), "--json"]
    try:
        with lab("ab") as made:
            environment = {"MPI_LOCALNRANKS": "2", "COLLC_COMM_ID": f"tcp://{made.address('a')}:29613/word"}
            inside = [made.inside(server) for server in "ab"]
            check_slow_wires(job_on_two_machines(command, environment, inside))
    except NoLab as error:
        pytest.skip(f"no network namespaces here: {error}")


def test_what_is_asked_wrongly() -> None:
    said = [
        refused(collc("doctor", library("pair")), code=2),
        refused(collc("doctor", "--ranks", 2), code=2),
        refused(collc("doctor", "--job", "--net", library("pair")), code=2),
        refused(collc("doctor", "--job", library("pair"), "--ranks", 3), code=2),
    ]
    assert ["--job" in line for line in said] == [True, True, True, False]
    assert "serves 2 ranks, not 3" in said[3]
