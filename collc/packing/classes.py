"""Several classes of links in one call: what the joint graph proves, and what each class carries by itself.

A class's own plan has trees over links of that class alone, on the capacity that faster classes leave, so a call can be
cut into one part per class, and the parts' sizes can change without changing any tree. Their rates add up; what trees
that change class on the way would bring beyond the sum is `ClassPlans.mixed`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from collc.collectives.model import Collective
from collc.errors import CollcError
from collc.packing.explain import link_loads
from collc.packing.keep import SolutionStore
from collc.packing.model import Hop, Plan, Tree
from collc.packing.solve import plan
from collc.topology.joint import joint_graph
from collc.topology.model import GraphLink, Link, PlanGraph, Topology, joint_class
from collc.topology.paths import Adjacency, strongly_connected
from collc.topology.prune import useful_links

_Ends = tuple[str, str, str]  # of a link: the names of its vertices, and its kind


@dataclass(frozen=True)
class ClassPlan:
    """One class of a call.

    Args:
        name: nvlink, pcie or net.
        graph: the class's links between the GPUs, with the capacity that faster classes leave; None where they do not
            join all GPUs.
        plan: the trees over them; None with `graph`.
        full: links of the joint graph on the way of every path of this class that faster classes fill; only where
            there is no plan.
    """

    name: str
    graph: PlanGraph | None
    plan: Plan | None
    full: tuple[int, ...] = ()

    @property
    def rate(self) -> Fraction:
        """GB/s that the class carries beside the faster ones."""
        return (self.plan.rate if self.plan else None) or Fraction(0)


@dataclass(frozen=True)
class ClassPlans:
    """A collective over several classes: the joint plan with its proof, and the classes from the fastest on."""

    graph: PlanGraph
    joint: Plan
    classes: tuple[ClassPlan, ...]

    @property
    def mixed(self) -> Fraction:
        """GB/s of the joint plan that only trees which change class on the way reach."""
        assert self.joint.rate is not None
        return self.joint.rate - sum((c.rate for c in self.classes), Fraction(0))

    def class_of_tree(self, tree: Tree) -> str:
        """Such as ``nvlink``, or ``nvlink+pcie`` for a tree whose hops are of both classes."""
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
    """Packs a collective over all classes together, and over each alone.

    Where the classes' own rates add up to the joint one, the joint plan consists of their trees (flows); else of
    others, some of which change class on the way.

    Args:
        classes: members of `collc.topology.joint.JOINT`, from the fastest on.
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
        made = plan(own, collective, root, store=store)
        found.append(ClassPlan(name, own, made))
        for link, load in zip(own.links, link_loads(own, made), strict=True):
            left[place[_ends(own, link)]] -= load
    plans = ClassPlans(graph, joint, tuple(found))
    if plans.mixed > 0:
        return plans
    return replace(plans, joint=joined_plan(plans))


def link_numbers(own: PlanGraph, joint: PlanGraph) -> tuple[int, ...]:
    """The number in the joint graph of every link of a class's own graph."""
    place = {_ends(joint, link): link.id for link in joint.links}
    return tuple(place[_ends(own, link)] for link in own.links)


def moved_plan(made: Plan, numbers: Sequence[int]) -> Plan:
    """A plan over links that have these numbers in another graph; without its proof, which is of its own graph."""

    def moved(hops: tuple[Hop, ...]) -> tuple[Hop, ...]:
        return tuple(replace(hop, links=tuple(numbers[link] for link in hop.links)) for hop in hops)

    trees = tuple(replace(tree, reduce=moved(tree.reduce), broadcast=moved(tree.broadcast)) for tree in made.trees)
    flows = tuple(replace(flow, links=tuple(numbers[link] for link in flow.links)) for flow in made.flows)
    return replace(made, trees=trees, flows=flows, bound=None, optimal=False, certificate=None)


def joined_plan(made: ClassPlans) -> Plan:
    """The trees of all classes that have a plan of their own, side by side, with the bound of the joint graph."""
    parts = [
        moved_plan(own.plan, link_numbers(own.graph, made.graph))
        for own in made.classes
        if own.plan is not None and own.graph is not None
    ]
    rate = sum((own.rate for own in made.classes), Fraction(0))
    return replace(
        made.joint,
        rate=rate,
        optimal=rate == made.joint.bound,
        trees=tuple(tree for part in parts for tree in part.trees),
        flows=tuple(flow for part in parts for flow in part.flows),
    )


def _class_graph(
    topology: Topology, gpus: Sequence[str] | None, name: str, place: Mapping[_Ends, int], left: Sequence[Fraction]
) -> PlanGraph | tuple[int, ...]:
    """The class's graph with what is left of its links; or the links without which it joins the GPUs no more."""
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
