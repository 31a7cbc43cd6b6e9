"""Phrases for a server's differences: ``no NIC mlx5_3``, ``nvlink gpu2-gpu5 has 1 of 2 lanes (25 of 50 GB/s)``."""

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
    """Returns phrases for vertices that a server lacks or adds, NICs that are down or slow, and names that differ.

    Args:
        gone: vertices of the template that the server lacks.
        added: vertices that only the server has.
        own, model: name -> vertex, of the server and of the template.
        real: names in the file -> the server's own names, where the two differ.
    """
    words = [f"no {_NOUNS[v.kind]} {v.name}" for v in gone]
    for kind in (VertexKind.GPU, VertexKind.NIC):
        new_names = {new: old for new, old in real.items() if new in own and own[new].kind is kind}
        if new_names:
            pairs = ", ".join(f"{new} is {old}" for new, old in list(new_names.items())[:3])
            more = f" and {len(new_names) - 3} more" if len(new_names) > 3 else ""
            words[-1:] = (
                [f"{words[-1]} (its own numbers there: {pairs}{more})"] if words else [f"its own numbers: {pairs}"]
            )
    for name, vertex in own.items():
        expected = model.get(name)
        if vertex.port is None or expected is None or expected.port is None:
            continue
        if expected.port.up and not vertex.port.up:
            words.append(f"NIC {name} is down")
        elif vertex.port.gbps != expected.port.gbps and vertex.port.gbps and expected.port.gbps:
            words.append(f"NIC {name} runs at {text(vertex.port.gbps)} of {text(expected.port.gbps)} GB/s")
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
    """Returns phrases for links that a server lacks, that differ in speed, or that only this server has.

    Args:
        gone: links of the template that the server lacks, both directions.
        changed: links of the server that the template lacks or has at another speed.
        want: the template's links.
        added: vertices that only the server has; their links need no phrases.
        template, machine: the topologies of the kind and of the server.
    """
    words = [f"no {link.kind.value} {_ends(link)}" for link in _once(gone)]
    for link in _once(changed):
        expected = want.get((link.src, link.dst, link.kind))
        if expected is None:
            if not {link.src, link.dst} & added:
                words.append(f"{link.kind.value} {_ends(link)}, which the others do not have")
        elif expected.gbps != link.gbps:
            speeds = f"{text(link.gbps)} of {text(expected.gbps)} GB/s"
            lane = _lane(link.kind, template, machine) if link.kind in _LANES else None
            have, all_of = (link.gbps / lane, expected.gbps / lane) if lane else (Fraction(1, 2), Fraction(1))
            is_whole = have.denominator == all_of.denominator == 1
            lanes = f"{have} of {all_of} lanes ({speeds})" if is_whole else speeds
            words.append(f"{link.kind.value} {_ends(link)} has {lanes}")
    return words


def _once(links: Iterable[Link]) -> list[Link]:
    """Returns one direction of each link: the first in the order of `links`."""
    return list({(frozenset((k.src, k.dst)), k.kind): k for k in reversed(list(links))}.values())[::-1]


def _ends(link: Link) -> str:
    return f"{link.src}-{link.dst}"


def _lane(kind: LinkKind, *machines: Topology) -> Fraction:
    """Returns the GB/s of one lane of a kind of link.

    It is the lane speed of the GPU model if all speeds are multiples of it; else the lane speed that the links with
    several lanes agree on, under the same condition; else the largest speed that divides the speeds of all links.
    """
    lane_speeds = {k.gbps / k.lanes for machine in machines for k in machine.links if k.kind is kind and k.lanes > 1}
    speeds = [k.gbps for machine in machines for k in machine.links if k.kind is kind]
    gpu_model = find_model(machines[0].gpu_model or "")
    if gpu_model and gpu_model.gbps and all((gbps / gpu_model.gbps).denominator == 1 for gbps in speeds):
        return gpu_model.gbps
    if len(lane_speeds) == 1 and all((gbps / min(lane_speeds)).denominator == 1 for gbps in speeds):
        return min(lane_speeds)
    divisor = speeds[0]
    for gbps in speeds[1:]:
        scale = divisor.denominator * gbps.denominator
        divisor = Fraction(gcd(int(divisor * scale), int(gbps * scale)), scale)
    return divisor


def text(gbps: Fraction) -> str:
    """Returns GB/s for people."""
    return f"{float(gbps):g}"
