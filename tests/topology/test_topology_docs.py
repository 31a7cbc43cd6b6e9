"""The examples of docs/topology.md load, and its rules match the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.cli import collc

from collc.collectives.model import Collective
from collc.packing import plan
from collc.topology.graph import plan_graph
from collc.topology.load import loads_topology
from collc.topology.model import LinkKind, Topology

PAGE = Path(__file__).parents[2] / "docs" / "topology.md"


def page() -> str:
    if not PAGE.is_file():
        pytest.skip("the documents are not beside these tests")
    return PAGE.read_text(encoding="utf-8")


def examples() -> dict[str, Topology]:
    blocks = re.findall(r"```yaml\n(.*?)```", page(), re.DOTALL)
    topologies = [loads_topology(block, f"docs/topology.md, example {i}") for i, block in enumerate(blocks)]
    return {topology.name: topology for topology in topologies}


def test_examples_load() -> None:
    found = examples()
    assert set(found) == {"lab-box", "four-v100", "dgx1v-with-a-dead-link", "two-dgx-a100", "mixed"}
    speeds = {(k.src, k.dst): k.gbps for k in found["four-v100"].links}
    assert speeds["gpu0", "gpu1"] == 50
    assert speeds["cpu0", "gpu3"] == 6.25


def test_the_dead_link_is_dead() -> None:
    links = {(k.src, k.dst, k.kind): k.gbps for k in examples()["dgx1v-with-a-dead-link"].links}
    assert links["gpu6", "gpu7", LinkKind.NVLINK] == 25
    assert links["gpu0", "gpu3", LinkKind.NVLINK] == 50


@pytest.mark.parametrize("name", ["lab-box", "four-v100", "dgx1v-with-a-dead-link", "two-dgx-a100", "mixed"])
def test_every_example_plans(name: str) -> None:
    graph = plan_graph(examples()[name])
    plan(graph, Collective.BROADCAST, 0)


def test_the_cluster_can_be_planned() -> None:
    graph = plan_graph(examples()["two-dgx-a100"])
    assert {"server0", "server1"} <= set(graph.servers)
    assert graph.nranks == 16


def test_every_option_of_probe_is_there() -> None:
    shown = collc("probe", "--help").out
    for option in ("--from", "--cpu", "--measure", "--gpu-model", "--merge", "--cluster", "--rails", "--fabric"):
        assert option in shown
        assert option in page()
