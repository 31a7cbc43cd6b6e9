"""Fingerprints: equal for renamed machines, different for machines that only look alike."""

from __future__ import annotations

import itertools
import random
import time
from dataclasses import replace
from fractions import Fraction
from typing import Any

import networkx as nx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collc.topology import canonical, zoo
from collc.topology.canonical import FOLD_FROM, canonical_order, fingerprint, is_isomorphism, match
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology, loads_topology
from collc.topology.make import make
from collc.topology.model import GraphLink, LinkKind, PlanGraph, Vertex, VertexKind

# Pinned: a plan stored with its fingerprint must still match after an upgrade of igraph.
GOLDEN = {
    "a100-pcie-bridged": "g1-45181019f31f204af1f8bdbdc5dc0f26",
    "a100x4-nv4": "g1-ea40401c388e0cc314912c622f3a6409",
    "ac922": "g1-d7618eef575161ad1b4cb4d749c648c5",
    "aws-p3-16xlarge": "g1-4ae74c924c965908635bfc6dc3edbed6",
    "aws-p4d-24xlarge": "g1-2d21b4f37d9fd3c6ca3fa2091c519eb4",
    "aws-p5-48xlarge": "g1-f84d2d7e225380404d065dc464f723ba",
    "azure-ndv2": "g1-4ae74c924c965908635bfc6dc3edbed6",
    "azure-ndv4": "g1-2d21b4f37d9fd3c6ca3fa2091c519eb4",
    "azure-ndv5": "g1-f84d2d7e225380404d065dc464f723ba",
    "dgx-a100": "g1-2d21b4f37d9fd3c6ca3fa2091c519eb4",
    "dgx1p": "g1-cf7c02a90dfc9bafbfc54e6f87c3c490",
    "dgx1v": "g1-4ae74c924c965908635bfc6dc3edbed6",
    "dgx2": "g1-9f575a2b3b2c0081ae7d20528421ecfc",
    "gb200-nvl72": "g1-337185762e789cad497742ab8e7f8c73",
    "gb300-nvl72": "g1-337185762e789cad497742ab8e7f8c73",
    "hgx-a800": "g1-1aa7b3f9c718ee5a3f44882c4ed0200d",
    "hgx-b200": "g1-2d4274343dfa20573cdcd3e7aebeed80",
    "hgx-h100": "g1-f84d2d7e225380404d065dc464f723ba",
    "hgx-h20": "g1-f84d2d7e225380404d065dc464f723ba",
    "hgx-h200": "g1-f84d2d7e225380404d065dc464f723ba",
    "hgx-h800": "g1-1aa7b3f9c718ee5a3f44882c4ed0200d",
    "mi250": "g1-e810c0f2e395b08e515798b511583f99",
    "mi250x": "g1-65c44245ae425b5c173fc40821477496",
    "mi300x": "g1-1366cfad4a3925da193516401425a4cd",
    "pcie-4xl40s": "g1-918425c82cc39335a78e0d53019d3527",
    "pcie-8x4090": "g1-a3dbb13bdd8d46f77c7aae6c2a0024ce",
    "pcie-8xl40s": "g1-e2943683ef464884865976ad4494435f",
}


def build(nranks: int, kinds: list[VertexKind], links: list[tuple[int, int, LinkKind, Fraction]]) -> PlanGraph:
    vertices = tuple(Vertex(f"v{i}", kind) for i, kind in enumerate([VertexKind.GPU] * nranks + kinds))
    numbered = tuple(GraphLink(i, *link) for i, link in enumerate(links))
    return PlanGraph("test", nranks, vertices, ("server0",) * len(vertices), numbered)


def from_networkx(graph: nx.Graph[int], gbps: int = 20) -> PlanGraph:
    pairs = sorted(tuple(sorted(edge)) for edge in graph.edges)
    links = [(a, b, LinkKind.NVLINK, Fraction(gbps)) for pair in pairs for a, b in (pair, pair[::-1])]
    return build(graph.number_of_nodes(), [], links)


