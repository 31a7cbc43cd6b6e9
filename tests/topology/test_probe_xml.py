"""NCCL topology XML: dumps, virtual machines, skeletons of clouds, RCCL's xgmi, and damage."""

from __future__ import annotations

from fractions import Fraction

import pytest
from support.machines import fast_links, nics, pairs, sockets
from support.nccl_text import amd, bridge, bus, cpu, gpu, mesh, nic, pci, system
from support.topo_text import DGX1V, Table, dgx1, render

from collc.errors import TopologyError
from collc.topology.canonical import fingerprint
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology
from collc.topology.model import Topology
from collc.topology.probe.dumps import topology_from_dumps
from collc.topology.probe.machine import bus_order
from collc.topology.probe.nccl_xml import _bus


def probe(*texts: str) -> Topology:
    return topology_from_dumps([(f"file{i}.xml", text) for i, text in enumerate(texts)])


def pair(first: str, second: str) -> str:
    """Two GPUs below one CPU, each given as the content of its pci element."""
    return system(cpu(0, pci(bus(0), first), pci(bus(1), second)))


def test_a_dgx1v_dump() -> None:
    topology = probe(mesh(DGX1V, 8))
    assert fast_links(topology) == "nvlink 25x8 50x8"
    assert sockets(topology) == "0,1,2,3|4,5,6,7"
    assert nics(topology) == ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]
    assert fingerprint(plan_graph(topology)) == fingerprint(plan_graph(load_topology("dgx1v")))


@pytest.mark.parametrize(("sm", "gbps"), [(60, 20), (70, 25), (80, 25), (86, 14.0625), (90, 25), (100, 50)])
def test_speed_follows_the_generation(sm: int, gbps: float) -> None:
    topology = probe(mesh({(0, 1): 4}, 2, sm=sm))
    assert pairs(topology) == {("gpu0", "gpu1"): f"{gbps * 4:g}", ("gpu1", "gpu0"): f"{gbps * 4:g}"}


@pytest.mark.parametrize("target", ["fffffff:ffff:ff", "ffffffff:ffff:ff", "fffffff:ff:ff.0", "0000:c0:00.0"])
def test_hidden_remotes_and_nvswitches(target: str) -> None:
    boxes = [pci(bus(i), gpu(i, {target: 18}, sm=90, tclass="0x068000")) for i in range(8)]
    topology = probe(system(cpu(0, *boxes)))
    assert fast_links(topology) == "nvswitch 450x8"


def test_links_to_the_cpu_replace_pcie() -> None:
    first = gpu(0, {bus(1): 3}).replace("</gpu>", '<nvlink target="0004:00:00.0" count="3" tclass="0x068001"/></gpu>')
    second = gpu(1, {bus(0): 3}).replace("</gpu>", '<nvlink target="0004:00:00.0" count="3" tclass="0x068001"/></gpu>')
    topology = probe(pair(first, second))
    up = {(k.src, k.dst): (k.kind.value, k.gbps) for k in topology.links}
    assert up["gpu0", "cpu0"] == ("c2c", Fraction(75))
    assert up["gpu0", "gpu1"] == ("nvlink", Fraction(75))


def test_pcie_speed_and_width_and_the_narrowest_bridge() -> None:
    inside = bridge("0000:70:00.0", pci(bus(0), gpu(0), speed="16.0 GT/s PCIe"), speed="8 GT/s", width="8")
    topology = probe(system(cpu(0, inside, pci(bus(1), gpu(1), speed="16 GT/s"))))
    up = {k.src: k.gbps for k in topology.links if k.src.startswith("gpu")}
    assert up == {"gpu0": Fraction(25, 4), "gpu1": 25}


def test_unknown_pcie_speed_is_assumed_and_said() -> None:
    topology = probe(system(cpu(0, pci(bus(0), gpu(0), speed="", width="0"), pci(bus(1), gpu(1), speed="Unknown"))))
    assert {k.gbps for k in topology.links} == {Fraction(25, 2)}
    assert any(note.startswith("PCIe: assumed 3.0 x16") for note in topology.notes)


@pytest.mark.parametrize(
    ("gcn", "count", "gbps"), [("gfx906", 1, "46"), ("gfx90a", 2, "100"), ("gfx942", 1, "64"), ("950", 1, "76.8")]
)
def test_xgmi(gcn: str, count: int, gbps: str) -> None:
    text = pair(amd(0, {bus(1): count}, gcn), amd(1, {bus(0): count}, gcn))
    topology = probe(text)
    assert pairs(topology)["gpu0", "gpu1"] == gbps
    assert {k.kind.value for k in topology.links} == {"xgmi", "pcie"}


@pytest.mark.parametrize(
    ("gpus", "said"),
    [
        ([gpu(0), gpu(1)], ["no NVLinks in this file; if the machine has some, add --from `nvidia-smi topo -m`"]),
        ([amd(0, {}, "gfx906"), amd(1, {}, "gfx906")], ["no xGMI links in this file; if the machine has some, use "]),
        # One GPU has nothing to link to.
        ([gpu(0)], []),
    ],
)
def test_missing_links_are_said_in_the_makers_words(gpus: list[str], said: list[str]) -> None:
    topology = probe(system(cpu(0, *(pci(bus(i), text) for i, text in enumerate(gpus)))))
    told = [note for note in topology.notes if "in this file" in note]
    assert len(told) == len(said)
    assert all(note.startswith(words) for note, words in zip(told, said, strict=True))


