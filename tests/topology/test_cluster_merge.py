"""`collc probe --merge`: equal servers become a template, and odd servers are listed with their missing parts."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from support.cli import collc, refused

from collc.errors import TopologyError
from collc.packing import Collective, plan
from collc.topology.cluster.merge import Described, merge
from collc.topology.cluster.model import Cluster, Server
from collc.topology.cluster.write import dumps_cluster
from collc.topology.dump import dumps_topology
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology, loads_topology
from collc.topology.model import Link, LinkKind, Port, Topology, Vertex, VertexKind


def box(**changes: str) -> Topology:
    """Returns a DGX-1V with two lanes on half of its NVLinks; `changes` are further keys below `extends`."""
    text = "format: collc-topology/1\nname: box\nextends: dgx1v\n" + "".join(f"{k}: {v}\n" for k, v in changes.items())
    return loads_topology(text)


def folded(machines: list[Topology], described: Described | None = None) -> Cluster:
    servers = [Server(f"node{i:02}", machine, f"node{i:02}.yaml") for i, machine in enumerate(machines)]
    return merge(servers, described or Described(), "lab")


def odd(cluster: Cluster) -> dict[str, list[str]]:
    return {server: list(found.words) for kind in cluster.kinds for server, found in kind.odd.items()}


def flat(cluster: Cluster) -> Topology:
    return loads_topology(dumps_cluster(cluster))


def of_server(topology: Topology, server: str) -> tuple[set[Vertex], set[Link]]:
    """Vertices and links inside a server of the file, without its name."""
    own = f"{server}."
    vertices = {
        dataclasses.replace(v, name=v.name.removeprefix(own)) for v in topology.vertices if v.name.startswith(own)
    }
    links = {
        dataclasses.replace(k, src=k.src.removeprefix(own), dst=k.dst.removeprefix(own))
        for k in topology.links
        if k.src.startswith(own) and k.dst.startswith(own)
    }
    return vertices, links


LOSSES = {
    "NIC": ({"remove": "[mlx5_3]"}, ["no NIC mlx5_3"]),
    "lane": ({"links": "[[gpu6, gpu7, nvlink, 25]]"}, ["nvlink gpu6-gpu7 has 1 of 2 lanes (25 of 50 GB/s)"]),
    "link": ({"remove": "[[gpu0, gpu1, nvlink]]"}, ["no nvlink gpu0-gpu1"]),
    "slow PCIe": ({"links": "[[gpu5, plx2, pcie, 6.25]]"}, ["pcie gpu5-plx2 has 6.25 of 12.5 GB/s"]),
    "more": (
        {"nics": "[eth9]", "links": "[[eth9, cpu0, pcie, 4]]"},
        ["NIC eth9, which the others do not have"],
    ),
    "wire": ({"links": "[[gpu0, gpu7, nvlink, 25]]"}, ["nvlink gpu0-gpu7, which the others do not have"]),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_each_loss_is_named_and_the_file_keeps_it(loss: str) -> None:
    changes, words = LOSSES[loss]
    machines = [box(), box(**changes), box(), box()]
    cluster = folded(machines)
    assert len(cluster.kinds) == 1
    assert odd(cluster) == {"node01": words}
    topology = flat(cluster)
    assert list(topology.servers) == ["node00", "node01", "node02", "node03"]
    for i, machine in enumerate(machines):
        assert of_server(topology, f"node{i:02}") == (set(machine.vertices), set(machine.links))
    assert len(topology.gpus) == 32


def test_a_link_that_is_left_in_one_direction_alone() -> None:
    lame = box()
    links = tuple(k for k in lame.links if (k.src, k.dst) != ("gpu0", "gpu1"))
    machines = [box(), dataclasses.replace(lame, links=links), box()]
    cluster = folded(machines)
    assert odd(cluster) == {"node01": ["no nvlink gpu0-gpu1"]}
    assert of_server(flat(cluster), "node01") == (set(lame.vertices), set(links))


def test_whatever_single_vertices_and_links_servers_lack_the_file_says_exactly_that() -> None:
    """Random losses on random servers: the file's servers are the probed ones, link by link."""
    for seed in range(12):
        draw = random.Random(seed)
        machines = []
        for _ in range(draw.randint(2, 6)):
            machine = box()
            for _ in range(draw.choice([0, 0, 1, 2])):
                links = list(machine.links)
                at = draw.randrange(len(links))
                if draw.random() < 0.5:
                    links[at] = dataclasses.replace(links[at], gbps=links[at].gbps / 2)
                else:
                    links.pop(at)
                machine = dataclasses.replace(machine, links=tuple(links))
            machines.append(machine)
        topology = flat(folded(machines))
        for i, machine in enumerate(machines):
            assert of_server(topology, f"node{i:02}") == (set(machine.vertices), set(machine.links)), seed


