"""Outputs that name GPUs but not their links (-L, -q -x, --query-gpu), ibstat, and pasted terminals."""

from __future__ import annotations

import pytest
from support.machines import fast_links
from support.topo_text import Table, render

from collc.errors import TopologyError
from collc.topology.model import Topology
from collc.topology.probe.dumps import read_dumps, topology_from_dumps

A100, L40S = "NVIDIA A100-SXM4-80GB", "NVIDIA L40S"


def probe(*texts: str) -> Topology:
    return topology_from_dumps([(f"file{i}", text) for i, text in enumerate(texts)])


def listing(count: int, name: str = A100) -> str:
    return "".join(f"GPU {i}: {name} (UUID: GPU-aaaaaaaa-0000-0000-0000-{i:012x})\n" for i in range(count))


def smi_xml(count: int, name: str = A100, mig: str = "Disabled", fabric: str = "") -> str:
    gpus = "".join(
        f'<gpu id="00000000:{i + 16:02X}:00.0">\n<product_name>{name}</product_name>\n'
        f"<uuid>GPU-aaaaaaaa-0000-0000-0000-{i:012x}</uuid>\n<mig_mode><current_mig>{mig}</current_mig></mig_mode>\n"
        f"<pci><pci_bus_id>00000000:{i + 16:02X}:00.0</pci_bus_id><pci_gpu_link_info><pcie_gen>"
        "<max_link_gen>4</max_link_gen></pcie_gen><link_widths><max_link_width>8x</max_link_width></link_widths>"
        f"</pci_gpu_link_info></pci>\n{fabric}</gpu>\n"
        for i in range(count)
    )
    head = '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n<nvidia_smi_log>\n'
    return f"{head}<attached_gpus>{count}</attached_gpus>\n{gpus}</nvidia_smi_log>\n"


def query(count: int, name: str = A100) -> str:
    rows = "".join(f"{i}, {name}, 00000000:{i + 16:02X}:00.0, 4, 8\n" for i in range(count))
    return f"index, name, pci.bus_id, pcie.link.gen.max, pcie.link.width.max\n{rows}"


TABLE = render(Table(2, 1, {(0, 1): "NV12", (0, 2): "PIX", (1, 2): "PIX"}), nic_names=("mlx5_0",))


@pytest.mark.parametrize("text", [listing(3), smi_xml(3), query(3), query(3, "Graphics Device")])
def test_names_alone_never_become_a_machine_without_nvlinks(text: str) -> None:
    with pytest.raises(TopologyError, match=r"not the links between them .*nvidia-smi topo -m"):
        probe(text)


@pytest.mark.parametrize("text", [listing(3, L40S), smi_xml(3, L40S), query(3, L40S)])
def test_gpus_that_cannot_have_nvlinks(text: str) -> None:
    topology = probe(text)
    assert len(topology.gpus) == 3
    assert fast_links(topology) == ""
    assert any("all are placed directly at one CPU" in note for note in topology.notes)


@pytest.mark.parametrize("text", [smi_xml(2), query(2)])
def test_names_and_pcie_beside_a_table(text: str) -> None:
    topology = probe(TABLE, text)
    assert fast_links(topology) == "nvlink 300x1"
    assert topology.gpu_model == "A100"
    assert {float(k.gbps) for k in topology.links if k.src == "gpu0" and k.kind.value == "pcie"} == {12.5}
    assert topology.gpus[1].device is not None
    assert topology.gpus[1].device.pci == "0000:11:00.0"


def test_mig() -> None:
    topology = probe(TABLE, smi_xml(2, mig="Enabled"))
    assert fast_links(topology) == ""
    assert any("gpu0 is in MIG mode" in note for note in topology.notes)


IBSTAT = """CA 'mlx5_0'
\tCA type: MT4129
\tNumber of ports: 1
\tNode GUID: 0x1070fd0300112233
\tPort 1:
\t\tState: Active
\t\tPhysical state: LinkUp
\t\tRate: 400
CA 'mlx5_9'
\tPort 1:
\t\tState: Down
\t\tRate: 10
"""


