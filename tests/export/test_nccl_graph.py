"""NCCL's graph file: NCCL's rules read the written file, and a file that they refuse is refused with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from collc.errors import TopologyError
from collc.export.nccl_graph import device_numbers, read_graphs, write_graphs
from collc.export.orders import best_pair
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology, loads_topology

MACHINES = Path(__file__).parents[2].parent / "shared" / "machines"


def written(name: str = "dgx1v", gpus: list[str] | None = None) -> str:
    graph = plan_graph(load_topology(name), gpus)
    rings, chains = best_pair(graph)
    assert rings is not None
    return write_graphs(graph, rings, chains)


def test_what_is_written_is_read() -> None:
    found = read_graphs(written(), "file.xml")
    assert set(found) == {0, 1}
    assert found[0].pattern == 4
    assert found[1].pattern == 3
    assert found[0].type == "NVL"
    assert found[0].gbps == 25
    assert len(found[0].channels) == len(found[1].channels) == 6
    assert all(sorted(channel) == list(range(8)) for graph in found.values() for channel in graph.channels)


def test_devices_are_what_nvidia_smi_calls_them_in_hexadecimal() -> None:
    assert {frozenset(c) for c in read_graphs(written(gpus=["gpu7", "gpu6", "gpu5"]), "x")[0].channels} == {
        frozenset({5, 6, 7})
    }
    text = written("dgx2")
    assert '<gpu dev="0xf"/>' in text
    assert sorted(read_graphs(text, "x")[0].channels[0]) == list(range(16))


def test_names_without_numbers_and_several_servers_are_refused() -> None:
    text = "format: collc-topology/1\nname: x\ngpus: [a, b]\nlinks: [[a, b, nvlink, 25]]\n"
    with pytest.raises(TopologyError, match="do not end in the numbers that nvidia-smi gives them"):
        device_numbers(plan_graph(loads_topology(text)))
    with pytest.raises(TopologyError, match="a graph file is about one server"):
        device_numbers(plan_graph(load_topology("gb200-nvl72")))


ONE = """<graphs version="1">
  <graph id="0" pattern="4" crossnic="0" nchannels="1" speedintra="25" speedinter="25" typeintra="NVL" typeinter="PIX" samechannels="0">
    <channel><gpu dev="0x0"/><gpu dev="0x1"/></channel>
  </graph>
</graphs>
"""  # noqa: E501


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("graphs", "system", 1, "the outermost element is <system>"),
        ('version="1"', 'version="2"', 1, "version '2', not 1"),
        ('nchannels="1"', 'nchannels="2"', 2, "tells 2 channels and has 1"),
        ('nchannels="1"', "", 2, "`nchannels` is '', not a number"),
        ('speedintra="25"', 'speedintra="fast"', 2, "`speedintra` is 'fast', not GB/s"),
        ('typeintra="NVL"', 'typeintra="NVLINK"', 2, "`typeintra` is 'NVLINK', none of NCCL's types"),
        ('<channel><gpu dev="0x0"/><gpu dev="0x1"/></channel>', "<way/>", 3, "<way> in place of a channel"),
        ('<gpu dev="0x1"/>', '<net dev="0"/>', 3, "files for several servers are not read"),
        ('dev="0x1"', 'dev="one"', 3, "`dev` is 'one', not a hexadecimal number"),
        ('dev="0x1"', 'dev="0x0"', 2, "do not visit the same GPUs once each"),
        ("</graphs>", "", 6, "not XML"),
    ],
)
def test_what_nccl_refuses_or_misreads_is_refused(old: str, new: str, line: int, words: str) -> None:
    assert read_graphs(ONE, "f.xml")[0].channels == ((0, 1),)
    with pytest.raises(TopologyError) as caught:
        read_graphs(ONE.replace(old, new), "f.xml")
    assert str(caught.value).startswith(f"f.xml:{line}: "), caught.value
    assert words in str(caught.value)


def test_channels_that_visit_different_gpus() -> None:
    text = ONE.replace('nchannels="1"', 'nchannels="2"').replace(
        "  </graph>", '    <channel><gpu dev="0x0"/><gpu dev="0x2"/></channel>\n  </graph>'
    )
    with pytest.raises(TopologyError, match="do not visit the same GPUs"):
        read_graphs(text, "f.xml")


@pytest.mark.parametrize("name", ["nccl-graph-dgx1v-8xv100.xml", "nccl-graph-dgx1v-4gpu-0123.xml"])
def test_files_that_nccl_wrote_are_read(name: str) -> None:
    path = MACHINES / name
    if not path.is_file():
        pytest.skip("the collection of public dumps is not beside this checkout")
    found = read_graphs(path.read_text(encoding="utf-8"), name)
    assert found[0].pattern == 4
    assert len(found[0].channels) == (6 if "8x" in name else 4)
