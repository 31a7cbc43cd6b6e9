"""The machines of examples/machines, written from docs/topology.md alone: each plans at the rate found by hand."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from collc.collectives.model import Collective
from collc.packing import plan
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology

FOLDER = Path(__file__).parents[2] / "examples" / "machines"
# Name -> GPUs and the rate of an all_reduce, by hand.
RATES = {
    # The third GPU hangs on 12.5 GB/s: what it reduces goes up and comes down there.
    "workstation": (3, Fraction(25, 2)),
    # Parts gpu0, gpu1, gpu2 and the pair of the second socket: 3 x 25 and 16 out of them, over 2 x 3.
    "lopsided": (5, Fraction(91, 6)),
    # A card of 50 GB/s in each direction.
    "two-superchips": (2, Fraction(50)),
    # A star of 6 x 300 and 250, over 2 x 6.
    "dgx-a100-worn": (7, Fraction(2050, 12)),
    # The slower server's only card.
    "unequal-servers": (6, Fraction(25, 8)),
    # 50 + 25 into gpu5.
    "one-way": (6, Fraction(75)),
}


@pytest.mark.skipif(not FOLDER.is_dir(), reason="the examples are not beside these tests")
def test_every_machine_is_here() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(RATES)


@pytest.mark.skipif(not FOLDER.is_dir(), reason="the examples are not beside these tests")
@pytest.mark.parametrize("name", RATES)
def test_a_machine(name: str) -> None:
    topology = load_topology(FOLDER / f"{name}.yaml")
    assert topology.name == name
    gpus, rate = RATES[name]
    assert len(topology.gpus) == gpus
    found = plan(plan_graph(topology), Collective.ALL_REDUCE)
    assert (found.rate, found.optimal) == (rate, True)
