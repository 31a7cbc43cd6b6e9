"""The tuner plugin, called through NCCL's structs with its table of costs, makes NCCL take what its own table says."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from support.cli import collc, refused

from collc.collectives.model import Collective
from collc.export.nccl_tuner import (
    ALGORITHMS,
    FUNCTIONS,
    MARGIN,
    PROTOCOL_NUMBERS,
    Choice,
    TunerRow,
    TunerTable,
    measured,
    modeled,
)
from collc.export.tuner_library import build_tuner, table_source
from collc.resources import resource_dir
from collc.simulator.generations import machine_for
from collc.simulator.nccl import Nccl
from collc.simulator.run import Simulator
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology

HERE = Path(__file__).parent
HEADER = "collective,size_bytes,algorithm,protocol,channels,nodes,ranks,latency_us\n"
VERSIONS = ("3", "4", "5", "6")
SEVEN = tuple((a, p) for a in range(7) for p in range(3))


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The driver, built with NCCL's own headers where COLLC_NCCL_SOURCE names a checkout of it."""
    made = tmp_path_factory.mktemp("driver") / "tuner_driver"
    source = os.environ.get("COLLC_NCCL_SOURCE")
    folders = [f"{source}/src/include", f"{source}/src/include/plugin"] if source else [str(HERE / "nccl")]
    includes = [f"-I{folder}" for folder in (*folders, resource_dir("templates") / "include")]
    command = ["g++", "-std=c++17", "-Wall", "-Wextra", *includes, str(HERE / "tuner_driver.cpp"), "-ldl", "-o"]
    subprocess.run([*command, str(made)], check=True)
    return made


