"""Damaged dumps and topology files: whatever a reader is given, it answers, or refuses in one line."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

from hypothesis import strategies as st
from support import nccl_text
from support.topo_text import DGX1P, DGX1V, STYLES, Table, dgx1, render

from collc.errors import CollcError
from collc.topology import zoo
from collc.topology.cluster.merge import Described, merge
from collc.topology.cluster.model import Server
from collc.topology.cluster.write import dumps_cluster
from collc.topology.dump import dumps_topology
from collc.topology.graph import plan_graph
from collc.topology.load import loads_topology
from collc.topology.probe.dumps import topology_from_dumps
from collc.topology.probe.live import assemble
from collc.topology.probe.nvml import Gpu, NvLink
from collc.topology.probe.visible import choose

_BRIDGED = Table(
    4, 2, {(0, 1): "NV12", (2, 3): "NV12", (0, 4): "PIX", (1, 4): "PXB"}, ["0-3"] * 4, ["0", "0", "1", "1"]
)
_NVLINK = "".join(
    f"GPU {i}: Tesla V100-SXM2-16GB (UUID: GPU-{i}2345678-0000)\n"
    + "".join(
        f"\t Link {k}: 25.781 GB/s\n\t Link {k}: Remote Device 00000000:0{1 - i}:00.0: Link {k}\n" for k in range(2)
    )
    for i in range(2)
)
_ROCM = """
============================ ROCm System Management Interface ============================
================================= Weight between two GPUs ================================
       GPU0         GPU1
GPU0   0            15
GPU1   15           0

================================= Hops between two GPUs ==================================
       GPU0         GPU1
GPU0   0            1
GPU1   1            0

=============================== Link Type between two GPUs ===============================
       GPU0         GPU1
GPU0   0            XGMI
GPU1   XGMI         0

