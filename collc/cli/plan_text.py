"""Formats plans as text for people."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from fractions import Fraction

from collc.checker.staging import host_limit
from collc.cli.report import compact, table
from collc.packing.explain import (
    Binding,
    assumed_facts,
    binding,
    common_denominator,
    counted_trees,
    describe_tree,
    in_switch_bound,
    link_loads,
    one_more_link,
    plan_depth,
)
from collc.packing.limit_text import in_switch_in_words, limit_in_words, link_name, own_names
from collc.packing.model import Cut, Flow, Partition, Plan, Prices, Tree
from collc.packing.solvers.trade import Trade
from collc.topology.canonical import fingerprint
from collc.topology.model import PlanGraph, VertexKind
from collc.topology.staging import staged_pairs

# Longer lists are cut, because programs read --json.
_MAX_ROWS = 64
_MAX_TREE_RANKS = 16
_WIDTH = 118
_LEGEND = """\
GB/s: 1e9 bytes of the call's buffer per second, algbw in nccl-tests. bound: no schedule can exceed it; empty if it is
the rate. optimal: whether the rate is the bound, or the gap between them. trees: the number of trees that share the
data (flows: from one GPU to one other); depth: hops from GPU to GPU between a root and its farthest GPU. proof: the
kind of certificate of the bound (--proof prints it; --collective adds trees and the use of every link)."""
_FORWARD = {VertexKind.GPU: "idle GPU", VertexKind.SWITCH: "switch", VertexKind.CPU: "CPU", VertexKind.NIC: "NIC"}

# (link, GB/s added, new bound), the result of `one_more_link`.
More = tuple[int, Fraction, Fraction] | None


def further_links(graph: PlanGraph, plans: Sequence[Plan]) -> list[More]:
    """Returns for each plan the one additional link that would bring the most. Each candidate needs a new bound."""
    return [None if plan.rate is None else one_more_link(graph, plan, binding(graph, plan)) for plan in plans]


def summary(graph: PlanGraph, plans: Sequence[Plan], further: Sequence[More]) -> str:
    """Returns the machine on one line, then the rate and the limit of each plan in words, then a row per plan."""
    lines = [_machine(graph), *_wrapped(host_text(graph)), *_wrapped(assumptions_in_words(graph)), ""]
    for plan, more in zip(plans, further, strict=True):
        lines += _wrapped(_in_words(graph, plan, more))
    header = ["collective", "root", "GB/s", "bound", "optimal", "trees", "depth", "proof"]
    rows = [_row(graph, plan) for plan in plans]
    legend = _LEGEND
    limits = [host_limit(graph, plan) for plan in plans]
    if any(limits):
        header.insert(2, "memory")
        for row, limit in zip(rows, limits, strict=True):
            row.insert(2, "" if limit is None else gbps(limit[0]))
        legend = f"memory: GB/s through host memory, less than the links carry.\n{legend}"
    lines += ["", table(header, rows), legend, f"Fingerprint: {fingerprint(graph)}"]
    return "\n".join(lines)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def host_text(graph: PlanGraph) -> str:
    """Returns a line about the pairs of ranks that host memory joins, and the CPUs; empty if there are none."""
    pairs = staged_pairs(graph)
    if not pairs:
        return ""
    every = len(pairs) == graph.nranks * (graph.nranks - 1) // 2
    named = ", ".join(f"{a}-{b}" for a, b in pairs[:8]) + (f" and {len(pairs) - 8} more" if len(pairs) > 8 else "")
    which = "all ranks" if every else f"ranks {named}"
    cpus = [v for v in graph.vertices if v.memory_gbps is not None]
    speeds = ", ".join(f"{cpu.name} {compact(cpu.memory_gbps)} GB/s" for cpu in cpus if cpu.memory_gbps is not None)
    return f"Between {which}: pinned host memory, transport host (reads and writes together: {speeds})."


def _machine(graph: PlanGraph) -> str:
    """Returns the machine's line, such as ``box: 2 GPUs, 1 CPU; 2 linked pairs (pcie), 4 counting each direction``.

    It counts vertices and pairs of the topology, because in a plan's graph parallel links of one kind are one link, and
    a vertex may be split by direction.
    """
    own = own_names(graph, range(len(graph.vertices)))
    kinds = {
        name: vertex.kind for name, vertex in zip(own[graph.nranks :], graph.vertices[graph.nranks :], strict=True)
    }
    counts = [counted(graph.nranks, "GPU")]
    for kind, word in _FORWARD.items():
        if count := sum(found is kind for found in kinds.values()):
            counts.append(counted(count, word))
    pairs = {frozenset((own[link.src], own[link.dst])) for link in graph.links}
    classes = ", ".join(dict.fromkeys(link.kind.value for link in graph.links))
    linked = f"{counted(len(pairs), 'linked pair')} ({classes}), {len(graph.links)} counting each direction"
    return f"{graph.name}: {', '.join(counts)}; {linked if pairs else 'no links'}"


def counted(count: int, word: str) -> str:
    """Returns a count with its noun: ``1 switch``, ``2 switches``."""
    return f"{count} {word}" + ("" if count == 1 else "es" if word.endswith("ch") else "s")


def assumptions_in_words(graph: PlanGraph) -> str:
    """Returns a line that names the assumed facts that the bounds rest on, and the options that set them; or ""."""
    facts = "; ".join(f"{noun} (set by {hint})" for noun, hint in assumed_facts(graph))
    return f"Assumed: {facts}. Comments of the topology file give the values." if facts else ""


def rate_in_words(graph: PlanGraph, plan: Plan, over: str = "") -> str:
    """Returns a plan's rate and limit: ``broadcast: 150 GB/s, the best possible. The limit: 150 GB/s lead out of ...``.

    Args:
        over: the links in words, with a space before them.
    """
    name = plan.collective.with_root(plan.root)
    if plan.rate is None or plan.bound is None:
        return f"{name}: nothing to move between GPUs."
    limit = host_limit(graph, plan)
    if limit is not None:
        # The rate of the links comes second, because no call reaches it.
        rate, memory = limit
        cpu = graph.vertices[memory]
        name += (
            f": {float(rate):.5g} GB/s through the memory of {cpu.name}, which every byte of a hop crosses twice. "
            "The links alone would carry"
        )
    else:
        name += ":"
    share = (
        "the best possible" if plan.optimal else f"at most {float(1 - plan.rate / plan.bound):.2%} below the optimum"
    )
    if graph.assumes:
        share += f", on the assumed {' and '.join(noun for noun, _ in assumed_facts(graph))}"
    if plan.stopped_by_clock:
        share += " when the time was up"
    if plan.in_switch is not None and plan.in_switch.cut_bound > plan.bound:
        share += " unless switches add"
    title = "The limit" if limit is None else "The limit of the links"
    return f"{name} {float(plan.rate):.5g} GB/s{over}, {share}. {title}: {limit_in_words(graph, plan)}."


def _in_words(graph: PlanGraph, plan: Plan, more: More) -> str:
    text = rate_in_words(graph, plan)
    if more is not None:
        link, added, value = more
        a, b = own_names(graph, (graph.links[link].src, graph.links[link].dst))
        text += f" One more link {a} - {b} ({float(added):.5g} GB/s each way) would bring {float(value):.5g} GB/s."
    if switched := in_switch_in_words(graph, plan):
        text += f" {switched}"
    return text


def _row(graph: PlanGraph, plan: Plan) -> list[str]:
    if plan.rate is None or plan.bound is None:
        return [plan.collective.value, "", "-", "-", "yes", "0", "0", "nothing to move"]
    proof = type(plan.certificate).__name__.lower()
    return [
        plan.collective.value,
        "" if plan.root is None else str(plan.root),
        gbps(plan.rate),
        "" if plan.bound == plan.rate else gbps(plan.bound),
        "yes" if plan.optimal else f"gap {float(1 - plan.rate / plan.bound):.2%}",
        str(plan.tree_count or f"{len(plan.flows)} flows"),
        str(plan_depth(plan)) if plan.tree_count else "",
        proof,
    ]


def gbps(value: Fraction) -> str:
    """Returns a rate such as ``600/7 = 85.714``; an integer, or a long fraction, is one number."""
    text = str(value)
    if value.denominator == 1:
        return text
    return f"{text} = {float(value):.5g}" if len(text) <= 12 else f"{float(value):.7g}"


def explain_plans(graph: PlanGraph, plans: Sequence[Plan], further: Sequence[More], *, trees: bool, proof: bool) -> str:
    """Returns details of plans.

    Args:
        further: the additional links of `further_links`.
        trees: contain the trees or flows, and the use of every link.
        proof: contain the whole certificates.
    """
    lines: list[str] = []
    for plan, more in zip(plans, further, strict=True):
        if plan.rate is None:
            continue
        if trees or proof:
            lines += ["", *_limits(graph, plan, more)]
        if proof:
            lines += certificate_lines(graph, plan)
        if trees:
            lines += ["", *(_trees(graph, plan) if plan.tree_count else _flows(graph, plan)), "", *_links(graph, plan)]
    return "\n".join(lines)


def trade_text(graph: PlanGraph, rows: Sequence[Trade]) -> str:
    """Returns a row per depth that brings a higher rate or fewer trees."""
    cells = [[str(row.depth), gbps(row.rate), str(row.trees)] for row in rows]
    return f"{graph.name}: at each depth the best rate, and the fewest trees found\n" + table(
        ["depth", "GB/s", "trees"], cells, left=0
    )


def trade_json(rows: Sequence[Trade]) -> list[dict[str, object]]:
    """Returns the rows as JSON."""
    return [{"depth": row.depth, "rate_gbps": str(row.rate), "trees": row.trees} for row in rows]


def _limits(graph: PlanGraph, plan: Plan, more: More) -> list[str]:
    bound = binding(graph, plan)
    assert plan.bound is not None
    proof = type(plan.certificate).__name__.lower()
    lines = [f"{plan.collective.value}: at most {gbps(plan.bound)} GB/s ({proof}), because {bound.text}"]
    if plan.remark:
        lines.append(f"  {plan.remark}")
    lines += _gains(graph, bound)
    if graph.nranks <= _MAX_TREE_RANKS and plan.trees and more is None:
        lines.append("  no single further link brings more: other bounds bind as well")
    switched = in_switch_bound(graph, plan.collective)
    if plan.in_switch is not None:
        lines.append(f"  {in_switch_in_words(graph, plan)}")
    elif switched is not None and switched > plan.bound:
        lines.append(f"  with reduction inside the switches, which no plan here can use, at most {gbps(switched)} GB/s")
    return lines


def certificate_lines(graph: PlanGraph, plan: Plan) -> list[str]:
    """Returns the whole certificate, so that a person can check it."""
    found = plan.certificate
    if isinstance(found, Cut):
        sets = [found.side]
    elif isinstance(found, Partition):
        sets = list(found.parts)
    else:
        assert found is not None
        rows = [[f"{link_name(graph, x)}", compact(graph.links[x].gbps), str(value)] for x, value in found.prices]
        return ["  the bound is the cost of all links at these prices, by that of one GB/s of the collective"] + [
            f"  {line}" for line in table(["link", "GB/s", "price"], rows).split("\n")
        ]
    lines = [f"  set {i}: {' '.join(graph.vertices[v].name for v in side)}" for i, side in enumerate(sets)]
    for link in binding(graph, plan).gain:
        lines.append(f"  {link_name(graph, link)}: {compact(graph.links[link].gbps)} GB/s")
    return lines


def _gains(graph: PlanGraph, bound: Binding) -> list[str]:
    """Returns the gain of one more GB/s on each link, with links of equal gain on one line."""
    by_value: dict[Fraction, list[int]] = {}
    for link, value in bound.gain.items():
        by_value.setdefault(value, []).append(link)
    lines = []
    for value, links in sorted(by_value.items(), reverse=True)[:8]:
        names = [f"{graph.vertices[graph.links[x].src].name}>{graph.vertices[graph.links[x].dst].name}" for x in links]
        shown = " ".join(names[:8]) + (f" ... ({len(names)} links)" if len(names) > 8 else "")
        lines.append(f"  +1 GB/s is worth {compact(value)} GB/s on {shown}")
    return lines


def _trees(graph: PlanGraph, plan: Plan) -> list[str]:
    assert plan.rate is not None
    trees = counted_trees(plan)
    rows = [
        [
            str(i),
            str(tree.root),
            compact(tree.weight),
            f"{float(tree.weight / plan.rate):.1%}",
            str(tree.depth),
            _tree(graph, tree) + (f", and {count - 1} images of it" if count > 1 else ""),
        ]
        for i, (tree, count) in enumerate(trees[:_MAX_ROWS])
    ]
    text = _beside(table(["tree", "root", "GB/s", "share", "depth"], [r[:5] for r in rows], left=0), rows, "edges")
    more = len(trees) - _MAX_ROWS
    tail = [f"... and {more} more"] if more > 0 else []
    counts: dict[int, int] = {}
    for tree, count in trees:
        counts[tree.depth] = counts.get(tree.depth, 0) + count
    depths = ", ".join(f"{count} of depth {depth}" for depth, count in sorted(counts.items()))
    return [*text, *tail, f"{depths}; weights are multiples of rate/{common_denominator(plan)}"]


def _beside(text: str, rows: Sequence[Sequence[str]], title: str) -> list[str]:
    """Returns the lines of a table, with the last cell of each row, of any length, at the end of its line."""
    head, *lines = text.split("\n")
    return [f"{head}  {title}", *(f"{line}  {row[-1]}" for line, row in zip(lines, rows, strict=True))]


def _tree(graph: PlanGraph, tree: Tree) -> str:
    return describe_tree(graph, tree) if graph.nranks <= _MAX_TREE_RANKS else "(in --json)"


def _flows(graph: PlanGraph, plan: Plan) -> list[str]:
    rows = [[str(f.src), str(f.dst), compact(f.weight), _way(graph, f)] for f in plan.flows[:_MAX_ROWS]]
    lines = _beside(table(["from", "to", "GB/s"], [r[:3] for r in rows], left=0), rows, "path")
    more = len(plan.flows) - _MAX_ROWS
    return lines + ([f"... and {more} more"] if more > 0 else [])


def _way(graph: PlanGraph, flow: Flow) -> str:
    return " > ".join([graph.vertices[flow.src].name, *(graph.vertices[graph.links[x].dst].name for x in flow.links)])


def _links(graph: PlanGraph, plan: Plan) -> list[str]:
    load = link_loads(graph, plan)
    price = dict(plan.certificate.prices) if isinstance(plan.certificate, Prices) else {}
    full = sum(1 for link in graph.links if load[link.id] == link.gbps)
    lines = [f"{full} of {len(graph.links)} links are full"]
    rows = [
        [
            f"{graph.vertices[link.src].name} > {graph.vertices[link.dst].name}",
            compact(link.gbps),
            compact(load[link.id]),
            f"{float(load[link.id] / link.gbps):.0%}",
            compact(price[link.id]) if link.id in price else "",
        ]
        for link in graph.links[:_MAX_ROWS]
    ]
    lines += table(["link", "GB/s", "used", "use", "price"], rows).split("\n")
    more = len(graph.links) - _MAX_ROWS
    return lines + ([f"... and {more} more"] if more > 0 else [])
