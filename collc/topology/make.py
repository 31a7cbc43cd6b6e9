"""Writes topology files of clusters, networks and supercomputers of any size.

Each file is in the short form, with its source in the first comment. Equal servers come from one template, so that a
file for thousands of servers is short. Speeds are in GB/s per direction.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from collc.errors import UsageError
from collc.topology.names import decimal_text

# GB/s: a whole number, or an exact decimal number such as 25/2.
Speed = int | Fraction
# The parameters that are speeds.
_SPEEDS = ("local", "nic", "gbps")
# A topology file may not have more vertices.
_MAX_GPUS = 65_536


@dataclass(frozen=True)
class Kind:
    """One kind: its parameters with their defaults, in order, and the function that writes the file."""

    what: str
    source: str
    parameters: Mapping[str, int]
    write: Callable[..., list[str]]


def make(kind: str, values: Mapping[str, Speed]) -> str:
    """Returns the text of a topology file of a kind.

    Args:
        kind: one of KINDS.
        values: parameters that are not the default: positive integers, or decimal numbers for speeds in GB/s.

    Raises:
        UsageError: the kind or a parameter does not exist, or no such topology has these values.
    """
    if kind not in KINDS:
        raise UsageError(f"no kind {kind[:40]!r} to make", where="--make", hint=f"choose one of {', '.join(KINDS)}")
    found = KINDS[kind]
    shown = " ".join(f"{key}={value}" for key, value in found.parameters.items())
    for key, value in values.items():
        if key not in found.parameters:
            raise UsageError(f"{kind} has no parameter {key[:40]!r}", where="--make", hint=f"these are: {shown}")
        if key not in _SPEEDS and value != int(value):
            raise UsageError(f"{key}={_speed(value)} is not a whole number", where="--make", hint=f"these are: {shown}")
        if not (value > 0 if key in _SPEEDS else value >= 1) or value > _MAX_GPUS:
            raise UsageError(f"{key}={_speed(value)} is not between 1 and {_MAX_GPUS}", where="--make")
    chosen = {**found.parameters, **{key: v if key in _SPEEDS else int(v) for key, v in values.items()}}
    name = "-".join([kind, *(_speed(chosen[key]) for key in found.parameters)])
    comment = _wrapped(f"{found.what}: " + ", ".join(f"{key} {_speed(value)}" for key, value in chosen.items()) + ".")
    lines = [*comment, *_wrapped(f"Source: {found.source}"), "format: collc-topology/1", f"name: {name}"]
    return "\n".join([*lines, *found.write(**chosen)]) + "\n"


def _wrapped(text: str) -> list[str]:
    lines, line = [], "#"
    for word in text.split():
        if len(line) + len(word) + 1 > 118:
            lines.append(line)
            line = "#"
        line += f" {word}"
    return [*lines, line]


def _need(holds: bool, what: str) -> None:
    if not holds:
        raise UsageError(what, where="--make")


def _names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{i}" for i in range(count)]


def _list(key: str, names: Sequence[str]) -> list[str]:
    """Returns the lines of `key: [a, b, ...]`."""
    lines, line = [], f"{key}: ["
    for i, name in enumerate(names):
        item = name + ("]" if i + 1 == len(names) else ", ")
        if len(line) + len(item) > 118:
            lines.append(line.rstrip())
            line = "  "
        line += item
    return [*lines, line]


def _links(rows: Iterable[tuple[str, str, str, Speed]], indent: str = "  ") -> list[str]:
    """Returns the lines of links in both directions for each (a, b, kind, GB/s)."""
    return [f"{indent}- [{a}, {b}, {kind}, {_speed(gbps)}]" for a, b, kind, gbps in rows]


def _speed(gbps: Speed | Fraction) -> str:
    text = decimal_text(Fraction(gbps))
    _need(text is not None, f"{gbps} GB/s is no decimal number: choose sizes that divide each other")
    return str(text)


def _box(gpus: int, local: Speed) -> list[str]:
    """Returns a template of GPUs on one NVSwitch; a single GPU has no switch."""
    if gpus == 1:
        return ["template: {gpus: 1}"]
    rows = ((f"gpu{j}", "nvs0", "nvswitch", local) for j in range(gpus))
    return ["template:", f"  gpus: {gpus}", "  switches: [nvs0]", "  links:", *_links(rows, "    ")]


def _rails(servers: int, gpus: int, rails: int, local: Speed, nic: Speed) -> list[str]:
    rows = ((f"each.gpu{j}", f"rail{j % rails}", "net", nic) for j in range(gpus))
    names = _list("switches", _names("rail", min(rails, gpus)))
    return [f"servers: {servers}", *_box(gpus, local), *names, "links:", *_links(rows)]


def _fat_tree(ports: int, gpus: int, local: Speed, nic: Speed) -> list[str]:
    _need(ports % 2 == 0, f"ports={ports}: switches of a fat tree have as many ports up as down")
    half = ports // 2
    hosts = ports * half * half
    _need(hosts % gpus == 0, f"the {hosts} host ports are not servers of gpus={gpus}")
    _need(hosts <= _MAX_GPUS, f"ports={ports} makes {hosts} GPUs")
    edge = [f"edge{p}.{e}" for p in range(ports) for e in range(half)]
    middle = [f"agg{p}.{a}" for p in range(ports) for a in range(half)]
    core = [f"core{a}.{c}" for a in range(half) for c in range(half)]
    rows = [(f"server{h // gpus}.gpu{h % gpus}", edge[h // half], "net", nic) for h in range(hosts)]
    rows += [
        (f"edge{p}.{e}", f"agg{p}.{a}", "net", nic) for p in range(ports) for e in range(half) for a in range(half)
    ]
    rows += [
        (f"agg{p}.{a}", f"core{a}.{c}", "net", nic) for p in range(ports) for a in range(half) for c in range(half)
    ]
    names = _list("switches", [*edge, *middle, *core])
    return [f"servers: {hosts // gpus}", *_box(gpus, local), *names, "links:", *_links(rows)]


def _superpod(units: int, servers: int, spines: int, gpus: int, local: Speed, nic: Speed) -> list[str]:
    """Leaf j of a unit joins GPU j of its servers; every leaf joins every spine, with as much up as down."""
    up = Fraction(servers * nic, spines)
    leaf = [f"leaf{u}.{j}" for u in range(units) for j in range(gpus)]
    rows: list[tuple[str, str, str, int | Fraction]] = [
        (f"server{u * servers + s}.gpu{j}", f"leaf{u}.{j}", "net", nic)
        for u in range(units)
        for s in range(servers)
        for j in range(gpus)
    ]
    rows += [(x, f"spine{i}", "net", up) for x in leaf for i in range(spines)]
    names = _list("switches", [*leaf, *_names("spine", spines)])
    return [f"servers: {units * servers}", *_box(gpus, local), *names, "links:", *_links(rows)]


def _dragonfly(routers: int, gpus: int, channels: int, nic: Speed) -> list[str]:
    """`gpus` per router, `channels` between groups per router; one channel between any two groups."""
    groups = routers * channels + 1
    _need(groups * routers * gpus <= _MAX_GPUS, f"these sizes make {groups * routers * gpus} GPUs")
    router = [[f"r{g}.{a}" for a in range(routers)] for g in range(groups)]
    rows = [
        (f"server{(g * routers + a) * gpus + t}.gpu0", router[g][a], "net", nic)
        for g in range(groups)
        for a in range(routers)
        for t in range(gpus)
    ]
    rows += [(a, b, "net", nic) for group in router for a, b in itertools.combinations(group, 2)]
    for g in range(groups):
        for c in range(groups - 1):
            other = (g + c + 1) % groups
            if g < other:
                rows.append((router[g][c // channels], router[other][(groups - 2 - c) // channels], "net", nic))
    names = _list("switches", [name for group in router for name in group])
    return [f"servers: {groups * routers * gpus}", "template: {gpus: 1}", *names, "links:", *_links(rows)]


def _torus(x: int, y: int, z: int, gbps: Speed) -> list[str]:
    sides = (x, y, z)
    _need(2 <= x * y * z <= _MAX_GPUS, f"{x * y * z} GPUs are no torus")

    def name(place: Sequence[int]) -> str:
        return f"gpu{(place[2] * y + place[1]) * x + place[0]}"

    rows = []
    for place in itertools.product(*map(range, sides)):
        for axis, side in enumerate(sides):
            # A row of two has one link, without a second link around the ring.
            if side > 2 or (side == 2 and place[axis] == 0):
                following = [(p + (i == axis)) % side if i == axis else p for i, p in enumerate(place)]
                rows.append((name(place), name(following), "nvlink", gbps))
    return [f"gpus: {x * y * z}", "links:", *_links(rows)]


def _nodes(nodes: int, nic: Speed) -> list[str]:
    rows = ((f"each.nic{j}", "slingshot", "net", nic) for j in range(4))
    return [f"servers: {nodes}", "template: mi250x", "switches: [slingshot]", "links:", *_links(rows)]


def _mixed(a100: int, h100: int) -> list[str]:
    """Server s of either kind holds GPUs 8s to 8s+7; GPU j of each is on rail j."""
    speeds = [(300, 25)] * a100 + [(450, 50)] * h100
    rows, servers = [], ["servers:"]
    for s, (local, nic) in enumerate(speeds):
        members = [f"gpu{8 * s + j}" for j in range(8)]
        servers += _list(f"  server{s}", [*members, f"nvs{s}"])
        for j, gpu in enumerate(members):
            rows += [(gpu, f"nvs{s}", "nvswitch", local), (gpu, f"rail{j}", "net", nic)]
    names = _list("switches", [*_names("nvs", len(speeds)), *_names("rail", 8)])
    return [f"gpus: {8 * len(speeds)}", *names, *servers, "links:", *_links(rows)]


_SLINGSHOT = (
    "four 200 Gb/s Slingshot NICs per node, one per MI250X package; the node is the topology mi250x. The network, a "
    "dragonfly that is full within a group, is taken as one switch that limits nobody."
)
KINDS: Mapping[str, Kind] = {
    "fat-tree": Kind(
        "A k-ary fat tree of switches with k ports, a GPU's NIC on each host port",
        'Al-Fares, Loukissas, Vahdat, "A Scalable, Commodity Data Center Network Architecture", SIGCOMM 2008, section '
        "3: k pods of k/2 edge and k/2 aggregation switches, (k/2)^2 core switches, k^3/4 hosts.",
        {"ports": 4, "gpus": 1, "local": 450, "nic": 50},
        _fat_tree,
    ),
    "rails": Kind(
        "Servers with one NIC per GPU, GPU j of each on rail j",
        'NVIDIA, "DGX H100 System Architecture" (8 GPUs with 450 GB/s of NVLink each way, a 400 Gb/s NIC each), and '
        'Wang et al., "Rail-only", arXiv 2307.12169.',
        {"servers": 4, "gpus": 8, "rails": 8, "local": 450, "nic": 50},
        _rails,
    ),
    "dragonfly": Kind(
        "Groups of routers, all joined inside, any two groups by one channel",
        'Kim, Dally, Scott, Abts, "Technology-Driven, Highly-Scalable Dragonfly Topology", ISCA 2008, section 3: a '
        "routers with p terminals and h channels make a x h + 1 groups; a = 2p = 2h balances the load.",
        {"routers": 4, "gpus": 2, "channels": 2, "nic": 50},
        _dragonfly,
    ),
    "torus": Kind(
        "A 3D torus of accelerators, a link to each of six neighbors",
        'Jouppi et al., "TPU v4", ISCA 2023, arXiv 2304.01433, section 2: 3D torus, six links of 50 GB/s.',
        {"x": 4, "y": 4, "z": 4, "gbps": 50},
        _torus,
    ),
    "superpod": Kind(
        "DGX SuperPOD with H100: scalable units of 32 servers and 8 leaf switches, joined by spines",
        'NVIDIA, "DGX SuperPOD Reference Architecture, DGX H100", RA-11333: rail-optimized leaves, full fat tree of '
        "400 Gb/s NDR.",
        {"units": 4, "servers": 32, "spines": 16, "gpus": 8, "local": 450, "nic": 50},
        _superpod,
    ),
    "nvl72": Kind(
        "Racks of 72 GB200 on one NVLink domain, a 400 Gb/s NIC per GPU on one of four rails",
        'NVIDIA, "DGX SuperPOD Reference Architecture, DGX GB200", RA-11338 (8 racks a unit, four NICs per tray on '
        'four rails), and "GB200 NVL72 Data Sheet" (900 GB/s each way per GPU).',
        {"servers": 8, "gpus": 72, "rails": 4, "local": 900, "nic": 50},
        _rails,
    ),
    "frontier": Kind(
        "Nodes of Frontier", f'OLCF, "Frontier User Guide": {_SLINGSHOT}', {"nodes": 64, "nic": 25}, _nodes
    ),
    "lumi": Kind("Nodes of LUMI-G", f'CSC, "LUMI-G hardware": {_SLINGSHOT}', {"nodes": 64, "nic": 25}, _nodes),
    "mixed": Kind(
        "Servers of 8 A100 and servers of 8 H100 on the same eight rails",
        'NVIDIA, "DGX A100 System Architecture", WP-10083-001 (300 GB/s of NVLink, 200 Gb/s per GPU), and "DGX H100 '
        'System Architecture" (450 GB/s, 400 Gb/s).',
        {"a100": 2, "h100": 2},
        _mixed,
    ),
}