======================================= Numa Nodes =======================================
GPU[0]\t\t: (Topology) Numa Node: 0
GPU[1]\t\t: (Topology) Numa Node: 1
================================== End of ROCm SMI Log ===================================
"""
_AMD = nccl_text.system(
    nccl_text.cpu(
        0,
        nccl_text.pci(nccl_text.bus(0), nccl_text.amd(0, {nccl_text.bus(1): 2}, "gfx90a")),
        nccl_text.pci(nccl_text.bus(1), nccl_text.amd(1, {nccl_text.bus(0): 2}, "gfx90a")),
    )
)
_GRACE = (
    "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    "GPU0\t X \tNV18\tSYS\t0-71\t0\t\t2\nGPU1\tNV18\t X \tSYS\t0-71\t0\t\t10\nNIC0\tSYS\tSYS\t X \n"
)
_SMI_XML = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
<gpu id="00000000:01:00.0"><product_name>NVIDIA L4</product_name><uuid>GPU-aaaaaaaa-0000-0000-0000-000000000000</uuid>
<mig_mode><current_mig>N/A</current_mig></mig_mode><fabric><state>Completed</state><cliqueId>1</cliqueId></fabric>
<pci><pci_bus_id>00000000:01:00.0</pci_bus_id><pci_gpu_link_info><pcie_gen><max_link_gen>4</max_link_gen></pcie_gen>
<link_widths><max_link_width>16x</max_link_width></link_widths></pci_gpu_link_info></pci></gpu>
</nvidia_smi_log>
"""
_QUERY = "index, name, pci.bus_id, pcie.link.gen.max\n0, NVIDIA L4, 00000000:01:00.0, 4\n1, NVIDIA L4, [N/A], 4\n"
_AMD_SMI = """WEIGHT TABLE:
             0000:0c:00.0 0000:22:00.0
0000:0c:00.0 0            15
0000:22:00.0 15           0

HOPS TABLE:
             0000:0c:00.0 0000:22:00.0
0000:0c:00.0 0            1
0000:22:00.0 1            0

LINK TYPE TABLE:
             0000:0c:00.0 0000:22:00.0
0000:0c:00.0 SELF         XGMI
0000:22:00.0 XGMI         SELF

NUMA BW TABLE:
             0000:0c:00.0 0000:22:00.0
0000:0c:00.0 N/A          50000-100000
0000:22:00.0 50000-100000 N/A
"""
_AMD_JSON = (
    '[{"bdf": "0000:0c:00.0", "links": [{"link_type": "SELF", "weight": 0, "num_hops": 0}, {"link_type": "XGMI", '
    '"weight": 15, "num_hops": 1}]}, {"bdf": "0000:22:00.0", "links": [{"link_type": "XGMI", "weight": 15, "num_hops": '
    '1}, {"link_type": "SELF", "weight": 0, "num_hops": 0}]}]'
)
_HWLOC = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0"><object type="Machine" os_index="0"><object type="NUMANode" os_index="0"/>
<object type="Bridge" bridge_type="0-1">
<object type="PCIDev" gp_index="5" pci_busid="0000:01:00.0" pci_type="0302 [10de:20b0]" pci_link_speed="15.753846">
<object type="OSDev" gp_index="1" name="nvml0"/></object>
<object type="PCIDev" gp_index="6" pci_busid="0000:02:00.0" pci_type="0302 [10de:20b0]" pci_link_speed="15.753846">
<object type="OSDev" gp_index="2" name="nvml1"/><object type="OSDev" gp_index="3" name="mlx5_0"/></object>
</object></object>
<distances2 type="OSDev" nbobjs="2" name="NVLinkBandwidth"><indexes>1 2</indexes>
<u64values>1000000 50000 50000 1000000</u64values></distances2></topology>
"""
_IBSTAT = "CA 'mlx5_0'\n\tNode GUID: 0x1070fd0300112233\n\tPort 1:\n\t\tState: Active\n\t\tRate: 400\n"
_TERMINAL = f"me@box:~$ nvidia-smi topo -m\n{_GRACE}me@box:~$ ibstat\n{_IBSTAT}me@box:~$ \n"
# Refused where it is alone.
_ACCESS = " \tGPU0\tGPU1\t\n GPU0\tX\tOK\t\n GPU1\tCNS\tX\t\n"
_OWN_ENDS = nccl_text.system(
    nccl_text.cpu(
        0,
        nccl_text.pci(
            nccl_text.bus(0),
            nccl_text.gpu(0, {nccl_text.bus(0): 12}).replace("</gpu>", '<c2c bw="43125" count="8"/></gpu>'),
        ),
        nccl_text.pci(nccl_text.bus(1), nccl_text.gpu(1, {nccl_text.bus(1): 12})),
    )
)
DUMPS = [
    *(render(_BRIDGED, style, nic_names=("mlx5_0", "mlx5_1")) for style in STYLES),
    render(dgx1(DGX1V)),
    render(dgx1(DGX1P), "soc"),
    nccl_text.mesh(DGX1V, 8),
    _AMD,
    _NVLINK,
    _ROCM,
    _GRACE,
    _OWN_ENDS,
    _SMI_XML,
    _QUERY,
    _AMD_SMI,
    _AMD_JSON,
    _HWLOC,
    _TERMINAL,
]
_WORDS = [
    *("OK", "CNS", "-p2p r", "NPU0", "GPU 0 :", "^[[4m", 'bw="43125"'),
    *("X", "NV0", "NV1", "NV18", "NV99", "PIX", "PXB", "PHB", "NODE", "SYS", "SOC", "N/A", "GPU0", "GPU7", "GPU99"),
    *(
        "NIC0",
        "mlx5_0",
        "Legend:",
        "NIC Legend:",
        "CPU Affinity",
        "NUMA Affinity",
        "GPU NUMA ID",
        "\t",
        "  ",
        "\x1b[4m",
    ),
    *("<gpu", "</gpu>", "<pci", "/>", "<cpu", "<nvlink", "<xgmi", 'busid=""', 'dev="0"', 'count="-1"', 'numaid="-1"'),
    *(
        'target="ffffffff:ffff:ff"',
        'class="0x068000"',
        "<!DOCTYPE",
        "<![CDATA[",
        "&#0;",
        "&amp;",
        "\x00",
        "\ud7ff",
        "é",
    ),
    *("Link 0: 25 GB/s", "<inactive>", "Remote Device", "XGMI", "PCIE", "====", "GPU[0]", "Numa Node: -1", "\u2028"),
    *(
        "999999999999999999999",
        "-1",
        "1e400",
        "nan",
        ".inf",
        "0x10",
        "0o7",
        "1_000",
        "[",
        "]",
        "{",
        "}",
        ": ",
        "- ",
        "#",
    ),
    *(
        "&a",
        "*a",
        "<<:",
        "!!python/object",
        "|",
        ">",
        "gpus:",
        "links:",
        "extends:",
        "template:",
        "servers:",
        "each.gpu0",
    ),
    *("between", "from", "count", "x2", "nvlink", "speeds:", "remove:", "format: collc-topology/1", "~", "null", "\r"),
]


@st.composite
def damaged(draw: st.DrawFn, seeds: list[str]) -> str:
    """One of `seeds` after some edits of lines, words and characters."""
    text = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(0, 6))):
        text = draw(st.sampled_from(_EDITS))(draw, text)
    return text


def _span(draw: st.DrawFn, text: str) -> tuple[int, int]:
    start = draw(st.integers(0, len(text)))
    return start, min(len(text), start + draw(st.integers(0, 12)))


def _cut(draw: st.DrawFn, text: str) -> str:
    a, b = _span(draw, text)
    return text[:a] + text[b:]


def _insert(draw: st.DrawFn, text: str) -> str:
    at = draw(st.integers(0, len(text)))
    return text[:at] + draw(st.one_of(st.sampled_from(_WORDS), st.text(max_size=4))) + text[at:]


def _replace_word(draw: st.DrawFn, text: str) -> str:
    words = text.split(" ")
    words[draw(st.integers(0, len(words) - 1))] = draw(st.sampled_from(_WORDS))
    return " ".join(words)


def _lines(draw: st.DrawFn, text: str) -> str:
    """Drops, doubles or moves a line."""
    lines = text.split("\n")
    line = lines.pop(draw(st.integers(0, len(lines) - 1)))
    for _ in range(draw(st.integers(0, 2))):
        lines.insert(draw(st.integers(0, len(lines))), line)
    return "\n".join(lines)


def _end(draw: st.DrawFn, text: str) -> str:
    return text[: draw(st.integers(0, len(text)))]


_EDITS: list[Callable[[st.DrawFn, str], str]] = [_cut, _insert, _replace_word, _lines, _lines, _end]


def dumps() -> st.SearchStrategy[list[str]]:
    """One dump, or two that are said to be of one machine."""
    return st.lists(damaged([*DUMPS, _ACCESS]), min_size=1, max_size=2)


def topology_files() -> st.SearchStrategy[str]:
    names = ("dgx1v", "gb200-nvl72", "hgx-h100", "hgx-h200", "azure-ndv2", "pcie-8x4090")
    return damaged([(zoo.directory() / f"{name}.yaml").read_text(encoding="utf-8") for name in names])


def one_line(error: CollcError) -> None:
    assert len(str(error).splitlines()) == 1, repr(str(error))
    assert error.what


def check_dumps(texts: list[str]) -> None:
    """A topology that loads again and may be planned, or one line."""
    try:
        topology = topology_from_dumps([(f"file{i}", text) for i, text in enumerate(texts)])
    except CollcError as error:
        one_line(error)
        return
    written = dumps_topology(topology)
    assert loads_topology(written) == topology
    try:
        plan_graph(topology)
    except CollcError as error:
        one_line(error)


def check_file(text: str) -> None:
    try:
        topology = loads_topology(text, "fuzz.yaml")
        assert loads_topology(dumps_topology(topology)) == topology
        plan_graph(topology)
    except CollcError as error:
        one_line(error)


def variables() -> st.SearchStrategy[str]:
    """Values of CUDA_VISIBLE_DEVICES."""
    parts = [
        "0",
        "1",
        "3",
        "-1",
        "",
        " 2 ",
        "GPU-",
        "GPU-1a",
        "GPU-1b0",
        "MIG-",
        "MIG-3",
        "MIG-GPU-1b0/1/0",
        "٣",
        "1e3",
        "٠",
    ]
    return st.lists(st.one_of(st.sampled_from(parts), st.text(max_size=6)), max_size=5).map(",".join)


def check_variable(value: str) -> None:
    gpus = [Gpu(i, f"0000:0{i}:00.0", f"GPU-1{'ab'[i % 2]}{i}-0", "V100") for i in range(4)]
    gpus[3].mig, gpus[3].mig_uuids = True, ["MIG-3a", "MIG-3b"]
    try:
        found, _ = choose(gpus, value)
    except CollcError as error:
        one_line(error)
        return
    assert found
    assert len({device.gpu.index for device in found}) == len(found)


_ENDS = ["", "0000:06:00.0", "0000:07:00.0", "0000:08:00.0", "0000:c0:00.0", "0000:c1:00.0"]


@st.composite
def gpu_lists(draw: st.DrawFn) -> list[Gpu]:
    """Random answers of NVML for up to four GPUs, consistent or not."""
    found = []
    links = st.builds(
        NvLink,
        number=st.integers(0, 17),
        remote=st.sampled_from(_ENDS),
        to=st.sampled_from(["gpu", "switch", "cpu", ""]),
        gbps=st.sampled_from(
            [None, Fraction(25781, 1000), Fraction(26562, 1000), Fraction(1, 1000), Fraction(4294967)]
        ),
        version=st.sampled_from([None, 0, 1, 2, 6, 7, 99]),
    )
    for i in range(draw(st.integers(1, 4))):
        gpu = Gpu(
            i, f"0000:0{6 + i}:00.0", f"GPU-{i}", draw(st.sampled_from(["Tesla V100", "NVIDIA T4", "Mystery", "\x00"]))
        )
        gpu.links = draw(st.lists(links, max_size=5))
        gpu.down = draw(st.lists(st.integers(0, 35), max_size=2))
        gpu.mig = draw(st.booleans())
        gpu.pcie = draw(st.sampled_from([None, (1, 1), (5, 16), (7, 32)]))
        gpu.c2c = draw(st.sampled_from([None, Fraction(450), Fraction(1, 1000)]))
        gpu.fabric = draw(st.sampled_from([None, ("ab" * 16, 3)]))
        found.append(gpu)
    return found


def check_gpus(gpus: list[Gpu]) -> None:
    try:
        live = assemble(gpus, None, None, "fuzz", Path("/nonexistent"))
    except CollcError as error:
        one_line(error)
        return
    assert len(live.bus_ids) == len(live.topology.gpus) == len(gpus)
    assert loads_topology(dumps_topology(live.topology)) == live.topology


_FABRIC = Path(__file__).parent.parent / "data" / "fabric"
_HOST = """format: collc-topology/1
name: host
gpus: 2
nics: [{name: mlx5_0, gbps: 50, interface: eth0}, {name: mlx5_1, gbps: 50, interface: eth1}]
speeds: {nvlink: 25, pcie: 50}
links: [[gpu0, gpu1, nvlink], [gpu0, mlx5_0, pcie], [gpu1, mlx5_1, pcie]]
"""
_RAILS = "format: collc-rails/1\nrails: {leaf0: [mlx5_0], leaf1: [mlx5_1, node1.mlx5_0]}\nspine: 100\n"


def fabrics() -> st.SearchStrategy[tuple[str, str]]:
    """The name of a dump of a network, and its damaged text."""
    files = sorted(_FABRIC.iterdir())
    return st.sampled_from(files).flatmap(lambda path: st.tuples(st.just(path.name), damaged([path.read_text()])))


def check_fabric(dump: tuple[str, str]) -> None:
    _check_cluster([_HOST] * 3, Described(dumps=[dump]))


def rails_files() -> st.SearchStrategy[str]:
    return damaged([_RAILS])


def check_rails(text: str) -> None:
    _check_cluster([_HOST] * 2, Described(rails=("rails.yaml", text)))


def server_files() -> st.SearchStrategy[list[str]]:
    """Files of two to four servers, damaged or not."""
    zoo_text = (zoo.directory() / "dgx1v.yaml").read_text(encoding="utf-8")
    return st.lists(st.one_of(st.just(zoo_text), damaged([zoo_text, _HOST])), min_size=2, max_size=4)


def check_servers(texts: list[str]) -> None:
    _check_cluster(texts, Described())


def _check_cluster(texts: list[str], described: Described) -> None:
    """A file that holds exactly the servers that were merged, or one line."""
    try:
        servers = [
            Server(f"node{i}", loads_topology(text, f"node{i}.yaml"), f"node{i}.yaml") for i, text in enumerate(texts)
        ]
        servers = [server for server in servers if len(server.machine.servers) == 1]
        if not servers:
            return
        topology = loads_topology(dumps_cluster(merge(servers, described, "fuzz")))
    except CollcError as error:
        one_line(error)
        return
    assert set(topology.servers) == {server.name for server in servers}
    assert len(topology.gpus) == sum(len(server.machine.gpus) for server in servers)
    inner = [k for k in topology.links if k.src.partition(".")[0] == k.dst.partition(".")[0]]
    assert len(inner) >= sum(len(server.machine.links) for server in servers)


TARGETS: list[tuple[str, Callable[[], st.SearchStrategy[object]], Callable[..., None]]] = [
    ("dumps", dumps, check_dumps),
    ("topology files", topology_files, check_file),
    ("CUDA_VISIBLE_DEVICES", variables, check_variable),
    ("answers of NVML", gpu_lists, check_gpus),
    ("dumps of a network", fabrics, check_fabric),
    ("files of rails", rails_files, check_rails),
    ("files of servers", server_files, check_servers),
]
