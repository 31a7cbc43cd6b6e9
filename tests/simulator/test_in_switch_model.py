"""Programs inside a switch in the model: what crosses each link, and that no choice takes them yet."""

from __future__ import annotations

import dataclasses
from functools import cache

import pytest
from support.cli import collc, refused

from collc.api.forecasts import Wish, predict
from collc.collectives.model import Collective
from collc.errors import CollcError
from collc.packing.model import IN_SWITCH
from collc.simulator import compiled, engine
from collc.simulator.generations import MACHINES
from collc.simulator.run import Prediction, Simulator, Variant
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology

SIZE = 16 << 20
RANKS = 4


@cache
def simulator(collective: Collective) -> Simulator:
    graph = plan_graph(load_topology("hgx-h100"), [f"gpu{i}" for i in range(RANKS)])
    return Simulator(graph, collective, None, MACHINES["h100"])


def predicted(collective: Collective, channels: int = 4) -> Prediction:
    return simulator(collective).predict(Variant(IN_SWITCH, "Simple", 128 << 10, channels), SIZE)


@pytest.mark.parametrize(
    ("collective", "up", "down"),
    [
        (Collective.ALL_REDUCE, 1 + 1 / RANKS, 1 + 1 / RANKS),
        (Collective.ALL_GATHER, 1 / RANKS, 1),
        (Collective.REDUCE_SCATTER, 1, 1 / RANKS),
    ],
    ids=str,
)
def test_what_crosses_each_link(collective: Collective, up: float, down: float) -> None:
    """The head's own part goes through the switch as well, and nothing crosses a link twice."""
    found = predicted(collective)
    for link in simulator(collective).graph.links:
        share = up if link.src < RANKS else down
        assert found.outcome.link_bytes[link.id] * found.scale == pytest.approx(share * SIZE, rel=0.01)


@pytest.mark.parametrize("collective", [Collective.BROADCAST, Collective.REDUCE], ids=str)
def test_rooted_ones_use_the_roots_link_once(collective: Collective) -> None:
    found = predicted(collective)
    for link in simulator(collective).graph.links:
        towards = link.src < RANKS
        whole = towards is (collective is Collective.REDUCE) or 0 in (link.src, link.dst)
        wanted = SIZE if whole else 0
        assert found.outcome.link_bytes[link.id] * found.scale == pytest.approx(wanted, rel=0.01)


def test_no_faster_than_the_plan() -> None:
    nvls = MACHINES["h100"].nvls
    assert nvls is not None
    plan = simulator(Collective.ALL_REDUCE).plan(IN_SWITCH)
    assert plan.in_switch is not None
    found = predicted(Collective.ALL_REDUCE, channels=16)
    assert 0.3 < found.algbw_gbps / float(plan.in_switch.rate) < nvls.efficiency


def test_both_engines_agree() -> None:
    case = simulator(Collective.ALL_REDUCE).case(Variant(IN_SWITCH, "Simple", 128 << 10, 2), 1 << 20)
    if compiled.available():
        assert compiled.run(case).time == pytest.approx(engine.run(case).time, rel=1e-9)


def test_no_choice_takes_them() -> None:
    assert IN_SWITCH not in simulator(Collective.ALL_REDUCE).kinds
    found, table = predict(simulator(Collective.ALL_REDUCE), Wish(plan=IN_SWITCH), [SIZE])
    assert table is None
    assert found[0].variant.plan == IN_SWITCH
    assert found[0].time_us <= predicted(Collective.ALL_REDUCE, channels=16).time_us


def test_parameters_that_do_not_know_switches() -> None:
    machine = dataclasses.replace(MACHINES["h100"], nvls=None)
    own = Simulator(simulator(Collective.ALL_REDUCE).graph, Collective.ALL_REDUCE, None, machine)
    with pytest.raises(CollcError, match="do not say what sums inside switches take"):
        own.predict(Variant(IN_SWITCH, "Simple", 128 << 10, 2), SIZE)


def test_the_command() -> None:
    given = ("simulate", "hgx-h100", "--plan", IN_SWITCH, "-b", "16M", "-e", "16M")
    done = collc(*given, "--compare", "nccl")
    assert done.code == 0
    assert IN_SWITCH in done.out
    assert "nccl-nvls" in done.out
    assert "do not run over LL" in refused(collc(*given, "--proto", "LL"), code=2)
    assert "no switch that joins all GPUs" in refused(collc("simulate", "dgx-a100", "--plan", IN_SWITCH))