def call(driver: Path, plugin: Path, version: str, lines: Sequence[str]) -> tuple[list[tuple[int, list[float]]], str]:
    """Channels and costs after each call, and the plugin's log."""
    done = subprocess.run(
        [driver, plugin, version], input="\n".join(lines) + "\n", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    found = []
    for line in done.stdout.splitlines():
        channels, *costs = line.split()
        found.append((int(channels), [float(cost) for cost in costs]))
    return found, done.stderr


def expected(
    tables: Sequence[TunerTable], key: tuple[int, int, int], size: int, costs: Mapping[tuple[int, int], float]
) -> tuple[int, dict[tuple[int, int], float]]:
    """The meaning of a table, in Python: the first usable choice gets cost zero."""
    ranks, nodes, function = key
    for table in tables:
        if (table.ranks, table.nodes, FUNCTIONS[table.collective]) == (ranks, nodes, function):
            row = [row for row in table.rows if row.least <= size][-1]
            for choice in row.choices:
                at = (ALGORITHMS[choice.algorithm], PROTOCOL_NUMBERS[choice.protocol])
                if costs.get(at, -1.0) >= 0:
                    return choice.channels, {**costs, at: 0.0}
    return 0, dict(costs)


TABLES = (
    TunerTable(
        Collective.ALL_REDUCE,
        8,
        1,
        (
            TunerRow(0, (), None),
            TunerRow(1000, (Choice("NVLS", "Simple", 12), Choice("Tree", "LL128")), 1.2),
            TunerRow(1 << 33, (Choice("Ring", "Simple", 64),), 1.2),
        ),
    ),
    TunerTable(Collective.BROADCAST, 8, 1, (TunerRow(0, (Choice("Ring", "LL"),), 1.2),)),
    TunerTable(Collective.REDUCE, 8, 1, (TunerRow(0, (), None),)),
    TunerTable(Collective.ALL_GATHER, 16, 16, (TunerRow(0, (Choice("PAT", "Simple"),), 1.2),)),
    TunerTable(Collective.REDUCE_SCATTER, 5, 2, (TunerRow(0, (Choice("CollNetDirect", "Simple", 3),), 1.2),)),
)


@pytest.mark.parametrize("version", VERSIONS)
def test_calls_through_every_version_take_what_the_table_says(driver: Path, tmp_path: Path, version: str) -> None:
    plugin = tmp_path / "libnccl-tuner-x.so"
    build_tuner(plugin, "collc tuner x", TABLES, "made up")
    dice = random.Random(int(version))
    calls = []
    for ranks, nodes in ((8, 1), (8, 2), (16, 16), (5, 2), (1, 1), (2**33 + 8, 1)):
        for function in range(8):
            for size in (0, 1, 999, 1000, 1 << 20, (1 << 33) - 1, 1 << 33, 1 << 60):
                algorithms = dice.choice((7, 7, 6, 4))
                pairs = [(a, p) for a in range(algorithms) for p in range(3)]
                costs = {pair: dice.choice((-1.0, 1.5, 2.5, 80.0)) for pair in pairs}
                calls.append(((ranks, nodes, function), size, algorithms, costs))
    lines = [
        f"{ranks} {nodes} {function} {size} {algorithms} 3 {' '.join(map(str, costs.values()))}"
        for (ranks, nodes, function), size, algorithms, costs in calls
    ]
    found, log = call(driver, plugin, version, lines)
    changed = 0
    for (key, size, _, costs), (channels, after) in zip(calls, found, strict=True):
        wanted = expected(TABLES, key, size, costs)
        assert (channels, after) == (wanted[0], list(wanted[1].values())), (key, size)
        changed += list(costs.values()) != after
    assert changed > 10
    assert "collc tuner x: 2 collectives are tuned for 8 ranks on 1 nodes" in log
    assert "collc tuner x: 0 collectives are tuned for 8 ranks on 2 nodes" in log


def test_a_plugin_is_the_same_bytes_again_and_needs_no_library(tmp_path: Path) -> None:
    one, two = tmp_path / "one.so", tmp_path / "two.so"
    for path in (one, two):
        build_tuner(path, "collc tuner x", TABLES, "made up")
    assert one.read_bytes() == two.read_bytes()
    names = subprocess.run(["nm", "-D", "--defined-only", one], capture_output=True, text=True, check=True).stdout
    assert sorted(line.split()[-1] for line in names.splitlines()) == [f"ncclTunerPlugin_v{v}" for v in VERSIONS]
    assert str(tmp_path).encode() not in one.read_bytes()


def test_names_cannot_leave_their_string() -> None:
    source = table_source('a"; system("x"); //', TABLES, "*/ int main(void) /*")
    assert 'collc_tuner_name[] = "a_; system(_x_); __"' in source
    assert source.count("*/") == source.count("/*")
    assert "*/ int main" not in source


def test_measured_times_become_rows(tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    lines = [
        "allreduce,1024,default,,-1,1,8,20",
        "allreduce,1024,ring,ll,-1,1,8,10",
        "allreduce,1024,ring,ll,-1,1,8,11",
        "allreduce,1024,ring,ll,-1,1,8,90",  # the median counts
        "allreduce,1024,tree,ll,4,1,8,12",
        "allreduce,1024,tree,simple,-1,1,8,19",  # within the margin
        "all_reduce,65536,default,,-1,1,8,20",
        "all_reduce,65536,ring,simple,-1,1,8,19",
        "ReduceScatter,4096,nvls_tree,simple,16,2,16,5",
        "ReduceScatter,4096,collnet-direct,simple,,2,16,4",
    ]
    path.write_text("\ufeff" + HEADER + "\n".join(lines) + "\n", encoding="utf-8")
    reduce, scatter = measured(path)
    assert (reduce.collective, reduce.ranks, reduce.nodes) == (Collective.ALL_REDUCE, 8, 1)
    assert reduce.rows == (
        TunerRow(0, (Choice("Ring", "LL"), Choice("Tree", "LL", 4)), 20 / 11),
        TunerRow(8192, (), None),
    )
    assert (scatter.ranks, scatter.nodes) == (16, 2)
    assert scatter.rows == (TunerRow(0, (Choice("CollNetDirect", "Simple"), Choice("NVLSTree", "Simple", 16)), None),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no column collective"),
        (HEADER, "has no measurements"),
        (HEADER.replace(",ranks", ""), "has no column ranks"),
        (HEADER + "allreduce,1024,ring,ll,-1,1,8,0\n", ":2: `latency_us` is '0'"),
        (HEADER + "allreduce,1024,ring,ll,-1,1,8,nan\n", ":2: `latency_us` is 'nan'"),
        (HEADER + "allreduce,1024,ring,ll,-1,1,8,inf\n", ":2: `latency_us` is 'inf'"),
        (HEADER + "allreduce,1024,ring,ll,-1,1,8\n", ":2: `latency_us` is ''"),
        (HEADER + "allreduce,1K,ring,ll,-1,1,8,5\n", ":2: `size_bytes` is '1K'"),
        (HEADER + "allreduce,1024,ring,ll,65,1,8,5\n", ":2: `channels` is '65'"),
        (HEADER + "allreduce,1024,ring,ll,0,1,8,5\n", ":2: `channels` is '0'"),
        (HEADER + "allreduce,1024,ring,ll,-1,9,8,5\n", ":2: `nodes` is '9'"),
        (HEADER + "allreduce,1024,ring,ll,-1,1,1,5\n", ":2: `ranks` is '1'"),
        (HEADER + "alltoall,1024,ring,ll,-1,1,8,5\n", ":2: `collective` is 'alltoall'"),
        (HEADER + "allreduce,1024,star,ll,-1,1,8,5\n", ":2: `algorithm` is 'star'"),
        (HEADER + "allreduce,1024,ring,ll256,-1,1,8,5\n", ":2: `protocol` is 'll256'"),
        (HEADER + 'allreduce,1024,"ring"x,ll,-1,1,8,5\n', "is no CSV file"),
        (HEADER + "allreduce,1024,ring,ll,-1,1,8,5\n" + "x" * 200_000, "is no CSV file"),
    ],
)
def test_measurements_that_cannot_be_read_are_one_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "times.csv"
    path.write_text(text)
    out = tmp_path / "x.so"
    assert words in refused(collc("export", "dgx1v", "--format", "nccl-tuner", "--measured", path, "-o", out), code=1)
    assert not out.exists()


def test_where_nccl_chooses_well_no_plugin_is_made(tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_text(HEADER + "allreduce,1024,default,,-1,1,8,10\nallreduce,1024,ring,ll,-1,1,8,10\n")
    line = refused(
        collc("export", "dgx1v", "--format", "nccl-tuner", "--measured", path, "-o", tmp_path / "x.so"), code=1
    )
    assert "nothing to tune" in line
    assert not (tmp_path / "x.so").exists()


SIZES = (64 << 10, 1 << 20, 16 << 20)


def test_the_model_names_only_what_gains_on_every_set() -> None:
    machine = load_topology("dgx1v")
    parameters, _ = machine_for(None, machine.gpu_model)
    # Two sets of three GPUs that differ: a triangle with a double link, and one without.
    graphs = [plan_graph(machine, gpus) for gpus in (["gpu0", "gpu1", "gpu2"], ["gpu0", "gpu3", "gpu2"])]
    tables = {t.collective: t for t in modeled(graphs, parameters, SIZES, "2.28")}
    assert set(tables) == set(FUNCTIONS)
    assert all((t.ranks, t.nodes) == (3, 1) for t in tables.values())
    seen = 0
    for collective in (Collective.ALL_REDUCE, Collective.BROADCAST):
        for graph in graphs:
            nccl = Nccl(Simulator(graph, collective, None, parameters), "2.28")
            for size in SIZES:
                row = [row for row in tables[collective].rows if row.least <= size][-1]
                own = nccl.predict(size).in_a_row().time_us
                for choice in row.choices:
                    made = nccl.predict(size, choice.algorithm, choice.protocol).in_a_row().time_us
                    assert own / made >= MARGIN
                    seen += 1
                if row.choices:
                    assert row.gain is not None
                    assert row.gain >= MARGIN
    assert seen


def test_export_prints_what_the_plugin_then_does(driver: Path, tmp_path: Path) -> None:
    out = tmp_path / "libnccl-tuner-x.so"
    result = collc("export", "dgx1v", "--gpus", "0,1,2", "--format", "nccl-tuner", "-o", out, "--json")
    assert result.code == 0, result.err
    made = json.loads(result.out)
    assert made["from"] == ["simulated, parameters of v100: the topology's GPUs are V100, NCCL 2.28"]
    tuned = [table for table in made["tables"] if any(row["choices"] for row in table["rows"])]
    assert tuned
    for table in tuned:
        function = FUNCTIONS[Collective(table["collective"])]
        for row in table["rows"]:
            line = f"{table['ranks']} {table['nodes']} {function} {row['min_bytes']} 7 3 " + " ".join(["9"] * 21)
            ((_, costs),), log = call(driver, out, "6", [line])
            least = [pair for pair, cost in zip(SEVEN, costs, strict=True) if cost == 0]
            if row["choices"]:
                algorithm, protocol = row["choices"][0].split("/")
                assert least == [(ALGORITHMS[algorithm], PROTOCOL_NUMBERS[protocol])]
            else:
                assert not least
            assert "collc tuner dgx1v: " in log


@pytest.mark.parametrize(
    ("argv", "words", "code"),
    [
        (["dgx1v", "--format", "nccl-graph", "--allocations", "all"], "--allocations belongs to --format nccl-t", 2),
        (["dgx1v", "--format", "dot", "--measured", "x"], "--measured belongs to --format nccl-tuner", 2),
        (["dgx1v", "--format", "csv", "--model", "v100"], "--model belongs to --format nccl-tuner", 2),
        (["dgx1v", "--format", "csv", "--params", "x"], "--params belongs to --format nccl-tuner", 2),
        (["dgx1v", "--format", "csv", "--nccl-version", "2.20"], "--nccl-version belongs to", 2),
        (["dgx1v", "--format", "graphml", "--fabric", "infiniband"], "--fabric", 2),
        (["dgx1v", "--format", "nccl-tuner", "--collective", "broadcast"], "serves every collective", 2),
        (["dgx1v", "--format", "nccl-tuner", "--gpus", "3"], "two GPUs or more", 2),
        (["dgx1v", "--format", "nccl-tuner", "--gpus", "0,1", "--allocations", "all"], "exclude each other", 2),
        (["dgx1v", "--format", "nccl-tuner", "--measured", "x", "--model", "v100"], "--model is about the model", 2),
        (["dgx1v", "--format", "nccl-tuner", "--measured", "x", "--gpus", "0,1"], "--gpus is about the model", 2),
        (["dgx1v", "--format", "nccl-tuner", "--nccl-version", "nine"], "nine", 2),
        (["dgx1v", "--format", "nccl-tuner", "-o", "no/such/folder/x.so"], "no folder", 1),
        (["dgx1v", "--format", "nccl-tuner", "-o", "."], "folder", 1),
    ],
)
def test_what_cannot_be_tuned_is_one_line(argv: list[str], words: str, code: int, tmp_path: Path) -> None:
    out = [] if "-o" in argv else ["-o", str(tmp_path / "x.so")]
    assert words in refused(collc("export", *argv, *out), code=code)