def shuffled(graph: PlanGraph, rng: random.Random) -> tuple[PlanGraph, list[int]]:
    """The same machine under other names, numbers and order, and where each vertex went."""
    ranks, others = list(graph.ranks), list(graph.forwarders)
    rng.shuffle(ranks)
    rng.shuffle(others)
    moved = ranks + others
    vertices: list[Vertex] = [graph.vertices[0]] * len(moved)
    for old, new in enumerate(moved):
        vertices[new] = Vertex(f"other{new}", graph.vertices[old].kind, multicast=bool(new % 2))
    links = [(moved[k.src], moved[k.dst], k.kind, k.gbps, Fraction(new)) for new, k in enumerate(graph.links)]
    rng.shuffle(links)
    numbered = tuple(GraphLink(i, *link) for i, link in enumerate(links))
    return PlanGraph("renamed", graph.nranks, tuple(vertices), ("s",) * len(moved), numbered), moved


@st.composite
def graphs(draw: st.DrawFn) -> PlanGraph:
    nranks = draw(st.integers(1, 6))
    kinds = draw(st.lists(st.sampled_from([VertexKind.SWITCH, VertexKind.CPU, VertexKind.NIC]), max_size=3))
    n = nranks + len(kinds)
    pairs = list(itertools.permutations(range(n), 2))
    speeds = st.sampled_from([Fraction(25), Fraction(50), Fraction(25, 2)])
    kind = st.sampled_from([LinkKind.NVLINK, LinkKind.PCIE])
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=14)) if pairs else []
    return build(nranks, kinds, [(a, b, draw(kind), draw(speeds)) for a, b in chosen])


@settings(max_examples=150, deadline=None)
@given(graphs(), st.randoms(use_true_random=False))
def test_renaming_keeps_the_fingerprint_and_is_found(graph: PlanGraph, rng: random.Random) -> None:
    other, moved = shuffled(graph, rng)
    assert fingerprint(other) == fingerprint(graph)
    assert is_isomorphism(graph, other, moved)
    found = match(graph, other)
    assert found is not None
    assert is_isomorphism(graph, other, found)


@settings(max_examples=100, deadline=None)
@given(graphs(), st.data())
def test_any_change_of_a_link_changes_the_fingerprint(graph: PlanGraph, data: st.DataObject) -> None:
    if not graph.links:
        return
    victim = data.draw(st.integers(0, len(graph.links) - 1))
    links = [(k.src, k.dst, k.kind, k.gbps) for k in graph.links]
    src, dst, kind, gbps = links[victim]
    kinds = [v.kind for v in graph.vertices[graph.nranks :]]
    slower = build(graph.nranks, kinds, [*links[:victim], (src, dst, kind, gbps / 2), *links[victim + 1 :]])
    missing = build(graph.nranks, kinds, links[:victim] + links[victim + 1 :])
    other = build(graph.nranks, kinds, [*links[:victim], (src, dst, LinkKind.XGMI, gbps), *links[victim + 1 :]])
    for changed in (slower, missing, other):
        assert fingerprint(changed) != fingerprint(graph)
        assert match(graph, changed) is None