SKELETON = system(
    cpu(0, *(bridge(f"ffff:ff:0{i}.0", pci(bus(i)), pci(f"0000:a{i}:00.0", cls="0x020700")) for i in range(4)))
)


def test_a_skeleton_alone_is_refused() -> None:
    with pytest.raises(TopologyError, match=r"file0.xml:1: there are no GPUs in it: a skeleton .* --from TOPO.txt"):
        probe(SKELETON)
    bare = SKELETON.replace("0x030200", "").replace("0x020700", "")
    with pytest.raises(TopologyError, match=r"its PCIe devices do not say which are GPUs: .* --from TOPO\.txt"):
        probe(bare)


def test_a_skeleton_with_a_table() -> None:
    table = render(Table(4, cells={(i, j): "NV4" for i in range(4) for j in range(i + 1, 4)}))
    for texts in ([SKELETON, table], [table, SKELETON]):
        topology = probe(*texts)
        assert fast_links(topology) == "nvlink 100x6"
        assert len(nics(topology)) == 4
        assert any("numbered by bus id" in note for note in topology.notes)
    with pytest.raises(TopologyError, match="4 GPUs here, 8 in the table"):
        probe(SKELETON, render(dgx1(DGX1V)))


def test_bus_ids_of_a_skeleton_are_sorted_as_numbers() -> None:
    """Domains have leading zeros in a dump, and the reader removes them."""
    buses = ["0002:00:00.0", "0010:00:00.0", "000a:00:00.0", "0001:00:00.0"]
    assert sorted(map(_bus, buses), key=bus_order) == ["1:00:00.0", "2:00:00.0", "a:00:00.0", "10:00:00.0"]


def test_a_dump_and_a_table_that_differ() -> None:
    assert fast_links(probe(mesh(DGX1V, 8), render(dgx1(DGX1V)))) == "nvlink 25x8 50x8"
    with pytest.raises(TopologyError, match="the links between GPUs in this file and in the other dump differ"):
        probe(mesh(DGX1V, 8), render(dgx1({**DGX1V, (0, 1): 2})))


def test_virtual_network_devices_are_no_nics() -> None:
    loose = "".join(nic(name) for name in ("docker0", "lo", "veth12"))
    real = nic("eth0", 200000)
    topology = probe(system(cpu(0, pci(bus(0), gpu(0)), loose, real)))
    assert nics(topology) == ["eth0"]
    assert next(k.gbps for k in topology.links if k.src == "eth0") == 25


HOSTS = system(cpu(0, pci(bus(0), gpu(0)), host="0x1"), cpu(1, pci(bus(1), gpu(1)), host="0x2"))


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("<system>", 1, "not XML"),
        ("<system>\n<cpu>\n</system>", 3, "not XML"),
        ("<net/>", 1, "the outermost element is <net>, not <system>"),
        ("<graphs/>", 1, "rings and trees that NCCL chose"),
        ("<system/>", 1, "there is no CPU in it"),
        ("<!DOCTYPE a [<!ENTITY x 'y'>]>\n<system/>", 1, "a document type declaration"),
        (system(cpu(0)), 1, "there are no GPUs in it"),
        (HOSTS, 1, "it holds 2 hosts"),
        (system(cpu(0, pci(bus(0), gpu(0))), cpu(0, pci(bus(1), gpu(1)))), 8, "NUMA node 0 is given twice"),
        (pair(gpu(0), gpu(0)), 8, "GPU 0 at 0:11:00.0 is given twice"),
        (pair(gpu(0) + gpu(1), gpu(1)), 9, "GPU 1 at 0:11:00.0 is given twice"),
        (pair(gpu(0).replace('dev="0"', 'dev="x"'), gpu(1)), 4, "the GPU's dev is `x`, not a number"),
        (pair(gpu(0, {bus(1): 2}), gpu(1, {bus(0): 1})), 4, "gpu0 has 2 links to gpu1, which has 1 back"),
        (pair(gpu(0, {bus(1): 2}), gpu(1)), 4, "gpu0 has 2 links to gpu1, which has 0 back"),
        (pair(gpu(0, {bus(0): 2}), gpu(1)), 4, "the NVLinks of gpu0 lead to itself"),
        (pair(gpu(0, {bus(1): 0}), gpu(1)), 5, "`0` is not a count of links"),
        ("<system>" * 80, 1, "elements nested deeper than 64 levels"),
    ],
)
def test_damage_is_refused_with_the_line(text: str, line: int, words: str) -> None:
    with pytest.raises(TopologyError) as caught:
        probe(text)
    assert str(caught.value).startswith(f"file0.xml:{line}: "), caught.value
    assert words in str(caught.value)


@pytest.mark.parametrize("dev", [0, 7])
def test_partitions_of_a_gpu_share_its_links(dev: int) -> None:
    part = gpu(dev, {"0000:c1:00.0": 18}, sm=100, tclass="0x068000")
    whole = gpu(dev + 1, {"0000:c1:00.0": 18}, sm=100, tclass="0x068000")
    topology = probe(system(cpu(0, pci(bus(0), part + part.replace("rank", 'mlopart="1" rank')), pci(bus(1), whole))))
    assert fast_links(topology) == "nvswitch 450x2 900x1"
    assert {k.dst for k in topology.links if k.src in ("gpu0", "gpu1") and k.kind.value == "pcie"} == {"pcie0"}
    assert any("gpu0, gpu1 are partitions of one GPU" in note for note in topology.notes)
