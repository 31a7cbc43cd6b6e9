"""The share of PCIe next to NVLink in a library that is compiled without --classes."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import cast

import pytest

from collc.build.compile import Contents
from collc.build.memory import fifo_bytes_by_rank
from collc.choose.by_class import lighter
from collc.choose.idle_links import AUTO, TRUST, may_share
from collc.choose.joined import Cut, channels_of_root
from collc.choose.judge import Judge
from collc.choose.library import library_contents
from collc.choose.request import LibraryRequest
from collc.choose.split import Curve
from collc.codegen.entry import Entry
from collc.collectives.model import Collective
from collc.options import CUDA, HOST
from collc.packing.candidates.plans import least_equal_parts, spread
from collc.packing.sets.classes import plan_classes
from collc.simulator.generations import machine_for
from collc.simulator.run import Simulator, Variant
from collc.topology.load import load_topology, loads_topology

BOX = """
format: collc-topology/1
name: box
gpus: 2
cpus: [cpu0]
links:
  - [gpu0, gpu1, nvlink, 100]
  - [gpu0, cpu0, pcie, {pcie}]
  - [gpu1, cpu0, pcie, {pcie}]
"""


def asked(pcie: str, classes: str | None = AUTO) -> LibraryRequest:
    """Two GPUs that NVLink of 100 GB/s joins, and PCIe of a speed."""
    return LibraryRequest(
        loads_topology(BOX.format(pcie=pcie)),
        classes=classes,
        collectives=(Collective.ALL_GATHER, Collective.ALL_REDUCE),
    )


@cache
def made(pcie: str, classes: str | None = AUTO) -> Contents:
    return library_contents(asked(pcie, classes), CUDA)


def weights(contents: Contents) -> list[tuple[int, ...]]:
    return [entry.program.weights for entry in contents.entries[0] if entry.program.weights]


def test_large_calls_run_over_pcie_too_with_half_of_its_speed() -> None:
    """The largest calls give PCIe what ends together with NVLink if it has half of its speed: 20 beside 100."""
    found = made("40")
    last = [entry for entry in found.entries[0] if entry.program.weights][-1]
    assert last.program.weights[0] == pytest.approx(100 * 100 / 120, abs=3)
    assert sum(last.program.weights) == 100
    assert "with 50% of the speed of pcie" in last.why
    assert found.documents[0].plans[0].bound == 100 + 40, "the proof counts all of PCIe"
    small = [entry for entry in found.entries[0] if (entry.when.min_bytes or 0) < 64 << 10]
    assert small
    assert not any(entry.program.weights for entry in small)


def test_twice_the_trust_gives_twice_the_share() -> None:
    full = made("40", "nvlink,pcie")
    assert weights(full)[-1][1] == pytest.approx(100 * 40 / 140, abs=4)
    assert weights(full)[-1][1] > 1.5 * weights(made("40"))[-1][1]


@pytest.mark.parametrize("pcie", ["5", "1"])
def test_what_adds_too_little_changes_nothing(pcie: str) -> None:
    """Half of PCIe's 5 GB/s counts, which is 2.5% of NVLink: too little for another class."""
    assert made(pcie) == made(pcie, None)


@pytest.mark.parametrize("classes", [None, "nvlink"])
def test_who_says_nvlink_gets_nvlink(classes: str | None) -> None:
    assert weights(made("40", classes)) == []
    assert {link.kind.value for link in made("40", classes).documents[0].graph.links} == {"nvlink"}


def test_calls_of_one_class_stay_as_they_are() -> None:
    before, after = made("40", None), made("40")
    kept = [e for e in after.entries[0] if not e.program.weights]
    assert kept
    shapes = {(e.when, e.program.chunk_bytes, e.program.channels, e.why) for e in before.entries[0]}
    assert {(e.when, e.program.chunk_bytes, e.program.channels, e.why) for e in kept} <= shapes
    assert max(fifo_bytes_by_rank(after.entries[0], 2)) <= CUDA.fifo_bytes


def test_wishes_against_it_are_heard() -> None:
    request = asked("40")
    assert may_share(request, CUDA)
    assert not may_share(request, HOST)
    for other in (
        replace(request, links="nvlink"), replace(request, allocations="2..2"), replace(request, survive=1),
        replace(request, tune_candidates=True), replace(request, classes=None), replace(request, kinds=True),
    ):  # fmt: skip
        assert not may_share(other, CUDA)


def test_a_slowed_curve_carries_that_much_less() -> None:
    curve = Curve((1000, 4000), (10.0, 40.0))
    assert curve.slowed(TRUST).carried(20) == curve.carried(20) / 2
    assert curve.slowed(TRUST).carried(80) == curve.carried(80) / 2
    assert curve.slowed(TRUST).carried(9) == 0