@pytest.fixture
def folding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every graph is folded before it is labeled, as large ones are."""
    monkeypatch.setattr(canonical, "FOLD_FROM", 0)


@st.composite
def repeating(draw: st.DrawFn) -> PlanGraph:
    """Graphs with much to fold: leaves, twins and chains, and several copies of all that on common vertices."""
    graph = draw(graphs())
    links = [(k.src, k.dst, k.kind, k.gbps) for k in graph.links]
    kinds = [v.kind for v in graph.vertices]
    speeds = st.sampled_from([Fraction(25), Fraction(50)])

    def join(a: int, b: int, there: Fraction, back: Fraction) -> None:
        links.extend([(a, b, LinkKind.NVLINK, there), (b, a, LinkKind.NVLINK, back)])

    for _ in range(draw(st.integers(0, 5))):
        ends = draw(st.lists(st.integers(0, len(kinds) - 1), min_size=1, max_size=2, unique=True))
        there, back = draw(speeds), draw(speeds)
        length = draw(st.integers(1, 3))
        for _ in range(draw(st.integers(1, 3))):
            first = len(kinds)
            kinds += [VertexKind.SWITCH] * length
            join(ends[0], first, there, back)
            for v in range(first, first + length - 1):
                join(v, v + 1, there, back)
            if len(ends) > 1:
                join(first + length - 1, ends[1], back, there)
    size, copies, common = len(kinds), draw(st.integers(1, 3)), draw(st.integers(0, len(kinds) - 1))

    def place(v: int, copy: int) -> tuple[int, int]:
        return (0 if v <= common else copy, v)

    whole = {}
    for copy in range(copies):
        for src, dst, kind, gbps in links:
            whole[place(src, copy), place(dst, copy)] = kind, gbps
    names = sorted({place(v, c) for c in range(copies) for v in range(size)}, key=lambda p: (p[1] >= graph.nranks, p))
    number = {name: i for i, name in enumerate(names)}
    nranks = sum(v < graph.nranks for _, v in names)
    made = [(number[a], number[b], kind, gbps) for (a, b), (kind, gbps) in whole.items()]
    return build(nranks, [kinds[v] for _, v in names[nranks:]], made)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), st.randoms(use_true_random=False))
def test_folded_graphs_keep_their_fingerprints(folding: None, data: st.DataObject, rng: random.Random) -> None:
    draw = data.draw
    graph = draw(repeating())
    assert sorted(canonical_order(graph)) == list(range(len(graph.vertices)))
    other, _ = shuffled(graph, rng)
    assert fingerprint(other) == fingerprint(graph)
    assert match(graph, other) is not None
    if graph.links:
        links = [(k.src, k.dst, k.kind, k.gbps) for k in graph.links]
        at = draw(st.integers(0, len(links) - 1))
        links[at] = (*links[at][:3], links[at][3] / 2)
        changed = build(graph.nranks, [v.kind for v in graph.vertices[graph.nranks :]], links)
        assert fingerprint(changed) != fingerprint(graph)


@pytest.mark.parametrize("family", [nx.petersen_graph(), nx.hypercube_graph(4), nx.cycle_graph(9), nx.path_graph(6)])
def test_folding_leaves_what_repeats_nothing(folding: None, family: nx.Graph[Any]) -> None:
    graph = from_networkx(nx.convert_node_labels_to_integers(family))
    assert match(graph, shuffled(graph, random.Random(7))[0]) is not None


def test_folding_tells_regular_graphs_apart(folding: None) -> None:
    mesh = nx.Graph((k.src, k.dst) for k in plan_graph(load_topology("dgx1p")).links)
    others = [nx.complete_bipartite_graph(4, 4), *(nx.random_regular_graph(4, 8, seed=s) for s in range(200))]
    found = {fingerprint(from_networkx(graph)) for graph in [mesh, *others] if nx.is_connected(graph)}
    assert len(found) == 6


LARGE = [
    # On either side of the threshold: 3,960 and 4,224 vertices.
    ("dragonfly", {"routers": 8, "gpus": 14, "channels": 4}, False),
    ("dragonfly", {"routers": 8, "gpus": 15, "channels": 4}, True),
    ("rails", {"servers": 480, "gpus": 8}, True),
    ("fat-tree", {"ports": 24, "gpus": 6}, True),
    ("torus", {"x": 17, "y": 16, "z": 16}, True),
]


@pytest.mark.parametrize(("kind", "values", "folds"), LARGE)
@pytest.mark.slow_for("fat-tree-values3-True", "torus-values4-True")
def test_large_clusters_keep_their_fingerprints_whatever_their_order(
    kind: str, values: dict[str, int], folds: bool
) -> None:
    graph = plan_graph(loads_topology(make(kind, values)))
    assert (len(graph.vertices) > FOLD_FROM) == folds
    rng = random.Random(11)
    other, _ = shuffled(graph, rng)
    assert fingerprint(other) == fingerprint(graph)
    assert match(graph, other) is not None
    at = rng.randrange(len(graph.links))
    slower = tuple(replace(k, gbps=k.gbps / 2) if i == at else k for i, k in enumerate(graph.links))
    assert fingerprint(replace(graph, links=slower)) != fingerprint(other)


def test_directions_matter() -> None:
    one, two = Fraction(1), Fraction(2)
    path = [(0, 1, LinkKind.NVLINK, one), (1, 2, LinkKind.NVLINK, one)]
    apart = [(0, 1, LinkKind.NVLINK, one), (2, 1, LinkKind.NVLINK, one)]
    assert fingerprint(build(3, [], path)) != fingerprint(build(3, [], apart))
    # A cycle whose fast direction turns, and one where it turns back once.
    turning = [(i, (i + 1) % 3, LinkKind.NVLINK, two) for i in range(3)]
    turning += [((i + 1) % 3, i, LinkKind.NVLINK, one) for i in range(3)]
    mixed = [(a, b, k, one if (a, b) == (0, 1) else two if (a, b) == (1, 0) else g) for a, b, k, g in turning]
    assert fingerprint(build(3, [], turning)) != fingerprint(build(3, [], mixed))


def test_dgx1p_differs_from_every_other_4_regular_graph_on_8_vertices() -> None:
    dgx1p = plan_graph(load_topology("dgx1p"))
    mesh = nx.Graph((k.src, k.dst) for k in dgx1p.links)
    families: list[nx.Graph[int]] = [mesh]
    # The bipartite one is too rare to be met by chance.
    for candidate in [nx.complete_bipartite_graph(4, 4), *(nx.random_regular_graph(4, 8, seed=s) for s in range(200))]:
        if nx.is_connected(candidate) and not any(nx.is_isomorphic(candidate, known) for known in families):
            families.append(candidate)
    # There are six connected 4-regular graphs on 8 vertices (OEIS A006820). Color refinement sees only the degrees,
    # which are the same in all of them.
    assert len(families) == 6
    assert all(degree == 4 for graph in families for _, degree in graph.degree)
    assert len({fingerprint(from_networkx(graph)) for graph in families}) == 6
    for graph in families[1:]:
        assert match(dgx1p, from_networkx(graph)) is None


def test_relays_are_not_ranks() -> None:
    links = [(a, b, LinkKind.NVLINK, Fraction(25)) for a, b in itertools.permutations(range(3), 2)]
    assert fingerprint(build(3, [], links)) != fingerprint(build(2, [VertexKind.GPU], links))


def test_five_public_numberings_of_a_dgx1v_are_one_machine() -> None:
    reference = plan_graph(load_topology("dgx1v"))
    rng = random.Random(5)
    for _ in range(5):
        other, _ = shuffled(reference, rng)
        assert fingerprint(other) == fingerprint(reference)


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_fingerprints_of_known_machines_do_not_change(name: str) -> None:
    assert fingerprint(plan_graph(load_topology(name))) == GOLDEN[name]


def test_every_known_machine_has_a_golden_fingerprint() -> None:
    assert sorted(GOLDEN) == list(zoo.names())


def test_large_machines_take_seconds() -> None:
    rack = "".join(f"  - [gpu{i}, s, nvswitch, 900]\n" for i in range(72))
    head = "format: collc-topology/1\nname: rack\n"
    racks = plan_graph(loads_topology(f"{head}gpus: 72\nswitches: [s]\nlinks:\n{rack}"))
    inside = "".join(f"    - [gpu{i}, nvs, nvswitch, 450]\n    - [gpu{i}, nic{i}, pcie, 50]\n" for i in range(8))
    nics = ", ".join(f"nic{i}" for i in range(8))
    outside = "".join(f"  - [each.nic{i}, rail{i}, net, 50]\n" for i in range(8))
    rails = ", ".join(f"rail{i}" for i in range(8))
    cluster = plan_graph(
        loads_topology(
            f"{head}servers: 128\ntemplate:\n  gpus: 8\n  switches: [nvs]\n  nics: [{nics}]\n  links:\n{inside}"
            f"switches: [{rails}]\nlinks:\n{outside}"
        )
    )
    assert cluster.nranks == 1024
    started = time.monotonic()
    for graph in (racks, cluster):
        other, _ = shuffled(graph, random.Random(1))
        assert match(graph, other) is not None
    # A bound far above what it takes; a labelling that branches would take hours.
    assert time.monotonic() - started < 60
