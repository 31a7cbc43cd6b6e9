"""`collc tune` on a real library: what it writes is what the runtime takes, and an interrupted run goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.cli import collc
from support.libraries import library
from support.ranks import SUCCESS, ranks
from support.tunable import tunable

from collc.checker.library import read_manifest
from collc.collectives.model import Collective
from collc.errors import RunError, UsageError
from collc.tune import run as tune_run
from collc.tune.files import State
from collc.tune.meter import Call, Guard, Measured, TeamMeter
from collc.tune.run import TuneReport, TuneRequest, tune
from collc.tune.search import Point

# One batch per program: these tests ask what is written, not what is fast.
HASTY = Guard(batch_seconds=0.0, repeats=1, rounds=1, most_iters=1)
COLLECTIVES = (Collective.ALL_REDUCE, Collective.BROADCAST)


def request(output: Path, **changes: Any) -> TuneRequest:
    values = {"collectives": COLLECTIVES, "min_bytes": 1 << 12, "max_bytes": 1 << 16, "factor": 16, "guard": HASTY}
    return TuneRequest(tunable(), output, **{**values, **changes})


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> TuneReport:
    output = tmp_path_factory.mktemp("tune") / "odd.tuning"
    return tune(request(output))


def test_the_runtime_takes_what_was_written(tuned: TuneReport) -> None:
    with ranks(tunable(), 3, COLLC_TUNING=str(tuned.output), COLLC_DEBUG="WARN") as team:
        assert [answer["result"] for answer in team.init()] == [SUCCESS] * 3
        for root in range(3):
            answers = team.all(do="call", collective="broadcast", root=root, count=3000)
            assert [answer["result"] for answer in answers] == [SUCCESS] * 3
    script = """
