"""The files that ranks leave when their communicator fails, and the report of `collc status --join`."""

from __future__ import annotations

import json
import signal
import stat
from pathlib import Path
from typing import Any

import pytest
from support.cli import Result, collc, refused
from support.libraries import library
from support.ranks import INVALID_USAGE, REMOTE_ERROR, Ranks, ranks
from support.running import until


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def joined(folder: Path) -> dict[str, Any]:
    """Returns the joined report of the files of one failed communicator."""
    result = collc("status", "--join", *files(folder), "--json")
    assert result.code == 0, result
    (communicator,) = json.loads(result.out)["communicators"]
    assert isinstance(communicator, dict)
    return communicator


def blamed(found: dict[str, Any]) -> dict[int, str]:
    return {one["rank"]: one["what"] for one in found["culprits"]}


def begin(team: Ranks, calls: int = 2) -> None:
    assert all(answer["result"] == 0 for answer in team.init())
    assert all(answer["result"] == 0 for answer in team.all(do="call", times=calls))


def others_wait(team: Ranks, *ranks: int) -> None:
    """Returns when these have begun their third call."""
    until(team.processes[0].pid, lambda found: all(found["ranks"][rank]["newest"] == 3 for rank in ranks))


def test_a_killed_rank_is_named_by_the_files_of_the_others(tmp_path: Path) -> None:
    with ranks(library("dgx1v"), 8, COLLC_DUMP=str(tmp_path)) as team:
        begin(team)
        for rank in (0, 1, 2, 3, 4, 6, 7):
            team.tell(rank, do="call")
        others_wait(team, 0, 1, 2, 3, 4, 6, 7)
        team.signal(5, signal.SIGKILL)
        for rank in (0, 1, 2, 3, 4, 6, 7):
            assert team.hear(rank)["result"] == REMOTE_ERROR
        killed = team.processes[5].pid
    found = files(tmp_path)
    assert [path.name.rpartition("-")[2] for path in found] == [f"rank{r}.json" for r in (0, 1, 2, 3, 4, 6, 7)]
    assert {stat.S_IMODE(path.stat().st_mode) for path in found} == {0o600}
    what = blamed(joined(tmp_path))
    assert list(what) == [5]
    assert "has died" in what[5]
    assert f"process {killed}" in what[5]
    assert "its last call is 2, all_reduce of 100 elements of float32 (sum)" in what[5]
    # One file is enough: each file has the last calls of a rank that died before it could write a file.
    result = collc("status", "--join", found[0])
    assert "rank 5 its process has died" in result.out


def test_the_rank_with_another_call_is_named(tmp_path: Path) -> None:
    with ranks(library("odd"), 3, COLLC_DUMP=str(tmp_path)) as team:
        begin(team)
        for rank in (0, 2):
            team.tell(rank, do="call")
        others_wait(team, 0, 2)
        team.tell(1, do="call", collective="broadcast", count=9)
        assert [team.hear(rank)["result"] for rank in range(3)] == [INVALID_USAGE] * 3
    found = joined(tmp_path)
    what = blamed(found)
    assert list(what) == [1]
    assert "call 3 is broadcast of 9 elements of float32, root 0" in what[1]
    assert "the others' is all_reduce of 100 elements of float32 (sum)" in what[1]
    assert "calls differ" in found["failure"]


@pytest.mark.slow
def test_the_rank_that_stays_behind_is_named_when_it_gives_up(tmp_path: Path) -> None:
    with ranks(library("odd"), 3, COLLC_DUMP=str(tmp_path)) as team:
        begin(team)
        for rank in (0, 2):
            team.tell(rank, do="call")
        others_wait(team, 0, 2)
        assert team.ask(1, do="abort")["result"] == 0
        assert [team.hear(rank)["result"] for rank in (0, 2)] == [REMOTE_ERROR] * 2
    # It was in no call, so it has nothing to tell.
    assert [path.name.rpartition("-")[2] for path in files(tmp_path)] == ["rank0.json", "rank2.json"]
    what = blamed(joined(tmp_path))
    assert list(what) == [1]
    # The others may have seen that it left, or not yet.
    assert "has destroyed its communicator" in what[1] or "has not made call 3" in what[1]
    assert "its last call is 2, all_reduce" in what[1]


@pytest.mark.slow
def test_the_rank_that_stays_behind_is_named_after_the_time_limit(tmp_path: Path) -> None:
    with ranks(library("odd"), 3, COLLC_DUMP=str(tmp_path), COLLC_TIMEOUT="10") as team:
        begin(team)
        for rank in (0, 2):
            team.tell(rank, do="call")
        assert [team.hear(rank)["result"] for rank in (0, 2)] == [REMOTE_ERROR] * 2
        assert len(files(tmp_path)) == 2
        what = blamed(joined(tmp_path))
        assert list(what) == [1]
        assert "has not made call 3" in what[1]
        # It learns of it at its next call, and leaves a file too.
        assert team.ask(1, do="call")["result"] == REMOTE_ERROR
    assert len(files(tmp_path)) == 3
    assert list(blamed(joined(tmp_path))) == [1]


