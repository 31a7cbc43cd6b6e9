"""Reads Slurm's topology: `topology.conf` and `topology.yaml`, of the plugins tree and block.

A tree has the switches and the nodes at each, but no cables and no speeds. A block is a group of nodes that NVLink
joins (slurm.schedmd.com/topology.html).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product

from collc.errors import TopologyError
from collc.topology.cluster.model import Cable, Network
from collc.topology.cluster.network import Nic, free_name
from collc.topology.names import name_problem
from collc.topology.yamltree import Items, Node, Scalar, Table, parse

_LINE = re.compile(r"\s*(?:SwitchName|BlockName)=", re.IGNORECASE)
_PAIR = re.compile(r"([A-Za-z]+)=(\S+)")
_YAML = re.compile(r"^\s*-?\s*topology:\s", re.MULTILINE)
_GROUP = re.compile(r"\[([0-9,-]+)\]")
_MAX_NAMES = 65_536
_SHORT = "names of hosts must be those of the probed files"


@dataclass
class Slurm:
    """The contents of a file.

    Attributes:
        source: the file, for messages; "" if there is none.
        switches: switch -> its nodes and the switches below it.
        blocks: block -> its nodes.
    """

    source: str = ""
    switches: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = field(default_factory=dict)
    blocks: dict[str, tuple[str, ...]] = field(default_factory=dict)


def split_slurm(dumps: Sequence[tuple[str, str]]) -> tuple[list[tuple[str, str]], Slurm]:
    """Returns the dumps that are not of Slurm, and the contents of Slurm's files.

    Raises:
        TopologyError: a line of Slurm's file is damaged.
    """
    others, slurm = [], Slurm()
    for where, text in dumps:
        lines = text.splitlines()
        if any(_LINE.match(line) for line in lines):
            slurm.source = slurm.source or where
            for number, line in enumerate(lines, 1):
                _read_line(line.partition("#")[0], f"{where}:{number}", slurm)
        elif _YAML.search(text) and re.search(r"^\s*(?:tree|block|flat):", text, re.MULTILINE):
            slurm.source = slurm.source or where
            _read_yaml(parse(text, where), where, slurm)
        else:
            others.append((where, text))
    return others, slurm


def _read_line(line: str, where: str, slurm: Slurm) -> None:
    pairs = {key.lower(): value for key, value in _PAIR.findall(line)}
    if name := pairs.get("switchname"):
        _add_switch(slurm, name, pairs.get("nodes", ""), pairs.get("switches", ""), where)
    elif name := pairs.get("blockname"):
        slurm.blocks[name] = tuple(expand(pairs.get("nodes", ""), where))


def _add_switch(slurm: Slurm, name: str, nodes: str, switches: str, where: str) -> None:
    if name in slurm.switches:
        raise TopologyError(f"switch {name[:40]} is given twice", where=where, hint="is the file damaged?")
    slurm.switches[name] = (tuple(expand(nodes, where)), tuple(expand(switches, where)))


def _read_yaml(root: Node, where: str, slurm: Slurm) -> None:
    for entry in _items(root):
        tree, block = _get(entry, "tree"), _get(entry, "block")
        for switch in _items(_get(tree, "switches")):
            name = _text(_get(switch, "switch"))
            _add_switch(slurm, name, _text(_get(switch, "nodes")), _text(_get(switch, "children")), where)
        for item in _items(_get(block, "blocks")):
            slurm.blocks[_text(_get(item, "block"))] = tuple(expand(_text(_get(item, "nodes")), where))


def _items(node: Node | None) -> list[Node]:
    return list(node.items) if isinstance(node, Items) else []


def _get(node: Node | None, key: str) -> Node | None:
    return node.get(key) if isinstance(node, Table) else None


def _text(node: Node | None) -> str:
    return node.text if isinstance(node, Scalar) else ""


def expand(text: str, where: str) -> Iterator[str]:
    """Yields the names of a Slurm host list such as ``n[1-3,07],login``.

    Raises:
        TopologyError: the list is damaged, or has too many names.
    """
    count = 0
    for word in re.split(r",(?![^\[]*\])", text):
        parts = _GROUP.split(word)
        if "[" in "".join(parts[::2]) or "]" in "".join(parts[::2]):
            raise TopologyError(f"`{word[:40]}` is no list of hosts", where=where, hint="such as node[1-4]")
        numbers = [list(_numbers(group, where)) for group in parts[1::2]]
        for values in product(*numbers):
            count += 1
            if count > _MAX_NAMES:
                raise TopologyError(f"more than {_MAX_NAMES} names", where=where, hint="no cluster is that large")
            if name := parts[0] + "".join(value + rest for value, rest in zip(values, parts[2::2], strict=True)):
                yield name


def _numbers(group: str, where: str) -> Iterator[str]:
    for part in group.split(","):
        match = re.fullmatch("([0-9]{1,6})(?:-([0-9]{1,6}))?", part)
        if not match or int(match[2] or match[1]) - int(match[1]) not in range(_MAX_NAMES):
            raise TopologyError(f"`[{group[:40]}]` is no list of numbers", where=where, hint="such as [1-4,7]")
        yield from (str(n).zfill(len(match[1])) for n in range(int(match[1]), int(match[2] or match[1]) + 1))


def slurm_network(slurm: Slurm, nics: Sequence[Nic]) -> Network:
    """Returns the network of Slurm's tree: each NIC of a node at the node's switch.

    A link between switches has the speed of all NICs below it, because the file has no speeds.

    Raises:
        TopologyError: no node of the file is a server.
    """
    leaf_of = {node: switch for switch, (nodes, _) in slurm.switches.items() for node in nodes}
    names: dict[str, str] = {}
    for switch in slurm.switches:
        plain = switch if name_problem(switch) is None else f"sw{len(names)}"
        names[switch] = free_name(plain, {nic.server for nic in nics} | set(names.values()))
    cables: list[Cable] = []
    below: dict[str, Fraction] = {}
    for nic in nics:
        leaf = leaf_of.get(nic.server) or leaf_of.get(nic.server.partition(".")[0])
        if leaf is not None:
            cables.append(Cable(nic.vertex, names[leaf], nic.gbps, nic.server))
            below[leaf] = below.get(leaf, Fraction(0)) + nic.gbps
    if not cables:
        raise TopologyError("no node of Slurm's topology is one of the servers", where=slurm.source, hint=_SHORT)
    for _ in slurm.switches:  # a tree is at most as deep as it has switches
        ready = {
            switch: sum((below[child] for child in children if child in below), Fraction(0))
            for switch, (_, children) in slurm.switches.items()
            if switch not in below and all(c in below or not _reaches(slurm, c, below) for c in children)
        }
        ready = {switch: gbps for switch, gbps in ready.items() if gbps}
        if not ready:
            break
        below |= ready
    for switch, (_, children) in slurm.switches.items():
        cables += [Cable(names[c], names[switch], below[c]) for c in children if c in below and switch in below]
    used = {end for cable in cables for end in (cable.a, cable.b)}
    note = (
        f"network: switches as {slurm.source} says, without cables and speeds; assumed that all NICs of a node are at "
        "its switch, and links between switches as fast as all NICs below; --fabric ibnetdiscover would tell"
    )
    return Network(tuple(n for n in names.values() if n in used), tuple(cables), (note,), assumed=True)


def _reaches(slurm: Slurm, switch: str, below: dict[str, Fraction]) -> bool:
    """Returns True if a switch has a server below it whose speed is not added up yet."""
    seen, todo = set(), [switch]
    while todo:
        now = todo.pop()
        if now in below:
            return True
        if now in seen or now not in slurm.switches:
            continue
        seen.add(now)
        todo += slurm.switches[now][1]
    return False
