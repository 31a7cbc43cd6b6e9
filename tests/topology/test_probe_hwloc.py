"""hwloc's XML: the tree, the matrices of NVLink and xGMI, and files that do not tell the links."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from support.machines import fast_links, nics, sockets
from support.topo_text import Table, render

from collc.errors import TopologyError
from collc.topology.model import Topology
from collc.topology.probe.dumps import topology_from_dumps


def probe(*texts: str) -> Topology:
    return topology_from_dumps([(f"file{i}", text) for i, text in enumerate(texts)])


def device(number: int, driver: str = "nvml", model: str = "NVIDIA A100-SXM4-40GB", speed: str = "31.507692") -> str:
    """A PCI device with one GPU; its `gp_index` is 100 and the number."""
    return (
        f'<object type="PCIDev" gp_index="{number + 50}" pci_busid="0000:{number + 16:02x}:00.0" '
        f'pci_type="0302 [10de:20b0] [10de:1450] a1 00" pci_link_speed="{speed}">\n'
        f'<object type="OSDev" gp_index="{number + 100}" name="{driver}{number}" osdev_type="5">\n'
        f'<info name="GPUModel" value="{model}"/>\n</object>\n</object>\n'
    )


def card(name: str, interface: str = "") -> str:
    inner = f'<object type="OSDev" gp_index="301" name="{interface}" osdev_type="2"/>\n' if interface else ""
    return (
        f'<object type="PCIDev" gp_index="300" pci_busid="0000:a0:00.0" pci_type="0207 [15b3:1021]" '
        f'pci_link_speed="63.015385">\n{inner}<object type="OSDev" gp_index="302" name="{name}" osdev_type="3"/>\n'
        "</object>\n"
    )


def bridge(*below: str) -> str:
    inner = "".join(below)
    return f'<object type="Bridge" gp_index="9" bridge_type="1-1" pci_link_speed="31.507692">\n{inner}</object>\n'


def package(number: int, *below: str) -> str:
    port = f'<object type="Bridge" gp_index="8" bridge_type="0-1">\n{"".join(below)}</object>\n'
    return (
        f'<object type="Package" os_index="{number}" gp_index="{number + 1}">\n'
        f'<object type="NUMANode" os_index="{number}" gp_index="{number + 20}"/>\n{port}</object>\n'
    )


def matrix(name: str, indexes: list[str], cells: Mapping[tuple[int, int], int]) -> str:
    count = range(len(indexes))
    values = " ".join(str(cells.get((a, b), cells.get((b, a), 0))) for a in count for b in count)
    return (
        f'<distances2hetero nbobjs="{len(indexes)}" kind="25" name="{name}">\n<indexes length="9">{" ".join(indexes)}'
        f'</indexes>\n<u64values length="9">{values}</u64values>\n</distances2hetero>\n'
    )


def topology(*parts: str, packages: tuple[str, ...]) -> str:
    machine = f'<object type="Machine" os_index="0" gp_index="1">\n{"".join(packages)}</object>\n'
    head = '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE topology SYSTEM "hwloc2.dtd">\n<topology version="2.0">\n'
    return head + machine + "".join(parts) + "</topology>\n"


FOUR = (package(0, bridge(device(0), device(1), card("mlx5_0", "ib0"))), package(1, device(2), device(3)))
GPUS = [f"OSDev:{i + 100}" for i in range(4)]


def test_tree_and_direct_links() -> None:
    cells = {(a, b): 100_000 for a in range(4) for b in range(a + 1, 4)}
    found = probe(topology(matrix("NVLinkBandwidth", GPUS, cells), packages=FOUR))
    assert fast_links(found) == "nvlink 100x6"
    assert sockets(found) == "0,1|2,3"
    assert nics(found) == ["mlx5_0"]
    assert found.gpu_model == "A100"
    assert {float(k.gbps) for k in found.links if k.src == "gpu0" and k.kind.value == "pcie"} == {25}
    card_port = next(v.port for v in found.vertices if v.name == "mlx5_0")
    assert card_port is not None
    assert (card_port.interface, card_port.pci) == ("ib0", "0000:a0:00.0")


def test_switches_cpus_and_islands() -> None:
    switch = '<object type="PCIDev" gp_index="{}" subtype="NVSwitch" pci_type="0680 [10de:1af1]"/>'
    switches = tuple(switch.format(400 + i) for i in range(2))
    cells = {(gpu, 4 + gpu // 2): 25_000 * 12 for gpu in range(4)}
    names = [*GPUS, "PCIDev:400", "PCIDev:401"]
    found = probe(topology(matrix("NVLinkBandwidth", names, cells), packages=(*FOUR, *switches)))
    assert fast_links(found) == "nvswitch 300x4"
    assert [v.name for v in found.vertices if v.name.startswith("nvs")] == ["nvs0", "nvs1"]
    cells = {(0, 1): 40_000, (0, 2): 40_000, (1, 2): 40_000}
    power = probe(topology(matrix("NVLinkBandwidth", [*GPUS[:2], "Package:1"], cells), packages=FOUR[:1]))
    assert fast_links(power) == "nvlink 40x1"
    assert {k.kind.value for k in power.links if k.src == "gpu0"} == {"nvlink", "c2c"}


XGMI = {(a, b): 100_000 for a in range(4) for b in range(a + 1, 4)}
AMD = tuple(package(i, *(device(2 * i + j, "rsmi", "AMD Instinct MI250X") for j in range(2))) for i in range(2))


def test_xgmi() -> None:
    ring = {(0, 1): 200_000, (1, 2): 50_000, (2, 3): 200_000, (0, 3): 50_000}
    assert fast_links(probe(topology(matrix("XGMIBandwidth", GPUS, ring), packages=AMD))) == "xgmi 50x2 200x2"
    with pytest.raises(TopologyError, match=r"100 GB/s for each pair .*amd-smi topology"):
        probe(topology(matrix("XGMIBandwidth", GPUS, XGMI), packages=AMD))


def test_links_from_another_dump() -> None:
    bare = topology(packages=FOUR)
    with pytest.raises(TopologyError, match=r"without a matrix of NVLink .*nvidia-smi topo -m"):
        probe(bare)
    table = render(Table(4, cells={(i, j): "NV4" for i in range(4) for j in range(i + 1, 4)}))
    found = probe(bare, table)
    assert fast_links(found) == "nvlink 100x6"
    assert nics(found) == ["mlx5_0"]
    with pytest.raises(TopologyError, match="4 GPUs here, 2 in the other dump"):
        probe(bare, render(Table(2)))


def test_gpus_that_have_no_links() -> None:
    packages = (package(0, device(0, model="NVIDIA L40S"), device(1, model="NVIDIA L40S")),)
    assert fast_links(probe(topology(packages=packages))) == ""
    one = topology(packages=(package(0, device(0)),))
    assert len(probe(one).gpus) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (topology(packages=(package(0),)), "hwloc's XML without GPUs"),
        (topology(matrix("NVLinkBandwidth", GPUS[:3], {}), packages=FOUR)[:-60], "not XML"),
        (topology(matrix("NVLinkBandwidth", GPUS, {}).replace("0 0", "0", 1), packages=FOUR), "a matrix of 15 values"),
        ("<!DOCTYPE topology [<!ENTITY a 'b'>]>\n<topology version='2.0'><object/></topology>", "a document type"),
    ],
)
def test_damaged(text: str, words: str) -> None:
    with pytest.raises(TopologyError, match=words):
        probe(text)
