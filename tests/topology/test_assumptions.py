"""Assumptions of a probe are data of its file, and each bound that rests on one names it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.cli import collc
from support.topo_text import Table, render

from collc.packing import Collective, plan
from collc.topology.cluster.merge import Described, merge
from collc.topology.cluster.model import Cluster, Server
from collc.topology.cluster.write import dumps_cluster
from collc.topology.dump import dumps_topology
from collc.topology.graph import plan_graph
from collc.topology.load import loads_topology
from collc.topology.model import LinkKind, Topology
from collc.topology.probe.dumps import topology_from_dumps


def box(nics: Sequence[str], speed: str | None = "50") -> Topology:
    """Two GPUs and NICs of 50 GB/s on one CPU each."""
    names = ", ".join(f"{{name: {nic}, gbps: {speed}}}" if speed else nic for nic in nics)
    text = (
        "format: collc-topology/1\nname: box\ngpus: 2\ncpus: [cpu0]\nspeeds: {nvlink: 450, pcie: 50}\n"
        f"nics: [{names}]\nlinks:\n  - [gpu0, gpu1, nvlink]\n  - [gpu0, cpu0, pcie, 400]\n  - [gpu1, cpu0, pcie, 400]\n"
    )
    return loads_topology(text + "".join(f"  - [{nic}, cpu0, pcie]\n" for nic in nics))


def joined(*machines: Topology, described: Described | None = None) -> Cluster:
    servers = [Server(f"n{i}", machine, f"n{i}.yaml") for i, machine in enumerate(machines)]
    return merge(servers, described or Described(), "lab")


def rate(cluster: Cluster) -> float:
    topology = loads_topology(dumps_cluster(cluster))
    return float(plan(plan_graph(topology), Collective.ALL_REDUCE, None).rate or 0)


A, B = ("mlx5_0", "mlx5_3", "mlx5_5", "mlx5_8"), ("mlx5_0", "mlx5_1", "mlx5_4", "mlx5_5")
EIGHT = [f"mlx5_{i}" for i in range(8)]


def test_names_that_overlap_in_part_are_rails_by_place_and_both_readings_are_printed() -> None:
    cluster = joined(box(A), box(B))
    assert rate(cluster) == 200
    (note,) = cluster.network.notes
    assert "assumed 4 rails" in note
    assert "200 GB/s between servers" in note
    assert "by the servers' own names would be 6 rails, 100 GB/s" in note
    (words,) = (odd.words for kind in cluster.kinds for odd in kind.odd.values())
    assert words == ("its own numbers: mlx5_3 is mlx5_1, mlx5_5 is mlx5_4, mlx5_8 is mlx5_5",)


def test_servers_that_each_lost_another_nic_keep_rails_by_name() -> None:
    cluster = joined(box(EIGHT[:3] + EIGHT[4:]), box(EIGHT[:6] + EIGHT[7:]))
    assert len(cluster.network.switches) == 8
    assert rate(cluster) == 300
    assert {name: odd.words for kind in cluster.kinds for name, odd in kind.odd.items()} == {
        "n0": ("no NIC mlx5_3",),
        "n1": ("no NIC mlx5_6",),
    }
    (note,) = cluster.network.notes
    assert "300 GB/s between servers; NIC j of each server on rail j would be 7 rails, 350 GB/s" in note


def test_equal_names_have_one_reading() -> None:
    (note,) = joined(box(EIGHT), box(EIGHT)).network.notes
    assert "would be" not in note


RAILS = "format: collc-rails/1\nrails: {a: [mlx5_0], b: [mlx5_3]}\n"


@pytest.mark.parametrize(
    ("described", "speed", "assumed"),
    [
        (None, "50", True),
        (Described(rails=("rails", RAILS)), "50", False),
        (Described(rails=("rails", RAILS)), None, True),
        (Described(dumps=[("topology.conf", "SwitchName=a Nodes=n[0-1]\n")]), "50", True),
    ],
)
def test_a_network_that_no_file_describes_is_marked(
    described: Described | None, speed: str | None, assumed: bool, tmp_path: Path
) -> None:
    cluster = joined(box(A[:2], speed), box(A[:2], speed), described=described)
    path = tmp_path / "lab.yaml"
    path.write_text(dumps_cluster(cluster))
    assert ("assumes: [net]" in path.read_text()) is assumed
    shown = collc("plan", str(path), "--collective", "all_reduce").out
    assert ("the best possible, on the assumed network." in shown) is assumed
    assert ("Assumed: network (set by --rails or --fabric)." in shown) is assumed
    entry = json.loads(collc("plan", str(path), "--collective", "all_reduce", "--json").out)["plans"][0]
    assert entry.get("assumes", []) == (["network"] if assumed else [])
    # Plans inside one server do not use the network.
    inside = json.loads(collc("plan", str(path), "--gpus", "n0:0-1", "--json").out)["plans"][0]
    assert "assumes" not in inside


def test_assumed_speeds_of_a_dump_are_marked_until_an_option_sets_them() -> None:
    table = render(Table(4, cells={(i, j): "NV12" for i in range(4) for j in range(i + 1, 4)}))
    guessed = topology_from_dumps([("file", table)])
    assert guessed.assumes == (LinkKind.NVSWITCH, LinkKind.PCIE)
    again = loads_topology(dumps_topology(guessed))
    assert again.assumes == guessed.assumes
    assert plan_graph(again).assumes == (LinkKind.NVSWITCH,)
    told = topology_from_dumps([("file", table)], gpu_model="A100")
    assert LinkKind.NVSWITCH not in told.assumes


def test_links_that_a_file_assumes_are_kinds_of_links() -> None:
    with pytest.raises(Exception, match="no kind of link is called"):
        loads_topology("format: collc-topology/1\nname: x\ngpus: 1\nassumes: [wire]\n")
