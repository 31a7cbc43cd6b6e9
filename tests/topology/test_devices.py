"""Bus ids and UUIDs of GPUs in topology files: read and written exactly, beside the graph, and merged with care."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support import nvml

from collc.errors import TopologyError
from collc.packing.sets.gpu_sets import pack_bus, written_set
from collc.topology.canonical import fingerprint
from collc.topology.cluster.merge import Described, merge
from collc.topology.cluster.model import Server
from collc.topology.cluster.write import dumps_cluster
from collc.topology.dump import dumps_topology
from collc.topology.graph import plan_graph
from collc.topology.load import loads_topology
from collc.topology.model import Device, Topology

HEAD = "format: collc-topology/1\nname: box\n"
PCI = ["0000:06:00.0", "0000:07:00.0", "0000:0a:00.0", "10001:85:1f.7"]
UUID = [f"GPU-{i}b0e5c1d-0000-1111-2222-33334444555{i}" for i in range(4)]
LINES = [f'  gpu{i}: {{pci: "{PCI[i]}", uuid: {UUID[i]}}}\n' for i in range(4)]
FOUR = HEAD + "gpus: 4\nlinks: [[gpu0, gpu1, nvlink, 25], [gpu1, gpu2, nvlink, 25], [gpu2, gpu3, nvlink, 25]]\n"


def devices(topology: Topology) -> dict[str, Device]:
    return {v.name: v.device for v in topology.gpus if v.device is not None}


def all_four() -> Topology:
    return loads_topology(FOUR + "devices:\n" + "".join(LINES))


def test_what_is_written_is_read_again() -> None:
    topology = all_four()
    assert devices(topology) == {f"gpu{i}": Device(PCI[i], UUID[i]) for i in range(4)}
    assert devices(loads_topology(dumps_topology(topology))) == devices(topology)
    some = loads_topology(FOUR + f'devices: {{gpu2: {{pci: "{PCI[2]}"}}, gpu1: {{uuid: {UUID[1]}}}, gpu0: {{}}}}\n')
    wanted = {"gpu2": Device(PCI[2]), "gpu1": Device(uuid=UUID[1])}
    assert devices(loads_topology(dumps_topology(some))) == wanted
    assert "devices" not in dumps_topology(loads_topology(FOUR))


def test_no_fingerprint_depends_on_them() -> None:
    assert fingerprint(plan_graph(all_four())) == fingerprint(plan_graph(loads_topology(FOUR)))
    assert all_four() == loads_topology(FOUR)


def test_a_file_has_those_of_its_base_and_servers_the_places_of_their_template(tmp_path: Path) -> None:
    base = tmp_path / "base.yaml"
    base.write_text(dumps_topology(all_four()))
    worn = loads_topology(HEAD + f"extends: {base}\nremove: [gpu3]\ndevices: {{gpu1: {{uuid: {UUID[3]}}}}}\n")
    assert devices(worn) == {
        "gpu0": Device(PCI[0], UUID[0]),
        "gpu1": Device(uuid=UUID[3]),
        "gpu2": Device(PCI[2], UUID[2]),
    }
    several = HEAD + f"template: {base}\nservers: 2\ndevices: {{server1.gpu0: {{uuid: {UUID[0]}}}}}\n"
    found = devices(loads_topology(several))
    assert found["server1.gpu0"] == Device(uuid=UUID[0])
    assert found["server0.gpu0"] == Device(PCI[0])
    assert found["server1.gpu3"] == Device(PCI[3])


def two(one: str, other: str, what: str) -> str:
    return f"devices:\n  {one}: {{{what}}}\n  {other}: {{{what}}}\n"


WRONG = {
    "a list": ("devices: [gpu0]\n", 5, "mapping"),
    "a word": ("devices: gpu0\n", 5, "mapping"),
    "a stranger": ("devices: {gpu4: {}}\n", 5, "no GPU is called `gpu4`"),
    "a switch": ("switches: [nvs0]\ndevices: {nvs0: {}}\n", 6, "no GPU is called `nvs0`"),
    "a bare bus id": ('devices: {gpu0: "0000:06:00.0"}\n', 5, "mapping"),
    "another key": ("devices: {gpu0: {bus: x}}\n", 5, "unknown key `bus`"),
    "the same GPU twice": ("devices: {gpu0: {}, gpu0: {}}\n", 5, "given twice"),
    "upper case": ('devices: {gpu0: {pci: "0000:3B:00.0"}}\n', 5, "lower case"),
    "no function": ('devices: {gpu0: {pci: "0000:3b:00"}}\n', 5, "`pci` cannot be"),
    "no domain": ('devices: {gpu0: {pci: "3b:00.0"}}\n', 5, "`pci` cannot be"),
    "a device beyond 31": ('devices: {gpu0: {pci: "0000:3b:20.0"}}\n', 5, "`pci` cannot be"),
    "a line more": ('devices: {gpu0: {pci: "0000:3b:00.0\\n"}}\n', 5, "`pci` cannot be"),
    "digits of other scripts": ('devices: {gpu0: {pci: "٠٠٠٠:3b:00.0"}}\n', 5, "`pci` cannot be"),
    "a long one": (f'devices: {{gpu0: {{pci: "{"0" * 100_000}"}}}}\n', 5, "`pci` cannot be"),
    "a list of bus ids": ("devices: {gpu0: {pci: [1]}}\n", 5, "expected a word"),
    "nothing": ("devices: {gpu0: {pci: ~}}\n", 5, "expected a word"),
    "a UUID without its word": (f"devices: {{gpu0: {{uuid: {UUID[0][4:]}}}}}\n", 5, "`uuid` cannot be"),
    "code": ("devices: {gpu0: {uuid: \"GPU-'; system('id'); '\"}}\n", 5, "`uuid` cannot be"),
    "one place for two": (two("gpu0", "gpu1", f'pci: "{PCI[0]}"'), 6, "gpu0 and gpu1 are both"),
    "one card for two": (two("gpu0", "gpu3", f"uuid: {UUID[0]}"), 6, "gpu0 and gpu3 are both"),
    "one card for two servers": (
        "servers: {a: [gpu0, gpu1], b: [gpu2, gpu3]}\n" + two("gpu0", "gpu2", f"uuid: {UUID[0]}"),
        7,
        "gpu0 and gpu2 are both",
    ),
}


@pytest.mark.parametrize("case", sorted(WRONG))
def test_wrong_ones_are_one_line_with_file_and_line(case: str) -> None:
    text, line, word = WRONG[case]
    with pytest.raises(TopologyError) as caught:
        loads_topology(FOUR + text, "box.yaml")
    assert caught.value.where == f"box.yaml:{line}"
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_servers_may_have_gpus_in_the_same_places() -> None:
    text = FOUR + "servers: {a: [gpu0, gpu1], b: [gpu2, gpu3]}\ndevices:\n"
    text += f'  gpu0: {{pci: "{PCI[0]}"}}\n  gpu2: {{pci: "{PCI[0]}"}}\n'
    assert devices(loads_topology(text)) == {"gpu0": Device(PCI[0]), "gpu2": Device(PCI[0])}


def test_probe_writes_them(tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler for the mock of NVML")
    box = nvml.dgx1v()
    found = devices(nvml.probe(nvml.compile_mock(tmp_path), tmp_path, box, visible="5,2").good)
    uuids = [line.split()[2] for line in box.lines if line.startswith("gpu ")]
    assert found == {f"gpu{i}": Device(f"0000:{i + 6:02x}:00.0", uuids[i]) for i in (5, 2)}


def test_probe_leaves_out_what_is_no_uuid(tmp_path: Path) -> None:
    """A driver may answer with anything."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler for the mock of NVML")
    box = nvml.Box().gpu("Tesla T4", "sm 7 5", "pcie 3 16", uuid='GPU-"},evil:{')
    found = devices(nvml.probe(nvml.compile_mock(tmp_path), tmp_path, box).good)
    assert found == {"gpu0": Device("0000:06:00.0")}


