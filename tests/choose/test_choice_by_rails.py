"""Several rails between servers change which plan a call has, as the model knows them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from collc.choose.library import choose_programs
from collc.choose.search import GAIN
from collc.choose.strategy import strategy_for
from collc.collectives.model import Collective
from collc.options import HOST
from collc.pipeline import Recorder, pack, wanted_programs
from collc.simulator.params import HOST_SERVERS
from collc.simulator.run import Simulator, own_channels, variants
from collc.topology.graph import plan_graph
from collc.topology.load import loads_topology
from collc.topology.model import PlanGraph

KINDS = ("trees", "three-phase", "hierarchical-rings")


def joined_by(rates: Sequence[str]) -> PlanGraph:
    """Servers of one, one and three GPUs, each with a card of every rail; a rail has this rate in GB/s."""
    rails = range(len(rates))
    servers, links, gpus = [], [], iter(range(5))
    for s, size in enumerate((1, 1, 3)):
        own, cards = [f"gpu{g}" for g in itertools.islice(gpus, size)], [f"nic{s}.{rail}" for rail in rails]
        servers.append(f"s{s}: [{', '.join([*own, *cards])}]")
        links += [f"[{a}, {b}, nvlink, 25]" for a, b in itertools.combinations(own, 2)]
        links += [f"[{gpu}, {card}, pcie, 12]" for gpu, card in itertools.product(own, cards)]
        links += [
            f"[{card}, net{rail}, net, {rate}]" for rail, (card, rate) in enumerate(zip(cards, rates, strict=True))
        ]
    text = [
        "format: collc-topology/1",
        "name: railed",
        "gpus: 5",
        f"nics: [{', '.join(f'nic{s}.{rail}' for s in range(3) for rail in rails)}]",
        f"switches: [{', '.join(f'net{rail}' for rail in rails)}]",
        f"servers: {{{', '.join(servers)}}}",
        "links:",
        *(f"  - {link}" for link in links),
    ]
    return plan_graph(loads_topology("\n".join(text)))


def chosen(graph: PlanGraph, collective: Collective) -> list[tuple[int, str]]:
    """Returns the plan types of a call, each with the size in bytes where its use begins."""
    plans = pack(graph, wanted_programs([collective], graph.nranks, [0]), Recorder())
    found = choose_programs(graph, plans, HOST, strategy_for(HOST, graph, 1))
    kinds = [(entry.when.min_bytes or 0, found.plans[entry.plan].kind) for entry in found.entries]
    return [one for i, one in enumerate(kinds) if i == 0 or kinds[i - 1][1] != one[1]]


def times(graph: PlanGraph, collective: Collective, size: int) -> dict[str, float]:
    """The fastest call of each kind in the model, among the chunks and channels that are offered."""
    model = Simulator(graph, collective, None, HOST_SERVERS, slots=HOST.slots)
    kinds = ["trees", *filter(model.has, KINDS[1:])]
    offered = [v for v in variants(model, kinds) if v.channels <= own_channels(model.plan(v.plan))]
    return {
        kind: min(model.predict(v, size).time_us for v in offered if v.plan == kind and v.chunk_bytes >= 16 << 10)
        for kind in kinds
    }


def test_a_second_rail_moves_the_size_from_which_on_copies_cost_more_than_hops() -> None:
    """A star sends a broadcast twice; over two rails that costs as little as over one of twice the rate."""
    one, two, wide = (joined_by(rates) for rates in (["0.0125"], ["0.0125"] * 2, ["0.025"]))
    (_, first), (until, then) = chosen(one, Collective.BROADCAST)
    assert (first, then) == ("three-phase", "trees")
    (_, first), (longer, then) = chosen(two, Collective.BROADCAST)
    assert (first, then) == ("three-phase", "trees")
    assert longer > 1.5 * until
    assert chosen(two, Collective.BROADCAST) == chosen(wide, Collective.BROADCAST)
    size = 23 << 10
    assert until < size < longer
    over_one, over_two = (times(graph, Collective.BROADCAST, size) for graph in (one, two))
    assert over_one["trees"] < over_one["three-phase"]
    assert over_two["three-phase"] < over_two["trees"]


@pytest.mark.parametrize(
    ("collective", "rates"),
    [(Collective.BROADCAST, ["10", "10"]), (Collective.ALL_GATHER, ["0.0125", "0.00625"])],
)
def test_rails_change_the_plan_of_large_calls(collective: Collective, rates: list[str]) -> None:
    """Between trees and rings; each is the fastest in the model, or within what a change must gain."""
    last = {}
    for used in (rates[:1], rates):
        graph = joined_by(used)
        size, last[len(used)] = chosen(graph, collective)[-1]
        assert size < 1 << 20
        found = times(graph, collective, 4 << 20)
        assert found[last[len(used)]] <= min(found.values()) * (1 + GAIN), found
    assert set(last.values()) == {"trees", "hierarchical-rings"}
