"""Candidates: every kind on every known machine passes the lowering's proofs; rates are what theory says."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from fractions import Fraction

import pytest

from collc.collectives.model import COMPILED, Collective
from collc.errors import PackingError
from collc.options import CUDA
from collc.packing import plan as packed_plan
from collc.packing.candidates.paths import shortest_paths
from collc.packing.candidates.plans import KINDS, candidate, candidates, channels_of, has_copies, spread
from collc.packing.candidates.ring_search import disjoint_rings
from collc.pipeline import Recorder, lower
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology
from collc.topology.model import PlanGraph

MACHINES = ["dgx1v", "dgx1p", "dgx2", "dgx-a100", "pcie-8x4090"]


def graph_of(name: str, gpus: list[str] | None = None) -> PlanGraph:
    return plan_graph(load_topology(name), gpus)


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("collective", COMPILED, ids=lambda c: c.value)
def test_every_candidate_passes_the_verifier_after_every_pass(name: str, collective: Collective) -> None:
    graph = graph_of(name)
    root = 3 if collective.rooted else None
    found = candidates(graph, collective, root)
    assert "ring" in found
    for plan in found.values():
        lower(plan, graph, CUDA, Recorder())
        lower(spread(plan, 12), graph, CUDA, Recorder())


@pytest.mark.parametrize("name", MACHINES)
def test_no_link_is_overloaded_and_one_is_full(name: str) -> None:
    graph = graph_of(name)
    for collective in COMPILED:
        for plan in candidates(graph, collective).values():
            for shown in (plan, spread(plan, 24)):
                load = dict.fromkeys(range(len(graph.links)), Fraction(0))
                for tree in shown.trees:
                    for hop in (*tree.reduce, *tree.broadcast):
                        for link in hop.links:
                            load[link] += tree.weight
                assert max(load[x.id] / x.gbps for x in graph.links) == 1
                assert sum(t.weight for t in shown.trees) == plan.rate


@pytest.mark.parametrize(
    ("name", "kind", "collective", "rate"),
    [
        # The double links close a ring: N / (2(N-1)) of 50; six single rings fill all links of the mesh.
        ("dgx1v", "ring", Collective.ALL_REDUCE, Fraction(200, 7)),
        ("dgx1v", "rings", Collective.ALL_REDUCE, Fraction(600, 7)),
        ("dgx1v", "rings", Collective.ALL_GATHER, Fraction(1200, 7)),
        ("dgx1v", "rings", Collective.BROADCAST, Fraction(150)),
        ("dgx1p", "rings", Collective.ALL_REDUCE, Fraction(320, 7)),
        ("mi250", "rings", Collective.ALL_GATHER, Fraction(320)),
        ("dgx2", "ring", Collective.ALL_REDUCE, Fraction(80)),
        ("dgx2", "one-hop", Collective.ALL_REDUCE, Fraction(80)),
        ("dgx2", "one-hop", Collective.BROADCAST, Fraction(10)),
        # An inner rank of one tree is a leaf of the other: 2 children down, 1 parent up, and the leaf's one link up.
        ("dgx2", "double-binary", Collective.ALL_REDUCE, Fraction(75)),
    ],
)
def test_rates(name: str, kind: str, collective: Collective, rate: Fraction) -> None:
    assert candidate(graph_of(name), collective, None, kind).rate == rate


@pytest.mark.parametrize("n", range(2, 17))
def test_double_binary_trees_are_shallow_and_share_the_inner_work(n: int) -> None:
    graph = graph_of("dgx2", [f"gpu{i}" for i in range(n)])
    plan = candidate(graph, Collective.ALL_REDUCE, None, "double-binary")
    inner = []
    for tree in plan.trees:
        parent = {hop.dst: hop.src for hop in tree.broadcast}
        assert sorted([tree.root, *parent]) == list(range(n))
        assert {(hop.src, hop.dst) for hop in tree.reduce} == set(parent.items())
        for rank in parent:
            depth = 0
            while rank != tree.root:
                rank, depth = parent[rank], depth + 1
                assert depth <= n.bit_length()
        children = [list(parent.values()).count(rank) for rank in range(n)]
        assert max(children) <= 2
        inner.append({rank for rank in range(n) if children[rank]})
    if n % 2 == 0:
        assert not inner[0] & inner[1]


def test_a_missing_ring_and_a_missing_pair_are_refused() -> None:
    machine = load_topology("dgx1v")
    # nccl#301: {0, 1, 2, 3, 7} of a DGX-1 has no closed ring of NVLinks.
    graph = plan_graph(machine, [f"gpu{i}" for i in (0, 1, 2, 3, 7)])
    with pytest.raises(PackingError, match="no ring closes"):
        candidate(graph, Collective.ALL_REDUCE, None, "rings")
    with pytest.raises(PackingError, match="no direct path"):
        candidate(graph_of("dgx1v"), Collective.ALL_REDUCE, None, "one-hop")
    with pytest.raises(PackingError, match="have a root each"):
        candidate(graph_of("dgx2"), Collective.ALL_GATHER, None, "double-binary")
    with pytest.raises(PackingError, match="flows"):
        candidate(graph_of("dgx2"), Collective.ALLTOALL, None, "ring")


def test_shortest_paths_pass_through_no_rank() -> None:
    graph = graph_of("pcie-8x4090")
    paths = shortest_paths(graph)
    assert len(paths) == 56
    for (a, b), links in paths.items():
        ends = [graph.links[i] for i in links]
        assert ends[0].src == a
        assert ends[-1].dst == b
        assert all(x.dst == y.src and x.dst >= graph.nranks for x, y in itertools.pairwise(ends))


def test_spread_gives_heavy_trees_more_channels_and_rings_whole_ones() -> None:
    graph = graph_of("dgx1v")
    rings = candidate(graph, Collective.ALL_REDUCE, None, "rings")
    assert len(spread(rings, 12).trees) == 8 * 12
    program = lower(spread(rings, 12), graph, dataclasses.replace(CUDA, max_channels=12), Recorder())
    for channel in program.channels:
        # One ring per channel: each rank sends to only one neighbor.
        for rank, steps in enumerate(channel.steps):
            peers = {program.fifos[f].dsts for step in steps for f in step.send}
            assert len(peers) == 1, rank


def test_sixteen_gpus_that_few_links_join_have_several_rings() -> None:
    graph = graph_of("mi250")
    paths = shortest_paths(graph)
    rings = disjoint_rings(graph, paths)
    assert len(rings) == 6
    load = Counter(
        link for ring in rings for edge in zip(ring, (*ring[1:], ring[0]), strict=True) for link in paths[edge]
    )
    assert all(times * 50 <= graph.links[link].gbps for link, times in load.items())
    assert candidate(graph, Collective.BROADCAST, 3, "rings").rate == 300
    # Behind a switch there are too many to list.
    assert len(disjoint_rings(graph_of("dgx2"), shortest_paths(graph_of("dgx2")))) == 1


def test_kinds_are_listed() -> None:
    assert set(KINDS) == {"ring", "rings", "chain", "double-binary", "one-hop", "three-phase", "hierarchical-rings"}


def test_copies_beyond_the_channels_take_turns_and_rings_and_plans_as_packed_do_not() -> None:
    graph = graph_of("dgx1v")
    trees = packed_plan(graph, Collective.ALL_REDUCE, None)
    rings = candidate(graph, Collective.ALL_REDUCE, None, "rings")
    assert not has_copies(trees)
    assert has_copies(spread(trees, 24))
    assert not has_copies(spread(rings, 24))
    assert channels_of(trees) == 9
    assert channels_of(spread(trees, 24)) == 24
    assert channels_of(spread(trees, 96)) == 32
    assert channels_of(spread(rings, 24)) == 24

    cut = spread(trees, 96)
    turning = lower(cut, graph, CUDA, Recorder())
    orders = {tuple(step.input for step in channel.steps[0]) for channel in turning.channels}
    assert len(turning.channels) == 32
    assert len(orders) > 8
