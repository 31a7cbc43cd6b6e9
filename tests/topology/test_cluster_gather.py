"""`collc probe --cluster`: processes of several servers meet in a folder; threads play them here."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from unittest import mock

import pytest
from support import nvml
from support.cli import collc, refused

from collc.bench.launchers import find_place
from collc.errors import CollcError, RunError, TopologyError
from collc.topology.cluster import gather as module
from collc.topology.cluster.gather import Gathered, build_own, finish, gather, leave, tell
from collc.topology.cluster.meeting import Meeting
from collc.topology.model import LinkKind
from collc.topology.probe.nvml import Gpu, NvLink

NOWHERE = Path("/nonexistent")


def gpu(index: int, gpus: int, number: int | None = None) -> Gpu:
    """A GPU with an NVLink to every other one of its server; `number` is what this process calls it."""
    links = [NvLink(j, f"0000:{j + 6:02x}:00.0", "gpu", Fraction(25), 2) for j in range(gpus) if j != index]
    at = index if number is None else number
    return Gpu(at, f"0000:{index + 6:02x}:00.0", f"GPU-{index}", "Tesla V100", (7, 0), pcie=(3, 16), links=links)


@dataclass
class Process:
    """The findings of one process: its host, its GPUs as NVML lists them, or an error; `silent` never answers."""

    host: str
    boot: str
    gpus: Sequence[Gpu] = ()
    error: str = ""
    silent: bool = False
    absent: bool = False
    driver: str = "580.65.06"
    failure: str = field(default="", init=False)


LOCAL = threading.local()


@pytest.fixture(autouse=True)
def _machines(monkeypatch: pytest.MonkeyPatch) -> None:
    def read() -> list[Gpu]:
        if LOCAL.process.error:
            raise TopologyError(LOCAL.process.error)
        # Sends copies.
        return [dataclasses.replace(gpu) for gpu in LOCAL.process.gpus]

    monkeypatch.setattr(module, "host_identity", lambda: {"host": LOCAL.process.host, "boot": LOCAL.process.boot})
    monkeypatch.setattr(module, "read_nvml", read)
    monkeypatch.setattr(module, "read_driver", lambda: LOCAL.process.driver)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def run(
    processes: Sequence[Process], folder: Path, *, partial: bool = False, seconds: float = 20, job: str = "job"
) -> Gathered | str:
    """The servers that process 0 gathers, or its refusal."""
    result: list[Gathered | str] = []

    def act(rank: int) -> None:
        process = LOCAL.process = processes[rank]
        meeting = Meeting(folder / "out.yaml", rank, len(processes), job, seconds)
        if process.silent:
            meeting.post(f"hello.{rank}", dict(module.host_identity()))
            meeting.join()
            return
        tell(meeting)
        if rank:
            build_own(meeting, None, NOWHERE)
            try:
                process.failure = "" if leave(meeting) else "not written"
            except RunError as error:
                process.failure = str(error)
            return
        ok = False
        try:
            result.append(gather(meeting, None, partial, NOWHERE))
            ok = True
        except CollcError as error:
            result.append(str(error))
        finally:
            finish(meeting, ok)

    threads = [threading.Thread(target=act, args=(rank,)) for rank, p in enumerate(processes) if not p.absent]
    # The last one first: process 0 is not the first to come.
    goodbye = 2.0 if any(p.silent for p in processes) else 60.0  # nobody is waited for in vain otherwise
    with mock.patch.object(module, "_GOODBYE_SECONDS", goodbye):
        for thread in reversed(threads):
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()
    assert [path for path in folder.iterdir() if path.name.startswith(".")] == []
    return result[0]


def good(found: Gathered | str) -> Gathered:
    assert isinstance(found, Gathered), found
    return found


def whole(host: str, boot: str, gpus: int = 4) -> Process:
    return Process(host, boot, [gpu(i, gpus) for i in range(gpus)])


def test_one_process_per_server(tmp_path: Path) -> None:
    found = good(run([whole("a", "1"), whole("b", "2"), whole("c", "3")], tmp_path))
    assert [(s.name, len(s.machine.gpus)) for s in found.servers] == [("a", 4), ("b", 4), ("c", 4)]
    assert found.lead == {"a": 0, "b": 1, "c": 2}
    assert found.notes == ()


@pytest.mark.parametrize("own_numbers", [False, True], ids=["all are visible", "each sees its own as 0"])
def test_one_process_per_gpu(own_numbers: bool, tmp_path: Path) -> None:
    """With device cgroups, NVML shows each process only one GPU; the links between these GPUs are still found."""
    processes = []
    for host in ("a", "b"):
        for i in range(4):
            gpus = [gpu(i, 4, 0)] if own_numbers else [gpu(j, 4) for j in range(4)]
            processes.append(Process(host, f"boot of {host}", gpus))
    found = good(run(processes, tmp_path))
    assert [s.name for s in found.servers] == ["a", "b"]
    for server in found.servers:
        assert [v.name for v in server.machine.gpus] == ["gpu0", "gpu1", "gpu2", "gpu3"]
        pairs = {(k.src, k.dst) for k in server.machine.links if k.kind is LinkKind.NVLINK}
        assert len(pairs) == 12
    assert found.lead == {"a": 0, "b": 4}


def test_the_allocation_of_a_job_is_what_its_processes_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3")
    found = good(run([whole("a", "1"), whole("b", "2")], tmp_path))
    assert [v.name for v in found.servers[0].machine.gpus] == ["gpu1", "gpu3"]


def test_containers_of_one_machine_are_one_server(tmp_path: Path) -> None:
    processes = [Process(f"pod{i}", "one", [gpu(i, 2, 0)]) for i in range(2)]
    found = good(run(processes, tmp_path))
    assert [(s.name, len(s.machine.gpus)) for s in found.servers] == [("pod0", 2)]


def test_servers_of_one_name_are_told_apart(tmp_path: Path) -> None:
    found = good(run([whole("localhost", "1"), whole("localhost", "2"), whole("0", "3")], tmp_path))
    assert [s.name for s in found.servers] == ["localhost", "localhost-2", "node-0"]
    assert "several servers call themselves localhost: the one of rank 1 is localhost-2 here" in found.notes


@pytest.mark.parametrize(
    ("bad", "line"),
    [
        (Process("b", "2", error="there is no NVIDIA driver on this machine"), "b: there is no NVIDIA driver"),
        (Process("b", "2", []), "b: the driver shows no GPU"),
        (Process("b", "2", silent=True), "b (rank 1) started and does not answer: does nvidia-smi hang there?"),
        (Process("b", "2", absent=True), "rank 1 of 3 did not come"),
    ],
    ids=["no driver", "no GPU", "hangs", "absent"],
)
def test_a_server_that_cannot_be_probed_is_named(bad: Process, line: str, tmp_path: Path) -> None:
    seconds = 2.0 if bad.silent or bad.absent else 20
    processes = [whole("a", "1"), bad, whole("c", "3")]
    refusal = run(processes, tmp_path, seconds=seconds)
    assert isinstance(refusal, str)
    assert line in refusal
    assert "--partial writes the file without them" in refusal
    assert len(refusal.splitlines()) == 1
    assert processes[2].failure == "not written"
    found = good(run([whole("a", "1"), bad, whole("c", "3")], tmp_path, partial=True, seconds=seconds))
    assert [s.name for s in found.servers] == ["a", "c"]
    assert any(line in note for note in found.notes)


def test_no_server_at_all_is_refused_also_in_part(tmp_path: Path) -> None:
    refusal = run([Process("a", "1", error="no driver"), Process("b", "2", error="no driver")], tmp_path, partial=True)
    assert "no server could be probed" in str(refusal)


def test_what_an_earlier_run_left_is_not_believed(tmp_path: Path) -> None:
    processes = [whole("a", "1"), whole("b", "2")]
    LOCAL.process = whole("old", "9")
    old = Meeting(tmp_path / "out.yaml", 0, 2, "job", 1)
    for rank in range(2):
        old.post(f"facts.{rank}", {"host": "old", "boot": str(rank), "gpus": [], "chosen": []})
    old.post("done", {"ok": True})
    assert [s.name for s in good(run(processes, tmp_path)).servers] == ["a", "b"]
    assert [p.failure for p in processes] == ["", ""]


def test_jobs_of_different_names_meet_apart(tmp_path: Path) -> None:
    one, other = (Meeting(tmp_path / "out.yaml", 0, 1, job, 1) for job in ("a", "b"))
    one.post("x", {"v": 1})
    assert other.look("x") is None
    assert (one.folder.stat().st_mode & 0o777) == 0o700
    one.close()
    other.close()


def test_a_folder_that_others_may_write_to_is_not_joined(tmp_path: Path) -> None:
    first = Meeting(tmp_path / "out.yaml", 0, 2, "job", 1)
    first.post("x", {})
    second = Meeting(tmp_path / "out.yaml", 1, 2, "job", 0.1)
    first.folder.chmod(0o777)
    assert second.look("x") is None
    first.folder.chmod(0o700)
    assert second.look("x") is not None
    first.close()


def test_without_process_0_the_others_give_up(tmp_path: Path) -> None:
    LOCAL.process = whole("b", "2")
    meeting = Meeting(tmp_path / "out.yaml", 1, 2, "job", 0.1)
    tell(meeting)
    build_own(meeting, None, NOWHERE)
    with pytest.raises(RunError, match="process 0 did not come, or its folder is not seen here"):
        leave(meeting)


def test_different_versions_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Meeting.post

    def post(self: Meeting, name: str, value: dict[str, object]) -> None:
        own = "0.2" if LOCAL.process.host == "b" else "0.1"
        real(self, name, {**value, "version": own} if "version" in value else value)

    monkeypatch.setattr(Meeting, "post", post)
    servers = [whole("a", "1"), whole("b", "2"), whole("c", "3")]
    servers[2].driver = "535.1"
    found = good(run(servers, tmp_path))
    assert found.notes == (
        "different versions of collc: 0.1, but 0.2 on b",
        "different versions of the driver: 580.65.06, but 535.1 on c",
    )


def test_jobs_on_several_machines_have_a_place() -> None:
    environment = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8"}
    environment["SLURM_STEP_NUM_NODES"] = "4"
    place = find_place(environment, anywhere=True)
    assert place is not None
    assert (place.rank, place.size) == (3, 8)
    hydra = {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "2"}
    place = find_place(hydra, anywhere=True)
    assert place is not None
    assert place.job == ""


def command(folder: Path, rank: int, size: int, *options: str, gpus: int = 2) -> subprocess.Popen[str]:
    """One process of an srun on this machine."""
    description = folder / f"machine{rank}.txt"
    description.write_text(nvml.h100(gpus=gpus).text())
    env = nvml.environment(folder / "libnvidia-ml.so.1", description, None)
    env |= {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": str(size)}
    argv = [sys.executable, "-m", "collc", "probe", "--cluster", *options]
    return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder)


def test_the_command_writes_one_file(tmp_path: Path) -> None:
    nvml.compile_mock(tmp_path)
    out = tmp_path / "lab.yaml"
    both = [command(tmp_path, rank, 2, "-o", str(out), "--json") for rank in (1, 0)]
    (quiet, errors), (told, _) = (process.communicate(timeout=120) for process in both)
    assert [process.returncode for process in both] == [0, 0], errors
    assert quiet == ""
    assert [len(kind["servers"]) for kind in json.loads(told)["kinds"]] == [1]
    assert "servers: [" in out.read_text()


def test_empty_names_of_interfaces_are_refused() -> None:
    for text in ("", "e0,", ","):
        line = refused(collc("probe", "--cluster", "--measure", "--interfaces", text, "-o", "x.yaml"), code=2)
        assert "an empty name in" in line


def test_the_command_needs_a_file_and_fails_on_every_rank(tmp_path: Path) -> None:
    nvml.compile_mock(tmp_path)
    process = command(tmp_path, 0, 2)
    assert "name a file on a file system that all servers share" in process.communicate(timeout=60)[1]
    assert process.returncode == 2
    first, second = (command(tmp_path, rank, 3, "-o", "lab.yaml", "--wait", "1") for rank in (0, 1))
    (_, why), (_, other) = (process.communicate(timeout=120) for process in (first, second))
    assert "rank 2 of 3 did not come" in why
    assert (first.returncode, second.returncode) == (1, 1)
    assert len(other.splitlines()) == 1
    assert not (tmp_path / "lab.yaml").exists()
    assert not list(tmp_path.glob(".lab*"))


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun here")
def test_real_processes_of_mpirun_meet(tmp_path: Path) -> None:
    nvml.compile_mock(tmp_path)
    description = tmp_path / "machine.txt"
    description.write_text(nvml.h100(gpus=2).text())
    env = nvml.environment(tmp_path / "libnvidia-ml.so.1", description, None)
    env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    argv = [
        "mpirun",
        "--oversubscribe",
        "-np",
        "2",
        sys.executable,
        "-m",
        "collc",
        "probe",
        "--cluster",
        "-o",
        "x.yaml",
    ]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "h100x2: 1 server with 2 GPUs" in (tmp_path / "x.yaml").read_text()
    assert os.listdir(tmp_path).count("x.yaml") == 1


def test_a_folder_that_somebody_still_writes_to_goes_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = shutil.rmtree
    late: list[Path] = []

    def rmtree(path: Path, ignore_errors: bool) -> None:
        real(path, ignore_errors=ignore_errors)
        if len(late) < 3:
            path.mkdir()
            late.append(path / "bye.1")
            late[-1].write_text("{}")

    meeting = Meeting(tmp_path / "out.yaml", 0, 2, "job", 1)
    monkeypatch.setattr(shutil, "rmtree", rmtree)
    meeting.close()
    assert len(late) == 3
    assert list(tmp_path.iterdir()) == []
