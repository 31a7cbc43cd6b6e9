"""Topologies of several servers: a library for each kind of server, and the one that a machine gets."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support import nvml
from support.cli import collc, refused

from collc.choose.all_kinds import kinds_in_one
from collc.choose.servers import only_server, server_kinds, wants_kinds
from collc.topology.canonical import fingerprint
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology, loads_topology
from collc.topology.model import LinkKind, Topology, VertexKind

# Five servers: node1 has lost a GPU, node3 a NIC, and node4 the GPU that is node1's up to names.
CLUSTER = """format: collc-topology/1
name: lab
template: {extends: hgx-h100}
servers: [node0, node1, node2, node3, node4]
remove: [node1.gpu5, node4.gpu0, node3.nic0]
switches: [net0]
links: [[each.nic1, net0, net, 50]]
"""


def cluster(folder: Path) -> Path:
    path = folder / "lab.yaml"
    path.write_text(CLUSTER)
    return path


def test_kinds_are_of_what_a_plan_uses_up_to_names() -> None:
    kinds = server_kinds(loads_topology(CLUSTER))
    assert [kind.servers for kind in kinds] == [("node0", "node2", "node3"), ("node1", "node4")]
    assert kinds[0].fingerprint == fingerprint(plan_graph(load_topology("hgx-h100")))


def test_one_server_of_a_cluster_is_a_machine_with_plain_names() -> None:
    topology = loads_topology(CLUSTER)
    alone = only_server(topology, "node1")
    assert [v.name for v in alone.gpus] == ["gpu0", "gpu1", "gpu2", "gpu3", "gpu4", "gpu6", "gpu7"]
    assert alone.name == "lab-node1"
    whole = only_server(topology, "node0")
    zoo = load_topology("hgx-h100")
    assert (set(whole.vertices), set(whole.links)) == (set(zoo.vertices), set(zoo.links))


RACK = """
format: collc-topology/1
name: rack
servers: 3
template:
  gpus: 2
  cpus: [cpu0]
  nics: [{name: nic0, gbps: 25}]
  links:
    - [gpu0, cpu0, pcie, 25]
    - [gpu1, cpu0, pcie, 25]
    - [nic0, cpu0, pcie, 25]
switches: [nvs0, {name: spine, multicast: true, reduce: true}, net]
links:
  - [each.gpu0, nvs0, nvswitch, 450]
  - [each.gpu1, nvs0, nvswitch, 450]
  - [nvs0, spine, nvswitch, 900]
  - [each.nic0, net, net, 25]
"""


def test_switches_of_a_rack_belong_to_each_of_its_servers() -> None:
    """NVLinks of a tray of a GB200 NVL72 end there; a network's switches do not count."""
    topology = loads_topology(RACK)
    alone = only_server(topology, "server1")
    assert {v.name for v in alone.vertices} == {"gpu0", "gpu1", "cpu0", "nic0", "nvs0", "spine"}
    assert {v.name for v in alone.vertices if v.multicast} == {"spine"}
    assert plan_graph(alone).links[0].kind is LinkKind.NVSWITCH
    kept = only_server(topology, "server1", plain=False)
    assert {v.name for v in kept.vertices if v.kind is VertexKind.SWITCH} == {"server1.nvs0", "server1.spine"}
    assert set(kept.servers["server1"]) == {v.name for v in kept.vertices}
    (kind,) = server_kinds(topology)
    assert kind.servers == ("server0", "server1", "server2")


@pytest.mark.parametrize("name", ["gb200-nvl72", "gb300-nvl72"])
def test_a_tray_has_the_rates_of_its_nvlinks(name: str) -> None:
    topology = load_topology(name)
    (kind,) = server_kinds(topology)
    tray = plan_graph(topology, [v.name for v in topology.gpus[:4]])
    assert kind.fingerprint == fingerprint(tray)
    assert {link.kind for link in plan_graph(kind.machine).links} == {LinkKind.NVSWITCH}


def test_servers_of_one_rack_in_one_library_have_a_switch_each() -> None:
    uneven = RACK.replace("servers: 3", "servers: 2").replace(
        "  - [each.gpu1, nvs0, nvswitch, 450]",
        "  - [server0.gpu1, nvs0, nvswitch, 450]\n  - [server1.gpu1, nvs0, nvswitch, 225]",
    )
    graphs, sets = kinds_in_one(loads_topology(uneven), None, None, 0)
    assert [graph.nranks for graph in graphs] == [2, 2]
    names = sorted(v.name for v in sets.topology.vertices if v.kind is VertexKind.SWITCH)
    assert names == ["server0.nvs0", "server1.nvs0"]  # spines, on which nothing else hangs, are of no use


@pytest.mark.parametrize(
    ("gpus", "allocations", "kinds"),
    [
        (None, None, True),
        (None, "connected", True),
        (None, "2..4", True),
        (None, "node0:0-3/node1:0-3", False),
        ("node0:0-3", None, False),
    ],
)
def test_named_gpus_mean_one_library(gpus: str | None, allocations: str | None, kinds: bool) -> None:
    assert wants_kinds(loads_topology(CLUSTER), gpus, allocations) is kinds
    assert not wants_kinds(load_topology("hgx-h100"), gpus, allocations)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kinds")
    result = collc("compile", cluster(folder), "-o", folder / "libs", "--target", "host", "--collective", "all_reduce")
    assert result.code == 0, result.err
    assert "3 servers (node0, node2, node3):" in result.out
    assert "2 servers (node1, node4):" in result.out
    assert "each library serves communicators inside one server" in result.out
    return folder / "libs"


