"""Writes a `Topology` as YAML in the long form, which other tools read too. `load` returns an equal topology."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from collc.errors import TopologyError
from collc.topology.fields import MAX_LANES
from collc.topology.model import Device, Link, LinkKind, Topology, Vertex, VertexKind
from collc.topology.names import MAX_GBPS, decimal_text

_LISTS = {VertexKind.SWITCH: "switches", VertexKind.CPU: "cpus", VertexKind.NIC: "nics"}
_WIDTH = 118


def dumps_topology(topology: Topology) -> str:
    """Returns the topology as the text of a file; its notes are comments at the top.

    Raises:
        TopologyError: a speed has no exact decimal text (1/3 GB/s).
    """
    lines = [f"# {comment(note)}".rstrip() for note in topology.notes]
    lines += ["format: collc-topology/1", f"name: {word(topology.name)}"]
    lines += assumes_lines(topology.assumes)
    lines += vertex_lines(topology.vertices, topology.gpu_model)
    everything = {v.name for v in topology.vertices}
    if list(topology.servers) != ["server0"] or set(topology.servers["server0"]) != everything:
        lines.append("servers:")
        for server, names in topology.servers.items():
            lines += name_list(f"  {word(server)}: ", [word(name) for name in names])
    if topology.links:
        lines.append("links:")
        lines += link_lines(topology.links)
    return "\n".join(lines) + "\n"


def dumps_links(topology: Topology) -> str:
    """Returns vertices and links, one per line, with exact speeds (`600/7`). The runtime reads it (COLLC_TOPOLOGY)."""
    lines = ["collc-links/1", *(f"{v.kind.value} {v.name}" for v in topology.vertices)]
    lines += [f"link {k.src} {k.dst} {k.kind.value} {k.gbps}" for k in topology.links]
    return "\n".join(lines) + "\n"


def assumes_lines(kinds: Sequence[LinkKind]) -> list[str]:
    """Returns the line of the key `assumes`; none without assumptions."""
    return [f"assumes: [{', '.join(kind.value for kind in kinds)}]"] if kinds else []


def vertex_lines(vertices: Sequence[Vertex], gpu_model: str | None) -> list[str]:
    """Returns the lines of the keys `gpu_model`, `gpus`, `switches`, `cpus`, `nics` and `devices`.

    Raises:
        TopologyError: a speed has no exact decimal text.
    """
    lines = [] if gpu_model is None else [f"gpu_model: {_quoted(gpu_model)}"]
    gpus = [v.name for v in vertices if v.kind is VertexKind.GPU]
    counted = gpus == [f"gpu{i}" for i in range(len(gpus))]
    if gpus:
        lines += [f"gpus: {len(gpus)}"] if counted else name_list("gpus: ", [word(name) for name in gpus])
    for kind, key in _LISTS.items():
        members = [_vertex(v) for v in vertices if v.kind is kind]
        if members:
            lines += name_list(f"{key}: ", members)
    devices = [f"  {word(v.name)}: {{{_device(v.device)}}}" for v in vertices if v.device and v.device != Device()]
    return [*lines, "devices:", *devices] if devices else lines


def _device(device: Device) -> str:
    pci = f'pci: "{device.pci}"' if device.pci else ""
    return ", ".join(filter(None, (pci, f"uuid: {device.uuid}" if device.uuid else "")))


def link_lines(links: Sequence[Link]) -> list[str]:
    """Returns the entries of `links`: one line per link, or per two consecutive links that differ only in direction.

    Raises:
        TopologyError: a speed has no exact decimal text.
    """
    lines = []
    i = 0
    while i < len(links):
        link = links[i]
        back = links[i + 1] if i + 1 < len(links) else None
        both = back == Link(link.dst, link.src, link.kind, link.gbps, link.latency_us) and back.lanes == link.lanes
        lines.append(_link(link, both))
        i += 2 if both else 1
    return lines


def _link(link: Link, both: bool) -> str:
    src, dst = word(link.src), word(link.dst)
    ends = f"between: [{src}, {dst}]" if both else f"from: {src}, to: {dst}"
    # `gbps` is per lane and has an upper limit that only a sum over lanes can pass.
    lanes = MAX_LANES if link.gbps > MAX_GBPS else link.lanes if decimal_text(link.gbps / link.lanes) else 1
    speed = f"gbps: {_decimal(link.gbps / lanes, link)}" + (f", count: {lanes}" if lanes > 1 else "")
    latency = f", latency_us: {_decimal(link.latency_us, link)}" if link.latency_us else ""
    return f"  - {{{ends}, kind: {link.kind.value}, {speed}{latency}}}"


def _decimal(value: Fraction, link: Link) -> str:
    text = decimal_text(value)
    if text is None:
        raise TopologyError(f"{value} cannot be written as a decimal number", where=f"link {link.src} -> {link.dst}")
    return text


def _vertex(vertex: Vertex) -> str:
    flags = [f"{flag}: true" for flag, is_set in (("multicast", vertex.multicast), ("reduce", vertex.reduce)) if is_set]
    if vertex.domain is not None:
        flags.append(f'domain: "{vertex.domain}"')
    if vertex.memory_gbps is not None:
        memory = decimal_text(vertex.memory_gbps)
        if memory is None:
            problem = f"{vertex.memory_gbps} cannot be written as a decimal number"
            raise TopologyError(problem, where=f"cpu {vertex.name}")
        flags.append(f"memory_gbps: {memory}")
    if vertex.port is not None:
        port = vertex.port
        if port.gbps is not None:
            gbps = decimal_text(port.gbps)
            if gbps is None:
                raise TopologyError(f"{port.gbps} cannot be written as a decimal number", where=f"nic {vertex.name}")
            flags.append(f"gbps: {gbps}")
        flags += [f'guid: "{port.guid}"'] if port.guid else []
        flags += [f"interface: {word(port.interface)}"] if port.interface else []
        flags += [f'pci: "{port.pci}"'] if port.pci else []
        flags += [] if port.up else ["up: false"]
    if not flags:
        return word(vertex.name)
    return f"{{name: {word(vertex.name)}, {', '.join(flags)}}}"


def name_list(key: str, words: Sequence[str]) -> list[str]:
    """Returns `key: [a, b]` in YAML, wrapped if it is too long for a line."""
    lines = [key + "["]
    indent = " " * (len(key) - len(key.lstrip()) + 2)
    for i, word in enumerate(words):
        item = word + ("" if i == len(words) - 1 else ",")
        if len(lines[-1]) + len(item) + 1 > _WIDTH:
            lines.append(indent + item)
        else:
            lines[-1] += item if lines[-1].endswith("[") else f" {item}"
    lines[-1] += "]"
    return lines


def word(name: str) -> str:
    """Returns a name as YAML, quoted if a reader could take it for another type than a string."""
    return name if name[0].isalpha() and not name.endswith(":") and name.lower() not in _TAKEN else f'"{name}"'


def _quoted(model: str) -> str:
    """Returns a GPU's name as YAML: a plain word if possible, else in double quotes."""
    return word(model) if model.isalnum() else f'"{model}"'


_TAKEN = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


def comment(text: str) -> str:
    """Returns a text on one line, so that it can be a comment."""
    return "".join(c if c.isprintable() else " " for c in text)