def merged(*files: str) -> Topology:
    servers = [Server(f"node{i}", loads_topology(FOUR + text), f"node{i}.yaml") for i, text in enumerate(files)]
    return loads_topology(dumps_cluster(merge(servers, Described(), "lab")))


def test_a_cluster_keeps_the_places_that_all_servers_share() -> None:
    other = [line.replace(UUID[i], UUID[i].replace("0000", "9999")) for i, line in enumerate(LINES)]
    moved = [*other[:2], other[2].replace(PCI[2], "0000:0b:00.0"), other[3]]
    found = devices(merged("devices:\n" + "".join(LINES), "devices:\n" + "".join(other)))
    assert found == {f"node{n}.gpu{i}": Device(PCI[i]) for n in range(2) for i in range(4)}
    found = devices(merged("devices:\n" + "".join(LINES), "devices:\n" + "".join(moved)))
    assert found == {f"node{n}.gpu{i}": Device(PCI[i]) for n in range(2) for i in (0, 1, 3)}
    assert devices(merged("devices:\n" + "".join(LINES), "")) == {}


def test_a_library_has_the_bus_ids_of_one_server() -> None:
    names = [v.name for v in all_four().gpus]
    assert written_set(all_four(), names).buses == tuple(map(pack_bus, PCI))
    assert pack_bus("0000:3b:1f.7") == 0x3B1F01
    assert pack_bus("10001:85:00.0") == 0x10001 << 32 | 0x850001
    assert written_set(loads_topology(FOUR), names).buses == ()
    assert written_set(loads_topology(FOUR + f'devices: {{gpu1: {{pci: "{PCI[1]}"}}}}\n'), names).buses == (
        0,
        pack_bus(PCI[1]),
        0,
        0,
    )
    two = loads_topology(FOUR + "servers: {a: [gpu0, gpu1], b: [gpu2, gpu3]}\ndevices:\n" + "".join(LINES))
    assert written_set(two, names).buses == ()
