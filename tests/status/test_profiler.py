"""NCCL's profiler plugins hear of our calls: versions 4 to 6 of the interface, with NCCL's headers where they are."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from support.grouped import run_group
from support.libraries import library
from support.profiler import plugin
from support.ranks import REMOTE_ERROR, SUCCESS, ranks
from support.running import until


def told(path: Path, process: int) -> list[str]:
    return path.with_name(f"{path.name}.{process}").read_text().splitlines()


def settings(folder: Path, versions: str, **more: str) -> dict[str, str]:
    return {"NCCL_PROFILER_PLUGIN": str(plugin(versions)), "PROFILER_TEST": str(folder / "told"), **more}


ALL_REDUCE = "coll {} AllReduce 100 ncclFloat32 -1 PLAN SIMPLE"


@pytest.mark.parametrize(("versions", "version"), [("5", 5), ("456", 6)])
def test_calls_are_events_within_those_of_the_api(versions: str, version: int, tmp_path: Path) -> None:
    with ranks(library("pair"), 2, **settings(tmp_path, versions)) as team:
        processes = [process.pid for process in team.processes]
        assert [answer["result"] for answer in [*team.init(), *team.all(do="call", times=2)]] == [SUCCESS] * 4
        team.tell(0, do="call", collective="send", root=1, count=5)
        team.tell(1, do="call", collective="recv", root=0, count=5)
        assert [team.hear(rank)["result"] for rank in (0, 1)] == [SUCCESS] * 2
        assert [answer["result"] for answer in team.all(do="destroy")] == [SUCCESS] * 2
    for rank, function in enumerate(("Send", "Recv")):
        expected = [f"init v{version} - id 1 2 {rank}"]
        for call in range(3):
            first = 4 * call
            what = ALL_REDUCE.format(call) if call < 2 else f"p2p {function} 5 ncclFloat32 {1 - rank}"
            api = "coll api AllReduce 100 ncclFloat32 -1" if call < 2 else f"p2p api {function} 5 ncclFloat32"
            expected += [
                f"start {first} in -: group api 1",
                f"state 23 of {first}",
                f"state 24 of {first}",
                f"start {first + 1} in {first}: {api}",
                f"start {first + 2} in -: group",
                f"start {first + 3} in {first + 1}: {what} of group {first + 2}",
                *[f"stop {first + k}" for k in (3, 2, 1, 0)],
            ]
        assert told(tmp_path / "told", processes[rank]) == [*expected, f"finalize {rank}"]


def test_version_4_has_groups_alone_around_calls(tmp_path: Path) -> None:
    """A call that fails ends its events too; whoever aborts finalizes."""
    with ranks(library("pair"), 2, **settings(tmp_path, "4")) as team:
        processes = [process.pid for process in team.processes]
        assert [answer["result"] for answer in [*team.init(), *team.all(do="call")]] == [SUCCESS] * 4
        team.tell(0, do="call")
        until(processes[0], lambda found: found["ranks"][0]["newest"] == 2)
        assert team.ask(1, do="abort")["result"] == SUCCESS
        assert team.hear(0)["result"] == REMOTE_ERROR
    one = ["start 0 in -: group", f"start 1 in 0: {ALL_REDUCE.format(0)}", "stop 1", "stop 0"]
    two = ["start 2 in -: group", f"start 3 in 2: {ALL_REDUCE.format(1)}", "stop 3", "stop 2"]
    assert told(tmp_path / "told", processes[0]) == ["init v4 - id 1 2 0", *one, *two]
    assert told(tmp_path / "told", processes[1]) == ["init v4 - id 1 2 1", *one, "finalize 1"]


def group(**variables: str) -> subprocess.CompletedProcess[str]:
    return run_group(**{"COLLC_DEBUG": "INFO", **variables})


def events(folder: Path) -> list[str]:
    (path,) = folder.iterdir()
    return [line.split(": ", 1)[1] for line in path.read_text().splitlines() if line.startswith("start")]


def test_a_group_is_one_event_of_the_api(tmp_path: Path) -> None:
    done = group(**settings(tmp_path, "456"))
    kinds = [re.sub(r" \d.*| [A-Z].*| of .*", "", what) for what in events(tmp_path)]
    assert kinds == ["group api", "coll api", "group", "coll", "coll api", "group", "coll"]
    assert "profiler test, version 6" in done.stderr
    assert "profiler: hello from rank 1" in done.stderr


@pytest.mark.parametrize(("mask", "kinds"), [(2, 7), (512, 3), (256, 1), (1, 3), (8, 0), (0, 0)])
def test_a_plugin_hears_what_it_asks_for_and_what_is_around_it(mask: int, kinds: int, tmp_path: Path) -> None:
    """Two calls in a group: 7 events in all."""
    group(**settings(tmp_path, "6", PROFILER_TEST_MASK=str(mask)))
    assert len(events(tmp_path)) == kinds


def test_a_plugin_that_cannot_be_used_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no library")
    for variables, said in (
        ({"NCCL_PROFILER_PLUGIN": "missing"}, "missing: cannot open shared object file"),
        ({"NCCL_PROFILER_PLUGIN": str(tmp_path / "text")}, "file too short"),
        ({"NCCL_PROFILER_PLUGIN": str(library("pair"))}, "has none of ncclProfiler_v4, _v5 and _v6"),
        (settings(tmp_path, "6", PROFILER_TEST_REFUSES="1"), "the plugin fails with 3: rank 0 goes on without it"),
    ):
        done = group(**variables)
        assert said in done.stderr, done.stderr
        assert "profiler" not in group(NCCL_PROFILER_PLUGIN="none").stderr
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


def test_a_name_alone_is_that_of_a_library(tmp_path: Path) -> None:
    made = plugin("6")
    short = made.name.removeprefix("libnccl-profiler-").removesuffix(".so")
    given = {**settings(tmp_path, "6"), "NCCL_PROFILER_PLUGIN": short, "LD_LIBRARY_PATH": str(made.parent)}
    group(**given)
    assert len(events(tmp_path)) == 7


@pytest.mark.skipif("COLLC_NCCL_SOURCE" not in os.environ, reason="COLLC_NCCL_SOURCE names no checkout of NCCL")
def test_nccls_example_plugin_writes_its_trace(tmp_path: Path) -> None:
    example = Path(os.environ["COLLC_NCCL_SOURCE"]) / "plugins" / "profiler" / "example"
    cuda = next(iter([*Path("/usr/local").glob("cuda*/include")]), None)
    if not example.is_dir() or cuda is None:
        pytest.skip("no example plugin in that checkout, or no headers of CUDA")
    # The plugin calls the CUDA runtime for events of copy engines, and this run has none.
    needs = ("EventCreateWithFlags", "EventDestroy", "EventElapsedTime", "EventQuery", "EventRecord")
    (tmp_path / "cuda.c").write_text("".join(f"int cuda{name}(void) {{ return 801; }}\n" for name in needs))
    sources = [*map(str, sorted(example.glob("*.cc")))]
    made = tmp_path / "libnccl-profiler-example.so"
    subprocess.run(["gcc", "-c", "-fPIC", str(tmp_path / "cuda.c"), "-o", str(tmp_path / "cuda.o")], check=True)
    command = [
        "g++",
        "-w",
        f"-I{example / 'nccl'}",
        f"-I{cuda}",
        "-fPIC",
        "-shared",
        *sources,
        str(tmp_path / "cuda.o"),
    ]
    subprocess.run([*command, "-o", str(made)], check=True)
    destroy = "\nfor comm in comms: lib.ncclCommDestroy(ctypes.c_void_p(comm))\n"
    run_group(
        destroy,
        NCCL_PROFILER_PLUGIN=str(made),
        NCCL_PROFILE_EVENT_MASK="4095",
        NCCL_PROFILE_DUMP_FILE=str(tmp_path / "trace"),
    )
    text = "".join(trace.read_text() for trace in tmp_path.glob("trace*.json"))
    for category in ("GROUP_API", "COLL_API", "COLL"):
        assert len(re.findall(rf'"cat": "{category}", "ph": "b"', text)) == len(
            re.findall(rf'"cat": "{category}", "ph": "e"', text)
        )
    assert '"name": "AllReduce", "cat": "COLL", "ph": "b"' in text