import ctypes, json, sys
from pathlib import Path
from collc.bench.nccl import Nccl
nccl = Nccl(Path(sys.argv[1]))
comms = (ctypes.c_void_p * 3)()
nccl.check(nccl.lib.ncclCommInitAll(comms, 3, None), "ncclCommInitAll")
ask = nccl.lib.collc_program_of
ask.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint64]
print(json.dumps([[ask(comms[0], 0, -1, size) for size in json.loads(sys.argv[2])]]))
"""
    all_reduce = tuned.tuned[0]
    sizes = [row.min_bytes for row in all_reduce.rows]
    command = [sys.executable, "-c", script, str(tunable()), json.dumps(sizes)]
    environment = {"COLLC_TUNING": str(tuned.output), "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=True)
    assert done.stderr == ""
    assert json.loads(done.stdout) == [[row.program for row in all_reduce.rows]]


def test_the_file_names_every_root_and_says_what_it_chose(tuned: TuneReport) -> None:
    lines = tuned.output.read_text().splitlines()
    manifest = read_manifest(tunable())
    assert lines[:3] == ["collc-tuning/1", f"library {manifest['build_id']}", f"machine {tuned.machine}"]
    assert [line for line in lines if line.startswith("table")] == [
        "table 0 all_reduce -",
        "table 0 broadcast 0",
        "table 0 broadcast 1",
        "table 0 broadcast 2",
    ]
    rows = [line.split() for line in lines if line[0].isdigit()]
    assert lines[-1] == f"end {len(rows)}"
    programs = manifest["allocations"][0]["programs"]
    for row in rows:
        assert row[3].startswith(programs[int(row[1])]["plan"] + "/Simple/")
    # All roots run the same variants.
    variants: dict[str, list[tuple[str, int]]] = {}
    for line in lines[3:-1]:
        if line.startswith("table"):
            key = line
        elif line[0].isdigit():
            program = programs[int(line.split()[1])]
            variants.setdefault(key, []).append((program["plan"], program["chunk_bytes"]))
    assert variants["table 0 broadcast 0"] == variants["table 0 broadcast 1"] == variants["table 0 broadcast 2"]


def test_nothing_is_left_beside_the_output(tuned: TuneReport) -> None:
    assert [path.name for path in tuned.output.parent.iterdir()] == ["odd.tuning"]


def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "odd.tuning"
    measured: list[int] = []
    real = TeamMeter.measure

    def dies(self: TeamMeter, call: Call, programs: Sequence[int]) -> Measured:
        if len(measured) == 12:
            raise RunError("a rank died")
        measured.append(call.count)
        return real(self, call, programs)

    monkeypatch.setattr(TeamMeter, "measure", dies)
    with pytest.raises(RunError, match="a rank died"):
        tune(request(output))
    assert not output.exists()
    state = json.loads((tmp_path / "odd.tuning.state").read_text())
    points = sum(map(len, state["points"].values()))
    assert points >= 1
    monkeypatch.setattr(TeamMeter, "measure", real)
    report = tune(request(output))
    assert report.resumed == points
    assert output.exists()
    assert not (tmp_path / "odd.tuning.state").exists()
    assert tune(request(output)).resumed == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"format": "collc-tuning-state/1"}',
        '{"format": "collc-tuning-state/1", "run": {"library": "a"}, "points": {"all_reduce": [1]}}',
        '{"format": "collc-tuning-state/1", "run": {"library": "a"}, "points": {"all_reduce": [{"bytes": -1}]}}',
        '{"format": "collc-tuning-state/1", "run": {"library": "b"}, "points": {}}',
        "[" * 100000,
    ],
)
def test_a_broken_state_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.state").write_text(text)
    state = State(tmp_path / "x", {"library": "a"})
    assert state.load() == 0
    assert state.points == {}


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    point = Point(1024, 3, 0, 1.5, 2.5, True)
    State(tmp_path / "x", {"library": "a"}).add("all_reduce", point)
    state = State(tmp_path / "x", {"library": "a"})
    assert state.load() == 1
    assert state.points == {"all_reduce": {1024: point}}
    assert State(tmp_path / "x", {"library": "b"}).load() == 0


def test_the_command_prints_before_and_after_and_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune_run, "Guard", lambda: HASTY)
    monkeypatch.setenv("COLLC_TUNING", str(tmp_path / "absent"))
    out = tmp_path / "o.tuning"
    arguments = ["tune", tunable(), "-o", out, "--collective", "reduce", "-b", "4K", "-e", "4K"]
    done = collc(*arguments)
    assert done.code == 0, done
    assert "reduce, 3 ranks" in done.out
    assert f"use it with COLLC_TUNING={out}" in done.out
    value = json.loads(collc(*arguments, "--json").out)
    assert value["tuning"] == str(out)
    assert [one["collective"] for one in value["collectives"]] == ["reduce"]
    assert [point["bytes"] for point in value["collectives"][0]["points"]] == [4096]


def test_what_cannot_be_tuned_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nothing to choose from.*--tune-candidates"):
        tune(TuneRequest(library("odd"), tmp_path / "x"))
    for changes, said in (
        ({"min_bytes": 8, "max_bytes": 4}, "-e 4 is below -b 8"),
        ({"min_bytes": 0}, "-b 0 cannot grow"),
        ({"factor": 1}, "never end"),
    ):
        with pytest.raises(UsageError, match=said):
            tune(request(tmp_path / "x", **changes))
    with pytest.raises(UsageError, match="serves 3 ranks, not 2"):
        tune(request(tmp_path / "x", ranks=2))
    with pytest.raises(UsageError, match="has no alltoall"):
        tune(request(tmp_path / "x", collectives=(Collective.ALLTOALL,)))


@pytest.mark.slow
def test_under_a_launcher_rank_0_writes_the_file(tmp_path: Path) -> None:
    """Three processes as srun starts them; the others say nothing."""
    output = tmp_path / "odd.tuning"
    path = str(tunable())
    command = [sys.executable, "-m", "collc", "tune", path, "-o", str(output), "--collective", "broadcast"]
    step = {"SLURM_JOB_ID": f"tune-{os.getpid()}", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "1"}
    running = [
        subprocess.Popen(
            [*command, "-b", "4K", "-e", "4K"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **step, "SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": "3"},
        )
        for rank in range(3)
    ]
    outputs = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0] * 3, outputs
    assert f"wrote {output} for " in outputs[0][0]
    assert [out + err for out, err in outputs[1:]] == ["", ""]
    assert output.read_text().startswith("collc-tuning/1\n")


def test_a_job_that_tune_refuses_is_refused_by_all_and_told_by_rank_0(tmp_path: Path) -> None:
    path = str(tunable())
    for rank in range(2):
        names = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "1"}
        place = {**names, "SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": "2"}
        command = [sys.executable, "-m", "collc", "tune", path, "-o", str(tmp_path / "odd.tuning")]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **place}, check=False)
        assert done.returncode == 2
        assert done.stderr == ("" if rank else "collc: the library serves 3 ranks, not 2\n")


def test_machines_of_different_kinds_are_refused() -> None:
    class OddTeam:
        def all(self, order: dict[str, Any]) -> list[dict[str, Any]]:
            return [{"machine": "A"}, {"machine": "A"}, {"machine": "B"}]

    with pytest.raises(RunError, match="ranks 0 and 2 are of different kinds: A, B"):
        tune_run._kind_of_machines(OddTeam())  # type: ignore[arg-type]
