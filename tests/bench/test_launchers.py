"""`collc bench` as one process per rank of torchrun, mpirun, mpiexec and srun: simulated, and real where they are."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.libraries import library
from support.ports import free_port, ports_of
from support.siege import besieged
from support.tunable import tunable

from collc.bench.launchers import Place, find_place
from collc.bench.meeting import Line, address_of, gather, join
from collc.bench.team import team_of
from collc.errors import RunError, UsageError

OPTIONS = ["--collective", "all_reduce", "-b", "64", "-e", "1K", "-f", "4", "-n", "2", "-w", "1"]
COMMAND = [sys.executable, "-m", "collc", "bench"]


def torchrun(rank: int, size: int) -> dict[str, str]:
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29501", "TORCHELASTIC_RUN_ID": f"run-{os.getpid()}"}
    return {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), **shared}


def open_mpi(rank: int, size: int) -> dict[str, str]:
    numbers = {"RANK": rank, "SIZE": size, "LOCAL_RANK": rank, "LOCAL_SIZE": size}
    return {f"OMPI_COMM_WORLD_{k}": str(v) for k, v in numbers.items()} | {"PMIX_NAMESPACE": f"prte-{os.getpid()}@1"}


def hydra(rank: int, size: int) -> dict[str, str]:
    return {"PMI_RANK": str(rank), "PMI_SIZE": str(size), "MPI_LOCALRANKID": str(rank), "MPI_LOCALNRANKS": str(size)}


def srun(rank: int, size: int) -> dict[str, str]:
    step = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "1"}
    return {"SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": str(size), "SLURM_NTASKS": "99", **step}


LAUNCHERS = {
    "torchrun": torchrun,
    "mpirun (Open MPI)": open_mpi,
    "mpiexec (Hydra)": hydra,
    "srun": srun,
}


@pytest.fixture(autouse=True)
def _no_launcher_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for start in LAUNCHERS.values():
        for name in start(0, 2):
            monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_launchers_variables_are_recognized(name: str) -> None:
    places = [find_place(LAUNCHERS[name](rank, 3)) for rank in range(3)]
    assert [(place.launcher, place.rank, place.size, place.here) for place in places if place] == [
        (name, rank, 3, 3) for rank in range(3)
    ]
    assert len({place.job for place in places if place}) == 1


@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_job_of_one_process_starts_its_ranks_itself(name: str) -> None:
    assert find_place(LAUNCHERS[name](0, 1)) is None


def test_no_launcher() -> None:
    assert find_place({}) is None
    # A batch script, and a shell of salloc: variables of the job, but no step.
    assert (
        find_place({k: v for k, v in srun(0, 4).items() if k not in ("SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS")}) is None
    )


def test_mpirun_within_srun_and_torchrun_within_both_count() -> None:
    inner = find_place({**srun(0, 2), **open_mpi(3, 4)})
    assert inner is not None
    assert (inner.rank, inner.size) == (3, 4)
    inner = find_place({**srun(0, 2), **open_mpi(3, 4), **torchrun(5, 8)})
    assert inner is not None
    assert (inner.rank, inner.size) == (5, 8)


def test_jobs_differ() -> None:
    again = {**torchrun(0, 2), "TORCHELASTIC_RESTART_COUNT": "1"}
    mine = {**hydra(0, 2), "COLLC_COMM_ID": "mine"}
    places = [find_place(e) for e in (torchrun(0, 2), again, srun(0, 2), {**srun(0, 2), "SLURM_STEP_ID": "7"}, mine)]
    assert len({place.job for place in places if place}) == 5
    assert places[-1] is not None
    assert places[-1].job == "mine"


def test_mpichs_job_is_the_process_behind_the_socket_it_hands_on() -> None:
    here, there = socket.socketpair()
    with here, there:
        place = find_place({**hydra(0, 2), "PMI_FD": str(here.fileno())})
    assert place is not None
    assert place.job == f"mpiexec (Hydra) process {os.getpid()}"


@pytest.mark.parametrize(
    "environment",
    [
        {**torchrun(0, 8), "LOCAL_WORLD_SIZE": "4"},
        {**open_mpi(0, 8), "OMPI_COMM_WORLD_LOCAL_SIZE": "4"},
        {**hydra(0, 8), "MPI_LOCALNRANKS": "4"},
        {**srun(0, 8), "SLURM_STEP_NUM_NODES": "2"},
    ],
)
def test_several_machines_are_noticed(environment: dict[str, str]) -> None:
    place = find_place(environment)
    assert place is not None
    assert place.several_machines
    assert place.here == 4
    # Hydra names no job that all machines know.
    assert bool(place.job) == ("PMI_RANK" not in environment)


@pytest.mark.parametrize(
    ("rank", "size", "why"), [("3", "3", "not a rank of"), ("-1", "3", "not a number"), ("", "3", "not a number")]
)
def test_nonsense_is_refused(rank: str, size: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        find_place({"PMI_RANK": rank, "PMI_SIZE": size})


def processes(start: object, size: int, *options: object, ranks: list[int] | None = None) -> list[tuple[int, str, str]]:
    """Exit code, standard output and standard error of each rank."""
    assert callable(start)
    running = [
        subprocess.Popen(
            [*COMMAND, *map(str, options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "COLLC_BOOTSTRAP_TIMEOUT": "60", **start(rank, size)},
        )
        for rank in (range(size) if ranks is None else ranks)
    ]
    outputs = [process.communicate(timeout=120) for process in running]
    return [(process.returncode, out, err) for process, (out, err) in zip(running, outputs, strict=True)]


@pytest.mark.parametrize("name", LAUNCHERS)
def test_rank_0_alone_prints_the_table(name: str) -> None:
    results = processes(LAUNCHERS[name], 3, library("odd"), *OPTIONS)
    assert [(code, err) for code, _, err in results] == [(0, "")] * 3, results
    assert f"3 ranks, one process each, by {name};" in results[0][1]
    assert [line.split()[0] for line in results[0][1].splitlines() if line[:1] == " "] == ["64", "256", "1024"]
    assert "# Out of bounds values : 0 OK" in results[0][1]
    assert [out for _, out, _ in results[1:]] == ["", ""]


def test_json_comes_from_rank_0_too() -> None:
    results = processes(srun, 3, library("odd"), *OPTIONS, "--json")
    assert [code for code, _, _ in results] == [0] * 3, results
    assert len(json.loads(results[0][1])["rows"]) == 6
    assert [out for _, out, _ in results[1:]] == ["", ""]


@pytest.mark.parametrize("wrong", [["-e", "8", "-b", "64"], ["--ranks", "2"]])
def test_a_refusal_is_one_line_of_rank_0(wrong: list[str]) -> None:
    results = processes(srun, 3, library("odd"), *OPTIONS, *wrong)
    assert [code for code, _, _ in results] == [2] * 3, results
    assert [len(err.splitlines()) for _, _, err in results] == [1, 0, 0], results


def test_another_number_of_ranks_than_compiled_is_one_line_of_rank_0() -> None:
    results = processes(open_mpi, 2, library("odd"), *OPTIONS)
    assert [code for code, _, _ in results] == [2, 2]
    assert [err for _, _, err in results] == ["collc: the library serves 3 ranks, not 2\n", ""]


def test_missing_ranks_are_named() -> None:
    def impatient(rank: int, size: int) -> dict[str, str]:
        return {**srun(rank, size), "COLLC_BOOTSTRAP_TIMEOUT": "2"}

    ((code, out, err),) = processes(impatient, 3, library("odd"), *OPTIONS, ranks=[0])
    assert code == 1
    assert [line for line in out.splitlines() if not line.startswith("#")] == []
    assert "ranks 1, 2 of 3 did not come within 2 s" in err
    ((code, out, err),) = processes(impatient, 3, library("odd"), *OPTIONS, ranks=[2])
    assert (code, out) == (1, "")
    assert "rank 0 did not come within 2 s" in err


def test_launcher_none_starts_ranks_here() -> None:
    ((code, out, err),) = processes(srun, 3, library("odd"), *OPTIONS, "--launcher", "none", ranks=[0])
    assert (code, err) == (0, "")
    assert "3 ranks, one process each;" in out


def place(rank: int, size: int = 2) -> Place:
    return Place("test", rank, size, size, f"test {os.getpid()}")


def test_strangers_at_the_socket_are_turned_away() -> None:
    came: list[Line] = []

    def knock() -> None:
        for message in (
            b"",
            b"{}\n",
            b"GET / HTTP/1.1\r\n\r\n",
            b'{"rank": 1, "size": 5}\n',
            b'{"rank": 0, "size": 2}\n',
        ):
            while True:
                with socket.socket(socket.AF_UNIX) as stranger:
                    try:
                        stranger.connect(address_of(place(0)))
                    except ConnectionRefusedError:
                        continue
                    stranger.sendall(message)
                break
        came.append(join(place(1)))

    visitor = threading.Thread(target=knock)
    visitor.start()
    (line,) = gather(place(0))
    visitor.join()
    line.send({"do": "close"})
    assert came[0].receive() == {"do": "close"}
    line.close()
    assert came[0].receive() is None
    came[0].close()


def test_two_benchmarks_of_one_job_do_not_mix() -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(address_of(place(0)))
        with pytest.raises(RunError, match="another benchmark of this job runs"):
            gather(place(0))


def rows_of(command: list[str]) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("# Out of bounds values : 0 OK") == 1
    return [line for line in done.stdout.splitlines() if line[:1] == " "]


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize(
    ("program", "options"),
    [
        ("mpirun.openmpi", ["--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]),
        ("mpiexec.hydra", []),
        ("mpirun.mpich", []),
    ],
)
def test_a_real_launcher(program: str, options: list[str], wrapped: bool) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"no {program} here")
    # A wrapper script that stays: the rank's parent is then not the launcher.
    shell = ["sh", "-c", '"$@"; exit $?', "sh"] if wrapped else []
    assert len(rows_of([program, *options, "-np", "3", *shell, *COMMAND, str(library("odd")), *OPTIONS])) == 3


def test_real_torchrun(tmp_path: Path) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("the extra `torch` is not installed")
    run = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"]
    assert len(rows_of([*run, "-m", "collc", "bench", str(library("odd")), *OPTIONS])) == 3


# Machines of one: processes that name themselves by COLLC_HOSTID, and meet by TCP on the loopback.


def on_two_machines(start: object, **more: str) -> object:
    """Variables of a job whose ranks are on two machines in halves."""

    def environment(rank: int, size: int) -> dict[str, str]:
        assert callable(start)
        half = str(size // 2)
        here = {"LOCAL_WORLD_SIZE": half, "OMPI_COMM_WORLD_LOCAL_SIZE": half, "MPI_LOCALNRANKS": half}
        nodes = {
            **here,
            "SLURM_STEP_NUM_NODES": "2",
            "COLLC_SOCKET_IFNAME": "lo",
            "COLLC_HOSTID": "ab"[2 * rank // size],
        }
        return {**start(rank, size), **nodes, **more}

    return environment


@pytest.mark.parametrize("board", ["a folder", pytest.param("COLLC_COMM_ID", marks=pytest.mark.slow)])
def test_ranks_of_several_machines(board: str, tmp_path: Path) -> None:
    """The folder is beside the cache; COLLC_COMM_ID is for jobs without one that all machines share."""
    more = {"COLLC_CACHE": str(tmp_path / "cache")}
    if board == "COLLC_COMM_ID":
        more = {"COLLC_CACHE": "/nonexistent", "COLLC_COMM_ID": f"tcp://127.0.0.1:{free_port()}/a-word"}
    path = library("2+2")
    results = processes(on_two_machines(hydra if "COLLC_COMM_ID" in more else srun, **more), 4, path, *OPTIONS)
    assert [code for code, _, _ in results] == [0] * 4, results
    assert [out for _, out, _ in results[1:]] == [""] * 3
    assert "4 ranks on 2 machines, one process each, by " in results[0][1]
    assert "# Out of bounds values : 0 OK" in results[0][1]
    assert not list(tmp_path.glob("cache/jobs/.*")), "nothing is left for the next job to stumble over"


# 72 bytes are what a rank says: 32 random ones, its hello, and its proof, which is wrong here.
STRANGERS = {"silent": b"", "half": b"collc", "garbage": b"\xff" * 4096, "wrong": b"\5" * 72}
EACH = 125
# And what one machine's courier says to another.
WRONG_SECRET = b"collcwr3" + b"\1" + bytes(15) + b"\1" + bytes(7) + b"\5" * 48


@pytest.mark.parametrize("command", ["bench", pytest.param("tune", marks=pytest.mark.slow)])
def test_strangers_at_the_port_between_machines_are_not_in_the_way(command: str, tmp_path: Path) -> None:
    """500 come before the other machine and stay: with half a hello, garbage, a wrong secret or nothing to say."""
    port = free_port()
    meeting = {"COLLC_CACHE": str(tmp_path), "COLLC_COMM_ID": f"tcp://127.0.0.1:{port}/a-word"}
    environment = on_two_machines(hydra, **meeting)
    path = library("2+2") if command == "bench" else tunable("2+2")
    options = OPTIONS if command == "bench" else ["--collective", "broadcast", "-b", "4K", "-e", "4K"]
    output = ["-o", str(tmp_path / "made.tuning")] if command == "tune" else []
    running: list[subprocess.Popen[str]] = []

    def start(rank: int) -> None:
        assert callable(environment)
        own = {"COLLC_BOOTSTRAP_TIMEOUT": "60", **environment(rank, 4)}
        words = [sys.executable, "-m", "collc", command, str(path), *options, *output]
        running.append(
            subprocess.Popen(
                words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **own}
            )
        )

    with contextlib.ExitStack() as stack:
        start(0)
        deadline = time.monotonic() + 60
        while port not in ports_of(running[0].pid):
            assert time.monotonic() < deadline, "rank 0 does not listen"
            time.sleep(0.05)
        before = len(os.listdir(f"/proc/{running[0].pid}/fd"))
        for words in STRANGERS.values():
            for _ in range(EACH):
                one = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
                with contextlib.suppress(ConnectionError):
                    one.sendall(words)
        # One of more than 128 seats has its oldest guest leave, whose thread closes the connection a moment later.
        while len(os.listdir(f"/proc/{running[0].pid}/fd")) > before + 128:
            assert time.monotonic() < deadline, "strangers keep more than their seats"
            time.sleep(0.05)
        assert ports_of(running[0].pid) == {port}
        for rank in (1, 2, 3):
            start(rank)
        # And at those that open while ranks make their communicators.
        stack.enter_context(besieged([process.pid for process in running], WRONG_SECRET))
        outputs = [process.communicate(timeout=120) for process in running]
    results = [(process.returncode, out, err) for process, (out, err) in zip(running, outputs, strict=True)]
    assert [code for code, _, _ in results] == [0] * 4, results
    assert [err for _, _, err in results[1:]] == [""] * 3
    said = {
        "bench": ["4 ranks on 2 machines", "# Out of bounds values : 0 OK"],
        "tune": ["broadcast, 4 ranks", "on all machines"],
    }
    assert all(words in results[0][1] for words in said[command]), results


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ("tcp://127.0.0.1/word", "is not tcp://ADDRESS:PORT/SECRET"),
        ("tcp://127.0.0.1:99999/word", "is not tcp://ADDRESS:PORT/SECRET"),
        ("tcp://127.0.0.1:80", "is not tcp://ADDRESS:PORT/SECRET"),
        ("http://127.0.0.1:80/word", "is not tcp://ADDRESS:PORT/SECRET"),
        ("", "gives the job no name that all machines know"),
    ],
)
def test_a_job_that_cannot_meet_is_told_so(monkeypatch: pytest.MonkeyPatch, named: str, why: str) -> None:
    monkeypatch.setenv("COLLC_COMM_ID", named)
    with pytest.raises(UsageError, match=why):
        gather(Place("mpiexec (Hydra)", 0, 4, 2, ""))


def test_a_port_that_is_taken_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv("COLLC_COMM_ID", f"tcp://127.0.0.1:{port}/word")
        with pytest.raises(RunError, match=f"rank 0 cannot listen on 127.0.0.1 port {port}: "):
            gather(Place("test", 0, 4, 2, "job"))


def test_who_does_not_come_to_a_job_of_several_machines_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLLC_CACHE", str(tmp_path))
    monkeypatch.setenv("COLLC_BOOTSTRAP_TIMEOUT", "1")
    monkeypatch.setenv("COLLC_SOCKET_IFNAME", "lo")
    with pytest.raises(RunError, match=r"ranks 1, 2, 3 of 4 did not come within 1 s.*which all machines must share"):
        gather(Place("test", 0, 4, 2, "job"))
    with pytest.raises(RunError, match=r"rank 3: rank 0 did not come within 1 s.*which all machines must share"):
        join(Place("test", 3, 4, 2, "job"))


def test_a_rank_on_another_machine_that_ends_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Rank 1 leaves before it gets an order."""
    path = library("pair")
    monkeypatch.setenv("COLLC_CACHE", str(tmp_path))
    monkeypatch.setenv("COLLC_SOCKET_IFNAME", "lo")
    visitor = threading.Thread(target=lambda: join(Place("test", 1, 2, 1, "job")).close())
    visitor.start()
    with pytest.raises(RunError, match=r"rank 1 at 127\.0\.0\.1: the rank ended"):  # noqa: SIM117
        with team_of(path, 2, Place("test", 0, 2, 1, "job")):
            pass
    visitor.join()