def test_ibstat_beside_a_table() -> None:
    topology = probe(TABLE, IBSTAT)
    port = next(v.port for v in topology.vertices if v.name == "mlx5_0")
    assert port is not None
    assert port.gbps == 50
    assert (port.guid, port.up) == ("1070fd0300112233", True)
    assert any("adapters of ibstat" in note and "mlx5_9" in note for note in topology.notes)
    down = probe(TABLE, IBSTAT.replace("Active", "Down"))
    assert any("NIC mlx5_0 is down" in note for note in down.notes)
    with pytest.raises(TopologyError, match=r"shows adapters, but no GPUs .*nvidia-smi topo -m"):
        probe(IBSTAT)


@pytest.mark.parametrize("prompt", ["$ ", "user@node1:~$ ", "[root@node1 ~]# ", "(base) me@box:~/x$ sudo "])
def test_a_pasted_terminal_with_several_outputs(prompt: str) -> None:
    outputs = {
        "nvidia-smi topo -m": TABLE,
        "nvidia-smi topo -p2p r": " \tGPU0\tGPU1\t\n GPU0\tX\tCNS\t\n GPU1\tCNS\tX\t\n",
        "nvidia-smi -L": listing(2),
        "ibstat": IBSTAT,
        "nvidia-smi -q -x": smi_xml(2),
    }
    text = "".join(f"{prompt}{command}\n{output}" for command, output in outputs.items()) + f"{prompt}\n"
    reading = read_dumps([("paste.txt", text)])
    topology = reading.topology
    assert topology.links == probe(*outputs.values()).links
    assert topology.gpu_model == "A100"
    assert any("cannot read each other's memory" in note for note in topology.notes)
    number = text.splitlines().index("CA 'mlx5_0'")
    assert any(table == f"paste.txt:{number} ibstat" for table, _ in reading.tables), reading.tables
    assert len(reading.tables) == len(outputs)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ((listing(2), listing(2, L40S)), "GPU 0 has two names"),
        ((TABLE, listing(3)), "GPU 2 of nvidia-smi -L is not in the other dump"),
        ((query(2).replace(", 8\n", "\n", 1),), "4 values under 5 columns"),
        ((smi_xml(0),), "there are no GPUs in it"),
        ((IBSTAT.replace("400", "fast"), TABLE), "`fast` is no rate"),
    ],
)
def test_damaged_or_contradictory(texts: tuple[str, ...], words: str) -> None:
    with pytest.raises(TopologyError, match=words):
        probe(*texts)


@pytest.mark.parametrize(
    ("text", "whose"),
    [
        ("| NVIDIA-SMI 535.104.05   Driver Version: 535.104.05 |\n", "nvidia-smi or nvidia-smi -q .*topo -m"),
        ("==============NVSMI LOG==============\n", "nvidia-smi or nvidia-smi -q"),
        ("0, NVIDIA A100-SXM4-80GB, 4, 16\n", "--query-gpu without its header .*omit noheader"),
        ("hca_id: mlx5_0\n\ttransport: InfiniBand\n", "ibv_devinfo .*ibstat"),
        ('Switch  36 "S-0002c902004a1b20"  # "leaf"\n', "ibnetdiscover .*--fabric"),
        ("SwitchName=leaf1 Nodes=n[1-2]\n", "Slurm's topology.conf .*--fabric"),
        ("GPU: 0\n    BDF: 0000:0c:00.0\n", "amd-smi .*amd-smi topology"),
        ("18:00.0 3D controller: NVIDIA Corporation\n", "lspci"),
        ("Machine (1008GB total)\n  Package L#0\n", "lstopo as text .*--of xml"),
    ],
)
def test_outputs_without_links_are_refused_by_name(text: str, whose: str) -> None:
    with pytest.raises(TopologyError, match=whose):
        probe(text)
