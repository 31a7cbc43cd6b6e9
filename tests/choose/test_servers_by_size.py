"""Host libraries over several servers: plans by size, as the model with couriers has them."""

from __future__ import annotations

from fractions import Fraction

import pytest
from support.libraries import cluster

from collc.choose.library import choose_programs
from collc.choose.programs import Chosen
from collc.choose.strategy import Strategy, strategy_for
from collc.collectives.model import COMPILED, Collective
from collc.collectives.sizes import bytes_per_call
from collc.options import CUDA, HOST
from collc.pipeline import Recorder, pack, wanted_programs
from collc.topology.graph import plan_graph
from collc.topology.load import loads_topology
from collc.topology.model import PlanGraph

MOST_BYTES_OVER_LEAST = Fraction(110, 100)


def graph_of(*sizes: int, gbps: str = "0.0125") -> PlanGraph:
    text = cluster(sizes).replace("kind: net, gbps: 10", f"kind: net, gbps: {gbps}")
    return plan_graph(loads_topology(text))


def chosen_for(graph: PlanGraph) -> Chosen:
    plans = pack(graph, wanted_programs(COMPILED, graph.nranks, [0]), Recorder())
    return choose_programs(graph, plans, HOST, strategy_for(HOST, graph, 1))


def test_the_model_chooses_for_hosts_over_servers_alone() -> None:
    graph = graph_of(2, 2)
    assert strategy_for(HOST, graph, 1) is Strategy.SERVERS
    assert strategy_for(HOST, graph, 2) is Strategy.PACKED
    assert strategy_for(HOST, graph_of(9, 8), 1) is Strategy.PACKED  # too large to simulate
    assert strategy_for(CUDA, graph, 1) is Strategy.MODEL
    inside = plan_graph(loads_topology(cluster((2, 2))), ["gpu0", "gpu1"])
    assert strategy_for(HOST, inside, 1) is Strategy.PACKED


@pytest.mark.parametrize(
    "sizes", [(2, 2), (1, 1, 3), *(pytest.param(s, marks=pytest.mark.slow) for s in [(2, 2, 2, 2), (3, 5), (1, 1, 6)])]
)
@pytest.mark.parametrize("gbps", ["0.0125", pytest.param("1.25", marks=pytest.mark.slow)])
def test_from_1_mib_on_plans_send_at_most_a_tenth_more_than_they_must(sizes: tuple[int, ...], gbps: str) -> None:
    graph = graph_of(*sizes, gbps=gbps)
    found = chosen_for(graph)
    served = set()
    for collective in COMPILED:
        mine = [entry for entry in found.entries if found.plans[entry.plan].collective is collective]
        least = bytes_per_call(collective, 1 << 20, graph.nranks)
        # The last that starts before 1 MiB serves it, and all later ones.
        first = max(i for i, entry in enumerate(mine) if (entry.when.min_bytes or 0) <= least)
        for entry in mine[first:]:
            plan = found.plans[entry.plan]
            assert plan.rate is not None
            assert plan.bound is not None
            assert plan.rate * MOST_BYTES_OVER_LEAST >= plan.bound, f"{collective.value}: {plan.kind}"
            served.add(collective)
    assert served == set(COMPILED)


def test_one_hop_more_over_the_network_is_worth_it_from_some_size_on() -> None:
    """1 + 1 + 3: a star sends two copies of a small broadcast; of a large one every card carries one."""
    graph = graph_of(1, 1, 3)
    found = chosen_for(graph)
    kinds = [found.plans[e.plan].kind for e in found.entries if found.plans[e.plan].collective is Collective.BROADCAST]
    assert kinds[0] == "three-phase"
    assert kinds[-1] != "three-phase"
