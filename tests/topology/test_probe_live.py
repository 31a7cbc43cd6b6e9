"""The live probe against a libnvidia-ml.so.1 that plays machines, and a sysfs tree made for it."""

from __future__ import annotations

import shutil
from fractions import Fraction
from pathlib import Path
from typing import Protocol

import pytest
from support import nvml
from support.machines import fast_links, nics, sockets
from support.nvml import GPU, HIDDEN, NPU, SWITCH, Answer, Box, Sysfs, bus, link

from collc.topology.canonical import fingerprint
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology
from collc.topology.model import Topology, VertexKind


class Ask(Protocol):
    """Asks a mock of the driver what a box says of itself."""

    def __call__(self, box: Box | str, visible: str | None = None, sysfs: Path | None = None) -> Answer: ...


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler for the mock of NVML")
    return nvml.compile_mock(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def ask(library: Path, tmp_path: Path) -> Ask:
    def probe(box: Box | str, visible: str | None = None, sysfs: Path | None = None) -> Answer:
        return nvml.probe(library, tmp_path, box, visible=visible, sysfs=sysfs)

    return probe


def same(topology: Topology, name: str) -> bool:
    return fingerprint(plan_graph(topology)) == fingerprint(plan_graph(load_topology(name)))


@pytest.mark.parametrize("kind", [GPU, nvml.SILENT], ids=["new driver", "driver without the remote's type"])
def test_dgx1v(ask: Ask, kind: int) -> None:
    answer = ask(nvml.dgx1v(kind))
    assert fast_links(answer.good) == "nvlink 25x8 50x8"
    assert same(answer.good, "dgx1v")


def test_dgx1p_has_no_speed_fields(ask: Ask) -> None:
    answer = ask(nvml.dgx1p())
    assert same(answer.good, "dgx1p")
    assert "NVLink speed: 20 GB/s per link and direction, as P100 has" in answer.notes


def test_speed_by_version_where_the_name_is_unknown(ask: Ask) -> None:
    box = Box()
    for i in range(2):
        box.gpu("Graphics Device", "sm 6 0", link(bus(1 - i), version=1, mbps=0))
    assert fast_links(ask(box).good) == "nvlink 20x1"
    answer = ask(box.text().replace(" 1 0 0 ", " 99 0 0 "))
    assert "the driver does not tell the speed of its NVLinks (say --gpu-model)" in answer.error
    raw = ask(box.text().replace(" 1 0 0 ", " 99 18000 0 "))
    assert fast_links(raw.good) == "nvlink 18x1"
    assert any("as the driver gives it" in note for note in raw.notes)


@pytest.mark.parametrize(
    ("box", "name", "multicast"),
    [
        (nvml.dgx2(), "dgx2", False),
        (nvml.h100(), "hgx-h100", True),
        (nvml.h100(hidden=True), "hgx-h100", True),
    ],
    ids=["DGX-2", "H100 bare metal", "H100 in a virtual machine"],
)
def test_nvswitch(ask: Ask, box: Box, name: str, multicast: bool) -> None:
    answer = ask(box)
    assert same(answer.good, name)
    switch = next(v for v in answer.good.vertices if v.kind is VertexKind.SWITCH)
    assert switch.multicast is multicast is switch.reduce
    assert any("are hidden" in note for note in answer.notes) is (HIDDEN in box.text())


def test_a_pcie_box_has_no_nvlinks(ask: Ask) -> None:
    box = Box()
    for _ in range(4):
        box.gpu("NVIDIA GeForce RTX 4090", "sm 8 9", "pcie 4 16")
    topology = ask(box).good
    assert fast_links(topology) == ""
    assert {k.gbps for k in topology.links} == {25}


def test_a_dead_link(ask: Ask) -> None:
    healthy = nvml.dgx1v().text()
    lines = healthy.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("link"))
    lines[first] = lines[first].replace("link 1", "link 0")
    answer = ask("\n".join(lines) + "\n")
    assert "gpu0: NVLink 0 of it is down" in answer.notes
    # GPU 0's first link goes to GPU 1, which still calls it active.
    assert "gpu1 counts 1 NVLinks to gpu0, which counts 0 back: 0 used" in answer.notes
    assert fast_links(answer.good) == "nvlink 25x7 50x8"


