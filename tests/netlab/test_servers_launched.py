"""`collc bench`, `collc tune` and collc.torch under torchrun and mpirun: processes on several servers of a lab."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from support.libraries import library
from support.netlab import Lab, NoLab, lab
from support.tunable import tunable

from collc.build.cache import cache_dir
from collc.torch.library import library_for

TESTS = Path(__file__).parent.parent
COLLC = [sys.executable, "-m", "collc"]
OPTIONS = ["--collective", "all_reduce", "-b", "1K", "-e", "64K", "-f", "64", "-n", "2", "-w", "1"]
LONG = ["--collective", "all_reduce", "-b", "1K", "-e", "1M", "-f", "1024", "-n", "200"]
PORT = "29611"


@pytest.fixture(scope="module")
def two() -> Iterator[Lab]:
    try:
        with lab("ab") as made:
            yield made
    except NoLab as error:
        pytest.skip(f"no network namespaces here: {error}")


def environment(cache: Path, **more: str) -> dict[str, str]:
    """Servers share a home folder, and so a cache; the libraries of the tests are made already."""
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    return {**os.environ, "COLLC_BOOTSTRAP_TIMEOUT": "60", "COLLC_CACHE": str(cache), **threads, **more}


def finished(started: Sequence[subprocess.Popen[str]], seconds: float = 150) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of each; none is left."""
    try:
        outputs = [process.communicate(timeout=seconds) for process in started]
    finally:
        for process in started:
            process.kill()
    return [(process.returncode, out, err) for process, (out, err) in zip(started, outputs, strict=True)]


def torchrun(made: Lab, here: dict[str, int], command: Sequence[str | Path], env: dict[str, str]) -> list[str]:
    """Returns the output of torchrun's agents, one per server. `here` is the number of ranks on each server."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("the extra `torch` is not installed")
    agents = []
    for number, (server, ranks) in enumerate(here.items()):
        run = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", f"--nnodes={len(here)}"]
        run += [f"--nproc-per-node={ranks}", f"--node-rank={number}", f"--master-addr={made.address(next(iter(here)))}"]
        run += [f"--master-port={PORT}"]
        full = [*made.inside(server), *run, *map(str, command)]
        agents.append(subprocess.Popen(full, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env))
    results = finished(agents)
    assert [code for code, _, _ in results] == [0] * len(here), results
    return [out for _, out, _ in results]


def mpirun(made: Lab, here: dict[str, int], command: Sequence[str | Path], env: dict[str, str], folder: Path) -> str:
    """Returns the output of Open MPI's mpirun, which starts its daemons through a stand-in for ssh."""
    program = shutil.which("mpirun.openmpi")
    if program is None:
        pytest.skip("no mpirun of Open MPI here")
    agent = folder / "agent"
    cases = "\n".join(f'{made.address(s)}) set -- {shlex.join(made.inside(s))} sh -c "$*" ;;' for s in made.servers)
    skip = 'while [ "${1#-}" != "$1" ]; do shift; done'
    agent.write_text(f'#!/bin/sh\n{skip}\nhost=$1; shift\ncase $host in\n{cases}\nesac\nexec "$@"\n')
    agent.chmod(0o755)
    hosts = ",".join(f"{made.address(server)}:{ranks}" for server, ranks in here.items())
    first = next(iter(here))
    rules = [
        "--mca",
        "plm_rsh_agent",
        str(agent),
        "--mca",
        "oob_tcp_if_include",
        "e0",
        "--mca",
        "orte_keep_fqdn_hostnames",
        "1",
    ]
    options = [*(["--allow-run-as-root"] if os.geteuid() == 0 else []), "--oversubscribe", "--bind-to", "none"]
    full = [*made.inside(first), program, *rules, *options, "--host", hosts, *map(str, command)]
    started = subprocess.Popen(full, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    ((code, out, err),) = finished([started])
    assert code == 0, out + err
    return out


def benchmark_on(made: Lab, cache: Path) -> dict[str, subprocess.Popen[str]]:
    """A benchmark that does not end, as two processes on each of two servers, started without a launcher."""
    started = {}
    for number, server in enumerate(made.servers):
        ranks = []
        for rank in (2 * number, 2 * number + 1):
            place = f"PMI_RANK={rank} PMI_SIZE=4 MPI_LOCALNRANKS=2"
            ranks.append(f"env {place} {shlex.join([*COLLC, 'bench', str(library('2+2')), *LONG])} &")
        meeting = f"tcp://{made.address(made.servers[0])}:{PORT}/word"
        command = [*made.inside(server), "sh", "-c", " ".join([*ranks, "wait"])]
        started[server] = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(cache, COLLC_COMM_ID=meeting),
            start_new_session=True,
        )
    return started


