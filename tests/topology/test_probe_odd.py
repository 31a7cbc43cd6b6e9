"""Odd dumps: NVLinks that name their own end, chip-to-chip links, tables of access, other vendors' tools."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from support.machines import fast_links, sockets
from support.nccl_text import bus, cpu, gpu, nic, pci, system
from support.topo_text import DGX1V, Table, dgx1, render

from collc.errors import TopologyError
from collc.topology.model import Topology
from collc.topology.probe.dumps import topology_from_dumps
from collc.topology.probe.sockets import GRACE, QPI, X_BUS, socket_link, socket_link_here


def probe(*texts: str) -> Topology:
    return topology_from_dumps([(f"file{i}", text) for i, text in enumerate(texts)])


def speed(topology: Topology, src: str, dst: str) -> tuple[str, Fraction]:
    return next((k.kind.value, k.gbps) for k in topology.links if (k.src, k.dst) == (src, dst))


def noted(topology: Topology, words: str) -> bool:
    return any(words in note for note in topology.notes)


def own_ends(*counts: int) -> str:
    """Returns GPUs below one CPU. Each NVLink names its own GPU as the other end."""
    return system(cpu(0, *(pci(bus(i), gpu(i, {bus(i): n} if n else None, sm=80)) for i, n in enumerate(counts))))


def test_two_gpus_whose_nvlinks_name_themselves_are_joined() -> None:
    topology = probe(own_ends(12, 12))
    assert fast_links(topology) == "nvlink 300x1"
    assert noted(topology, "each GPU's NVLinks name itself")


@pytest.mark.parametrize("counts", [(12, 12, 12, 12), (12, 4), (12, 0), (12,)])
def test_own_ends_that_do_not_say_who_is_joined(counts: tuple[int, ...]) -> None:
    with pytest.raises(TopologyError, match=r"file0:4: the NVLinks of gpu0 lead to itself .*nvidia-smi topo -m"):
        probe(own_ends(*counts))


def test_own_ends_beside_a_table() -> None:
    table = Table(4, cells={(0, 1): "NV12", (2, 3): "NV12"})
    assert fast_links(probe(own_ends(12, 12, 12, 12), render(table))) == "nvlink 300x2"


def c2c(dev: int, bw: str, count: str) -> str:
    return gpu(dev, sm=90).replace("</gpu>", f'<c2c bw="{bw}" count="{count}"/>\n</gpu>')


def test_chip_to_chip_links_take_the_place_of_pcie() -> None:
    cpus = [cpu(i, pci(bus(i), c2c(i, "43125", "8"), speed="2.5 GT/s")) for i in range(2)]
    topology = probe(system(*cpus).replace("x86_64", "arm64"))
    assert speed(topology, "gpu0", "cpu0") == ("c2c", Fraction(345))
    assert speed(topology, "cpu0", "cpu1") == ("pcie", GRACE[0])


@pytest.mark.parametrize(("bw", "count"), [("0", "8"), ("43125", "0"), ("x", "8"), ("43125", ""), ("-1", "8")])
def test_damaged_chip_to_chip_links(bw: str, count: str) -> None:
    with pytest.raises(TopologyError, match=r"file0:5: .* is no bandwidth of chip-to-chip links"):
        probe(system(cpu(0, pci(bus(0), c2c(0, bw, count)))))


def grace(per_cpu: int, gpus: int, cell: str) -> str:
    lines = ["\t" + "\t".join(f"GPU{i}" for i in range(gpus)) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID"]
    for i in range(gpus):
        at = i // per_cpu
        cells = [" X " if i == j else cell for j in range(gpus)]
        lines.append(
            f"GPU{i}\t" + "\t".join(cells) + f"\t{72 * at}-{72 * at + 71}\t{at},{at + 2}-{at + 9}\t\t{4 + 8 * i}"
        )
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("per_cpu", "cell", "links", "host"),
    [(1, "NV6", "nvlink 150x6", 450), (1, "NV18", "nvswitch 450x4", 450), (2, "NV18", "nvswitch 900x4", 225)],
)
def test_grace_by_the_numa_nodes_of_the_gpus(per_cpu: int, cell: str, links: str, host: int) -> None:
    topology = probe(grace(per_cpu, 4, cell))
    assert fast_links(topology) == links
    assert sockets(topology) == ("0|1|2|3" if per_cpu == 1 else "0,1|2,3")
    assert speed(topology, "gpu3", f"cpu{3 // per_cpu}") == ("c2c", Fraction(host))
    assert speed(topology, "cpu0", "cpu1") == ("pcie", GRACE[0])


def test_a_gpu_that_has_lost_its_nvlinks_is_named() -> None:
    cells = {(i, j): "NODE" if 2 in (i, j) else "NV18" for i in range(8) for j in range(i + 1, 8)}
    topology = probe(render(Table(8, cells=cells)))
    assert fast_links(topology) == "nvswitch 450x7"
    assert noted(topology, "no NVLinks of gpu2, where the other GPUs have some")


def p2p(rows: list[str], command: str = "") -> str:
    names = [f"GPU{i}" for i in range(len(rows))]
    body = "".join(f" GPU{i}\t" + "\t".join(row.split()) + "\t\n" for i, row in enumerate(rows))
    return f"{command}\n \t" + "\t".join(names) + "\t\n" + body + "\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n"


PAIR = render(Table(2, cells={(0, 1): "PHB"}))


def test_access_beside_a_table() -> None:
    assert not noted(probe(PAIR, p2p(["X OK", "OK X"])), "cannot")
    topology = probe(p2p(["X CNS", "OK X"], "nvidia-smi topo -p2p w"), PAIR)
    assert noted(topology, "GPUs that cannot write each other's memory (chipset not supported): gpu0-gpu1; they meet")
    assert topology.links == probe(PAIR).links


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (
            [p2p(["X OK", "OK X"])],
            r"file0:3: `topo -p2p` says which GPUs .*add --from a file with `nvidia-smi topo -m`",
        ),
        ([PAIR, p2p(["X OK OK", "OK X OK", "OK OK X"])], r"file1:3: 3 GPUs here, 2 in the other dump"),
        ([PAIR, p2p(["X OK", "OK OK"])], r"file1:4: row GPU1 has `OK` \(a cell is X for the GPU itself"),
        ([PAIR, p2p(["X OK", "YES X"])], r"file1:4: row GPU1 has `YES`"),
        ([PAIR, p2p(["X OK", "OK X"]).split(" GPU1\tOK")[0]], r"file1:4: the row of GPU1 is missing or cut"),
        ([PAIR, p2p(["X OK", "OK X"], "topo -p2p n")], r"file1: `topo -p2p n` is about NVLink.*topo -p2p r"),
    ],
)
def test_tables_of_access_that_say_nothing(texts: list[str], words: str) -> None:
    with pytest.raises(TopologyError, match=words):
        probe(*texts)


@pytest.mark.parametrize(
    ("text", "whose"),
    [
        (
            "mx-smi  version: 2.2\n\tGPU0\tGPU1\nGPU0\tX\tMX\n  MX = Connection traversing MetaXLink\n",
            "MetaX",
        ),
        ("\tNPU0\tNPU1\tCPU Affinity\nNPU0\tX\tHCCS\t0-23\n", "Huawei's npu-smi"),
        ("         GPU 0/0|GPU 0/1|CPU Affinity\nGPU 0/0 |S      |MDF    |0-23\n", "Intel's xpu-smi"),
        ("$ mthreads-gmi topo -m\n", "Moore Threads"),
        ("\tMLU0\tMLU1\nMLU0\tX\tMLU-Link\n", "Cambricon"),
        ("DCU[0] : x\n", "Hygon"),
    ],
)
def test_output_of_other_tools_is_named(text: str, whose: str) -> None:
    with pytest.raises(TopologyError) as caught:
        probe(text)
    assert whose in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("mark", ["[4m", "^[[4m", "\u241b[4m", "\\e[4m", "\\033[4m", "\\x1b[4m", "\x1b[4m"])
def test_color_marks_whose_escape_byte_is_lost(mark: str) -> None:
    end = mark.replace("4m", "0m")
    text = render(dgx1(DGX1V))
    header, rest = text.split("\n", 1)
    marked = "\t" + "\t".join(f"{mark}{name}{end}" for name in header.split()) + "\n" + rest
    assert probe(marked).links == probe(text).links


ROWS = "".join(f"GPU{i}   " + "   ".join("0" if i == j else "PCIE" for j in range(4)) + "\n" for i in range(4))


def rocm(numa: str, far: int) -> str:
    """Four GPUs over PCIe; GPUs 0, 1 and 2, 3 are two hops apart, others `far`."""
    hops = [["0" if i == j else "2" if i // 2 == j // 2 else str(far) for j in range(4)] for i in range(4)]
    rows = "".join(f"GPU{i}   " + "   ".join(row) + "\n" for i, row in enumerate(hops))
    head = "       GPU0   GPU1   GPU2   GPU3\n"
    return f"=== Hops between two GPUs ===\n{head}{rows}\n=== Link Type between two GPUs ===\n{head}{ROWS}\n{numa}"


@pytest.mark.parametrize(
    "line", ["GPU[{}]\t\t: (Topology) Numa Node: {}", "GPU {} : (Topology) Numa Node: {}", "GPU[{}] : Numa Node: {}"]
)
def test_numa_lines_of_every_version_of_rocm_smi(line: str) -> None:
    numa = "\n".join(line.format(i, (i + 1) % 2) for i in range(4)) + "\n"
    assert sockets(probe(rocm(numa, 2))) == "0,2|1,3"


def test_hops_tell_sockets_apart_where_numa_nodes_are_missing() -> None:
    assert sockets(probe(rocm("", 3))) == "0,1|2,3"
    assert sockets(probe(rocm("", 2))) == "0,1,2,3"


@pytest.mark.parametrize(
    ("vendor", "family", "model", "gbps"),
    [
        ("GenuineIntel", 6, 79, 16),
        ("GenuineIntel", 6, 85, 16),
        ("GenuineIntel", 6, 106, 75),
        ("GenuineIntel", 6, 207, 75),
        ("AuthenticAMD", 143, 49, 75),
        ("AuthenticAMD", 25, 17, 75),
        ("AuthenticAMD", 23, 1, None),
        ("GenuineIntel", 15, 4, None),
        ("Unheard", 6, 207, None),
    ],
)
def test_the_link_between_cpus_by_generation(vendor: str, family: int, model: int, gbps: int | None) -> None:
    found = socket_link(vendor, family, model)
    assert (None if found is None else found[0]) == gbps
    two = system(cpu(0, pci(bus(0), gpu(0))), cpu(1, pci(bus(1), gpu(1)))).replace("GenuineIntel", vendor)
    two = two.replace(f'vendor="{vendor}"', f'vendor="{vendor}" familyid="{family}" modelid="{model}"')
    # Without a generation PCIe 3.0 stands for 2 QPI.
    assert speed(probe(two), "cpu0", "cpu1")[1] == (QPI[0] if gbps is None else gbps)


def test_cpuinfo(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    assert socket_link_here(info) is None
    info.write_text("processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: EPYC\n")
    assert socket_link_here(info) == socket_link("AuthenticAMD", 25, 17)
    info.write_text("processor\t: 0\ncpu\t\t: POWER9, altivec supported\n")
    assert socket_link_here(info) == X_BUS
    info.write_text("vendor_id : x\n")
    assert socket_link_here(info) is None


def test_virtual_network_devices_are_named() -> None:
    topology = probe(system(cpu(0, pci(bus(0), gpu(0)), nic("bond0"), nic("lo"), nic("eth0"))))
    assert noted(topology, "virtual network devices are left out: bond0")
