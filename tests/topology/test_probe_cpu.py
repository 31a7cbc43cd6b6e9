"""`--cpu` reads cores and NUMA nodes from sysfs, and `--measure` evaluates the numbers of its program."""

from __future__ import annotations

import os
from fractions import Fraction
from pathlib import Path

import pytest
from support.machines import sockets

from collc.errors import CollcError
from collc.topology.dump import dumps_topology
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology, loads_topology
from collc.topology.model import Topology
from collc.topology.probe.cpu import MAX_CORES, probe_cpu
from collc.topology.probe.measure import Measured, cpu_numbers, measure, nominal, with_measured


def sysfs(root: Path, nodes: list[str], siblings: dict[int, str]) -> Path:
    """A sysfs with CPU lists of NUMA nodes and of sibling threads."""
    for i, cpus in enumerate(nodes):
        folder = root / f"devices/system/node/node{i}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cpus + "\n")
    for cpu, text in siblings.items():
        folder = root / f"devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(text + "\n")
    return root


def test_two_nodes_with_sibling_threads(tmp_path: Path) -> None:
    both = {i: f"{i % 4},{i % 4 + 4}" for i in range(8)}
    topology = probe_cpu(sysfs=sysfs(tmp_path, ["0-1,4-5", "2-3,6-7"], both), allowed=range(8))
    assert [v.name for v in topology.gpus] == ["core0", "core1", "core2", "core3"]
    assert sockets(topology) == "core0,core1|core2,core3"
    assert {k.kind.value for k in topology.links} == {"c2c", "pcie"}
    assert "8 hardware threads: one rank for each of 4 cores" in topology.notes
    graph = plan_graph(topology)
    assert len(graph.forwarders) == 2


def test_only_the_cores_of_this_process(tmp_path: Path) -> None:
    both = {i: f"{i % 4},{i % 4 + 4}" for i in range(8)}
    topology = probe_cpu(sysfs=sysfs(tmp_path, ["0-7"], both), allowed=[6, 2, 5])
    assert [v.name for v in topology.gpus] == ["core2", "core5"]
    assert cpu_numbers(topology) == ["2", "5"]


def test_more_ranks_than_cores_share_them(tmp_path: Path) -> None:
    topology = probe_cpu(sysfs=sysfs(tmp_path, ["0", "1"], {}), allowed=[0, 1], ranks=5)
    assert [v.name for v in topology.gpus] == ["core0", "core1", "core0.1", "core1.1", "core0.2"]
    assert sockets(topology) == "core0,core0.1,core0.2|core1,core1.1"
    assert {k.gbps for k in topology.links if k.src.startswith("core")} == {Fraction("4.16")}
    assert "5 ranks on 2 cores, up to 3 share the bandwidth of one" in topology.notes
    assert loads_topology(dumps_topology(topology)).gpus == topology.gpus
    with pytest.raises(CollcError, match="0 ranks"):
        probe_cpu(sysfs=tmp_path, allowed=[0], ranks=0)


def test_this_machine() -> None:
    topology = probe_cpu()
    assert 1 <= len(topology.gpus) <= len(os.sched_getaffinity(0))
    assert loads_topology(dumps_topology(topology)) == topology
    plan_graph(topology)


def test_a_sysfs_that_says_nothing(tmp_path: Path) -> None:
    topology = probe_cpu(sysfs=tmp_path, allowed=[0, 1, 2])
    assert sockets(topology) == "core0,core1,core2"


def test_no_core_and_too_many(tmp_path: Path) -> None:
    with pytest.raises(CollcError, match="no core is left"):
        probe_cpu(sysfs=tmp_path, allowed=[])
    with pytest.raises(CollcError, match=f"{MAX_CORES + 1} cores, at most {MAX_CORES}"):
        probe_cpu(sysfs=tmp_path, allowed=range(MAX_CORES + 1))


def test_nominal_is_the_widest_path_past_no_other_rank() -> None:
    dgx1v = load_topology("dgx1v")
    assert nominal(dgx1v, "gpu0", "gpu3") == 50
    assert nominal(dgx1v, "gpu0", "gpu1") == 25
    # Not joined: over PCIe, and over the socket link, not through other GPUs.
    assert nominal(dgx1v, "gpu1", "gpu6") == Fraction(25, 2)
    assert nominal(load_topology("hgx-h100"), "gpu0", "gpu7") == 450
    lone = loads_topology("format: collc-topology/1\nname: x\ngpus: 2\nlinks: []\n")
    assert nominal(lone, "gpu0", "gpu1") is None


def program(folder: Path, body: str) -> Path:
    path = folder / "measure"
    path.write_text("#!/bin/sh\n" + body)
    path.chmod(0o755)
    return path


def cores(n: int, folder: Path) -> Topology:
    return probe_cpu(sysfs=folder / "none", allowed=range(n))


def test_reads_what_the_program_prints(tmp_path: Path) -> None:
    path = program(tmp_path, 'echo "0 1 9.5 0.25"; echo "1 0 8 0.5"\n')
    topology = cores(2, tmp_path)
    found = measure(path, topology, ["0", "1"], kind="host")
    assert found[0] == Measured("core0", "core1", Fraction(19, 2), Fraction(1, 4), Fraction(25, 2))
    noted = with_measured(topology, found)
    assert "measured core0 -> core1: 9.5 GB/s (nominal 12.5), 0.25 us" in noted.notes
    assert noted.links == topology.links


def test_many_ranks_are_sampled(tmp_path: Path) -> None:
    path = program(tmp_path, 'echo "0 31 9.5 0.25"; test $# = 33  # host, and 32 cores\n')
    topology = cores(64, tmp_path)
    found = measure(path, topology, cpu_numbers(topology), kind="host")
    assert (found[0].src, found[0].dst) == ("core0", "core62")
    assert f"measured among 1 of {len(topology.gpus)} ranks, spread evenly" in with_measured(topology, found).notes


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("echo broken >&2; exit 3\n", "probe --measure: broken"),
        ("exit 3\n", "ended with status 3"),
        ("echo nonsense\n", "not a measurement: nonsense"),
        ('echo "0 7 1 1"\n', "not a measurement: 0 7 1 1"),
        ("sleep 5\n", "no answer within 0.2 s"),
    ],
)
def test_a_program_that_fails(tmp_path: Path, body: str, words: str) -> None:
    with pytest.raises(CollcError, match=words):
        measure(
            program(tmp_path, body), cores(2, tmp_path), ["0", "1"], kind="host", seconds=0.2 if "sleep" in body else 60
        )


def test_one_rank_has_no_pair(tmp_path: Path) -> None:
    with pytest.raises(CollcError, match="there is no pair to measure"):
        measure(tmp_path / "unused", cores(1, tmp_path), ["0"], kind="host")