def test_the_entries_are_those_of_pytorchs_flight_recorder(tmp_path: Path) -> None:
    with ranks(library("pair"), 2, COLLC_DUMP=str(tmp_path)) as team:
        begin(team, calls=100)
        team.tell(0, do="call", collective="recv", root=1)
        until(team.processes[0].pid, lambda found: found["ranks"][0]["in"] is not None)
        team.signal(1, signal.SIGKILL)
        assert team.hear(0)["result"] == REMOTE_ERROR
    (path,) = files(tmp_path)
    record = json.loads(path.read_text())
    assert record["format"] == "collc-flight/1"
    assert (record["rank"], record["nranks"], record["error"]["result"]) == (0, 2, REMOTE_ERROR)
    entries = record["entries"]
    assert [one["collective_seq_id"] for one in entries if not one["is_p2p"]] == [*range(37, 101)]
    assert [one["p2p_seq_id"] for one in entries if one["is_p2p"]] == [1]
    for one in entries[:-1]:
        assert one["profiling_name"] == "collc:all_reduce"
        assert one["state"] == "completed"
        assert one["time_created_ns"] <= record["time_ns"]
    assert entries[-1]["state"] == "started"
    times = [one["time_created_ns"] for one in entries]
    assert times == sorted(times)
    # The record's time is wall-clock time.
    assert times[-1] < record["time_ns"]
    assert abs(record["time_ns"] / 1e9 - path.stat().st_mtime) < 600


@pytest.mark.slow
def test_nothing_is_left_without_a_failure_or_without_the_variable(tmp_path: Path) -> None:
    for settings in ({"COLLC_DUMP": str(tmp_path)}, {}):
        with ranks(library("pair"), 2, **settings) as team:
            begin(team)
            if settings:
                assert [answer["result"] for answer in team.all(do="abort")] == [0, 0]
            else:
                team.tell(0, do="call")
                team.signal(1, signal.SIGKILL)
                assert team.hear(0)["result"] == REMOTE_ERROR
    assert files(tmp_path) == []


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_to_changes_nothing_but_the_log(tmp_path: Path) -> None:
    with ranks(library("pair"), 2, COLLC_DUMP=str(tmp_path / "missing")) as team:
        begin(team)
        team.tell(0, do="call")
        team.signal(1, signal.SIGKILL)
        answer = team.hear(0)
        assert answer["result"] == REMOTE_ERROR
        assert "rank 1" in answer["text"]
    assert files(tmp_path) == []


def record(**changes: Any) -> dict[str, Any]:
    good = {"format": "collc-flight/1", "communicator": "00", "nranks": 2, "rank": 0, "pid": 1, "host": "", "gpu": ""}
    rest = {"library": "x", "error": {"result": 6, "text": "e"}, "time_ns": 5, "entries": [], "peers": []}
    return {**good, **rest, **changes}


def refuse(folder: Path, *records: object) -> str:
    paths = []
    for number, one in enumerate(records):
        paths.append(folder / f"{number}.json")
        paths[-1].write_text(json.dumps(one))
    result: Result = collc("status", "--join", *paths)
    line = refused(result)
    assert line.startswith(f"collc: {folder}")
    assert line.endswith(")")
    return line


NEEDED = {"collective_seq_id": 1, "profiling_name": "collc:reduce", "call": "c", "history": "0", "state": "started"}
ENTRY = {**NEEDED, "p2p_seq_id": 0, "is_p2p": False, "time_created_ns": 1}


@pytest.mark.parametrize("key", [*record()])
def test_every_key_of_a_record_must_be_there(tmp_path: Path, key: str) -> None:
    refuse(tmp_path, {name: value for name, value in record().items() if name != key})


@pytest.mark.parametrize("key", [*NEEDED, "time_created_ns"])
def test_every_key_of_a_call_must_be_there(tmp_path: Path, key: str) -> None:
    (tmp_path / "good.json").write_text(json.dumps(record(entries=[ENTRY])))
    assert collc("status", "--join", tmp_path / "good.json").code == 0
    refuse(tmp_path, record(entries=[{name: value for name, value in ENTRY.items() if name != key}]))


@pytest.mark.parametrize(
    "change",
    [
        *({"rank": 2}, {"rank": -1}, {"rank": True}, {"nranks": 0}, {"nranks": 1 << 40}, {"entries": [1]}),
        *({"peers": [[]]}, {"error": None}, {"time_ns": "now"}, {"entries": [{**ENTRY, "state": "done"}]}),
    ],
)
def test_records_that_make_no_sense_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    refuse(tmp_path, record(**change))


def test_files_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    assert "like" in refuse(tmp_path, record(), record())
    assert "3 ranks" in refuse(tmp_path, record(), record(rank=1, nranks=3))
    assert "--join needs files" in refused(collc("status", "--join"), code=2)
