"""Plans calls over several path classes: one plan over all of them together, and one plan for each class.

The plan of a class has trees over links of that class only, on the capacity that faster classes leave. So a call can be
cut into one part per class, and the sizes of parts can change without any change of trees. The rates of the classes add
up. `ClassPlans.mixed` is the additional rate of trees that change class on the way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from collc.collectives.model import Collective
from collc.errors import CollcError
from collc.packing.explain import link_loads
from collc.packing.model import Hop, Plan, Tree
from collc.packing.solve import plan
from collc.packing.solvers.store import SolutionStore
from collc.topology.joint import joint_graph
from collc.topology.model import GraphLink, Link, PlanGraph, Topology, joint_class
from collc.topology.paths import Adjacency, strongly_connected
from collc.topology.prune import useful_links

# The names of a link's source and destination, and its kind.
_Ends = tuple[str, str, str]


@dataclass(frozen=True)
class ClassPlan:
    """The part of one path class in a call.

    Attributes:
        name: nvlink, pcie or net.
        graph: the links of the class, with the capacity that faster classes leave; None if they do not join all GPUs.
        plan: the trees over `graph`; None without a graph.
        full: if there is no plan, the links of the joint graph that faster classes fill.
    """

    name: str
    graph: PlanGraph | None
    plan: Plan | None
    full: tuple[int, ...] = ()

    @property
    def rate(self) -> Fraction:
        """The GB/s that the class carries in addition to the faster ones; 0 without a plan."""
        return (self.plan.rate if self.plan else None) or Fraction(0)


@dataclass(frozen=True)
class ClassPlans:
    """A collective over several path classes: the joint plan with its proof, and the classes, fastest first."""

    graph: PlanGraph
    joint: Plan
    classes: tuple[ClassPlan, ...]

    @property
    def mixed(self) -> Fraction:
        """The GB/s that the joint plan reaches beyond the sum of the classes, by trees that change class on the way."""
        assert self.joint.rate is not None
        return self.joint.rate - sum((c.rate for c in self.classes), Fraction(0))

    def class_of_tree(self, tree: Tree) -> str:
        """Returns a name such as ``nvlink``, or ``nvlink+pcie`` for a tree with hops of both classes."""
        hops = (*tree.reduce, *tree.broadcast)
        return joint_class([self.graph.links[link].kind for link in hop.links] for hop in hops)


def plan_classes(
    topology: Topology,
    gpus: Sequence[str] | None,
    classes: Sequence[str],
    collective: Collective,
    root: int | None = None,
    store: SolutionStore | None = None,
) -> ClassPlans:
    """Packs a collective over all path classes together, and over each class by itself.

    If the rates of the classes add up to the joint rate, the joint plan consists of their trees or flows. Otherwise it
    has trees that change class on the way.

    Args:
        gpus: the GPUs in rank order (None: all).
        classes: members of `collc.topology.joint.JOINT`, fastest first.
        store: as for `collc.packing.plan`.

    Raises:
        UsageError: no such GPU or root.
        CollcError: the classes do not join the GPUs, or a solver failed.
    """
    graph = joint_graph(topology, gpus, classes)
    place = {_ends(graph, link): link.id for link in graph.links}
    joint = plan(graph, collective, root, store=store)
    if joint.rate is None:
        return ClassPlans(graph, joint, ())
    left = [link.gbps for link in graph.links]
    found = []
    for name in classes:
        own = _class_graph(topology, gpus, name, place, left)
        if isinstance(own, tuple):
            found.append(ClassPlan(name, None, None, own))
            continue
        packed = plan(own, collective, root, store=store)
        found.append(ClassPlan(name, own, packed))
        for link, load in zip(own.links, link_loads(own, packed), strict=True):
            left[place[_ends(own, link)]] -= load
    plans = ClassPlans(graph, joint, tuple(found))
    if plans.mixed > 0:
        return plans
    return replace(plans, joint=join_class_plans(plans))


def link_numbers(own: PlanGraph, joint: PlanGraph) -> tuple[int, ...]:
    """Returns the number in the joint graph of every link of a class's graph."""
    place = {_ends(joint, link): link.id for link in joint.links}
    return tuple(place[_ends(own, link)] for link in own.links)


def renumber_links(packed: Plan, numbers: Sequence[int]) -> Plan:
    """Returns a plan with its links' numbers in another graph, without the proof, which holds only in its own graph."""

    def renumber(hops: tuple[Hop, ...]) -> tuple[Hop, ...]:
        return tuple(replace(hop, links=tuple(numbers[link] for link in hop.links)) for hop in hops)

    trees = tuple(
        replace(tree, reduce=renumber(tree.reduce), broadcast=renumber(tree.broadcast)) for tree in packed.trees
    )
    flows = tuple(replace(flow, links=tuple(numbers[link] for link in flow.links)) for flow in packed.flows)
    return replace(packed, trees=trees, flows=flows, bound=None, optimal=False, certificate=None)


def join_class_plans(plans: ClassPlans) -> Plan:
    """Returns the plan of the trees of all classes that have a plan, with the bound of the joint graph."""
    parts = [
        renumber_links(own.plan, link_numbers(own.graph, plans.graph))
        for own in plans.classes
        if own.plan is not None and own.graph is not None
    ]
    rate = sum((own.rate for own in plans.classes), Fraction(0))
    return replace(
        plans.joint,
        rate=rate,
        optimal=rate == plans.joint.bound,
        trees=tuple(tree for part in parts for tree in part.trees),
        flows=tuple(flow for part in parts for flow in part.flows),
    )


def _class_graph(
    topology: Topology, gpus: Sequence[str] | None, name: str, place: Mapping[_Ends, int], left: Sequence[Fraction]
) -> PlanGraph | tuple[int, ...]:
    """Returns the graph of a class on the capacity that is left, or the full links if it does not join the GPUs."""
    try:
        whole = joint_graph(topology, gpus, [name])
    except CollcError:
        return ()
    rest = {link.id: left[place[_ends(whole, link)]] for link in whole.links}
    names = [v.name for v in whole.vertices]
    ranks = names[: whole.nranks]
    kept = [Link(names[x.src], names[x.dst], x.kind, rest[x.id], x.latency_us) for x in whole.links if rest[x.id] > 0]
    useful = {(x.src, x.dst, x.kind) for x in useful_links(kept, ranks)}
    if not strongly_connected(Adjacency(k for k in kept if (k.src, k.dst, k.kind) in useful), ranks):
        return tuple(place[_ends(whole, link)] for link in whole.links if rest[link.id] <= 0)
    links = [x for x in whole.links if (names[x.src], names[x.dst], x.kind) in useful]
    touched = {v for x in links for v in (x.src, x.dst)} | set(whole.ranks)
    number = {v: i for i, v in enumerate(v for v in range(len(names)) if v in touched)}
    return PlanGraph(
        whole.name,
        whole.nranks,
        tuple(whole.vertices[v] for v in number),
        tuple(whole.servers[v] for v in number),
        tuple(
            GraphLink(i, number[x.src], number[x.dst], x.kind, rest[x.id], x.latency_us) for i, x in enumerate(links)
        ),
        whole.gpu_model,
    )


def _ends(graph: PlanGraph, link: GraphLink) -> _Ends:
    return graph.vertices[link.src].name, graph.vertices[link.dst].name, link.kind.value
