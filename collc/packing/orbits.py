"""Plans up to symmetry: a solution as orbits of trees, and orbits as trees again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

from collc.checker.orbits import Generator, Shape, Turn, count_images, image_of, maps_to, orbits_of, powers, turns
from collc.collectives.model import Collective
from collc.errors import PackingError
from collc.packing.exact import Solved
from collc.packing.expand import representative
from collc.packing.model import Orbit, OrbitLoad, Orbits, Plan, Tree
from collc.topology.model import PlanGraph


def as_orbits(graph: PlanGraph, solved: Solved, collective: Collective, mirror: Sequence[int] | None) -> Orbits:
    """The trees of a solution up to its symmetry; a column's weight is shared evenly by the images of its tree.

    Args:
        mirror: for a solution of the opposite collective, each link's equal the other way.
    """
    generators = tuple(g.vertices for g in solved.symmetry.generators)
    try:
        images = [link_images(graph, g) for g in generators]
    except KeyError:
        # Solvers look at speeds alone; such links of different kinds are rare, so this is not worth their while.
        raise PackingError(
            "the symmetry of this graph mixes links or forwarders of different kinds, so orbits cannot name it",
            hint="give similar links the same kind, or use at most 1024 GPUs",
        ) from None
    group = [Generator(Turn(g), Turn(x)) for g, x in zip(generators, images, strict=True)]
    start = orbits_of(len(graph.links), images)
    trees: list[tuple[Tree, Fraction]] = []
    # Trees that use the orbits of links differently are no images of each other.
    alike: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for column, total in solved.weights:
        tree = representative(column, collective, mirror)
        use = Counter(start[x] for hop in (*tree.reduce, *tree.broadcast) for x in hop.links)
        places = alike.setdefault(tuple(sorted(use.items())), [])
        for i in places:
            other, before = trees[i]
            if _images_of_each_other(group, tree, other):
                trees[i] = other, before + total
                break
        else:
            places.append(len(trees))
            trees.append((tree, total))
    counts = [count_images(group, tree) for tree, _ in trees]
    orbits = [Orbit(replace(t, weight=w / n), n) for (t, w), n in zip(trees, counts, strict=True)]
    return Orbits(generators, tuple(orbits), _loads(graph, images, orbits))


def _images_of_each_other(group: Sequence[Generator], tree: Tree, other: Tree) -> bool:
    if len(tree.reduce) != len(other.reduce) or not group:
        return tree.root == other.root and Shape.of(tree) == Shape.of(other)
    shape = Shape.of(other)
    return any(maps_to(power, tree, shape) for power in powers(turns(group, tree, Shape.of(tree))))


def link_images(graph: PlanGraph, image: Sequence[int]) -> list[int]:
    """The image of every link under an automorphism; raises KeyError if it is not one."""
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
        for hop in (*orbit.tree.reduce, *orbit.tree.broadcast):
            for x in hop.links:
                load[start[x]] += orbit.tree.weight * orbit.count
    return tuple(OrbitLoad(x, size[x], load[x] / size[x]) for x in size)


def orbit_loads(graph: PlanGraph, orbits: Orbits) -> list[Fraction]:
    """GB/s that the trees of orbits put on every link, by the loads that the orbits state."""
    stated = {x.link: x.load for x in orbits.loads}
    return [stated[x] for x in orbits_of(len(graph.links), [link_images(graph, g) for g in orbits.generators])]


def all_trees(graph: PlanGraph, plan: Plan, root: int | None = None) -> Iterator[Tree]:
    """Every tree of a plan, one at a time: those it lists, then the images of each orbit; with `root` only its own."""
    yield from (tree for tree in plan.trees if root is None or tree.root == root)
    if plan.orbits is None:
        return
    group = [Generator(Turn(g), Turn(link_images(graph, g))) for g in plan.orbits.generators]
    for orbit in plan.orbits.orbits:
        cycles = turns(group, orbit.tree, Shape.of(orbit.tree))
        trivial = len(list(_fixing(cycles, orbit.tree))) == 1
        seen: set[Shape] = set()
        for power in powers(cycles):
            at = orbit.tree.root
            for generator, times in power:
                at = generator.vertices.power(at, times)
            if root is not None and at != root:
                continue
            up = tuple(image_of(power, hop) for hop in orbit.tree.reduce)
            down = tuple(image_of(power, hop) for hop in orbit.tree.broadcast)
            image = Tree(at, orbit.tree.weight, up, down)
            if not trivial:
                if Shape.of(image) in seen:
                    continue
                seen.add(Shape.of(image))
            yield image


def _fixing(cycles: Sequence[tuple[Generator, int]], tree: Tree) -> Iterator[object]:
    shape = Shape.of(tree)
    return (power for power in powers(cycles) if maps_to(power, tree, shape))


def expanded(graph: PlanGraph, plan: Plan) -> Plan:
    """The plan with every tree expanded, ordered by root and decreasing weight."""
    if plan.orbits is None:
        return plan
    trees = sorted(all_trees(graph, plan), key=lambda t: (t.root, -t.weight))
    return replace(plan, trees=tuple(trees), orbits=None)