def hgx(gpus: int = 8, nics: int = 8, lost: int | None = None) -> Topology:
    """GPU j and NIC j share PCIe switch j; a probe of a server that lost NIC `lost` numbers the others anew."""
    names = [f"gpu{i}" for i in range(gpus)]
    left = [i for i in range(nics) if i != lost]
    vertices = [Vertex(n, VertexKind.GPU) for n in names] + [Vertex("nvs0", VertexKind.SWITCH)]
    links: list[Link] = []

    def both(a: str, b: str, kind: LinkKind, gbps: int) -> None:
        links.extend([Link(a, b, kind, Fraction(gbps)), Link(b, a, kind, Fraction(gbps))])

    switches = [f"pcie{n}" for n in range(len(left))]
    vertices += [Vertex(s, VertexKind.SWITCH) for s in switches] + [Vertex(f"cpu{i}", VertexKind.CPU) for i in range(2)]
    for n, i in enumerate(left):
        vertices.append(Vertex(f"mlx5_{n}", VertexKind.NIC, port=Port(Fraction(50), f"{i:016x}", f"ib{n}")))
        both(f"mlx5_{n}", switches[n], LinkKind.PCIE, 50)
        both(f"gpu{i}", switches[n], LinkKind.PCIE, 50)
        both(switches[n], f"cpu{i // 4}", LinkKind.PCIE, 50)
    for i, name in enumerate(names):
        both(name, "nvs0", LinkKind.NVSWITCH, 450)
        if i == lost:
            both(name, f"cpu{i // 4}", LinkKind.PCIE, 50)
    both("cpu0", "cpu1", LinkKind.PCIE, 75)
    servers = {"server0": tuple(v.name for v in vertices)}
    return Topology("hgx", tuple(vertices), tuple(links), servers, gpu_model="H100")


def unlike(machine: Topology, guid: int) -> Topology:
    """The same machine with other GUIDs: another server."""
    vertices = tuple(
        v if v.port is None else dataclasses.replace(v, port=dataclasses.replace(v.port, guid=f"{guid + i:016x}"))
        for i, v in enumerate(machine.vertices)
    )
    return dataclasses.replace(machine, vertices=vertices)


@pytest.mark.parametrize("lost", range(8))
def test_a_server_that_numbers_its_nics_anew_lacks_one_at_its_place(lost: int) -> None:
    cluster = folded([unlike(hgx(lost=lost if i == 2 else None), 1000 * i) for i in range(4)])
    words = odd(cluster)["node02"]
    assert list(odd(cluster)) == ["node02"]
    assert words[0].startswith(f"no NIC mlx5_{lost}")
    assert len(words) == 1, words
    if lost < 7:
        assert f"mlx5_{lost + 1} is mlx5_{lost}" in words[0]
    topology = flat(cluster)
    # The rails of the others are joined as if nothing had been numbered anew.
    rails = {k.dst for k in topology.links if k.src.startswith("node02.") and k.kind is LinkKind.NET}
    assert rails == {f"rail{i}" for i in range(8)} - {f"rail{lost}"}
    assert plan(plan_graph(topology), Collective.ALL_GATHER).optimal


