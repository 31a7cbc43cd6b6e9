"""Makes the page's notes on a plan: the use of every link, and the limit of the rate as text and by link."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from collc.packing.document import PlanFile, to_json
from collc.packing.explain import binding, in_switch_bound, link_loads, plan_depth
from collc.packing.limit_text import in_switch_in_words
from collc.packing.model import Cut, Partition, Plan
from collc.show.style import both
from collc.topology.model import PlanGraph

# The most hops of a page. If plans have more, only the heaviest trees are listed. Sums always include all.
MOST_HOPS = 200_000


def plan_view(file: PlanFile) -> dict[str, Any]:
    """Returns the document of `collc plan --json` with a note for each of its plans."""
    document = to_json(file)
    notes = []
    for made, shown in zip(file.plans, document["plans"], strict=True):
        note = plan_note(file.graph, made)
        note["left_out"] = _shorten(shown, MOST_HOPS // max(1, len(file.plans)))
        notes.append(note)
    return {"document": document, "notes": notes}


def plan_note(graph: PlanGraph, made: Plan) -> dict[str, Any]:
    """Returns the note of a plan.

    `loads` has the GB/s of each link, `gain` the increase of the bound per GB/s on each limiting link, `words`
    sentences about both, and `sides` the names of vertices of the certificate's cut, or of the parts of its partition.
    """
    if made.rate is None or made.bound is None or made.certificate is None:
        return {"loads": {}, "gain": {}, "words": ["One GPU has nothing to move."], "sides": []}
    loads = link_loads(graph, made)
    limit = binding(graph, made)
    names = [v.name for v in graph.vertices]
    sides: list[list[str]] = []
    if isinstance(made.certificate, Cut):
        sides = [[names[v] for v in made.certificate.side]]
    elif isinstance(made.certificate, Partition):
        sides = [[names[v] for v in part] for part in made.certificate.parts]
    return {
        "loads": {str(i): str(load) for i, load in enumerate(loads) if load},
        "gain": {str(i): str(value) for i, value in limit.gain.items()},
        "words": _words(graph, made, loads, limit.text, limit.gain),
        "sides": sides,
    }


def _words(graph: PlanGraph, made: Plan, loads: list[Fraction], why: str, gain: dict[int, Fraction]) -> list[str]:
    assert made.rate is not None
    assert made.bound is not None
    root = "" if made.root is None else f" from {graph.vertices[made.root].name}"
    if made.root is not None and made.collective.inward:
        root = f" to {graph.vertices[made.root].name}"
    words = [f"{made.collective.value}{root} runs at {both(made.rate)} GB/s of the buffer."]
    if made.optimal:
        words.append("That is optimal: the certificate proves that no schedule of its kind is faster.")
    else:
        words.append(
            f"The bound is {both(made.bound)} GB/s; the plan reaches {float(made.rate / made.bound):.1%} of it."
        )
    words.append(f"What limits it: {_reason(made, why)}")
    best = max(gain.values(), default=Fraction(0))
    if best:
        many = sum(value == best for value in gain.values())
        where = "the one link" if many == 1 else f"any of the {many} links"
        words.append(
            f"One more GB/s on {where} marked as limits raises the bound by at most {both(best)} GB/s; other bounds "
            "may then bind."
        )
    full = sum(loads[x.id] == x.gbps for x in graph.links)
    idle = sum(not loads[x.id] for x in graph.links)
    words.append(f"{full} of {len(graph.links)} links are full, {idle} idle.")
    if made.tree_count:
        words.append(f"{_counted(made.tree_count, 'tree')}, the deepest of {_counted(plan_depth(made), 'hop')}.")
    elif made.flows:
        words.append(f"{_counted(len(made.flows), 'flow')} over paths of at most {_counted(plan_depth(made), 'link')}.")
    switched = in_switch_bound(graph, made.collective) if graph.nranks <= 256 else None
    if made.in_switch is not None:
        words.append(in_switch_in_words(graph, made))
    elif switched is not None and switched > made.bound:
        words.append(f"Reduction inside the switches, which no plan here can use, could bring {both(switched)} GB/s.")
    if made.remark:
        words.append(made.remark)
    return words


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _reason(made: Plan, why: str) -> str:
    """Returns the argument of the certificate, with the numbers of its bound."""
    bound = both(made.bound or Fraction(0))
    if isinstance(made.certificate, Partition):
        parts = len(made.certificate.parts)
        if parts > 4:
            alone = all(len(part) == 1 for part in made.certificate.parts)
            why = why.partition(":")[0] + (", each GPU alone" if alone else "")
        crossings = 2 * (parts - 1)
        return (
            f"{why}. Every byte crosses between the parts at least 2 x ({parts} - 1) = {crossings} times, once up and "
            f"once down, so at most {bound} GB/s fit."
        )
    if isinstance(made.certificate, Cut):
        return f"{why}, and at most {bound} GB/s of the buffer fit through."
    return f"{why}: at these prices all links together are worth no more than {bound} GB/s."


def _shorten(shown: dict[str, Any], most: int) -> int:
    """Keeps the heaviest trees or flows of a plan's JSON that fit into a page. Returns the number of removed ones."""
    key = "flows" if "flows" in shown else "trees"
    rows = shown[key]
    if key == "flows":
        sizes = [len(row[3]) for row in rows]
        heavy = sorted(range(len(rows)), key=lambda i: (-Fraction(rows[i][2]), i))
    else:
        sizes = [sum(len(hop[2]) for phase in ("reduce", "broadcast") for hop in row.get(phase, ())) for row in rows]
        heavy = sorted(range(len(rows)), key=lambda i: (-Fraction(rows[i]["weight_gbps"]), i))
    if sum(sizes) <= most:
        return 0
    kept: list[int] = []
    room = most
    for i in heavy:
        if room < sizes[i] and kept:
            break
        room -= sizes[i]
        kept.append(i)
    shown[key] = [rows[i] for i in sorted(kept)]
    return len(rows) - len(kept)