def test_one_of_two_links_is_dead(ask: Ask) -> None:
    box = Box()
    box.gpu("Tesla V100", "sm 7 0", link(bus(1)), link(bus(1), state=0))
    box.gpu("Tesla V100", "sm 7 0", link(bus(0)), link(bus(0), state=0))
    answer = ask(box)
    assert fast_links(answer.good) == "nvlink 25x1"
    assert "gpu1: NVLink 1 of it is down" in answer.notes


def test_cards_without_bridges(ask: Ask) -> None:
    box = Box()
    for _ in range(2):
        box.gpu("NVIDIA A100-PCIE-40GB", "sm 8 0", *[link(HIDDEN, state=0)] * 12)
    answer = ask(box)
    assert fast_links(answer.good) == ""
    assert "no NVLink of gpu0, gpu1 is up" in answer.notes


def test_links_to_the_cpu(ask: Ask) -> None:
    box = Box()
    for i in range(2):
        ends = [link(bus(1 - i))] * 3 + [link("00000004:00:00.0", kind=NPU)] * 3
        box.gpu("Tesla V100-SXM2-16GB", "sm 7 0", *ends)
    topology = ask(box).good
    up = {(k.src, k.dst): (k.kind.value, k.gbps) for k in topology.links}
    assert up["gpu0", "cpu0"] == ("c2c", Fraction(75))
    assert up["gpu0", "gpu1"] == ("nvlink", Fraction(75))


def test_grace_hopper(ask: Ask) -> None:
    box = Box()
    for _ in range(4):
        ends = [link("00000000:C0:00.0", kind=SWITCH, version=7, mbps=53125)] * 18
        box.gpu("NVIDIA GB200", "sm 10 0", "c2c 5 45000", "fabric 3 7", *ends)
    answer = ask(box)
    assert fast_links(answer.good) == "nvswitch 900x4"
    down = {(k.kind.value, k.gbps) for k in answer.good.links if (k.src, k.dst) == ("gpu0", "cpu0")}
    assert down == {("c2c", Fraction(225))}
    assert any("4 GPUs belong to clique 7 of NVLink fabric abababab" in note for note in answer.notes)


def test_links_to_gpus_that_are_not_listed(ask: Ask) -> None:
    box = Box()
    for i in range(2):
        box.gpu("Tesla V100", "sm 7 0", link(bus(1 - i)), link(bus(5)))
    answer = ask(box)
    assert fast_links(answer.good) == "nvlink 25x1"
    assert any("GPUs that NVML does not list here" in note for note in answer.notes)


@pytest.mark.parametrize(
    ("box", "words"),
    [
        ("init 9\n", "NVML does not start: Driver Not Loaded"),
        ("init 18\n", "NVML does not start: RM has detected"),
        ("count 999\n", "the number of GPUs: NVML fails"),
        ("", "the driver shows no GPU"),
    ],
)
def test_a_driver_that_does_not_work(ask: Ask, box: str, words: str) -> None:
    answer = ask(box)
    assert words in answer.error
    assert "\n" not in answer.error


@pytest.mark.parametrize(
    ("question", "where"),
    [
        ("handle 15 -1", "GPU 5"),
        ("pci 15 -1", "GPU 5, its bus id"),
        ("uuid 999 -1", "GPU 5, its UUID"),
        ("name 15 -1", "GPU 5, its name"),
        ("state 15 3", "GPU 5, NVLink 3"),
        ("remote 999 2", "GPU 5, NVLink 2"),
        ("type 16 0", "GPU 5, NVLink 0"),
        ("fields 15 -1", "GPU 5, the number of NVLinks"),
        ("fabric 15 -1", "GPU 5, fabric"),
    ],
)
def test_an_error_in_the_middle_names_the_gpu_and_the_question(ask: Ask, question: str, where: str) -> None:
    lines = nvml.dgx1v().lines
    at = next(i for i, line in enumerate(lines) if line.startswith(f"gpu {bus(6)}"))
    answer = ask("\n".join([*lines[:at], f"fail {question}", *lines[at:]]) + "\n")
    assert answer.topology is None
    assert answer.error.startswith(f"probe: {where}: NVML fails: "), answer.error


