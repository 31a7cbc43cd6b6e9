"""`collc bench` with a library for CUDA, on the mock driver: its table, and where the time went (--breakdown)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.cli import collc, refused
from support.libraries import PAIR
from test_cuda_runtime import library, mock_driver

from collc.build.toolchain import find_cxx
from collc.checker.library import read_manifest

PROTOCOLS = ("Simple", "LL", "LL128")
SMALL = ("-b", "4K", "-e", "4K", "-n", "2", "-w", "1")


def bench(
    *options: str, counters: bool = False, settings: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "COLLC_SHARE_GPU": "1"}
    environment |= {"LD_LIBRARY_PATH": str(mock_driver(counters)), **(settings or {})}
    command = [sys.executable, "-m", "collc", "bench", str(library(counters)), *SMALL]
    return subprocess.run(
        [*command, *options], capture_output=True, text=True, env=environment, check=False, timeout=200
    )


@pytest.mark.parametrize("gpus", ["1", "3"])
@pytest.mark.slow_for("1", "3")
def test_every_collective_is_measured_and_right(gpus: str) -> None:
    done = bench("--json", "-r", "1", settings={"MOCK_GPUS": gpus})
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert {row["collective"] for row in rows} == {"all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter"}
    assert len(rows) == 10
    for row in rows:
        assert row["wrong"] == 0
        assert row["time_us"] > 0
        assert "breakdown" not in row


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_table_names_the_protocol_that_ran(protocol: str) -> None:
    done = bench("--collective", "all_reduce", "--json", settings={"COLLC_PROTO": protocol})
    assert done.returncode == 0, done.stderr
    assert {row["proto"] for row in json.loads(done.stdout)["rows"]} == {protocol}


@pytest.mark.parametrize(
    "protocol", [PROTOCOLS[0], *(pytest.param(one, marks=pytest.mark.slow) for one in PROTOCOLS[1:])]
)
@pytest.mark.slow_for("Simple")
def test_where_the_time_went(protocol: str) -> None:
    """The mock's clock counts its own switches, one to a nanosecond: parts mean nothing beside its wall clock."""
    options = ("--collective", "all_reduce", "--collective", "broadcast", "--breakdown")
    done = bench(*options, "--json", counters=True, settings={"COLLC_PROTO": protocol})
    assert done.returncode == 0, done.stderr
    for row in json.loads(done.stdout)["rows"]:
        assert row["wrong"] == 0
        parts = {
            name: sum(one[f"{name}_us"] for one in row["breakdown"]) for name in ("waiting", "copying", "reducing")
        }
        assert parts["waiting"] > 0
        assert parts["copying"] > 0
        assert (parts["reducing"] > 0) == (row["collective"] == "all_reduce")


@pytest.mark.slow
def test_the_table_shows_it_when_asked() -> None:
    shown = bench("--collective", "broadcast", "--breakdown", counters=True).stdout
    assert "# out of place:" in shown
    assert "#   channel 0: waiting " in shown
    assert "on GPUs, all in one process" in shown
    silent = bench("--collective", "broadcast", counters=True).stdout
    assert "channel 0" not in silent
    assert "# Out of bounds values : 0 OK" in silent


def test_a_library_that_does_not_count_says_how_to_build_one() -> None:
    done = bench("--breakdown")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "have no counters" in done.stderr
    assert "--target cuda --counters" in done.stderr


def test_a_machine_without_gpus_is_told_what_it_can_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, and each command that it names works there."""
    for folder, problem in (("", "no NVIDIA driver here"), (str(no_gpus(tmp_path)), "the NVIDIA driver shows no GPU")):
        done = bench(settings={"LD_LIBRARY_PATH": folder})
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1
        assert problem in done.stderr
        named = re.findall(r"`collc (.*?)`", done.stderr)
        assert named == ["simulate TOPO", "compile TOPO --target host"]
    # In JSON, the fault and the hint are separate fields, although a child process printed them in one line.
    told = json.loads(bench("--json", settings={"LD_LIBRARY_PATH": ""}).stdout)["error"]
    assert told["what"].startswith("no NVIDIA driver here: libcuda.so.1")
    assert "`" not in told["what"]
    assert re.findall(r"`collc (.*?)`", told["hint"]) == named
    monkeypatch.chdir(tmp_path)
    Path("pair.yaml").write_text(PAIR)
    for line in named:
        sizes = ["-b", "1K", "-e", "1K"] if line.startswith("simulate") else []
        result = collc(*line.replace("TOPO", "pair.yaml").split(), *sizes)
        assert result.code == 0, result.err


def test_tune_says_what_a_library_for_gpus_needs_and_takes_one_for_cpus(tmp_path: Path) -> None:
    told = refused(collc("tune", library(False), "-o", tmp_path / "tuned.json"))
    assert "no NVIDIA driver here" in told
    assert re.findall(r"`collc (.*?)`", told) == ["simulate TOPO", "compile TOPO --target host"]
    assert not (tmp_path / "tuned.json").exists()
    (tmp_path / "pair.yaml").write_text(PAIR)
    made = tmp_path / "libcollc-pair.so"
    assert collc("compile", tmp_path / "pair.yaml", "--target", "host", "--tune-candidates", "-o", made).code == 0
    small = ("-b", "1K", "-e", "1K", "--collective", "broadcast")
    assert collc("tune", made, "-o", tmp_path / "tuned.json", *small).code == 0


def no_gpus(folder: Path) -> Path:
    """The folder of a driver that shows no GPU."""
    source = folder / "driver.c"
    source.write_text("int cuInit(unsigned f) { return 0; }\nint cuDeviceGetCount(int *n) { return *n = 0; }\n")
    command = [find_cxx().path, "-x", "c", "-shared", "-fPIC", str(source), "-o", str(folder / "libcuda.so.1")]
    subprocess.run(command, check=True)
    return folder


def test_a_launcher_of_several_processes_is_refused_once() -> None:
    torchrun = {"RANK": "0", "WORLD_SIZE": "3", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "29555"}
    done = bench("--collective", "broadcast", settings=torchrun)
    assert done.returncode == 2
    assert "on GPUs one process holds all ranks" in done.stderr


def test_inspect_says_whether_there_are_counters() -> None:
    said = {}
    for counters in (False, True):
        command = [sys.executable, "-m", "collc", "inspect", str(library(counters))]
        said[counters] = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "counters of waiting, copying and reducing: not built in" in said[False]
    assert "counters of waiting, copying and reducing: by channel (bench --breakdown)" in said[True]


def test_counters_make_another_library() -> None:
    """Plan and stand-in for device code are equal: only the switch distinguishes the libraries."""
    manifests = {counters: read_manifest(library(counters)) for counters in (False, True)}
    assert manifests[True]["build_id"] != manifests[False]["build_id"]
    assert manifests[True]["counters"] is True
    assert "counters" not in manifests[False]


def test_counters_are_for_kernels(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "collc", "compile", "dgx1v", "--target", "host", "--counters"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert "--counters is for --target cuda" in done.stderr