def test_bench_under_torchrun(two: Lab, tmp_path: Path) -> None:
    out, other = torchrun(
        two, {"a": 2, "b": 2}, ["-m", "collc", "bench", library("2+2"), *OPTIONS], environment(tmp_path)
    )
    assert "4 ranks on 2 machines, one process each, by torchrun;" in out
    assert "# Out of bounds values : 0 OK" in out
    assert other == ""


def test_bench_under_mpirun(two: Lab, tmp_path: Path) -> None:
    out = mpirun(two, {"a": 2, "b": 2}, [*COLLC, "bench", library("2+2"), *OPTIONS], environment(tmp_path), tmp_path)
    assert "4 ranks on 2 machines, one process each, by mpirun (Open MPI);" in out
    assert out.count("# Out of bounds values : 0 OK") == 1


@pytest.mark.slow
def test_tune_under_mpirun(two: Lab, tmp_path: Path) -> None:
    """The file that rank 0 writes is one that the runtime takes on both servers."""
    output = tmp_path / "cluster.tuning"
    options: list[str | Path] = ["--collective", "broadcast", "-b", "4K", "-e", "4K", "-o", output]
    here = {"a": 2, "b": 2}
    out = mpirun(two, here, [*COLLC, "tune", tunable("2+2"), *options], environment(tmp_path), tmp_path)
    assert f"use it with COLLC_TUNING={output} on all machines" in out
    used = environment(tmp_path, COLLC_TUNING=str(output))
    answers = torchrun(
        two, here, ["-m", "collc", "bench", tunable("2+2"), *OPTIONS[2:], "--collective", "broadcast"], used
    )
    assert "# Out of bounds values : 0 OK" in answers[0]


@pytest.mark.slow
@pytest.mark.parametrize("script", ["collectives.py", "point_to_point.py"])
@pytest.mark.parametrize("here", [{"a": 2, "b": 2}, {"a": 3, "b": 5}], ids=str)
def test_torch_under_torchrun(two: Lab, here: dict[str, int], script: str) -> None:
    """Without COLLC_LIBRARY: the first rank of each server has made one for these numbers of ranks."""
    library_for(list(here.values()))
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [TESTS / "torch_backend" / script]
    out, _ = torchrun(two, here, command, environment(cache_dir(), PYTHONPATH=path))
    assert "all right" in out


@pytest.mark.slow
def test_the_ring_by_hand_under_torchrun(two: Lab) -> None:
    """Equal bits beside all_reduce, on two servers of two ranks."""
    library_for([2, 2])
    out, _ = torchrun(two, {"a": 2, "b": 2}, [TESTS.parent / "examples" / "ring_by_hand.py"], environment(cache_dir()))
    assert re.findall(r"^4 ranks, (\w+): equal bits, .* ratio [\d.]+$", out, re.M) == ["4K", "256K", "4M"]


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["a", "b"])
def test_a_server_that_goes_away_ends_a_benchmark_with_its_name(two: Lab, victim: str, tmp_path: Path) -> None:
    """All processes of a server are killed in the middle of a benchmark: the others end, and rank 0 names one."""
    started = benchmark_on(two, tmp_path)
    first = started["a"].stdout
    assert first is not None
    assert any(line.startswith("# all_reduce") for line in first), "the benchmark has begun"
    time.sleep(1)
    os.killpg(started[victim].pid, signal.SIGKILL)
    other = "b" if victim == "a" else "a"
    results = dict(zip(started, finished(list(started.values()), 60), strict=True))
    _, _, errors = results[other]
    assert other == "b" or re.search(r"rank [23] at 10\.79\.0\.2|rank [23] on node-b has died", errors), errors
