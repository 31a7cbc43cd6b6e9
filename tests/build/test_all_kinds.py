"""One library for all kinds of servers: a run takes the plans of the server that it finds, whole or after a loss."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support import nvml
from support.cli import collc, refused
from support.found import answers, lost, shuffled

from collc.checker.library import check_library, read_manifest
from collc.choose.library import library_contents
from collc.choose.request import LibraryRequest
from collc.choose.servers import only_server, server_kinds
from collc.collectives.model import Collective
from collc.errors import TopologyError
from collc.options import TARGETS, TargetKind
from collc.topology.canonical import fingerprint
from collc.topology.dump import dumps_links
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology, loads_topology
from collc.topology.losses import every_loss, used_part
from collc.topology.model import LinkKind, Topology

# b is a after the loss of a GPU, so that two kinds share a plan; e is b under other names; c has more GPUs than a.
CLUSTER = """format: collc-topology/1
name: lab
templates:
  quad: {gpus: 4, links: [[gpu0, gpu1, nvlink x2, 25], [gpu1, gpu2, nvlink, 25], [gpu2, gpu3, nvlink x2, 25],
         [gpu3, gpu0, nvlink, 25], [gpu0, gpu2, nvlink, 25]]}
  star: {gpus: 5, switches: [sw], links: [["gpu*", sw, nvswitch, 100]]}