def largest(classes: str) -> tuple[Contents, Entry]:
    """The program of the largest all_reduces of a library for an H800 server."""
    request = LibraryRequest("hgx-h800", classes=classes, collectives=(Collective.ALL_REDUCE,))
    contents = library_contents(request, CUDA)
    return contents, contents.entries[0][-1]


def simulated_us(contents: Contents, entry: Entry, size: int) -> float:
    """With all of PCIe's speed, as the program is compiled."""
    graph = contents.documents[0].graph
    machine, _ = machine_for(None, graph.gpu_model)
    simulator = Simulator(graph, Collective.ALL_REDUCE, None, machine, slots=entry.program.slots)
    plan = contents.documents[0].plans[entry.plan]
    simulator.plans["trees"], simulator.programs["trees", 1] = plan, (plan, entry.program)
    return simulator.predict(Variant("trees", "Simple", entry.program.chunk_bytes, 1), size).period_us(machine)


@pytest.mark.slow
def test_all_reduce_on_eight_h800_gains_a_tenth_by_default() -> None:
    """FlexLink's table 2 has 1 to 2% there. Every part of PCIe's trees has a block, and NVLink all others."""
    contents, entry = largest(AUTO)
    before = simulated_us(*largest("nvlink"), 256 << 20)
    assert entry.when.protocol == "Simple"
    assert before / simulated_us(contents, entry, 256 << 20) > 1.1
    parts = [{entry.program.shares[s.share].part for steps in c.steps for s in steps} for c in entry.program.channels]
    assert parts.count({1}) == 8
    assert parts.count({0}) == 24


def test_heavy_trees_are_cut_until_all_parts_are_alike() -> None:
    made = plan_classes(load_topology("hgx-h800"), None, ("nvlink", "pcie"), Collective.ALL_REDUCE)
    slow = made.classes[1].plan
    assert slow is not None
    assert len({tree.weight for tree in slow.trees}) > 1
    cut = spread(slow, least_equal_parts(slow))
    assert len(cut.trees) == least_equal_parts(slow) == 8
    assert len({tree.weight for tree in cut.trees}) == 1
    assert least_equal_parts(cut) == len(cut.trees)


def test_trees_of_every_root_are_cut_into_parts_alike() -> None:
    """A number of parts that divides the first root's trees evenly need not do so for another root's trees."""
    made = plan_classes(loads_topology(BOX.format(pcie="40")), None, ("nvlink", "pcie"), Collective.BROADCAST, 1)
    fast, slow = made.classes
    assert slow.plan is not None
    tree = slow.plan.trees[0]

    def channels(*weights: int, wanted: int) -> dict[str, int]:
        assert slow.plan is not None
        trees = tuple(replace(tree, weight=Fraction(weight)) for weight in weights)
        other = replace(made, classes=(fast, replace(slow, plan=replace(slow.plan, trees=trees))))
        return channels_of_root(other, {"nvlink": 24, "pcie": wanted})

    assert channels(1, 2, wanted=8) == {"nvlink": 24, "pcie": 6}
    assert channels(1, 2, wanted=2) == {"nvlink": 24, "pcie": 3}
    assert channels(1, 1, 1, 1, wanted=7) == {"nvlink": 24, "pcie": 4}
    assert channels(2, 2, wanted=8) == {"nvlink": 24, "pcie": 8}
    assert channels(1, 20, wanted=8) == {"nvlink": 24, "pcie": 8}, "more parts than a class has blocks"


class Weighing:
    """Judges only by PCIe's weight."""

    def time_us(self, weights: dict[str, int], *_: object) -> float:
        return weights["pcie"]


@pytest.mark.parametrize("share", [0.03, 0.2, 0.5])
def test_weights_become_lighter_as_long_as_that_saves_time(share: float) -> None:
    """Steps that round to the same hundredth are gone over."""
    first = round(100 * share)
    tried = Cut(0, {"nvlink": 100 - first, "pcie": first}, {}, 1024, "")
    shares = {"nvlink": 1 - share, "pcie": share}
    found, time = lighter(cast(Judge, Weighing()), tried, first, 1 << 20, shares, "nvlink")
    assert (found.weights, time) == ({"nvlink": 99, "pcie": 1}, 1)


@pytest.mark.parametrize("classes", [AUTO, "nvlink,pcie"])
@pytest.mark.slow_for("auto", "nvlink,pcie")
def test_cuts_are_judged_with_the_chunks_that_memory_allows(classes: str) -> None:
    roomy = [entry for entry in made("40", classes).entries[0] if entry.program.weights]
    largest = max(entry.program.chunk_bytes for entry in roomy)
    most = max(fifo_bytes_by_rank(made("40", classes).entries[0], 2))
    contents = library_contents(asked("40", classes), replace(CUDA, fifo_bytes=most // 5))
    cut = [entry for entry in contents.entries[0] if entry.program.weights]
    assert 0 < max(entry.program.chunk_bytes for entry in cut) < largest
    assert all("for memory" not in entry.why for entry in cut)
