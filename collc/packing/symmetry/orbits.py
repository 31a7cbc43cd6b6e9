"""Turns a solution into orbits of trees, and orbits into trees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

from collc.checker.images import Chain, Generator, Group, Shape, Turn, image_of, orbits_of
from collc.collectives.model import Collective
from collc.errors import PackingError
from collc.packing.model import Orbit, OrbitLoad, Orbits, Plan, Tree
from collc.packing.solvers.exact import Solution
from collc.packing.solvers.expand import representative
from collc.topology.model import PlanGraph


def as_orbits(graph: PlanGraph, solved: Solution, collective: Collective, mirror: Sequence[int] | None) -> Orbits:
    """Returns the trees of a solution as orbits. The images of a column's tree share its weight equally.

    Args:
        mirror: for a solution of the opposite collective, the mirrored link of each link (`mirrored_links`).

    Raises:
        PackingError: the symmetry maps links or forwarders to others of another kind.
    """
    generators = tuple(g.vertices for g in solved.symmetry.generators)
    try:
        images = [link_images(graph, g) for g in generators]
    except KeyError:
        # Solvers only compare speeds. They ignore kinds because symmetries that mix kinds are rare.
        raise PackingError(
            "the symmetry of this graph mixes links or forwarders of different kinds, so orbits cannot name it",
            hint="give similar links the same kind, or use at most 1024 GPUs",
        ) from None
    start = orbits_of(len(graph.links), images)
    group = Group([Generator(Turn(g), Turn(x)) for g, x in zip(generators, images, strict=True)], start)
    trees: list[tuple[Chain, Tree, Fraction]] = []
    # Only trees that use the orbits of links equally can be images of each other.
    alike: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for column, total in solved.weights:
        tree = representative(column, collective, mirror)
        use = Counter(start[x] for hop in (*tree.reduce, *tree.broadcast) for x in hop.links)
        places = alike.setdefault(tuple(sorted(use.items())), [])
        for i in places:
            chain, other, before = trees[i]
            if chain.reaches(tree):
                trees[i] = chain, other, before + total
                break
        else:
            places.append(len(trees))
            trees.append((Chain(group, tree), tree, total))
    counted = [(chain.count(), tree, total) for chain, tree, total in trees]
    orbits = [Orbit(replace(tree, weight=total / count), count) for count, tree, total in counted]
    return Orbits(generators, tuple(orbits), _loads(graph, images, orbits))


def link_images(graph: PlanGraph, image: Sequence[int]) -> list[int]:
    """Returns the image of every link under an automorphism.

    Args:
        image: the image of every vertex.

    Raises:
        KeyError: `image` is no automorphism.
    """
    for v, w in enumerate(image):
        a, b = graph.vertices[v], graph.vertices[w]
        if (a.kind, a.multicast, a.reduce) != (b.kind, b.multicast, b.reduce):
            raise KeyError(v)
    known = {(x.src, x.dst, x.kind, x.gbps): x.id for x in graph.links}
    return [known[image[x.src], image[x.dst], x.kind, x.gbps] for x in graph.links]


def _loads(graph: PlanGraph, images: Sequence[Sequence[int]], orbits: Sequence[Orbit]) -> tuple[OrbitLoad, ...]:
    start = orbits_of(len(graph.links), images)
    size: dict[int, int] = {}
    for x in start:
        size[x] = size.get(x, 0) + 1
    load = dict.fromkeys(size, Fraction(0))
    for orbit in orbits:
        hops = (*orbit.tree.reduce, *orbit.tree.broadcast)
        for x, times in Counter(start[x] for hop in hops for x in hop.links).items():
            load[x] += orbit.tree.weight * orbit.count * times
    return tuple(OrbitLoad(x, size[x], load[x] / size[x]) for x in size)


def orbit_loads(graph: PlanGraph, orbits: Orbits) -> list[Fraction]:
    """Returns the GB/s that the trees of orbits put on every link, from the loads that the orbits state."""
    stated = {x.link: x.load for x in orbits.loads}
    return [stated[x] for x in orbits_of(len(graph.links), [link_images(graph, g) for g in orbits.generators])]


def all_trees(graph: PlanGraph, plan: Plan, root: int | None = None) -> Iterator[Tree]:
    """Yields every tree of a plan: the listed trees, then the images of each orbit.

    Args:
        root: if not None, only trees with this root.
    """
    yield from (tree for tree in plan.trees if root is None or tree.root == root)
    if plan.orbits is None:
        return
    images = [link_images(graph, g) for g in plan.orbits.generators]
    turns = [Generator(Turn(g), Turn(x)) for g, x in zip(plan.orbits.generators, images, strict=True)]
    group = Group(turns, orbits_of(len(graph.links), images))
    for orbit in plan.orbits.orbits:
        yield from _images(group, orbit, root)


def _images(group: Group, orbit: Orbit, root: int | None) -> Iterator[Tree]:
    chain = Chain(group, orbit.tree)
    seen: set[Shape] = set()
    for element in chain.elements():
        power = group.power(element)
        at = orbit.tree.root
        for generator, times in power:
            at = generator.vertices.power(at, times)
        if root is not None and at != root:
            continue
        up = tuple(image_of(power, hop) for hop in orbit.tree.reduce)
        down = tuple(image_of(power, hop) for hop in orbit.tree.broadcast)
        image = Tree(at, orbit.tree.weight, up, down)
        if chain.size != orbit.count:
            if Shape.of(image) in seen:
                continue
            seen.add(Shape.of(image))
        yield image


def expand_orbits(graph: PlanGraph, plan: Plan) -> Plan:
    """Returns the plan with every tree expanded, ordered by root and decreasing weight."""
    if plan.orbits is None:
        return plan
    trees = sorted(all_trees(graph, plan), key=lambda t: (t.root, -t.weight))
    return replace(plan, trees=tuple(trees), orbits=None)