def test_a_server_that_lost_a_gpu_names_its_place() -> None:
    def without(lost: int) -> Topology:
        whole = hgx()
        names = {f"gpu{i}": f"gpu{i - (i > lost)}" for i in range(8) if i != lost}
        vertices = tuple(
            dataclasses.replace(v, name=names.get(v.name, v.name)) for v in whole.vertices if v.name != f"gpu{lost}"
        )
        links = tuple(
            dataclasses.replace(k, src=names.get(k.src, k.src), dst=names.get(k.dst, k.dst))
            for k in whole.links
            if f"gpu{lost}" not in (k.src, k.dst)
        )
        servers = {"server0": tuple(v.name for v in vertices)}
        return dataclasses.replace(whole, vertices=vertices, links=links, servers=servers)

    cluster = folded([unlike(without(5) if i == 1 else hgx(), 1000 * i) for i in range(3)])
    assert odd(cluster) == {"node01": ["no GPU gpu5 (its own numbers there: gpu6 is gpu5, gpu7 is gpu6)"]}
    assert "node01.gpu7" in {v.name for v in flat(cluster).gpus}


def test_kinds_of_servers_have_templates_of_their_own() -> None:
    a100, h100 = load_topology("dgx-a100"), load_topology("hgx-h100")
    cluster = folded([h100, a100, h100, h100, a100, load_topology("a100x4-nv4")])
    assert [(kind.name, [s.name for s in kind.servers]) for kind in cluster.kinds] == [
        ("h100x8", ["node00", "node02", "node03"]),
        ("a100x8", ["node01", "node04"]),
        (cluster.kinds[2].name, ["node05"]),
    ]
    topology = flat(cluster)
    assert topology.gpu_model is None
    assert of_server(topology, "node04") == (set(a100.vertices), set(a100.links))
    assert of_server(topology, "node03") == (set(h100.vertices), set(h100.links))


def test_a_nic_that_is_down_carries_nothing_and_a_slow_one_what_it_can() -> None:
    def changed(port: Port) -> Topology:
        machine = hgx()
        vertices = tuple(dataclasses.replace(v, port=port) if v.name == "mlx5_3" else v for v in machine.vertices)
        return dataclasses.replace(machine, vertices=vertices)

    cluster = folded(
        [hgx(), unlike(changed(Port(Fraction(50), up=False)), 900), unlike(changed(Port(Fraction(25))), 990)]
    )
    assert odd(cluster) == {"node01": ["NIC mlx5_3 is down"], "node02": ["NIC mlx5_3 runs at 25 of 50 GB/s"]}
    net = {k.src: k.gbps for k in flat(cluster).links if k.dst == "rail3" and k.kind is LinkKind.NET}
    assert net == {"node00.mlx5_3": 50, "node02.mlx5_3": 25}


def test_storage_nics_are_left_out_and_said() -> None:
    machine = hgx()
    slow = Vertex("eth0", VertexKind.NIC, port=Port(Fraction(25, 8)))
    wires = tuple(Link(a, b, LinkKind.PCIE, Fraction(12)) for a, b in (("eth0", "cpu0"), ("cpu0", "eth0")))
    machine = dataclasses.replace(machine, vertices=(*machine.vertices, slow), links=(*machine.links, *wires))
    cluster = folded([machine, unlike(machine, 500)])
    assert any("eth0: slower than half of the fastest NIC" in note for note in cluster.notes)
    assert len(cluster.network.switches) == 8


def test_the_network_is_assumed_and_said_on_stderr_and_in_the_file(tmp_path: Path) -> None:
    for i in range(2):
        (tmp_path / f"node{i}.yaml").write_text(dumps_topology(unlike(hgx(), 100 * i)))
    out = tmp_path / "lab.yaml"
    result = collc("probe", "--merge", tmp_path / "node0.yaml", tmp_path / "node1.yaml", "-o", out)
    assert result.code == 0, result.err
    assert "network: assumed 8 rails" in result.err
    assert "# network: assumed 8 rails" in out.read_text()
    assert "wrote" in result.out
    assert load_topology(out).name == "lab"
    found = json.loads(collc("probe", "--merge", tmp_path / "node0.yaml", tmp_path / "node1.yaml", "--json").out)
    assert found["kinds"] == [{"name": "h100x8", "gpu_model": "H100", "gpus": 8, "servers": ["node0", "node1"]}]
    assert found["odd"] == {}


