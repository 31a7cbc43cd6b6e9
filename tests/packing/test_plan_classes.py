"""Plans over several classes: the joint rate proved, the classes' own rates beside it, no link above its capacity."""

from __future__ import annotations

from fractions import Fraction

import pytest

from collc.checker.packing import check_packing
from collc.collectives.model import Collective
from collc.packing import plan
from collc.packing.explain import link_loads
from collc.packing.sets.classes import ClassPlans, plan_classes
from collc.topology.load import load_topology, loads_topology
from collc.topology.model import JOINT, Topology

HEAD = "format: collc-topology/1\nname: box\n"


def check(made: ClassPlans) -> None:
    """Checks the conditions that each answer fulfills."""
    assert made.joint.rate is not None
    check_packing(made.graph, made.joint)
    rates = [own.rate for own in made.classes]
    assert sum(rates) <= made.joint.rate
    load = {(x.src, x.dst, x.kind): Fraction(0) for x in made.graph.links}
    names = {v.name: i for i, v in enumerate(made.graph.vertices)}
    for own in made.classes:
        assert (own.graph is None) == (own.plan is None)
        if own.graph is None or own.plan is None:
            continue
        check_packing(own.graph, own.plan)
        for link, amount in zip(own.graph.links, link_loads(own.graph, own.plan), strict=True):
            ends = (own.graph.vertices[link.src].name, own.graph.vertices[link.dst].name)
            load[names[ends[0]], names[ends[1]], link.kind] += amount
    for x in made.graph.links:
        assert load[x.src, x.dst, x.kind] <= x.gbps, "the classes together fill a link beyond its capacity"
    if not made.mixed:
        assert not any("+" in made.class_of_tree(tree) for tree in made.joint.trees)


@pytest.mark.parametrize("collective", list(Collective), ids=lambda c: c.value)
@pytest.mark.parametrize(
    ("name", "gpus"), [("hgx-h800", None), ("dgx1v", ("gpu0", "gpu1", "gpu4")), ("dgx-a100", None), ("ac922", None)]
)
def test_every_collective(name: str, gpus: tuple[str, ...] | None, collective: Collective) -> None:
    machine = load_topology(name)
    classes = JOINT if any(v.port and v.port.gbps for v in machine.vertices) else JOINT[:2]
    check(plan_classes(machine, gpus, classes, collective))


def test_rates_of_a_box_by_hand() -> None:
    """NVLink 10, PCIe 4 each, memory of 6 GB/s: 3 pass through it, 1.5 each way, and each GPU has half of the data."""
    text = "gpus: 2\ncpus: [{name: cpu0, memory_gbps: 6}]\nlinks:\n  - [gpu0, gpu1, nvlink, 10]\n"
    text += "  - [gpu0, cpu0, pcie, 4]\n  - [gpu1, cpu0, pcie, 4]\n"
    made = plan_classes(loads_topology(HEAD + text), None, ("nvlink", "pcie"), Collective.ALL_GATHER)
    check(made)
    assert [own.rate for own in made.classes] == [20, 3]
    assert made.joint.rate == 23
    # In a broadcast only one direction passes through the memory, and gets all 3 GB/s.
    made = plan_classes(loads_topology(HEAD + text), None, ("nvlink", "pcie"), Collective.BROADCAST)
    assert made.joint.rate == 13


def test_nics_add_nothing_where_they_share_the_link_of_the_gpu() -> None:
    """FlexLink's table 1: on H800 the NIC shares the GPU's PCIe link, on GB300 it has a separate PCIe link."""
    made = plan_classes(load_topology("hgx-h800"), None, JOINT, Collective.ALL_REDUCE)
    assert [own.rate for own in made.classes] == [Fraction(800, 7), Fraction(200, 7), 0]
    full = made.classes[2].full
    ends = {(made.graph.vertices[made.graph.links[i].src].name, made.graph.links[i].gbps) for i in full}
    assert {(f"gpu{i}", Fraction(50)) for i in range(8)} <= ends
    tray = [f"server0.gpu{i}" for i in range(4)]
    made = plan_classes(load_topology("gb300-nvl72"), tray, JOINT, Collective.ALL_GATHER)
    assert [own.rate for own in made.classes] == [1200, 300, Fraction(400, 3)]
    assert made.joint.rate == Fraction(4900, 3)


def test_a_class_that_joins_no_gpus_carries_nothing_by_itself() -> None:
    made = plan_classes(load_topology("a100-pcie-bridged"), None, ("nvlink", "pcie"), Collective.ALL_REDUCE)
    check(made)
    nvlink, pcie = made.classes
    assert nvlink.plan is None
    assert nvlink.full == ()
    assert pcie.rate > 0
    assert made.mixed > 0
    assert {"nvlink+pcie"} <= {made.class_of_tree(tree) for tree in made.joint.trees}


def test_the_joint_plan_is_as_good_as_that_of_the_whole_graph() -> None:
    machine: Topology = load_topology("dgx1v")
    made = plan_classes(machine, None, ("nvlink", "pcie"), Collective.ALL_REDUCE)
    assert made.joint.rate == plan(made.graph, Collective.ALL_REDUCE).rate == Fraction(625, 7)


def test_one_gpu_moves_nothing() -> None:
    made = plan_classes(load_topology("dgx1v"), ["gpu3"], JOINT, Collective.ALL_REDUCE)
    assert made.joint.rate is None
    assert made.classes == ()