def test_what_a_gpu_may_not_tell_is_no_error(ask: Ask) -> None:
    lines = nvml.dgx1v().lines
    silent = [
        part for line in lines for part in ([line, "fail sm 3 -1", "fail fabric 13 -1"] if "gpu " in line else [line])
    ]
    assert same(ask("\n".join(silent) + "\n").good, "dgx1v")


def test_no_driver_at_all(tmp_path: Path) -> None:
    answer = nvml.probe(tmp_path / "libnvidia-ml.so.1", tmp_path, "")
    if "there is no NVIDIA driver" not in answer.error:
        pytest.skip("this machine has a driver of its own")
    assert "--from FILE" in answer.error
    assert "--cpu" in answer.error


def names(answer: Answer) -> list[str]:
    return [v.name for v in answer.good.gpus]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [f"gpu{i}" for i in range(8)]),
        ("0,1,2,3", ["gpu0", "gpu1", "gpu2", "gpu3"]),
        ("4,0,7", ["gpu4", "gpu0", "gpu7"]),
        (" 1 , 2", ["gpu1", "gpu2"]),
        ("GPU-33330000", ["gpu3"]),
        ("GPU-33330000-1111,GPU-00", ["gpu3", "gpu0"]),
        ("gpu-3333,1", ["gpu3", "gpu1"]),
        ("0,1,9,2", ["gpu0", "gpu1"]),
        ("2,-1,3", ["gpu2"]),
        ("0,3,nonsense,4", ["gpu0", "gpu3"]),
    ],
)
def test_cuda_visible_devices(ask: Ask, visible: str | None, expected: list[str]) -> None:
    answer = ask(nvml.dgx1v(), visible)
    assert names(answer) == expected
    stops = visible is not None and ("9" in visible or "-1,3" in visible or "nonsense" in visible)
    assert any("count for nothing" in note for note in answer.notes) is stops


def test_a_visible_part_keeps_its_links(ask: Ask) -> None:
    assert fast_links(ask(nvml.dgx1v(), "0,3,4,7").good) == "nvlink 25x1 50x3"
    assert fast_links(ask(nvml.h100(), "1,5").good) == "nvswitch 450x2"


@pytest.mark.parametrize(
    ("visible", "words"),
    [
        ("", "leaves no GPU"),
        ("-1", "leaves no GPU"),
        ("0,0", "names a GPU for the second time"),
        ("GPU-", "is the beginning of 8 UUIDs (write more of the UUID)"),
        ("GPU-ffff", "leaves no GPU"),
        ("99999999999999999999", "leaves no GPU"),
    ],
)
def test_cuda_visible_devices_that_make_no_sense(ask: Ask, visible: str, words: str) -> None:
    answer = ask(nvml.dgx1v(), visible)
    assert answer.error.startswith("CUDA_VISIBLE_DEVICES: ")
    assert words in answer.error


def mig_box() -> Box:
    box = Box()
    for i in range(2):
        ends = [link("00000000:C0:00.0", kind=SWITCH, version=5)] * 12
        migs = [f"mig MIG-{i}a000000-0000-0000-0000-000000000000", f"mig MIG-{i}b000000-0000-0000-0000-000000000000"]
        box.gpu("NVIDIA A100-SXM4-40GB", "sm 8 0", "pcie 4 16", *ends, *(migs if i else []))
    return box


def test_mig_has_no_nvlink(ask: Ask) -> None:
    answer = ask(mig_box())
    assert names(answer) == ["gpu0", "gpu1"]
    assert "gpu1 is in MIG mode, in which its NVLinks cannot be used" in answer.notes
    assert {k.src for k in answer.good.links if k.kind.value == "nvswitch"} <= {"gpu0", "nvs0"}
    assert {k.gbps for k in answer.good.links if k.kind.value == "pcie"} == {25}


