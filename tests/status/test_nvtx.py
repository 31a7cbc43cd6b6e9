"""NVTX ranges: a library that NVTX loads gets them from ours as from a program with NVIDIA's headers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.grouped import run_group
from support.libraries import library, shared_library
from support.ranks import REMOTE_ERROR, SUCCESS, ranks
from support.running import until

INJECTION = Path(__file__).parent / "nvtx_injection.c"


def told(path: Path, process: int) -> list[str]:
    return path.with_name(f"{path.name}.{process}").read_text().splitlines()


def test_every_call_is_a_range(tmp_path: Path) -> None:
    path = tmp_path / "told"
    settings = {"NVTX_INJECTION64_PATH": str(shared_library(INJECTION)), "NVTX_TEST": str(path)}
    with ranks(library("pair"), 2, **settings) as team:
        processes = [process.pid for process in team.processes]
        assert [answer["result"] for answer in [*team.init(), *team.all(do="call", times=2)]] == [SUCCESS] * 4
        team.tell(0, do="call", collective="send", root=1, count=5)
        team.tell(1, do="call", collective="recv", root=0, count=5)
        assert [team.hear(rank)["result"] for rank in (0, 1)] == [SUCCESS] * 2
        # A call that fails ends its range too.
        team.tell(0, do="call")
        until(processes[0], lambda found: found["ranks"][0]["newest"] == 3)
        assert team.ask(1, do="abort")["result"] == SUCCESS
        assert team.hear(0)["result"] == REMOTE_ERROR
    all_reduce = ["push 0 collc: all_reduce of 100 elements of float32 (sum)", "pop 0 "]
    transfers = ("a send of 5 elements of float32 to rank 1", "a receive of 5 elements of float32 from rank 0")
    for rank, transfer in enumerate(transfers):
        both = [*all_reduce, *all_reduce, f"push 0 collc: {transfer}", "pop 0 "]
        assert told(path, processes[rank]) == both + (all_reduce if rank == 0 else [])


def group(folder: Path, injection: Path | str, **settings: str) -> subprocess.CompletedProcess[str]:
    own = {"NVTX_INJECTION64_PATH": str(injection), "NVTX_TEST": str(folder / "told"), "COLLC_DEBUG": "WARN"}
    return run_group(**{**own, **settings})


def test_a_group_is_one_range(tmp_path: Path) -> None:
    group(tmp_path, shared_library(INJECTION))
    (path,) = tmp_path.iterdir()
    assert path.read_text().splitlines() == ["push 0 collc: group of 2 calls", "pop 0 "]


def test_a_library_that_takes_no_ranges_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no library")
    other = shared_library(Path(__file__).parent / "bad_link.c")
    for injection, settings, said in (
        (tmp_path / "none", {}, "cannot open shared object file"),
        (tmp_path / "text", {}, "file too short"),
        (other, {}, "takes no ranges of NVTX"),
        (shared_library(INJECTION), {"NVTX_TEST_REFUSES": "1"}, "takes no ranges of NVTX"),
    ):
        done = group(tmp_path, injection, **settings)
        assert done.stderr.count("NVTX_INJECTION64_PATH: ") == 1, done
        assert said in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["text"]
    assert "NVTX" not in group(tmp_path, "").stderr


def test_the_tables_are_those_of_nvidias_headers(tmp_path: Path) -> None:
    """A program with the headers of NVTX gets on with the same library."""
    places = [Path("/usr/local/cuda/include"), *Path("/usr/local").glob("cuda-*/include")]
    places += [Path(entry, "nvidia", "cu13", "include") for entry in sys.path]
    found = next((place for place in places if (place / "nvtx3" / "nvToolsExt.h").exists()), None)
    if found is None:
        pytest.skip("no headers of NVTX here")
    source = tmp_path / "ranges.c"
    source.write_text('#include <nvtx3/nvToolsExt.h>\nint main(void) { nvtxRangePushA("x"); return nvtxRangePop(); }\n')
    subprocess.run(["gcc", f"-I{found}", source, "-o", tmp_path / "ranges", "-ldl"], check=True)
    settings = {"NVTX_INJECTION64_PATH": str(shared_library(INJECTION)), "NVTX_TEST": str(tmp_path / "told")}
    done = subprocess.run([tmp_path / "ranges"], env={**os.environ, **settings}, check=False)
    assert done.returncode == 0
    (path,) = tmp_path.glob("told.*")
    assert path.read_text().splitlines() == ["push 0 x", "pop 0 "]
