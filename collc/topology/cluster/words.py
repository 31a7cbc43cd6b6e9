"""What a server lacks, in words: ``no NIC mlx5_3``, ``nvlink gpu2-gpu5 has 1 of 2 lanes (25 of 50 GB/s)``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from math import gcd

from collc.topology.model import Link, LinkKind, Topology, Vertex, VertexKind
from collc.topology.probe.models import find_model

_NOUNS = {VertexKind.GPU: "GPU", VertexKind.NIC: "NIC", VertexKind.SWITCH: "switch", VertexKind.CPU: "CPU"}
_LANES = (LinkKind.NVLINK, LinkKind.NVSWITCH, LinkKind.XGMI, LinkKind.C2C)


def vertex_words(
    gone: Sequence[Vertex],
    added: Sequence[Vertex],
    own: Mapping[str, Vertex],
    model: Mapping[str, Vertex],
    real: Mapping[str, str],
) -> list[str]:
    """Vertices that a server lacks or has beyond the template, NICs that are down or slow, and numbers that moved.

    Args:
        own, model: name -> vertex, of the server and of the template.
        real: names of the file -> the server's own names, where these differ.
    """
    words = [f"no {_NOUNS[v.kind]} {v.name}" for v in gone]
    for kind in (VertexKind.GPU, VertexKind.NIC):
        moved = {new: old for new, old in real.items() if new in own and own[new].kind is kind}
        if moved:
            shown = ", ".join(f"{new} is {old}" for new, old in list(moved.items())[:3])
            more = f" and {len(moved) - 3} more" if len(moved) > 3 else ""
            words[-1:] = (
                [f"{words[-1]} (its own numbers there: {shown}{more})"] if words else [f"its own numbers: {shown}"]
            )
    for name, vertex in own.items():
        like = model.get(name)
        if vertex.port is None or like is None or like.port is None:
            continue
        if like.port.up and not vertex.port.up:
            words.append(f"NIC {name} is down")
        elif vertex.port.gbps != like.port.gbps and vertex.port.gbps and like.port.gbps:
            words.append(f"NIC {name} runs at {text(vertex.port.gbps)} of {text(like.port.gbps)} GB/s")
    words += [f"{_NOUNS[v.kind]} {v.name}, which the others do not have" for v in added]
    return words


def link_words(
    gone: Iterable[Link],
    changed: Iterable[Link],
    want: Mapping[tuple[str, str, LinkKind], Link],
    added: set[str],
    template: Topology,
    machine: Topology,
) -> list[str]:
    """Links that a server lacks, that are slower or faster than the template's, or that it alone has.

    Args:
        gone: links of the template that the server lacks, both directions.
        changed: links of the server that the template lacks or has at another speed.
        want: the template's links.
        added: vertices that the server alone has; their links need no words.
    """
    words = [f"no {link.kind.value} {_ends(link)}" for link in _once(gone)]
    for link in _once(changed):
        like = want.get((link.src, link.dst, link.kind))
        if like is None:
            if not {link.src, link.dst} & added:
                words.append(f"{link.kind.value} {_ends(link)}, which the others do not have")
        elif like.gbps != link.gbps:
            speeds = f"{text(link.gbps)} of {text(like.gbps)} GB/s"
            lane = _lane(link.kind, template, machine) if link.kind in _LANES else None
            have, all_of = (link.gbps / lane, like.gbps / lane) if lane else (Fraction(1, 2), Fraction(1))
            whole = have.denominator == all_of.denominator == 1
            lanes = f"{have} of {all_of} lanes ({speeds})" if whole else speeds
            words.append(f"{link.kind.value} {_ends(link)} has {lanes}")
    return words


def _once(links: Iterable[Link]) -> list[Link]:
    """One of both directions."""
    return list({(frozenset((k.src, k.dst)), k.kind): k for k in reversed(list(links))}.values())[::-1]


def _ends(link: Link) -> str:
    return f"{link.src}-{link.dst}"


def _lane(kind: LinkKind, *machines: Topology) -> Fraction:
    """GB/s of one lane: as the GPU model has, else the largest speed that divides all links of the kind."""
    told = {k.gbps / k.lanes for machine in machines for k in machine.links if k.kind is kind and k.lanes > 1}
    speeds = [k.gbps for machine in machines for k in machine.links if k.kind is kind]
    known = find_model(machines[0].gpu_model or "")
    if known and known.gbps and all((gbps / known.gbps).denominator == 1 for gbps in speeds):
        return known.gbps
    if len(told) == 1 and all((gbps / min(told)).denominator == 1 for gbps in speeds):
        return min(told)
    found = speeds[0]
    for gbps in speeds[1:]:
        scale = found.denominator * gbps.denominator
        found = Fraction(gcd(int(found * scale), int(gbps * scale)), scale)
    return found


def text(gbps: Fraction) -> str:
    """GB/s for people."""
    return f"{float(gbps):g}"