@pytest.mark.parametrize("visible", ["MIG-1a", "MIG-1b000000-0000", "MIG-GPU-11110000-1111-2222-3333-444444444444/1/0"])
def test_mig_instances_by_name(ask: Ask, visible: str) -> None:
    assert names(ask(mig_box(), visible)) == ["gpu1"]


def test_two_mig_instances_of_one_gpu(ask: Ask) -> None:
    assert "one MIG instance of a GPU" in ask(mig_box(), "MIG-1a,MIG-1b").error
    assert "is the beginning of 2 UUIDs" in ask(mig_box(), "MIG-1").error


def low(i: int) -> str:
    return bus(i)[4:].lower()


def test_the_pcie_tree(ask: Ask, tmp_path: Path) -> None:
    """Two GPUs and a NIC behind each of four switches, two switches on each socket, one root port at x8."""
    sysfs = Sysfs(tmp_path / "sys")
    for s in range(4):
        host, port, up = f"pci0000:{s // 2 * 128:02x}", f"0000:{s // 2 * 128:02x}:0{s % 2 + 1}.0", f"0000:a{s}:00.0"
        slow = {port: 8} if s == 3 else None
        for k, name in enumerate((low(2 * s), low(2 * s + 1))):
            sysfs.device(host, port, up, f"0000:b{s}:0{k}.0", name, numa=s // 2, slow=slow)
        sysfs.nic(f"mlx5_{s}", host, port, up, f"0000:b{s}:08.0", f"0000:d{s}:00.0", numa=s // 2)
    sysfs.nic("eno1", "pci0000:00", "0000:00:1c.0", "0000:e0:00.0", kind="net", mbps=1000)
    sysfs.nic("ens2", "pci0000:00", "0000:00:1d.0", "0000:e1:00.0", kind="net", mbps=25000)
    answer = ask(nvml.dgx1v(), sysfs=sysfs.root)
    topology = answer.good
    assert sockets(topology) == "0,1,2,3|4,5,6,7"
    assert nics(topology) == ["mlx5_0", "mlx5_1", "ens2", "mlx5_2", "mlx5_3"]
    above = {k.src: (k.dst, k.gbps) for k in topology.links if k.kind.value == "pcie" and not k.src.startswith("cpu")}
    tree = {(k.src, k.dst): k.gbps for k in topology.links if k.kind.value == "pcie"}
    switches = [v.name for v in topology.vertices if v.kind is VertexKind.SWITCH]
    assert len(switches) == 4
    assert {tree.get((s, "cpu0")) or tree[s, "cpu1"] for s in switches} == {Fraction(25, 2), Fraction(25, 4)}
    assert all((f"gpu{i}", switches[i // 2]) in tree for i in range(8))
    assert ("ens2", "cpu0") in tree
    assert above["mlx5_3"][1] == Fraction(25, 2)
    assert not any("sysfs" in note for note in answer.notes)


def test_a_virtual_machine_with_a_flat_bus(ask: Ask, tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path / "sys")
    for i in range(8):
        sysfs.device("pci0000:00", low(i), numa=-1, speed="Unknown", width=255)
    answer = ask(nvml.h100(hidden=True), sysfs=sysfs.root)
    assert sockets(answer.good) == "0,1,2,3,4,5,6,7"
    # NVML's word stands in: PCIe 5.0 x16.
    assert {k.gbps for k in answer.good.links if k.dst == "cpu0"} == {50}


def test_a_gpu_that_sysfs_lacks(ask: Ask, tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path / "sys")
    for i in range(7):
        sysfs.device("pci0000:00", f"0000:00:0{i + 1}.0", low(i))
    answer = ask(nvml.dgx1v(), sysfs=sysfs.root)
    assert "sysfs does not show gpu7: placed directly at cpu0" in answer.notes
    assert sockets(answer.good) == "0,1,2,3,4,5,6,7"
