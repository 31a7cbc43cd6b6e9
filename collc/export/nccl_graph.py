"""Writes and reads NCCL's graph file (NCCL_GRAPH_FILE), which has rings and chains of one server, by NCCL's rules.

Source: NVIDIA/nccl, src/graph/search.cc (ncclTopoGetGraphFromXml, ncclTopoGetChannelFromXml), src/graph/xml.cc and
src/init.cc (ring and tree get the smaller number of channels of the two).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from collc.errors import TopologyError
from collc.export.orders import MAX_CHANNELS, Orders
from collc.topology.model import LinkKind, PlanGraph, VertexKind
from collc.topology.probe.xmltree import Element, parse_xml

VERSION = "1"
RING, TREE = 0, 1
# NCCL's patterns: a ring, and a tree that is a chain inside a server, with one GPU for the network's traffic.
_PATTERNS = {RING: 4, TREE: 3}
_TYPES = ("LOC", "NVL", "NVB", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
_NUMBERS = ("id", "pattern", "crossnic", "nchannels", "samechannels")
_SPEEDS = ("speedintra", "speedinter")


@dataclass(frozen=True)
class Channels:
    """A graph of a file: its channels as device numbers, and the GB/s of each channel."""

    id: int
    pattern: int
    gbps: Fraction
    type: str
    channels: tuple[tuple[int, ...], ...]


def device_numbers(graph: PlanGraph) -> list[int]:
    """Returns the number of each rank's GPU in nvidia-smi, which is the number at the end of its name.

    Raises:
        TopologyError: the GPUs are on several servers, or their names do not end in different numbers.
    """
    if graph.nservers > 1:
        hint = "choose the GPUs of one server with --gpus"
        raise TopologyError("a graph file is about one server", where=graph.name, hint=hint)
    found = [re.search("[0-9]{1,3}$", graph.vertices[rank].name) for rank in graph.ranks]
    numbers = [int(match[0]) for match in found if match]
    if len(set(numbers)) != graph.nranks:
        what = "the names of the GPUs do not end in the numbers that nvidia-smi gives them"
        raise TopologyError(what, where=graph.name, hint="call them gpu0, gpu1, ...")
    return numbers


def write_graphs(graph: PlanGraph, rings: Orders, chains: Orders | None) -> str:
    """Returns the text of a graph file. Without chains, NCCL searches for its trees itself.

    Raises:
        TopologyError: as for `device_numbers`.
    """
    numbers = device_numbers(graph)
    lines = [f'<graphs version="{VERSION}">']
    for number, orders in ((RING, rings), (TREE, chains)):
        if orders is None:
            continue
        speed = f"{float(orders.gbps):.6g}"
        kind = _path_type(graph)
        lines.append(
            f'  <graph id="{number}" pattern="{_PATTERNS[number]}" crossnic="0" nchannels="{len(orders.channels)}" '
            f'speedintra="{speed}" speedinter="{speed}" latencyinter="0" typeintra="{kind}" typeinter="PIX" '
            'samechannels="0">'
        )
        for channel in orders.channels:
            # NCCL reads device numbers as hexadecimal numbers.
            gpus = "".join(f'<gpu dev="{numbers[rank]:#x}"/>' for rank in channel)
            lines.append(f"    <channel>{gpus}</channel>")
        lines.append("  </graph>")
    return "\n".join([*lines, "</graphs>"]) + "\n"


def _path_type(graph: PlanGraph) -> str:
    """Returns NCCL's name for the longest path that a hop may take on these links."""
    kinds = {link.kind for link in graph.links}
    if kinds <= {LinkKind.NVLINK, LinkKind.NVSWITCH, LinkKind.XGMI}:
        return "NVL"
    cpus = sum(v.kind is VertexKind.CPU for v in graph.vertices)
    return "SYS" if cpus > 1 else "PHB" if cpus else "PXB"


def read_graphs(text: str, where: str) -> dict[int, Channels]:
    """Returns the graphs of a file by id.

    Args:
        where: the name of the file, for errors.

    Raises:
        TopologyError: NCCL would reject or misread the file. The error names the line.
    """
    root = parse_xml(text, where)
    if root.tag != "graphs":
        raise TopologyError(f"the outermost element is <{root.tag[:30]}>, not <graphs>", where=f"{where}:{root.line}")
    if root.get("version") != VERSION:
        raise TopologyError(f"version {root.get('version')[:20]!r}, not {VERSION}", where=f"{where}:{root.line}")
    found: dict[int, Channels] = {}
    for element in root.children:
        graph = _graph(element, where)
        if graph.id in found:
            raise TopologyError(f"a second graph {graph.id}", where=f"{where}:{element.line}")
        found[graph.id] = graph
    return found


def _graph(element: Element, where: str) -> Channels:
    at = f"{where}:{element.line}"
    if element.tag != "graph":
        raise TopologyError(f"<{element.tag[:30]}> in place of a graph", where=at)
    for key in _NUMBERS:
        if not re.fullmatch("[0-9]{1,4}", element.get(key)):
            raise TopologyError(f"`{key}` is {element.get(key)[:20]!r}, not a number", where=at)
    for key in _SPEEDS:
        if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", element.get(key)):
            raise TopologyError(f"`{key}` is {element.get(key)[:20]!r}, not GB/s", where=at)
    for key in ("typeintra", "typeinter"):
        if element.get(key) not in _TYPES:
            raise TopologyError(f"`{key}` is {element.get(key)[:20]!r}, none of NCCL's types", where=at)
    channels = tuple(_channel(child, where) for child in element.children)
    number = int(element.get("id"))
    if len(channels) != int(element.get("nchannels")):
        told = element.get("nchannels")
        raise TopologyError(f"graph {number} tells {told} channels and has {len(channels)}", where=at)
    if not 0 < len(channels) <= MAX_CHANNELS:
        raise TopologyError(f"{len(channels)} channels, 1 to {MAX_CHANNELS} are possible", where=at)
    sets = {frozenset(channel) for channel in channels}
    # The graph of NVLS lists only the head of each channel.
    if number != 3 and (len(sets) > 1 or any(len(set(channel)) != len(channel) for channel in channels)):
        raise TopologyError(f"channels of graph {number} do not visit the same GPUs once each", where=at)
    speed = Fraction(element.get("speedintra"))
    return Channels(number, int(element.get("pattern")), speed, element.get("typeintra"), channels)


def _channel(element: Element, where: str) -> tuple[int, ...]:
    if element.tag != "channel":
        raise TopologyError(f"<{element.tag[:30]}> in place of a channel", where=f"{where}:{element.line}")
    found = []
    for child in element.children:
        at = f"{where}:{child.line}"
        if child.tag != "gpu":
            raise TopologyError(f"<{child.tag[:30]}> in a channel: files for several servers are not read", where=at)
        if not re.fullmatch("(0x)?[0-9a-fA-F]{1,4}", child.get("dev")):
            raise TopologyError(f"`dev` is {child.get('dev')[:20]!r}, not a hexadecimal number", where=at)
        found.append(int(child.get("dev"), 16))
    return tuple(found)
