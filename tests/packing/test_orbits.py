"""Plans up to symmetry: the checker believes no claim of an orbit, and orbits stand for exactly the trees they say."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from graphs import cluster, dgx1, lacking, nic_links, star

from collc.checker.images import Chain, Generator, Group, Turn
from collc.checker.images import orbits_of as smallest_images
from collc.errors import CertificateError, PackingError
from collc.packing import Collective, plan
from collc.packing.check import check_packing
from collc.packing.document import from_json, parse_plan, plan_file, to_json, verify_document
from collc.packing.explain import link_loads
from collc.packing.model import Hop, Tree
from collc.packing.solvers import columns
from collc.packing.symmetry.orbits import all_trees, expand_orbits
from collc.topology.model import LinkKind, PlanGraph

C = Collective
TREES = [c for c in Collective if c.uses_trees]
FULL = cluster([8] * 4)
GRAPHS = {
    "full": FULL,
    "less a nic": lacking(FULL, links=nic_links(FULL, 3)),
    "less a gpu": lacking(FULL, vertices=[3]),
    "unequal": cluster([4, 4, 2, 4, 1], rails=2),
    "one rail": cluster(range(1, 6), rails=1),
    "star": star(16),
    "small": dgx1(),
}
Document = dict[str, Any]


def images_of(document: Document, index: int) -> set[str]:
    """Returns the images of a tree under the definition in the format: each product of generators gives one image."""
    names = [r["gpu"] for r in document["ranks"]] + [s["name"] for s in document["switches"]]
    by_ends = {(x["src"], x["dst"], x["kind"]): x["id"] for x in document["links"]}
    orbits = document["plans"][0]["orbits"]
    maps = []
    for cycles in orbits["generators"]:
        go = {n: n for n in names}
        for cycle in cycles:
            go.update(zip(cycle, [*cycle[1:], cycle[0]], strict=True))
        links = [by_ends[go[x["src"]], go[x["dst"]], x["kind"]] for x in document["links"]]
        maps.append(([names.index(go[n]) for n in names], links))

    def text(tree: Document) -> str:
        return json.dumps({k: sorted(v) if isinstance(v, list) else v for k, v in tree.items() if k != "count"})

    first = orbits["trees"][index]
    found, waiting = {text(first)}, [first]
    while waiting:
        tree = waiting.pop()
        for vertices, links in maps:
            image = {
                k: [[vertices[a], vertices[b], [links[x] for x in path]] for a, b, path in v]
                if isinstance(v, list)
                else v
                for k, v in tree.items()
            }
            image["root"] = vertices[tree["root"]]
            if text(image) not in found:
                found.add(text(image))
                waiting.append(image)
    return found


@pytest.mark.parametrize("collective", TREES)
@pytest.mark.parametrize("name", GRAPHS)
def test_orbits_stand_for_the_trees_that_the_format_says(name: str, collective: Collective) -> None:
    graph = GRAPHS[name]
    made = plan(graph, collective, orbits=True)
    assert made.orbits is not None
    assert made.rate == plan(graph, collective).rate
    file = plan_file(graph, (made,))
    document = to_json(file)
    again = parse_plan(json.dumps(document))
    verify_document(again)
    assert again.plans == file.plans
    written = expand_orbits(graph, made)
    check_packing(graph, written)
    assert written.orbits is None
    assert (written.rate, len(written.trees)) == (made.rate, made.tree_count)
    assert link_loads(graph, written) == link_loads(graph, made)
    texts = [images_of(document, i) for i in range(len(made.orbits.orbits))]
    assert [len(t) for t in texts] == [orbit.count for orbit in made.orbits.orbits]
    assert len(set().union(*texts)) == made.tree_count
    listed = to_json(plan_file(graph, (written,)))["plans"][0]["trees"]
    assert {
        json.dumps({k: sorted(v) if isinstance(v, list) else v for k, v in t.items()}) for t in listed
    } == set().union(*texts)
    root = made.orbits.orbits[0].tree.root
    assert list(all_trees(graph, made, root)) == [t for t in all_trees(graph, made) if t.root == root] != []


@pytest.mark.parametrize("collective", [C.ALL_GATHER, C.ALL_REDUCE, C.BROADCAST, C.REDUCE_SCATTER])
@pytest.mark.parametrize("name", [n for n in GRAPHS if n != "small"])
def test_trees_of_thousands_of_ranks_reach_the_same_rates(
    name: str, collective: Collective, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = plan(GRAPHS[name], collective)
    monkeypatch.setattr(columns, "SPARSE_FROM", 8)
    plan.__globals__["_solve_once"].cache_clear()
    found = plan(GRAPHS[name], collective, orbits=True)
    plan.__globals__["_solve_once"].cache_clear()
    assert found.optimal
    assert found.rate == expected.rate


# One fault in each field of the format. The graph has links of 450 and 50 GB/s, 8 rails, 4 servers.


def orbits_of(document: Document) -> Document:
    found: Document = document["plans"][0]["orbits"]
    return found


def first_tree(document: Document) -> Document:
    found: Document = orbits_of(document)["trees"][0]
    return found


def swap_two_gpus(document: Document) -> None:
    orbits_of(document)["generators"][0] = [["gpu0", "gpu9"]]


def swap_gpu_and_switch(document: Document) -> None:
    orbits_of(document)["generators"][0] = [["gpu0", document["switches"][0]["name"]]]


def turn_one_server_alone(document: Document) -> None:
    """Rotates the GPUs of one server without their rails."""
    orbits_of(document)["generators"][0] = [[f"gpu{i}" for i in range(8)]]


def slower_link(document: Document) -> None:
    """The generator was an automorphism of the graph before one link became slower."""
    document["links"][0]["gbps"] = "449"
    file = from_json(document)
    document["topology"]["fingerprint"] = plan_file(file.graph, ()).fingerprint


def other_kind(document: Document) -> None:
    document["switches"][0]["multicast"] = True
    file = from_json(document)
    document["topology"]["fingerprint"] = plan_file(file.graph, ()).fingerprint


def not_commuting(document: Document) -> None:
    """Two alike servers change places: an automorphism that does not commute with the rotation of all of them."""
    pairs = [[f"gpu{i}", f"gpu{8 + i}"] for i in range(8)] + [["sw0", "sw1"]]
    orbits_of(document)["generators"].append(pairs)


def change(*path: str | int, to: object) -> Callable[[Document], None]:
    def edit(document: Document) -> None:
        at: Any = orbits_of(document)
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = to(at[path[-1]]) if callable(to) else to

    edit.__name__ = "_".join(map(str, path))
    return edit


def generator_left_out(document: Document) -> None:
    """Without the generator there are fewer images, and smaller orbits of links."""
    del orbits_of(document)["generators"][0]


def tree_twice(document: Document) -> None:
    trees = orbits_of(document)["trees"]
    trees[0]["weight_gbps"] = str(Fraction(trees[0]["weight_gbps"]) / 2)
    trees.append(copy.deepcopy(trees[0]))


def tree_and_its_image(document: Document) -> None:
    """Two orbits of one and the same trees, each with half of the weight: nothing but that is wrong."""
    trees = orbits_of(document)["trees"]
    graph = from_json(document).graph
    made = from_json(document).plans[0]
    assert made.orbits is not None
    other = list(all_trees(graph, made))[made.orbits.orbits[0].count - 1]
    trees[0]["weight_gbps"] = str(Fraction(trees[0]["weight_gbps"]) / 2)
    copied = copy.deepcopy(trees[0])
    copied["root"] = other.root
    copied["broadcast"] = [[h.src, h.dst, list(h.links)] for h in other.broadcast]
    trees.append(copied)


FAULTS: list[tuple[Callable[[Document], None], str]] = [
    (swap_two_gpus, "no automorphism"),
    (swap_gpu_and_switch, "another kind"),
    (turn_one_server_alone, "no automorphism"),
    (slower_link, "no automorphism"),
    (other_kind, "another kind"),
    (not_commuting, "do not commute"),
    (change("generators", 0, to=[]), "moves some vertex"),
    (change("generators", 0, 0, to=["gpu0"]), "two vertices or more"),
    (change("generators", 0, 0, to=["gpu0", "gpu1", "gpu0"]), "stands in one cycle"),
    (change("generators", 0, 0, to=["gpu0", "gpu99"]), "no vertex"),
    (generator_left_out, "different images"),
    (change("trees", 0, "count", to=lambda n: n - 1), "different images"),
    (change("trees", 0, "count", to=lambda n: 2 * n), "different images"),
    (change("trees", 0, "count", to=0), "different images"),
    (change("trees", 0, "count", to="32"), "expected an integer"),
    (change("trees", 0, "weight_gbps", to=lambda w: str(Fraction(w) * 2)), "carries"),
    (change("trees", 0, "weight_gbps", to=lambda w: str(Fraction(w) / 2)), "carries"),
    (change("trees", 0, "weight_gbps", to="-1"), "not positive"),
    (change("trees", 0, "root", to=1), "the root has a parent"),
    (change("trees", 0, "broadcast", to=lambda hops: hops[:-1]), "not joined"),
    (change("trees", 0, "broadcast", 0, 2, to=lambda path: path[:1]), "the path ends"),
    (tree_twice, "image of tree 0"),
    (tree_and_its_image, "image of tree 0"),
    (change("loads", 0, "load_gbps", to=lambda x: str(Fraction(x) + 1)), "carries"),
    (change("loads", 0, "count", to=lambda n: n + 1), "has"),
    (change("loads", 0, "link", to=5), "smallest link"),
    (change("loads", to=lambda rows: rows[:-1]), "orbits of links"),
    (change("loads", to=lambda rows: [*rows, rows[0]]), "orbits of links"),
    (change("trees", to=[]), "carries"),
    (change("extra", to=1), "unknown key"),
]


@pytest.fixture(scope="module")
def honest() -> Document:
    document = to_json(plan_file(FULL, (plan(FULL, C.ALL_GATHER, orbits=True),)))
    verify_document(from_json(document))
    return document


@pytest.mark.parametrize(("fault", "words"), FAULTS, ids=lambda x: getattr(x, "__name__", ""))
def test_a_fault_in_any_field_is_refused(honest: Document, fault: Callable[[Document], None], words: str) -> None:
    document = copy.deepcopy(honest)
    fault(document)
    with pytest.raises(CertificateError, match=words):
        verify_document(from_json(document))


def test_images_that_coincide_are_counted_once() -> None:
    """15 leaves turn; a tree that looks alike every 5 steps has 5 images, whatever its file says."""
    graph = star(16)
    document = to_json(plan_file(graph, (plan(graph, C.BROADCAST, orbits=True),)))
    up = {x["src"]: x["id"] for x in document["links"] if x["src"] != "sw0"}
    down = {x["dst"]: x["id"] for x in document["links"] if x["src"] == "sw0"}
    pairs = [(0, v) for v in (1, 6, 11)] + [(v, v + k) for v in (1, 6, 11) for k in range(1, 5)]
    orbits_of(document)["generators"] = [[[f"gpu{v}" for v in range(1, 16)]]]
    tree = first_tree(document)
    tree["broadcast"] = [[u, v, [up[f"gpu{u}"], down[f"gpu{v}"]]] for u, v in pairs]
    for claim in (15, 1, 3):
        tree["count"] = claim
        with pytest.raises(CertificateError, match=f"5 different images, not {claim}"):
            verify_document(from_json(document))
    tree["count"] = 5
    with pytest.raises(CertificateError, match=r"loads|weigh|carries"):
        verify_document(from_json(document))


def test_too_much_on_a_link_is_refused_where_all_claims_agree(honest: Document) -> None:
    """Twice the weights and loads, and twice the rate, still contradict the links and the bound."""
    document = copy.deepcopy(honest)
    for tree in orbits_of(document)["trees"]:
        tree["weight_gbps"] = str(Fraction(tree["weight_gbps"]) * 2)
    for load in orbits_of(document)["loads"]:
        load["load_gbps"] = str(Fraction(load["load_gbps"]) * 2)
    made = document["plans"][0]
    made["rate_gbps"] = str(Fraction(made["rate_gbps"]) * 2)
    with pytest.raises(CertificateError, match="GB/s of"):
        verify_document(from_json(document))


def test_orbits_of_another_root_are_refused() -> None:
    """Generators that move the root make trees of other roots, which a broadcast has no use for."""
    document = to_json(plan_file(FULL, (plan(FULL, C.BROADCAST, orbits=True),)))
    turned = to_json(plan_file(FULL, (plan(FULL, C.ALL_GATHER, orbits=True),)))
    orbits_of(document)["generators"] = orbits_of(turned)["generators"]
    with pytest.raises(CertificateError):
        verify_document(from_json(document))


def test_plain_trees_may_stand_beside_orbits() -> None:
    """Half of a plan as orbits, half of it as a list."""
    made = plan(FULL, C.ALL_GATHER, orbits=True)
    document = to_json(plan_file(FULL, (made,)))
    half = to_json(plan_file(FULL, (expand_orbits(FULL, made),)))["plans"][0]["trees"]
    for tree in (*half, *orbits_of(document)["trees"]):
        tree["weight_gbps"] = str(Fraction(tree["weight_gbps"]) / 2)
    for load in orbits_of(document)["loads"]:
        load["load_gbps"] = str(Fraction(load["load_gbps"]) / 2)
    document["plans"][0]["trees"] = half
    verify_document(from_json(document))
    half[0]["weight_gbps"] = str(Fraction(half[0]["weight_gbps"]) * 2)
    with pytest.raises(CertificateError):
        verify_document(from_json(document))


def test_flow_collectives_have_no_orbits() -> None:
    document = to_json(plan_file(FULL, (plan(FULL, C.SENDRECV, orbits=True),)))
    assert "orbits" not in document["plans"][0]
    document["plans"][0]["orbits"] = {"generators": [], "trees": [], "loads": []}
    with pytest.raises(CertificateError, match="unknown key"):
        from_json(document)


def test_a_symmetry_that_mixes_kinds_is_told() -> None:
    """To the solver links are speeds; orbits name an automorphism of the whole graph, so they say no."""

    def mixed(machine: PlanGraph) -> PlanGraph:
        from dataclasses import replace

        kinds = [LinkKind.XGMI if x.src == 0 or x.dst == 0 else x.kind for x in machine.links]
        return replace(machine, links=tuple(replace(x, kind=k) for x, k in zip(machine.links, kinds, strict=True)))

    graph = mixed(star(40))
    with pytest.raises(PackingError, match="different kinds"):
        plan(graph, C.ALL_GATHER, orbits=True)
    assert plan(graph, C.ALL_GATHER).optimal


def test_images_are_counted_without_a_look_at_every_product() -> None:
    """Eight blocks of ranks on one switch that turn one by one: 77,597,520 products, and trees that few of them fix."""
    sizes = [8, 7, 6, 5, 11, 13, 17, 19]
    n = sum(sizes) + 1  # rank 0 stays
    up, down = range(n), range(n, 2 * n)  # the links of rank r to the switch, and back
    generators, blocks, first = [], list[list[int]](), 1
    for size in sizes:
        image = list(range(n + 1))
        blocks.append(list(range(first, first + size)))
        for v, w in zip(blocks[-1], [*blocks[-1][1:], blocks[-1][0]], strict=True):
            image[v] = w
        first += size
        generators.append(Generator(Turn(image), Turn([*(up[v] for v in image[:n]), *(down[v] for v in image[:n])])))
    orbits = smallest_images(2 * n, [[g.links.power(x, 1) for x in range(2 * n)] for g in generators])
    group = Group(generators, orbits)

    def tree(parents: dict[int, int]) -> Tree:
        return Tree(0, Fraction(1), (), tuple(Hop(p, v, (up[p], down[v])) for v, p in parents.items()))

    star_tree = dict.fromkeys(range(1, n), 0)
    assert Chain(group, tree(star_tree)).count() == 1
    path = {v: v - 1 for v in range(1, n)}
    assert Chain(group, tree(path)).count() == math.prod(sizes)
    # In the first block every second rank depends on its neighbor: two steps change nothing.
    paired = star_tree | {v: v - 1 for v in blocks[0][1::2]}
    assert Chain(group, tree(paired)).count() == 2
    turned = star_tree | {blocks[0][0]: blocks[0][-1]} | {v: v - 1 for v in blocks[0][2::2]}
    assert Chain(group, tree(paired)).reaches(tree(turned))
    assert not Chain(group, tree(paired)).reaches(tree(star_tree | {v: v - 1 for v in blocks[0][1:5]}))
    # Two blocks of two ranks: the ranks of one block rotate independently of the ranks of the other block.
    hung = star_tree | {blocks[1][0]: blocks[4][0], blocks[4][5]: blocks[1][3]}
    assert Chain(group, tree(hung)).count() == 7 * 11