def test_sixty_four_servers_are_a_short_file() -> None:
    machines = [unlike(hgx(lost=3 if i == 17 else None), 100 * i) for i in range(64)]
    cluster = folded(machines)
    text = dumps_cluster(cluster)
    assert "# node17: no NIC mlx5_3" in text
    assert len(text.splitlines()) < 100
    assert len(loads_topology(text).gpus) == 512


RAILS = "format: collc-rails/1\nrails: {leafA: [mlx5_0, mlx5_1], leafB: [mlx5_2, node01.mlx5_1]}\n"


def test_rails_say_which_nic_hangs_where() -> None:
    cluster = folded([hgx(), unlike(hgx(), 500)], Described(rails=("rails.yaml", RAILS)))
    where = {(c.a, c.b) for c in cluster.network.cables}
    assert where == {
        ("node00.mlx5_0", "leafA"),
        ("node00.mlx5_1", "leafA"),
        ("node00.mlx5_2", "leafB"),
        ("node01.mlx5_0", "leafA"),
        ("node01.mlx5_1", "leafB"),
        ("node01.mlx5_2", "leafB"),
    }
    assert any("10 NICs are on no rail" in note for note in cluster.network.notes)
    spine = folded([hgx(), unlike(hgx(), 500)], Described(rails=("rails.yaml", RAILS + "spine: 100\n")))
    assert ("leafA", "spine", Fraction(100)) in {(c.a, c.b, c.gbps) for c in spine.network.cables}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "r.yaml:1: the file is empty"),
        ("[]", "r.yaml:1: a file of rails is a mapping"),
        ("format: x\n", "r.yaml:1: this is no file of rails"),
        ("format: collc-rails/1\n", "the key `rails` is missing"),
        ("format: collc-rails/1\nrails: {}\n", "`rails` is empty"),
        ("format: collc-rails/1\nrails: {a: [mlx5_9]}\n", "r.yaml:2: no NIC is called `mlx5_9` (did you mean"),
        ("format: collc-rails/1\nrails: {a: [mlx5_0], b: [mlx5_0]}\n", "node00.mlx5_0 is on a already"),
        ("format: collc-rails/1\nrails: {a: [mlx5_0]}\nspine: -1\n", "r.yaml:3: `spine` cannot be `-1`"),
        ("format: collc-rails/1\nrails: {spine: [mlx5_0]}\nspine: 1\n", "`spine` is the name of a rail already"),
        ("format: collc-rails/1\nrails: {a: {b: 1}}\n", "expected a list here"),
        ("format: collc-rails/1\nrail: {a: [mlx5_0]}\n", "unknown key `rail`"),
    ],
)
def test_wrong_files_of_rails_are_one_line(text: str, line: str, tmp_path: Path) -> None:
    for i in range(2):
        (tmp_path / f"node0{i}.yaml").write_text(dumps_topology(unlike(hgx(), 100 * i)))
    (tmp_path / "r.yaml").write_text(text)
    files = sorted(tmp_path.glob("node*"))
    assert line in refused(collc("probe", "--merge", *files, "--rails", tmp_path / "r.yaml"))


def _twice(folder: Path) -> list[object]:
    (folder / "b").mkdir()
    (folder / "b" / "node0.yaml").write_text((folder / "node0.yaml").read_text())
    return [folder / "node0.yaml", folder / "b" / "node0.yaml"]


def _copied(folder: Path) -> list[object]:
    (folder / "copy.yaml").write_text((folder / "node0.yaml").read_text())
    return [folder / "node0.yaml", folder / "copy.yaml"]


def _cluster(folder: Path) -> list[object]:
    (folder / "c.yaml").write_text("format: collc-topology/1\nname: c\ntemplate: dgx1v\nservers: 2\n")
    return [folder / "c.yaml", folder / "node0.yaml"]


def _named(name: str, text: str | None = None) -> Callable[[Path], list[object]]:
    def write(folder: Path) -> list[object]:
        (folder / name).write_text((folder / "node0.yaml").read_text() if text is None else text)
        return [folder / name, folder / "node1.yaml"]

    return write