servers: {quad: [a, b, d, e], star: [c]}
remove: [b.gpu3, e.gpu1]
"""
CLUSTER = CLUSTER.replace('["gpu*", sw, nvswitch, 100]', ", ".join(f"[gpu{i}, sw, nvswitch, 100]" for i in range(5)))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kinds") / "lab.yaml"
    path.write_text(CLUSTER)
    return path


@pytest.fixture(scope="module")
def library(cluster: Path) -> Path:
    """A library for all servers of the cluster, compiled with --survive 1."""
    out = cluster.parent / "all.so"
    options = ("--target", "host", "--collective", "all_reduce", "--survive", "1")
    result = collc("compile", cluster, "-o", out, *options)
    assert result.code == 0, result.err
    assert "for 2 servers (a, d)" in result.out
    assert "for server c" in result.out
    return out


def machines() -> Iterator[tuple[str, Topology]]:
    """Every server of the cluster, whole and after each of its losses."""
    topology = loads_topology(CLUSTER)
    for server in topology.servers:
        alone = only_server(topology, server)
        yield server, alone
        kinds = {link.kind for link in plan_graph(alone).links}
        for loss in every_loss(used_part(alone, kinds)):
            yield f"{server} without {loss.what}", lost(alone, loss)


def test_every_server_and_every_loss_has_the_plan_of_what_is_there(library: Path, tmp_path: Path) -> None:
    held = check_library(library)
    every = list(machines())
    assert len(every) > 30
    files = []
    for number, (_, machine) in enumerate(every):
        files.append(tmp_path / f"{number}.links")
        files[-1].write_text(dumps_links(shuffled(machine, number)))
    cut_off = 0
    for (what, machine), told in zip(every, answers(library, files), strict=True):
        try:
            wanted = fingerprint(plan_graph(machine))
        except TopologyError:
            assert "machines that this library has plans for" in told["error"], what
            cut_off += 1
            continue
        assert "error" not in told, (what, told)
        assert (told["result"], told["wrong"]) == (0, 0), what
        assert held.documents[told["allocation"]].fingerprint == wanted, what
        assert told["state"] > 0, what
    assert cut_off == 5  # each link of c


def test_equal_graphs_of_two_kinds_are_held_once(library: Path) -> None:
    prints = [allocation["fingerprint"] for allocation in read_manifest(library)["allocations"]]
    assert len(set(prints)) == len(prints)
    assert {kind.fingerprint for kind in server_kinds(loads_topology(CLUSTER))} <= set(prints)


def test_machines_that_it_has_no_plan_for_are_refused_in_one_line(library: Path, tmp_path: Path) -> None:
    whole = load_topology("dgx1p")
    alone = only_server(loads_topology(CLUSTER), "a")
    losses = every_loss(used_part(alone, {LinkKind.NVLINK}))
    twice = lost(lost(alone, losses[0]), losses[1])
    files = [tmp_path / "other.links", tmp_path / "twice.links"]
    for path, machine in zip(files, (whole, twice), strict=True):
        path.write_text(dumps_links(machine))
    for path, told in zip(files, answers(library, files), strict=True):
        assert f"COLLC_TOPOLOGY: {path}: its " in told["error"]
        assert "machines that this library has plans for" in told["error"]
        assert told["error"].count("\n") == 0


def test_a_run_that_nobody_told_what_the_machine_is_does_not_guess(library: Path) -> None:
    command = [sys.executable, "-m", "collc", "bench", str(library), "-b", "1K", "-e", "1K", "-n", "1", "-w", "0"]
    env = {**os.environ, "COLLC_NCCL": "/nowhere"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=env)
    assert done.returncode == 1
    assert "this library is for several kinds of servers" in done.stderr


def test_bench_names_the_kind(library: Path, tmp_path: Path) -> None:
    star = tmp_path / "star.yaml"
    text = CLUSTER.replace("{quad: [a, b, d, e], star: [c]}", "{star: [c]}").replace("remove: [b.gpu3, e.gpu1]\n", "")
    star.write_text(text)
    command = [sys.executable, "-m", "collc", "bench", str(library), "--topology", str(star)]
    command += ["-b", "1K", "-e", "1K", "-n", "1", "-w", "0", "--ranks", "5"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "lost: all but c\n" in done.stdout
    assert "\n# Out of bounds values : 0 OK" in done.stdout


def test_rates_before_and_after_of_each_kind(library: Path) -> None:
    shown = collc("inspect", library, "--json")
    rows = json.loads(shown.out)["losses"]
    assert [row["what"] for row in rows if row["what"].startswith("all but")] == ["all but a", "all but b", "all but c"]
    text = collc("inspect", library).out
    assert "for 3 kinds of servers, and survives" in text
    for row in text.splitlines():
        if row.startswith("all but"):
            assert "%" not in row


@pytest.fixture(scope="module")
def boards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Servers that the mock of NVML can play: 8 H100, and one that has lost a GPU."""
    folder = tmp_path_factory.mktemp("boards")
    (folder / "lab.yaml").write_text(
        "format: collc-topology/1\nname: lab\ntemplate: {extends: hgx-h100}\nservers: [n0, n1]\nremove: [n1.gpu5]\n"
    )
    command = (
        "compile",
        folder / "lab.yaml",
        "-o",
        folder / "all.so",
        "--target",
        "host",
        "--collective",
        "all_reduce",
    )
    result = collc(*command)
    assert result.code == 0, result.err
    return folder / "all.so"


def run(library: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "collc", "run", "--lib", str(library), "--", "sh", "-c", 'cat "$COLLC_TOPOLOGY"']
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env)


def test_run_tells_the_library_what_the_machine_is(boards: Path, tmp_path: Path) -> None:
    mock = nvml.compile_mock(tmp_path)
    description = tmp_path / "machine.txt"
    for gpus in (8, 7):
        description.write_text(nvml.h100(gpus=gpus).text())
        done = run(boards, nvml.environment(mock, description, None))
        assert done.returncode == 0, done.stderr
        assert sum(line.startswith("gpu ") for line in done.stdout.splitlines()) == gpus
        found = tmp_path / f"{gpus}.links"
        found.write_text(done.stdout)
        (told,) = answers(boards, [found])
        assert "error" not in told, told
        assert check_library(boards).documents[told["allocation"]].graph.nranks == gpus
    # The program also lists a machine without a plan, so that nobody takes it for one of the library's servers.
    description.write_text(nvml.h100(gpus=5).text())
    done = run(boards, nvml.environment(mock, description, None))
    assert "has no plan for the 5 GPUs" in done.stderr
    assert sum(line.startswith("gpu ") for line in done.stdout.splitlines()) == 5
    # COLLC_TOPOLOGY overrules the driver. Without both, the kind of the server is unknown.
    done = run(boards, {**nvml.environment(mock, description, None), "COLLC_TOPOLOGY": str(tmp_path / "8.links")})
    assert sum(line.startswith("gpu ") for line in done.stdout.splitlines()) == 8
    done = run(boards, {k: v for k, v in os.environ.items() if k != "COLLC_TOPOLOGY"})
    assert "cannot tell which library is for this machine" in done.stderr


