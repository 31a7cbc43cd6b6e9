"""Makes pictures for a terminal: a machine as a tree, the loads of a plan as a matrix, its trees as outlines."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from collc.packing.document import PlanFile
from collc.packing.explain import binding, counted_trees, link_loads
from collc.packing.model import Plan, Tree
from collc.show.drawing import Drawing
from collc.show.plans import plan_note
from collc.show.style import number, use_step
from collc.topology.model import PlanGraph, VertexKind

# A matrix with more columns does not fit in a terminal, so links are listed instead.
MOST_COLUMNS = 18
MOST_LINES = 40
MOST_TREES = 8
# One character for each index of `use_step`, except full.
_SHADES = " ░▒▓█"


def machine_text(drawing: Drawing) -> str:
    """Returns the text of a machine: the tree of each kind of server, then the links between GPUs and switches."""
    gpus = sum(v.kind is VertexKind.GPU for v in drawing.vertices)
    lines = [f"{drawing.name}: {_counted(gpus, 'GPU')} in {_counted(len(drawing.servers), 'server')}"]
    for names, members in _alike(drawing):
        head = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}: {len(names)} servers alike"
        lines += ["", head, *_tree_of(drawing, members, names[0])]
    outside = sorted(drawing.outside)
    if outside:
        shown = ", ".join(drawing.vertices[v].name for v in outside[:12]) + (", ..." if len(outside) > 12 else "")
        lines += ["", f"between the servers: {shown}"]
    return "\n".join([*lines, "", *_speeds(drawing)])


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _alike(drawing: Drawing) -> list[tuple[list[str], tuple[int, ...]]]:
    """Returns classes of servers with equal parts and links inside: their names, and the members of the first."""
    place = {v: (server, i) for server, members in drawing.servers.items() for i, v in enumerate(members)}
    inner: dict[str, list[tuple[int, int, str, Fraction]]] = {server: [] for server in drawing.servers}
    for a, b, kind, gbps in drawing.links:
        if a in place and b in place and place[a][0] == place[b][0]:
            inner[place[a][0]].append((place[a][1], place[b][1], kind.value, gbps))
    found: dict[object, tuple[list[str], tuple[int, ...]]] = {}
    for server, members in drawing.servers.items():
        labels = tuple((drawing.label(v, server), drawing.vertices[v].kind) for v in members)
        found.setdefault((labels, tuple(inner[server])), ([], members))[0].append(server)
    return list(found.values())


def _tree_of(drawing: Drawing, members: Sequence[int], server: str) -> list[str]:
    """Returns the lines of a tree from the sockets down, then the parts that it does not reach."""
    inside = set(members)
    near: dict[int, list[tuple[int, str, Fraction]]] = {v: [] for v in members}
    for a, b, kind, gbps in drawing.links:
        if a in inside and b in inside:
            near[a].append((b, kind.value, gbps))
    kinds = {v: drawing.vertices[v].kind for v in members}
    seen: set[int] = set()
    lines: list[str] = []

    def walk(v: int, lead: str, last: bool, way: str) -> None:
        seen.add(v)
        lines.append(f"{lead}{'└─ ' if last else '├─ '}{drawing.label(v, server)}{way}")
        if kinds[v] in (VertexKind.GPU, VertexKind.NIC):
            return
        below = [(w, k, g) for w, k, g in near[v] if w not in seen and kinds[w] is not VertexKind.CPU]
        for i, (w, kind, gbps) in enumerate(below):
            if w not in seen:
                walk(w, lead + ("   " if last else "│  "), i == len(below) - 1, f"  {kind} {number(gbps)}")

    roots = [v for v in members if kinds[v] is VertexKind.CPU] or [
        v for v in members if kinds[v] is VertexKind.SWITCH and len(near[v]) > 1
    ]
    for i, root in enumerate(roots):
        walk(root, "", i == len(roots) - 1, "")
    rest = [v for v in members if v not in seen]
    if rest:
        lines.append("   " + ", ".join(drawing.label(v, server) for v in rest))
    return lines


def _speeds(drawing: Drawing) -> list[str]:
    """Returns a matrix of GB/s between GPUs, or a list of links if there are no direct ones or too many GPUs."""
    fast = [v for v, vertex in enumerate(drawing.vertices) if vertex.kind is VertexKind.GPU]
    direct = {(a, b): (kind, gbps) for a, b, kind, gbps in drawing.links if a in set(fast) and b in set(fast)}
    if direct and len(fast) <= MOST_COLUMNS:
        cells = {pair: number(gbps) for pair, (_, gbps) in direct.items()}
        return ["GB/s each way between GPUs:", *_matrix([drawing.vertices[v].name for v in fast], fast, cells)]
    kinds: dict[tuple[str, Fraction], int] = {}
    for _, _, kind, gbps in drawing.links:
        kinds[kind.value, gbps] = kinds.get((kind.value, gbps), 0) + 1
    return [f"{count} directed links of {kind} with {number(gbps)} GB/s" for (kind, gbps), count in kinds.items()]


def _matrix(names: Sequence[str], vertices: Sequence[int], cells: dict[tuple[int, int], str]) -> list[str]:
    wide = max([len(name) for name in names] + [len(cell) for cell in cells.values()]) + 1
    lines = [" " * wide + "".join(name.rjust(wide) for name in names)]
    for a, name in zip(vertices, names, strict=True):
        row = "".join(("·" if a == b else cells.get((a, b), "")).rjust(wide) for b in vertices)
        lines.append(name.ljust(wide) + row.rstrip())
    return lines


def plans_text(document: PlanFile) -> str:
    """Returns the text of each plan: its rate and limit, the use of every link, its heaviest trees."""
    parts = []
    for made in document.plans:
        lines = plan_note(document.graph, made)["words"]
        lines = [lines[0], *(f"  {line}" for line in lines[1:])]
        if made.rate is not None:
            lines += ["", *_loads(document.graph, made), *_outlines(document.graph, made)]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _loads(graph: PlanGraph, made: Plan) -> list[str]:
    loads, gain = link_loads(graph, made), binding(graph, made).gain
    names = [v.name for v in graph.vertices]
    legend = "use of the links: ░ up to 25%, ▒ 50%, ▓ 75%, █ below 100%, FULL; * limits the rate"
    if len(names) <= MOST_COLUMNS and len({(x.src, x.dst) for x in graph.links}) == len(graph.links):
        cells = {(x.src, x.dst): _use(loads[x.id] / x.gbps) + ("*" if x.id in gain else "") for x in graph.links}
        return [f"{legend} (row sends to column)", *_matrix(names, range(len(names)), cells)]
    order = sorted(graph.links, key=lambda x: (x.id not in gain, -(loads[x.id] / x.gbps), x.id))
    lines = []
    for x in order[:MOST_LINES]:
        star = " *" if x.id in gain else ""
        lines.append(f"  {names[x.src]} > {names[x.dst]}  {number(loads[x.id])} of {number(x.gbps)} GB/s{star}")
    more = len(order) - len(lines)
    return ["load of the links; * limits the rate", *lines, *([f"  and {more} more"] if more else [])]


def _use(share: Fraction) -> str:
    step = use_step(float(share))
    return "FULL" if step == 5 else _SHADES[step] * 3 if step else "-"


def _outlines(graph: PlanGraph, made: Plan) -> list[str]:
    """Returns the heaviest trees, with children below their parents."""
    trees = sorted(counted_trees(made), key=lambda pair: -pair[0].weight * pair[1])
    lines: list[str] = []
    for tree, count in trees[:MOST_TREES]:
        alike = f", one of {count} alike" if count > 1 else ""
        lines += ["", f"tree of {number(tree.weight)} GB/s{alike}", *_outline(graph, tree)]
    more = len(trees) - MOST_TREES
    return [*lines, "", f"and {more} more trees"] if more > 0 else lines


def _outline(graph: PlanGraph, tree: Tree) -> list[str]:
    hops = [(h.src, h.dst) for h in tree.broadcast] or [(h.dst, h.src) for h in tree.reduce]
    below: dict[int, list[int]] = {}
    for parent, child in hops:
        below.setdefault(parent, []).append(child)
    lines = [graph.vertices[tree.root].name]

    def walk(v: int, lead: str) -> None:
        children = sorted(below.get(v, ()))
        for i, child in enumerate(children):
            if len(lines) > MOST_LINES:
                return
            last = i == len(children) - 1
            lines.append(f"{lead}{'└─ ' if last else '├─ '}{graph.vertices[child].name}")
            walk(child, lead + ("   " if last else "│  "))

    walk(tree.root, "")
    return lines[:MOST_LINES] + ([f"   and {len(hops) + 1 - MOST_LINES} more"] if len(hops) >= MOST_LINES else [])
