"""What a library gets of PCIe beside NVLink where nobody names classes of links."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from collc.build.compile import Contents
from collc.build.memory import fifo_bytes_by_rank
from collc.choose.idle_links import AUTO, TRUST, may_share
from collc.choose.library import library_contents
from collc.choose.request import LibraryRequest
from collc.choose.split import Curve
from collc.collectives.model import Collective
from collc.options import CUDA, HOST
from collc.topology.load import loads_topology

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
    """Of 5 GB/s half counts, 2.5% of NVLink's: not worth another class."""
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