def test_one_kind_gives_the_library_of_that_kind(tmp_path: Path) -> None:
    (tmp_path / "two.yaml").write_text("format: collc-topology/1\nname: two\ntemplate: a100x4-nv4\nservers: 2\n")
    command = ("compile", tmp_path / "two.yaml", "-o", tmp_path / "x.so", "--target", "host", "--json")
    done = collc(*command, "--collective", "all_reduce")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert [kind["servers"] for kind in found["kinds"]] == [["server0", "server1"]]
    assert "states" not in read_manifest(tmp_path / "x.so")


def test_links_of_kinds_that_only_others_use_are_told(tmp_path: Path) -> None:
    path = tmp_path / "mixed.yaml"
    path.write_text(
        "format: collc-topology/1\nname: mixed\ntemplates:\n"
        "  n: {gpus: 3, switches: [s], links: [[gpu0, gpu1, nvlink, 25], [gpu1, gpu2, nvlink, 25],\n"
        "      [gpu0, s, pcie, 12], [gpu1, s, pcie, 12], [gpu2, s, pcie, 12]]}\n"
        "  p: {gpus: 3, switches: [s], links: [[gpu0, s, pcie, 12], [gpu1, s, pcie, 12], [gpu2, s, pcie, 12]]}\n"
        "servers: {n: 1, p: 1}\n"
    )
    out = tmp_path / "x.so"
    line = refused(collc("compile", path, "-o", out, "--target", "host", "--allocations", "3..3"), code=2)
    assert "links of different kinds" in line
    assert "name a folder" in line
    done = collc("compile", path, "-o", out, "--target", "host", "--collective", "all_reduce")
    assert done.code == 0, done.err
    topology = load_topology(str(path))
    files = []
    for number, server in enumerate(topology.servers):
        files.append(tmp_path / f"{number}.links")
        files[-1].write_text(dumps_links(replace(only_server(topology, server), name="x")))
    told = answers(out, files)
    assert [one["allocation"] for one in told] == [0, 1]


def test_sets_of_gpus_of_every_kind(cluster: Path, tmp_path: Path) -> None:
    out = tmp_path / "sets.so"
    options = ("--target", "host", "--collective", "all_reduce", "--allocations", "connected")
    done = collc("compile", cluster, "-o", out, *options)
    assert done.code == 0, done.err
    held = check_library(out)
    assert {document.graph.nranks for document in held.documents} == {3, 4, 5}
    assert len(held.tables.states) == 4
    assert not held.tables.states[0].sets


def test_programs_are_those_of_a_library_for_the_kind_alone(tmp_path: Path) -> None:
    """Each kind has the model of its own GPUs."""
    path = tmp_path / "mixed.yaml"
    path.write_text(
        "format: collc-topology/1\nname: mixed\ntemplates:\n"
        "  v: {gpus: 2, gpu_model: V100, links: [[gpu0, gpu1, nvlink, 25]]}\n"
        "  h: {gpus: 2, gpu_model: H100, switches: [s], links: [[gpu0, s, nvswitch, 450], [gpu1, s, nvswitch, 450]]}\n"
        "servers: {v: 1, h: 1}\n"
    )
    both = LibraryRequest(str(path), kinds=True, collectives=(Collective.ALL_REDUCE,))
    one = library_contents(both, TARGETS[TargetKind.CUDA])
    assert len(one.entries) == 2
    for server, entries in zip(("v-0", "h-0"), one.entries, strict=True):
        alone = library_contents(replace(both, kinds=False, server=server), TARGETS[TargetKind.CUDA])
        assert entries == alone.entries[0]
    assert one.entries[0] != one.entries[1]
