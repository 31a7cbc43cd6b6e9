"""Tables of AMD GPUs: `rocm-smi --showtopo` and `amd-smi topology`, as text and as JSON, whole and damaged."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pytest
from support.machines import fast_links, pairs, sockets
from support.topo_text import DGX1V, dgx1, render

from collc.errors import TopologyError
from collc.topology.load import load_topology
from collc.topology.model import Topology
from collc.topology.probe.dumps import topology_from_dumps

Rows = Sequence[Sequence[str]]


def probe(*texts: str) -> Topology:
    return topology_from_dumps([(f"file{i}.txt", text) for i, text in enumerate(texts)])


def full(n: int, off: str, own: str = "0") -> list[list[str]]:
    return [[own if i == j else off for j in range(n)] for i in range(n)]


def symmetric(n: int, off: str, cells: Mapping[tuple[int, int], str]) -> list[list[str]]:
    rows = full(n, off)
    for (a, b), cell in cells.items():
        rows[a][b] = rows[b][a] = cell
    return rows


def table(title: str, names: Sequence[str], rows: Rows) -> str:
    body = "".join(
        name.ljust(13) + "".join(c.ljust(13) for c in row) + "\n" for name, row in zip(names, rows, strict=True)
    )
    return f"{title}\n{'':13}" + "".join(n.ljust(13) for n in names) + "\n" + body + "\n"


def rocm(types: Rows, hops: Rows, weights: Rows | None = None, numa: Sequence[int] | None = None) -> str:
    """`rocm-smi --showtopo`; without weights, 15 for each xGMI hop and 20 for each hop of PCIe."""
    if weights is None:
        each = {"XGMI": 15, "PCIE": 20, "0": 0}
        weights = [
            [str(each.get(t, 0) * int(h)) for t, h in zip(*rows, strict=True)] for rows in zip(types, hops, strict=True)
        ]
    names = [f"GPU{i}" for i in range(len(types))]
    text = "\n\n" + f"{' ROCm System Management Interface ':=^80}\n"
    for title, rows in (("Weight", weights), ("Hops", hops), ("Link Type", types)):
        text += table(f"{f' {title} between two GPUs ':=^80}", names, rows)
    if numa is not None:
        text += f"{' Numa Nodes ':=^80}\n"
        text += "".join(f"GPU[{i}]\t\t: (Topology) Numa Node: {n}\n" for i, n in enumerate(numa))
    return text + f"{' End of ROCm SMI Log ':=^80}\n"


BUSES = [f"0000:{i + 1}c:00.0" for i in range(8)]


def amd(types: Rows, hops: Rows, weights: Rows, bandwidth: Rows, access: Rows | None = None) -> str:
    """`amd-smi topology`."""
    n = len(types)
    tables = {
        "ACCESS": access or full(n, "ENABLED", "ENABLED"),
        "WEIGHT": weights,
        "HOPS": hops,
        "LINK TYPE": [["SELF" if c == "0" else c for c in row] for row in types],
        "NUMA BW": [["N/A" if c == "0" else c for c in row] for row in bandwidth],
        "CACHE COHERANCY": full(n, "C", "SELF"),
        "ATOMICS": full(n, "64,32", "SELF"),
    }
    text = "".join(table(f"{title} TABLE:", BUSES[:n], rows) for title, rows in tables.items())
    return text + "Legend:\n SELF = Current GPU\n <BW from>-<BW to>\n"


# The weights of a node with four MI250X: 15 for each xGMI hop, in the driver's numbering.
MI250X = {(k.src, k.dst): k.lanes for k in load_topology("mi250x").links if k.kind.value == "xgmi"}
LINKED = [(int(a[3:]), int(b[3:])) for a, b in MI250X if a < b]
WEIGHTS = symmetric(8, "30", dict.fromkeys(LINKED, "15"))


def renumbered(rows: Rows, order: Sequence[int]) -> list[list[str]]:
    """The table after GPU `order[i]` has become GPU i."""
    return [[rows[a][b] for b in order] for a in order]


@pytest.mark.parametrize("order", [range(8), [2, 3, 0, 1, 6, 7, 4, 5]])
def test_weights_tell_the_links_of_a_fabric_whose_hops_are_all_one(order: Sequence[int]) -> None:
    text = rocm(full(8, "XGMI"), full(8, "1"), renumbered(WEIGHTS, order), [g // 2 for g in order])
    topology = probe(text)
    found = {(a, b): gbps for (a, b), gbps in pairs(topology).items() if a < b}
    assert len(found) == 12
    for (a, b), gbps in found.items():
        one, two = (f"gpu{order[int(name[3:])]}" for name in (a, b))
        assert float(gbps) == 50 * MI250X[one, two]
    assert any("its table of hops says 1 for each pair" in note for note in topology.notes)


def test_links_of_an_unknown_fabric_are_taken_as_one_each_and_the_note_says_so() -> None:
    ring = symmetric(6, "30", {(i, (i + 1) % 6): "15" for i in range(6)} | {(i, i + 3): "45" for i in range(3)})
    topology = probe(rocm(full(6, "XGMI"), full(6, "1"), ring))
    assert fast_links(topology) == "xgmi 50x6"
    assert any("taken as one; --from `amd-smi topology` tells" in note for note in topology.notes)


def test_bandwidth_tells_how_many_links_a_pair_has() -> None:
    rates = symmetric(8, "N/A", {pair: f"50000-{50000 * MI250X[f'gpu{pair[0]}', f'gpu{pair[1]}']}" for pair in LINKED})
    topology = probe(amd(full(8, "XGMI"), full(8, "1"), WEIGHTS, rates))
    assert fast_links(topology) == "xgmi 50x6 100x2 200x4"
    assert topology.gpus[1].device is not None
    assert topology.gpus[1].device.pci == BUSES[1]


def test_drivers_that_print_no_bandwidth() -> None:
    topology = probe(amd(full(8, "XGMI"), full(8, "1"), full(8, "15"), full(8, "0-0")))
    assert fast_links(topology) == "xgmi 64x28"


def test_a_printed_speed_that_differs_from_the_assumed_one_is_named() -> None:
    text = amd(full(8, "XGMI"), full(8, "1"), full(8, "15"), full(8, "50000-50000"))
    assert any("assumed 64" in note and "where the dump says 50" in note for note in probe(text).notes)
    newer = probe(text.replace("50000-50000", "76000-76000"))
    assert fast_links(newer) == "xgmi 76x28"


def test_gpus_without_access_are_named() -> None:
    text = amd(full(2, "PCIE"), full(2, "2"), full(2, "40"), full(2, "N/A"), full(2, "DISABLED", "ENABLED"))
    topology = probe(text)
    assert fast_links(topology) == ""
    assert any("GPUs without peer access: gpu0-gpu1" in note for note in topology.notes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (rocm(full(4, "XGMI"), full(4, "2"), full(4, "15")), "GPU0 and GPU1: xGMI of weight 15 .*, but 2 hops"),
        (rocm(full(4, "XGMI"), full(4, "1"), full(4, "20")), "GPU0 and GPU1: xGMI of weight 20 .*NCCL_TOPO_DUMP_FILE"),
        (rocm(full(4, "XGMI"), full(4, "1"), full(4, "30")), "no pair is one hop apart .*NCCL_TOPO_DUMP_FILE"),
        (rocm(full(4, "XGMI"), full(4, "1"), full(4, "13")), "partitions of one GPU, not GPUs .*SPX"),
        (
            amd(full(3, "XGMI"), full(3, "1"), full(3, "15"), symmetric(3, "50000-50000", {(0, 1): "N/A"})),
            "0000:1c:00.0 and 0000:2c:00.0: weight 15, but bandwidth N/A",
        ),
        (
            rocm(full(4, "XGMI"), full(4, "1")).replace("Weight between", "Distance between"),
            "the table of weights is missing",
        ),
    ],
)
def test_tables_that_contradict_each_other(text: str, words: str) -> None:
    with pytest.raises(TopologyError, match=words):
        probe(text)


def test_json_says_the_same() -> None:
    text = amd(full(8, "XGMI"), full(8, "1"), WEIGHTS, symmetric(8, "0-0", dict.fromkeys(LINKED, "50000-100000")))
    rows = [
        {
            "gpu": a,
            "bdf": BUSES[a],
            "links": [
                {
                    "gpu": b,
                    "weight": int(WEIGHTS[a][b]),
                    "link_type": "SELF" if a == b else "XGMI",
                    "num_hops": int(a != b),
                    "bandwidth": "50000-100000" if WEIGHTS[a][b] == "15" else "0-0" if a != b else "N/A",
                }
                for b in range(8)
            ],
        }
        for a in range(8)
    ]
    assert probe(json.dumps(rows)).links == probe(text).links
    facts = {
        f"(Topology) {word} between DRM devices {a} and {b}": value
        for a in range(8)
        for b in range(a)
        for word, value in (("Weight", WEIGHTS[a][b]), ("Hops", "1"), ("Link type", "XGMI"))
    }
    numa = {f"card{i}": {"(Topology) Numa Node": str(i // 2)} for i in range(8)}
    plain = rocm(full(8, "XGMI"), full(8, "1"), WEIGHTS, [i // 2 for i in range(8)])
    assert probe(json.dumps({"system": facts, **numa})).links == probe(plain).links


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[{"gpu": 0, "link_type": "XGMI"}]', "GPU 0 has no list of links"),
        ('[{"gpu": 0, "links": [{"link_type": "XGMI"}', "not JSON"),
        ('{"system": {"(Topology) Weight": "15"}}', "no links between GPUs"),
        ('{"s": {"(Topology) Hops between DRM devices 1 and 0": "x"}}', "the hops of GPUs 0 and 1 is missing"),
    ],
)
def test_damaged_json(text: str, words: str) -> None:
    with pytest.raises(TopologyError, match=words):
        probe(text)


def test_two_outputs_of_one_machine_add_up() -> None:
    numa = "".join(f"GPU[{i}]\t\t: (Topology) Numa Node: {i // 2}\n" for i in range(4))
    topology = probe(amd(full(4, "XGMI"), full(4, "1"), full(4, "15"), full(4, "50000-50000")), numa)
    assert sockets(topology) == "0,1|2,3"


def test_rocm_mesh() -> None:
    topology = probe(rocm(full(8, "XGMI"), full(8, "1"), numa=[0, 0, 0, 0, 1, 1, 1, 1]))
    assert fast_links(topology) == "xgmi 64x28"
    assert sockets(topology) == "0,1,2,3|4,5,6,7"
    assert {float(k.gbps) for k in topology.links if k.src == "gpu0" and k.kind.value == "pcie"} == {50}


def test_rocm_hops_beyond_one_are_no_links() -> None:
    hops = full(4, "1")
    hops[0][2] = hops[2][0] = hops[1][3] = hops[3][1] = "2"
    topology = probe(rocm(full(4, "XGMI"), hops))
    assert set(pairs(topology)) == {(f"gpu{a}", f"gpu{b}") for a in range(4) for b in range(4) if (a - b) % 4 in (1, 3)}
    assert any("2 pairs that rocm-smi calls XGMI have no link of their own" in note for note in topology.notes)


def test_rocm_pcie() -> None:
    topology = probe(rocm(full(4, "PCIE"), full(4, "2"), numa=[0, 0, 0, 0]))
    assert fast_links(topology) == ""
    assert sockets(topology) == "0,1,2,3"


ROCM = rocm(full(4, "XGMI"), full(4, "1"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ROCM.replace("Link Type between", "Link between"), "the table of link types is missing"),
        (ROCM.replace("\nGPU3   ", "\n", 1), "the row of GPU3 is missing"),
        (ROCM.replace("XGMI", "YGMI", 1), "`YGMI` is not a valid cell of this table"),
        (ROCM.replace("XGMI", "PCIE", 1), "GPU1 and GPU0 do not say the same of each other"),
        (ROCM.replace("XGMI", "", 1), "row GPU0 has 3 cells, the header names 4 GPUs"),
        (ROCM + ROCM.replace("15", "30"), "a second table of weights, which differs"),
    ],
)
def test_damaged_rocm(text: str, words: str) -> None:
    with pytest.raises(TopologyError) as caught:
        probe(text)
    assert str(caught.value).startswith("file0.txt:")
    assert words in str(caught.value)


def test_rocm_does_not_go_with_nvidia() -> None:
    with pytest.raises(TopologyError, match=r"the output of rocm-smi .* does not go with the other dump"):
        probe(ROCM, render(dgx1(DGX1V)))


def test_one_gpu_has_no_links() -> None:
    text = f"{' Link Type between two GPUs ':=^80}\n       GPU0\nGPU0   0\n"
    assert len(probe(text).gpus) == 1
    assert len(probe('{"card0": {"(Topology) Numa Node": "0"}, "system": {}}').gpus) == 1
    with pytest.raises(TopologyError, match="no links between GPUs"):
        probe('{"card0": {"(Topology) Numa Node": "0"}, "card1": {"(Topology) Numa Node": "0"}}')