def test_compile_writes_a_library_for_each_kind(libraries: Path) -> None:
    assert [path.name for path in sorted(libraries.iterdir())] == ["libcollc-lab-node0.so", "libcollc-lab-node1.so"]
    for path, ranks in zip(sorted(libraries.iterdir()), (8, 7), strict=True):
        checked = collc("verify", path)
        assert checked.code == 0, checked.err
        shown = collc("inspect", path, "--json")
        assert [a["nranks"] for a in json.loads(shown.out)["allocations"]] == [ranks]


def run(folder: Path, *options: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "collc", "run", "--lib", folder, *options, "--", "sh", "-c", 'echo "$LD_PRELOAD"']
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120, check=False, env=env)


def test_run_takes_the_library_of_the_live_machine(libraries: Path, tmp_path: Path) -> None:
    mock = nvml.compile_mock(tmp_path)
    for gpus, server in ((8, "node0"), (7, "node1")):
        description = tmp_path / f"{gpus}.txt"
        description.write_text(nvml.h100(gpus=gpus).text())
        done = run(libraries, env=nvml.environment(mock, description, None))
        assert done.stdout.strip() == str(libraries / f"libcollc-lab-{server}.so"), done.stderr
    # A job that sees some of the GPUs is on the same machine.
    description.write_text(nvml.h100(gpus=8).text())
    done = run(libraries, env=nvml.environment(mock, description, "0,1,2"))
    assert done.stdout.strip() == str(libraries / "libcollc-lab-node0.so"), done.stderr
    description.write_text(nvml.h100(gpus=4).text())
    done = run(libraries, env=nvml.environment(mock, description, None))
    assert done.returncode == 1
    assert "none of its 2 libraries has a plan for the 4 GPUs" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_run_takes_the_server_of_this_hosts_name(libraries: Path, tmp_path: Path) -> None:
    host = socket.gethostname().partition(".")[0]
    mine = tmp_path / "mine.yaml"
    mine.write_text(CLUSTER.replace("node1", host))
    done = run(libraries, "--topology", mine)
    assert done.stdout.strip() == str(libraries / "libcollc-lab-node1.so"), done.stderr
    mine.write_text(CLUSTER)
    done = run(libraries, "--topology", mine)
    assert done.returncode == 2
    assert f"none of its 5 servers is called {host}" in done.stderr


def test_two_libraries_that_fit_and_files_that_are_none_are_refused(libraries: Path, tmp_path: Path) -> None:
    folder = tmp_path / "libs"
    folder.mkdir()
    assert "no libcollc-*.so in it" in refused(collc("run", "--lib", folder, "--", "true"), code=1 + 1)
    for name in ("a", "b"):
        os.link(libraries / "libcollc-lab-node0.so", folder / f"libcollc-{name}.so")
    line = refused(collc("run", "--lib", folder, "--topology", "hgx-h100", "--", "true"))
    assert "2 libraries fit this machine: libcollc-a.so, libcollc-b.so" in line
    (folder / "libcollc-a.so").unlink()
    folder.chmod(0o777)
    line = refused(collc("run", "--lib", folder, "--topology", "hgx-h100", "--", "true"), code=2)
    assert "the folder may be written by everybody" in line
    folder.chmod(0o755)
    (folder / "libcollc-c.so").write_text("no library")
    assert "libcollc-c.so" in refused(collc("run", "--lib", folder, "--topology", "hgx-h100", "--", "true"))


def test_what_cannot_be_one_library_is_refused_in_one_line(tmp_path: Path) -> None:
    path = cluster(tmp_path)
    line = refused(collc("compile", path, "--keep-source", tmp_path / "s.cpp", "--target", "host"), code=2)
    assert "2 kinds of servers" in line
    assert sorted(p.name for p in tmp_path.iterdir()) == ["lab.yaml"]
    # GPUs that only the network joins are no server's library.
    path.write_text(
        "format: collc-topology/1\nname: x\ntemplate: {gpus: 2}\nservers: 2\nswitches: [s]\n"
        "links: [[each.gpu0, s, net, 1], [each.gpu1, s, net, 1]]\n"
    )
    line = refused(collc("compile", path, "-o", tmp_path / "libs", "--target", "host"))
    assert "server server0 alone: gpu1 cannot be reached from gpu0" in line
    assert not (tmp_path / "libs").exists()


def test_a_library_that_lay_there_before_is_told(tmp_path: Path) -> None:
    path = cluster(tmp_path)
    path.write_text("format: collc-topology/1\nname: two\ntemplate: a100x4-nv4\nservers: 2\n")
    (tmp_path / "libs").mkdir()
    (tmp_path / "libs" / "libcollc-old.so").write_text("")
    done = collc("compile", path, "-o", tmp_path / "libs", "--target", "host", "--collective", "broadcast", "--json")
    assert done.code == 0, done.err
    assert "libcollc-old.so was here before" in done.err
    found = json.loads(done.out)
    assert [row["servers"] for row in found["libraries"]] == [["server0", "server1"]]
    assert Path(found["libraries"][0]["library"]).name == "libcollc-two-server0.so"


def test_every_topology_of_collc_splits_into_servers_whose_graphs_are_its_own() -> None:
    """Also where vertices do not carry their server's name."""
    several = loads_topology("format: collc-topology/1\ntemplates: {h: hgx-h100, a: dgx-a100}\nservers: {h: 2, a: 1}\n")
    assert [kind.machine.gpu_model for kind in server_kinds(several)] == ["H100", "A100"]
    mixed = collc("topologies", "--make", "mixed", "a100=2", "h100=1")
    topology: Topology = loads_topology(mixed.out)
    assert [(kind.servers, len(kind.machine.gpus)) for kind in server_kinds(topology)] == [
        (("server0", "server1"), 8),
        (("server2",), 8),
    ]
