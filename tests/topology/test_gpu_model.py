"""`gpu_model` and `memory_gbps` are read, written, inherited and probed, and do not change plans."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import pytest

from collc.errors import TopologyError
from collc.simulator.generations import generation_of
from collc.topology.canonical import fingerprint
from collc.topology.dump import dumps_topology
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology, loads_topology
from collc.topology.zoo import names

BOX = """
format: collc-topology/1
name: box
gpus: 2
cpus: [{name: cpu0, memory_gbps: 20.5}]
gpu_model: "NVIDIA GeForce RTX 4090"
links:
  - [gpu0, cpu0, pcie, 25]
  - [gpu1, cpu0, pcie, 25]
"""
AMD = ("mi250", "mi250x", "mi300x")


def test_both_are_read_and_written() -> None:
    topology = loads_topology(BOX)
    assert topology.gpu_model == "NVIDIA GeForce RTX 4090"
    cpu = next(v for v in topology.vertices if v.name == "cpu0")
    assert cpu.memory_gbps == Fraction(41, 2)
    again = loads_topology(dumps_topology(topology))
    assert again == topology
    assert next(v for v in again.vertices if v.name == "cpu0").memory_gbps == Fraction(41, 2)


@pytest.mark.parametrize("name", names())
def test_every_machine_that_comes_with_collc_names_its_gpus(name: str) -> None:
    topology = load_topology(name)
    assert topology.gpu_model
    assert loads_topology(dumps_topology(topology)).gpu_model == topology.gpu_model
    known = generation_of(topology.gpu_model)
    assert (known is None) == (name in AMD or "l40s" in name)


def test_bases_and_templates_hand_it_on() -> None:
    assert load_topology("azure-ndv5").gpu_model == "H100"
    assert load_topology("hgx-h200").gpu_model == "H200"
    two = loads_topology(
        "format: collc-topology/1\nname: two\ntemplate: dgx1v\nservers: 2\nswitches: [net0]\n"
        "links:\n  - [each.mlx5_0, net0, net, 12.5]\n"
    )
    assert two.gpu_model == "V100"
    assert plan_graph(two).gpu_model == "V100"


def test_a_plan_does_not_know_them() -> None:
    topology = loads_topology(BOX)
    bare = loads_topology(BOX.replace("cpus: [{name: cpu0, memory_gbps: 20.5}]", "cpus: [cpu0]"))
    bare = dataclasses.replace(bare, gpu_model=None)
    assert fingerprint(plan_graph(topology)) == fingerprint(plan_graph(bare))
    assert plan_graph(topology) == plan_graph(bare)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('gpu_model: "NVIDIA GeForce RTX 4090"', "gpu_model: [H100]", "expected a word"),
        ('gpu_model: "NVIDIA GeForce RTX 4090"', 'gpu_model: "a\\nb"', "may only have"),
        ('gpu_model: "NVIDIA GeForce RTX 4090"', f"gpu_model: {'x' * 65}", "longer than"),
        ("memory_gbps: 20.5", "memory_gbps: 0", "cannot be `0`"),
        ("memory_gbps: 20.5", "memory: 5", "unknown key `memory`"),
        ("{name: cpu0, memory_gbps: 20.5}", "{memory_gbps: 20.5}", "no name"),
        ("gpus: 2", "gpus: [{name: gpu0, memory_gbps: 5}, gpu1]", "expected a name"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(old: str, new: str, says: str) -> None:
    with pytest.raises(TopologyError) as caught:
        loads_topology(BOX.replace(old, new), "box.yaml")
    assert says in caught.value.what
    assert str(caught.value.where).startswith("box.yaml:")