@pytest.mark.parametrize(
    ("change", "code", "line"),
    [
        (lambda folder: [], 2, "no files to merge"),
        (lambda folder: [folder], 2, "is a folder"),
        (lambda folder: [folder / "node7.yaml"], 2, "no such file"),
        (_twice, 2, "server node0 is in"),
        (_copied, 1, "its NIC mlx5_0 is that of"),
        (_cluster, 2, "describes 2 servers, and --merge takes one server per file"),
        (_named("0.yaml"), 2, "is a number or a range"),
        (_named("each.yaml"), 2, "`each` cannot be the name of a server"),
        (_named("x" * 61 + ".yaml"), 2, "is longer than 64 characters"),
        (_named("old.yaml", "format: collc-topology/9\n"), 1, "is not a format that this version reads"),
        (_named("empty.yaml", ""), 1, "the file is empty"),
        (_named("nogpu.yaml", "format: collc-topology/1\ncpus: [cpu0]\n"), 1, "the topology has no GPU"),
    ],
)
def test_wrong_files_are_refused_in_one_line(
    change: Callable[[Path], list[object]], code: int, line: str, tmp_path: Path
) -> None:
    for i in range(2):
        (tmp_path / f"node{i}.yaml").write_text(dumps_topology(unlike(hgx(), 100 * i)))
    assert line in refused(collc("probe", "--merge", *change(tmp_path)), code=code)


def test_old_files_without_speeds_of_nics_take_that_of_pcie() -> None:
    machine = hgx()
    bare = dataclasses.replace(machine, vertices=tuple(dataclasses.replace(v, port=None) for v in machine.vertices))
    cluster = folded([machine, bare])
    assert odd(cluster) == {}
    assert any("not in the files, taken as that of its PCIe link" in note for note in cluster.notes)
    assert {c.gbps for c in cluster.network.cables} == {50}


def test_ports_survive_a_file() -> None:
    machine = hgx()
    read = loads_topology(dumps_topology(machine))
    assert {v.name: v.port for v in read.vertices} == {v.name: v.port for v in machine.vertices}
    line = 'nics: [{name: n0, gbps: 50, guid: "0002c90300293e1e", interface: ib0, pci: "0000:5e:00.1", up: false}]'
    read = loads_topology(f"format: collc-topology/1\ngpus: 1\n{line}\n")
    assert read.vertices[1].port == Port(Fraction(50), "0002c90300293e1e", "ib0", up=False, pci="0000:5e:00.1")
    assert loads_topology(dumps_topology(read)).vertices[1].port == read.vertices[1].port
    with pytest.raises(TopologyError, match="`pci` cannot be"):
        loads_topology('format: collc-topology/1\ngpus: 1\nnics: [{name: n0, pci: "5E:00.1"}]\n')


def test_interfaces_and_bus_ids_of_a_kind_are_those_that_all_its_servers_have() -> None:
    """And that tell its NICs apart: libraries look for their cards by them."""

    def probed(server: int) -> Topology:
        machine = unlike(hgx(), 100 * server)
        places = {"mlx5_0": ("ib0", "0000:18:00.0"), "mlx5_1": (f"ib{5 + server}", "0000:2a:00.0")}
        places |= {"mlx5_2": ("ib2", f"0000:3a:00.{server}"), "mlx5_3": ("ib2", "0000:5d:00.0")}
        vertices = []
        for v in machine.vertices:
            interface, pci = places.get(v.name, (None, None))
            port = v.port and dataclasses.replace(v.port, interface=interface, pci=pci)
            vertices.append(dataclasses.replace(v, port=port))
        return dataclasses.replace(machine, vertices=tuple(vertices))

    topology = flat(folded([probed(0), probed(1)]))
    found = {v.name: (v.port.interface, v.port.pci) for v in topology.vertices if v.port}
    for server in ("node00", "node01"):
        assert found[f"{server}.mlx5_0"] == ("ib0", "0000:18:00.0")
        assert found[f"{server}.mlx5_1"] == (None, "0000:2a:00.0")
        assert found[f"{server}.mlx5_2"] == (None, None)
        assert found[f"{server}.mlx5_3"] == (None, "0000:5d:00.0")
        assert found[f"{server}.mlx5_4"] == (None, None)
