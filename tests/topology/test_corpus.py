"""The corpus of dumps: each reads right, or fails with the line where it is damaged.

A new dump is one file and one row: in the collection of public dumps beside the checkout, or, as a small input made
after a public one, in tests/data/dumps.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.machines import fast_links, nics, read, sockets

from collc.errors import TopologyError
from collc.topology.canonical import fingerprint
from collc.topology.graph import plan_graph

# The collection of public dumps is beside the checkout, or beside a folder of checkouts.
_PLACES = [folder / "shared" / "machines" for folder in Path(__file__).parents[3:5]]
MACHINES = next((place for place in _PLACES if place.is_dir()), _PLACES[0])
DATA = Path(__file__).parents[1] / "data"
DGX1V, DUMPS = DATA / "topology" / "dgx1v-topo-m.txt", DATA / "dumps"

V1, V2 = "nvlink 25x8 50x8", "0,1,2,3|4,5,6,7"
# File -> GPUs, NICs, what joins the GPUs (GB/s x pairs, or x GPUs into a switch), GPUs by CPU; then words of notes.
READ: dict[str, tuple[int, int, str, str] | tuple[int, int, str, str, tuple[str, ...]]] = {
    "4090x8-2nic-allsys-samenuma.txt": (8, 2, "", V2),
    "a100pcie-x4-nv12-pairs-4numa.txt": (4, 0, "nvlink 300x2", "0|1|2|3"),
    "a100x4-nv12-uneven-numa.txt": (4, 0, "nvswitch 300x4", "0|1,2,3"),
    "a100x4-nv4-1nic-numa0-3.txt": (4, 1, "nvlink 100x6", "0,1,2|3"),
    "a100x4-nv4-3nic-blank-affinity.txt": (4, 3, "nvlink 100x6", "0,1,2,3"),
    "a100x8-nv12-respaced.txt": (8, 0, "nvswitch 300x8", V2),
    "ac922-v100x4-6nic.txt": (4, 6, "nvlink 75x2", "0,1|2,3"),
    "aliyun-v100x8-permuted.txt": (8, 0, V1, V2),
    "aws-g6e.12xlarge-l40s-x4-node.txt": (4, 0, "", "0,1,2,3"),
    "aws-p4d-a100x8-nv12.txt": (8, 0, "nvswitch 300x8", V2),
    "azure-nv12-m60x2-soc.txt": (2, 0, "", "0|1"),
    "azure-nv24-m60x4-soc.txt": (4, 0, "", "0|1|2|3"),
    "b200x8-gpu2-nvlink-down.txt": (8, 0, "nvswitch 450x7", V2, ("no NVLinks of gpu2",)),
    "b300x7-nvlink-s.txt": (7, 0, "nvswitch 900x7", "0,1,2,3,4,5,6"),
    "b300-x7-one-missing.txt": (7, 0, "nvswitch 450x7", "0,1,2|3,4,5,6"),
    "della-a100-pcie-x2-sys.txt": (2, 2, "", "0|1"),
    "della-i16g1-a100x4-nv4.txt": (4, 1, "nvlink 100x6", "0,1|2,3"),
    "dgx1-p100-sheffield-soc.txt": (8, 4, "nvlink 20x16", V2),
    "dgx1-v100-4nic.txt": (8, 4, V1, V2),
    "gb10-spark-2net.xml": (1, 2, "", "0"),
    "gb10-x1-4nic.txt": (1, 4, "", "0"),
    "gb200-x4-gpunuma-2-10-18.txt": (4, 2, "nvswitch 900x4", "0,1|2,3"),
    "gh200-x4-nv6-gpunuma.txt": (4, 0, "nvlink 150x6", "0|1|2|3"),
    "gpu1-4nic-caret-esc.txt": (1, 4, "", "0"),
    "gtx7-pix-phb-nonindent.txt": (7, 0, "", "0,1,2,3,4,5,6"),
    "h-vm-x1-1nic.txt": (1, 1, "", "0"),
    "h100-pcie-x2-nv12-bridge.txt": (2, 0, "nvlink 300x1", "0,1"),
    "h100x8-nv18-respaced.txt": (8, 0, "nvswitch 450x8", V2),
    "h100x8-nv18-spaces.txt": (8, 0, "nvswitch 450x8", V2),
    "nccl-aws-p5-new.xml": (8, 32, "", "0,1,2,3,4,5,6,7"),
    "nccl-azure-nc48v4-a100x2.xml": (2, 1, "nvlink 300x1", "0|1"),
    "nccl-b200x8-vm-modal.xml": (8, 13, "nvswitch 900x8", V2),
    "nccl-dgx1v-8xv100.xml": (8, 1, V1, V2),
    "nccl-l20.xml": (16, 8, "", "0,1,4,5,8,9,12,13|2,3,6,7,10,11,14,15"),
    "nccl-sm89x8-pcie.xml": (8, 1, "", V2),
    "nvlink-s-a6000x3-inactive.txt": (3, 0, "nvlink 56.25x1", "0,1,2"),
    "nvlink-s-h100-gpu0.txt": (1, 0, "nvswitch 450x1", "0"),
    "nvlink-s-h100pcie-x2.txt": (2, 0, "nvlink 300x1", "0,1"),
    "p40-x8-pix-pxb-soc.txt": (8, 1, "", "0,1,2,3,4,5,6,7"),
    "pcie-x8-allsys.txt": (8, 0, "", V2),
    "power9-v100x3-isolated-after.txt": (3, 0, "", "0,1,2"),
    "power9-v100x3-nv2-before.txt": (3, 0, "nvlink 50x3", "0,1,2"),
    "puget-x2-phb-2nic.txt": (2, 2, "", "0,1"),
    "rccl-model-topo_4p_940.xml": (4, 4, "xgmi 64x6", "0|1|2|3"),
    "rccl-model-topo_8p1h.xml": (8, 4, "xgmi 50x6 100x2 200x4", V2),
    "rccl-model-topo_8p_90a.xml": (8, 1, "xgmi 50x12", "0,1,2,3,4,5,6,7"),
    "rccl-model-topo_8p_940.xml": (8, 8, "xgmi 64x28", V2),
    "rccl-model-topo_8p_pcie.xml": (8, 1, "", "0,1,2,3,4,5,6,7"),
    "rccl-model-topo_collnet_n1.xml": (8, 1, "xgmi 46x12", "0,1|2,3|4,5|6,7"),
    "rccl-model-8p_90a_1.xml": (8, 0, "xgmi 50x12", "0,1|2,3|4,5,6,7"),
    "rocm-4numa-x4-xgmi.txt": (4, 0, "xgmi 50x6", "0|1|2|3"),
    "rocm-amd-x8-xgmi-msswift.txt": (8, 0, "xgmi 64x28", V2),
    "rocm-mi300x-x8.txt": (8, 0, "xgmi 64x28", V2),
    "rocm-mi50x4-pcie.txt": (4, 0, "", "0,1,2,3"),
    "rocm-x4-pcie-w52-3hops.txt": (4, 0, "", "0|1|2|3"),
    "rtx-2gpu-nvlink-nv2.txt": (2, 0, "nvlink 50x1", "0,1"),
    "rtx3060ti-x3-sys-phb.txt": (3, 0, "", "0|1,2"),
    "rtx6000ada-x4-4nic.txt": (4, 4, "", "0,1|2,3"),
    "titanv-x8-pix-phb-sys.txt": (8, 0, "", V2),
    "traverse-ac922-v100x4-nv3.txt": (4, 4, "nvlink 75x2", "0,1|2,3"),
    "v100-x5-vm-phb.txt": (5, 0, "", "0,1,2,3,4"),
    "v100x8-sxm2-oneflow-1nic.txt": (8, 1, V1, V2),
    # Files in tests/data/dumps. Some are made after public files: NVIDIA/nccl#933, NVIDIA/nccl-tests#78,
    # NVIDIA/nccl#1505, NVIDIA/k8s-test-infra#371, ROCm/ROCm#1503, an issue of ROCm/rccl about topo_expl, hwloc's
    # power8gpudistances.xml, telegraf's a100-sxm4-v12.xml, nvidia_gpu_exporter's query.txt, infiniband_exporter's
    # fixtures.
    "a100pcie-x4-one-bridge.txt": (4, 2, "nvlink 300x1", "0,1|2,3"),
    "a800x8-nv8-9nic.txt": (8, 9, "nvswitch 200x8", V2, ("8 links of each into one NVSwitch",)),
    "amdsmi-mi300x-x8.txt": (8, 0, "xgmi 64x28", "0,1,2,3,4,5,6,7", ("where the dump says 50", "--showtoponuma")),
    "amdsmi-x2-no-access.txt": (2, 0, "", "0,1", ("without peer access: gpu0-gpu1",)),
    "dgx-a100-x8-numa-3175.txt": (8, 2, "nvswitch 300x8", "0,1|2,3|4,5|6,7"),
    "dgx2-x16-nv6-10nic.txt": (16, 10, "nvswitch 150x16", "0,1,2,3,4,5,6,7|8,9,10,11,12,13,14,15"),
    "gb200-x4-no-gpu-numa.txt": (4, 0, "nvswitch 900x4", "0,1|2,3", ("taken as GB200", "the same NVLink domain")),
    "h100x8-gpu3-nv17.txt": (8, 0, "nvswitch 425x1 450x7", V2, ("gpu3: 17 of 18 NVLinks", "425 of 450 GB/s")),
    "h200-x8-gpu5-one-switch-lost.xml": (8, 0, "nvswitch 350x1 450x7", V2, ("gpu5: 14 of 18 NVLinks",)),
    "h200nvl-x4-pairs.txt": (4, 0, "nvlink 450x2", "0,1|2,3"),
    "hwloc-power8-p100x4.xml": (4, 0, "nvlink 40x2", "0,1|2,3", ("20 GB/s per link and direction, from hwloc",)),
    "rocm-mi100x4-pcie-numa-7-1.txt": (4, 0, "", "0,2|1,3"),
    "rocm-mi250x-x8-all-xgmi-weights.txt": (
        8,
        0,
        "xgmi 50x6 100x2 200x4",
        "0,1|2,3|4,5|6,7",
        ("16 pairs that rocm-smi calls XGMI have no link of their own by weight",),
    ),
    "smi-q-x-a100-mig.xml": (1, 0, "", "0", ("gpu0 is in MIG mode",)),
    "two-nic-ports.txt": (2, 1, "nvlink 300x1", "0|1"),
}
# File -> line and words of the refusal.
REFUSED = {
    "ascend910b-x8-hccs.txt": (1, "the output of Huawei's npu-smi"),
    "dgx-h100-12nic-truncated-rows.txt": (16, "the row of NIC6 is missing"),
    "lumi-mi250x-showtoponuma.txt": (1, "paste all of `rocm-smi --showtopo`"),
    "nccl-aws-g5.48xl.xml": (12, "there are no GPUs in it"),
    "nccl-aws-p4d.xml": (15, "there are no GPUs in it"),
    "nccl-aws-p5-old.xml": (15, "there are no GPUs in it"),
    "nccl-azure-ndv2.xml": (1, "combine it with the table"),
    "nccl-azure-ndv4.xml": (1, "combine it with the table"),
    "nccl-azure-ndv5.xml": (1, "combine it with the table"),
    "nccl-graph-dgx1v-4gpu-0123.xml": (1, "rings and trees that NCCL chose"),
    "nccl-graph-dgx1v-8xv100.xml": (1, "NCCL_TOPO_DUMP_FILE"),
    "p2p-r-x8.txt": (3, "add --from a file with `nvidia-smi topo -m`"),
    "xpu-smi-max-x2-topology-m.txt": (1, "the output of Intel's xpu-smi"),
    "hwloc.xml": (3, "add --from a file with `nvidia-smi topo -m`"),
    "ibnetdiscover-p.txt": (1, "the output of ibnetdiscover"),
    "nvidia-smi-L.txt": (1, "names GPUs, but not the links between them"),
    "rocm-mi100x2-link-type-alone.txt": (1, "the table of hops is missing"),
    "smi-query-x2.csv": (1, "names GPUs, but not the links between them"),
}
# One machine in four numberings.
DGX1V_FILES = [
    "dgx1-v100-4nic.txt",
    "nccl-dgx1v-8xv100.xml",
    "v100x8-sxm2-oneflow-1nic.txt",
    "aliyun-v100x8-permuted.txt",
]


def dump(name: str) -> Path:
    path = DUMPS / name if (DUMPS / name).is_file() else MACHINES / name
    if not path.is_file():
        pytest.skip("the collection of public dumps is not beside this checkout")
    return path


def test_the_tables_name_files_that_exist() -> None:
    own = {path.name for path in DUMPS.iterdir()}
    assert own <= set(READ) | set(REFUSED)
    if not MACHINES.is_dir():
        pytest.skip("the collection of public dumps is not beside this checkout")
    assert set(READ) | set(REFUSED) <= own | {path.name for path in MACHINES.iterdir()}


def test_dumps_that_no_table_names_are_read_or_refused() -> None:
    """The collection grows: a dump that nobody has looked at yet must not end in anything but an answer or one line."""
    if not MACHINES.is_dir():
        pytest.skip("the collection of public dumps is not beside this checkout")
    for path in sorted(MACHINES.iterdir()):
        if path.name in READ or path.name in REFUSED or path.name == "INDEX.md":
            continue
        refusal = None
        try:
            topology = read(path)
        except TopologyError as error:
            refusal = str(error)
        if refusal is None:
            assert topology.gpus
            plan_graph(topology, None, None)
        else:
            assert path.name in refusal
            assert "\n" not in refusal


@pytest.mark.parametrize("name", READ)
def test_reads_right(name: str) -> None:
    topology = read(dump(name))
    expected = READ[name]
    assert (len(topology.gpus), len(nics(topology)), fast_links(topology), sockets(topology)) == expected[:4]
    for words in expected[4] if len(expected) == 5 else ():
        assert any(words in note for note in topology.notes), topology.notes
    # Whatever is assumed has a note that says how to set it.
    assert all("assumed" not in n or "would tell" in n or "(" in n for n in topology.notes)
    assert bool(topology.assumes) <= any("assumed" in note or "taken as" in note for note in topology.notes)
    plan_graph(topology, None, None)


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_with_the_line(name: str) -> None:
    line, words = REFUSED[name]
    with pytest.raises(TopologyError) as caught:
        read(dump(name))
    assert f"{name}:{line}: " in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize("name", DGX1V_FILES)
def test_four_numberings_of_a_dgx1v_are_one_machine(name: str) -> None:
    assert fingerprint(plan_graph(read(dump(name)))) == fingerprint(plan_graph(read(DGX1V)))


def test_a_dgx1p_is_another_machine() -> None:
    p100 = plan_graph(read(dump("dgx1-p100-sheffield-soc.txt"), gpu_model="P100"))
    assert fingerprint(p100) != fingerprint(plan_graph(read(DGX1V)))


def test_a_skeleton_and_a_table_together() -> None:
    topology = read(dump("nccl-azure-ndv4.xml"), dump("a100x8-nv12-respaced.txt"))
    assert fast_links(topology) == "nvswitch 300x8"
    assert len(nics(topology)) == 8
    # The XML knows the PCIe tree: two GPUs and two NICs per switch.
    assert sum(k.src.startswith("gpu") and k.dst.startswith("pcie") for k in topology.links) == 8


def test_nvlink_state_beside_a_table() -> None:
    topology = read(dump("h100-pcie-x2-nv12-bridge.txt"), dump("nvlink-s-h100pcie-x2.txt"))
    assert fast_links(topology) == "nvlink 300x1"
    assert any("as H100 has" in note for note in topology.notes)


def test_files_of_different_machines_do_not_combine() -> None:
    with pytest.raises(TopologyError, match="active links here and"):
        read(dump("h100x8-nv18-spaces.txt"), dump("nvlink-s-h100pcie-x2.txt"))
    with pytest.raises(TopologyError, match="8 GPUs here, 4 in the table"):
        read(dump("nccl-azure-ndv4.xml"), dump("a100x4-nv12-uneven-numa.txt"))
    with pytest.raises(TopologyError, match="a second table, which differs"):
        read(dump("a100x4-nv12-uneven-numa.txt"), dump("a100x8-nv12-respaced.txt"))


def test_a_dump_without_nvlinks_and_a_table() -> None:
    topology = read(dump("nccl-aws-p5-new.xml"), dump("h100x8-nv18-spaces.txt"))
    assert fast_links(topology) == "nvswitch 450x8"
    assert len(nics(topology)) == 32
