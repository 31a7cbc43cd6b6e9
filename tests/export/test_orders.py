"""Rings and chains for NCCL: within the links, as good as any choice of few GPUs, and proved where they say so."""

from __future__ import annotations

import itertools
from collections import Counter
from fractions import Fraction

import pytest

from collc.errors import PackingError, UsageError
from collc.export.orders import MAX_CHANNEL_GBPS, MAX_CHANNELS, Orders, best_chains, best_pair, best_rings, ring_links
from collc.packing.candidates.paths import shortest_paths
from collc.topology import zoo
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology, loads_topology
from collc.topology.model import PlanGraph

# The pairs of chains of 8 GPUs that are all joined take seconds to minutes.
_SLOW = ("mi300x", "a100-pcie-bridged", "pcie-8xl40s", "pcie-8x4090", "gb200-nvl72")


def graph_of(name: str, gpus: str = "", links: str | None = None) -> PlanGraph:
    return plan_graph(load_topology(name), [f"gpu{g}" for g in gpus] or None, links)


def check(graph: PlanGraph, found: Orders, *, closed: bool) -> None:
    """Every channel visits every GPU once, and no link carries more than it can."""
    paths = shortest_paths(graph)
    load: Counter[int] = Counter()
    for channel in found.channels:
        assert sorted(channel) == list(graph.ranks)
        pairs = list(itertools.pairwise((*channel, channel[0]) if closed else channel))
        for u, v in pairs if closed else [*pairs, *((v, u) for u, v in pairs)]:
            load.update(paths[u, v])
    assert all(times * found.gbps <= graph.links[link].gbps for link, times in load.items())
    assert 1 <= len(found.channels) <= MAX_CHANNELS
    assert found.total <= found.bound * (1 + Fraction(1, 10**6))


@pytest.mark.parametrize(
    ("gpus", "rings", "chains"),
    [("", 150, 75), ("012", 50, 50), ("0123456", 100, 75), ("0123", 100, 75), ("034", None, 50), ("01234", None, 50)],
)
def test_sets_of_a_dgx1v(gpus: str, rings: int | None, chains: int) -> None:
    graph = graph_of("dgx1v", gpus)
    found, beside = best_pair(graph)
    if rings is None:
        assert found is None
        with pytest.raises(PackingError, match="no ring closes over these links"):
            best_rings(graph)
    else:
        assert found is not None
        check(graph, found, closed=True)
        assert found.total == rings
        assert found.proved
        assert len(found.channels) == len(beside.channels)
    check(graph, beside, closed=False)
    assert beside.total >= chains


@pytest.mark.parametrize("name", [n for n in zoo.names() if n not in _SLOW])
@pytest.mark.slow_for("mi250x")
def test_every_machine_has_channels_or_a_reason(name: str) -> None:
    graph = graph_of(name)
    if name == "mi250":
        with pytest.raises(UsageError, match="too many to list"):
            best_pair(graph)
        return
    rings, chains = best_pair(graph)
    assert rings is not None
    check(graph, rings, closed=True)
    assert rings.proved
    assert rings.gbps <= MAX_CHANNEL_GBPS or 2 * len(rings.channels) > MAX_CHANNELS
    check(graph, chains, closed=False)


def test_channels_of_unequal_links_are_equal() -> None:
    """25 and 40 GB/s side by side: one ring of 40 would leave the other link idle, two must be of 25 or share it."""
    text = """format: collc-topology/1
name: uneven
gpus: 3
links:
  - [gpu0, gpu1, nvlink, 25]
  - [gpu1, gpu2, nvlink, 25]
  - [gpu2, gpu0, nvlink, 40]
"""
    graph = plan_graph(loads_topology(text))
    found = best_rings(graph)
    check(graph, found, closed=True)
    assert found.total == 50
    assert found.proved


def test_the_best_choice_beats_every_choice_of_up_to_four_rings() -> None:
    """Compares with brute force on links without symmetry."""
    text = """format: collc-topology/1
name: odd
gpus: 4
links:
  - [gpu0, gpu1, nvlink, 30]
  - [gpu0, gpu2, nvlink, 20]
  - [gpu0, gpu3, nvlink, 50]
  - [gpu1, gpu2, nvlink, 40]
  - [gpu1, gpu3, nvlink, 10]
  - [gpu2, gpu3, nvlink, 30]
"""
    graph = plan_graph(loads_topology(text))
    found = best_rings(graph)
    check(graph, found, closed=True)
    paths = shortest_paths(graph)
    rings = [(0, *rest) for rest in itertools.permutations((1, 2, 3))]
    best = Fraction(0)
    for count in (1, 2, 3, 4):
        for chosen in itertools.combinations_with_replacement(rings, count):
            load: Counter[int] = Counter()
            for ring in chosen:
                for u, v in itertools.pairwise((*ring, 0)):
                    load.update(paths[u, v])
            best = max(best, count * min(graph.links[link].gbps / times for link, times in load.items()))
    assert found.total >= best
    assert found.total <= found.bound


def test_many_unequal_gpus_are_refused() -> None:
    with pytest.raises(UsageError, match="the rings of 16 unequal GPUs are too many to list"):
        best_rings(graph_of("mi250"))


def test_a_number_of_chains_is_kept() -> None:
    graph = graph_of("dgx1v", "0123")
    for channels in (1, 3, 8):
        found = best_chains(graph, channels)
        assert len(found.channels) == channels
        check(graph, found, closed=False)


def test_rings_take_pcie_only_where_none_closes() -> None:
    """And where they may: not against links that were asked for, nor between servers."""
    machine = load_topology("dgx1v")
    five = [f"gpu{g}" for g in range(5)]
    graph, note = ring_links(machine, five, None)
    assert graph == plan_graph(machine, five, "all")
    assert note == "no ring closes over nvlink links alone: these rings take PCIe where they must"
    assert ring_links(machine, None, None) == (plan_graph(machine), None)
    assert ring_links(machine, five, "nvlink") == (plan_graph(machine, five, "nvlink"), None)
    text = """
        format: collc-topology/1
        name: two
        template: {gpus: 2, nics: [n], links: [[gpu0, gpu1, nvlink, 25], [gpu0, n, pcie, 12.5], [gpu1, n, pcie, 12.5]]}
        servers: 2
        switches: [sw]
        links: [[each.n, sw, net, 12.5]]
    """
    servers = loads_topology(text)
    assert ring_links(servers, None, None) == (plan_graph(servers), None)


@pytest.mark.parametrize("name", [n for n in zoo.names() if n not in ("gb200-nvl72",)])
def test_where_the_plans_of_habit_have_a_ring_nccls_file_has_one(name: str) -> None:
    """ring_links asks the one, the graph file the other."""
    machine = load_topology(name)
    size = len(machine.gpus)
    for count in (3, 4, 5):
        gpus = [v.name for v in machine.gpus][:count]
        if count <= size:
            graph, note = ring_links(machine, gpus, None)
            best_rings(graph)
            if note is not None:
                with pytest.raises(PackingError, match="no ring closes"):
                    best_rings(plan_graph(machine, gpus))
