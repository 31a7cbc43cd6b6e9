"""Reads dumps of an InfiniBand fabric: `ibnetdiscover` (also -p), ibdiagnet's `.lst`, `.db_csv` and `.ibnetdiscover`.

Sources of the formats: ibnetdiscover(8), section "Topology file format" (rdma-core, infiniband-diags), and NVIDIA's
ibdiagnet user manual. Speeds per lane are net of coding, except the nominal 14 Gb/s of FDR: EDR 25 Gb/s, HDR 50,
NDR 100, XDR 200.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, field
from fractions import Fraction

from collc.errors import TopologyError
from collc.topology.probe.lines import Text

# GB/s of one lane.
_LANE_GBPS = {
    "SDR": Fraction(1, 4),
    "DDR": Fraction(1, 2),
    "QDR": Fraction(1),
    "FDR10": Fraction(5, 4),
    "FDR": Fraction(7, 4),
    "EDR": Fraction(25, 8),
    "HDR": Fraction(25, 4),
    "NDR": Fraction(25, 2),
    "XDR": Fraction(25),
}
# ibdiagnet's SPD is the Gb/s of a lane; LinkSpeedActv and LinkWidthActv of its PORTS are single bits.
_NAMES = ("SDR", "DDR", "QDR", "FDR", "EDR", "HDR", "NDR", "XDR")
_BY_GBITS = dict(zip(("2.5", "5", "10", "14", "25", "50", "100", "200"), _NAMES, strict=True))
_BY_BIT = dict(zip((1, 2, 4, 1 << 8, 1 << 9, 1 << 10, 1 << 11, 1 << 12), _NAMES, strict=True))
_WIDTH_BIT = {1: 1, 2: 4, 4: 8, 8: 12, 16: 2}
_MAX_NODES = 65_536
# `ibnetdiscover -p`: both ends with kind, LID, port and GUID, the rate between, then the two descriptions.
_PAIR_END = r"(CA|SW|RT)\s+[0-9]+\s+([0-9]+)\s+0x([0-9a-f]{16})"
_PAIR = re.compile(rf"{_PAIR_END}\s+(\S+)\s+(\S+)\s+-\s+{_PAIR_END}\s*\(\s*'(.*?)'\s*-\s*'(.*?)'\s*\)")
_PAIR_FREE = re.compile(rf"{_PAIR_END}\s+(?!.*\s-\s+(?:CA|SW|RT)\s).*")

_NODE = re.compile(r'(Switch|Ca|Rt)\s+[0-9]{1,4}\s+"[SHR]-([0-9a-f]{1,16})"\s*(?:#\s*"(.*)".*)?')
_PORT = re.compile(
    r'\[([0-9]{1,4})\](?:\[[^\]]*\])?(?:\([0-9a-f]+\))?\s+"([SHR])-([0-9a-f]{1,16})"\[([0-9]{1,4})\](.*)'
)
_RATE = re.compile(r"([0-9]{1,2})x([A-Z]{3}(?:10)?)\s*(?:#.*)?$")
_QUOTED = re.compile(r'"([^"]*)"')
_OTHER = re.compile(r"(#|[a-z]+=0x|Chassis |Non-Chassis|ibwarn|src/|$)")
_END = r"\{\s*(CA|SW|RT)\S*\s+Ports:[0-9a-f]+\s+.*?NodeGUID:([0-9a-f]{16})\s(.*?)PN:([0-9a-f]{1,4})\s*\}"
_LST = re.compile(rf"{_END}\s*{_END}\s*PHY=([0-9]{{1,2}})x\s+LOG=([A-Z]+)\s+SPD=([0-9.]+)\s*")
_DESCRIPTION = re.compile(r"\{(.*)\}")


@dataclass
class Fabric:
    """The nodes and cables of a fabric.

    Attributes:
        source: the name of the dump.
        switches, adapters: GUID of 16 hex digits -> description.
        cables: the two ends, each (GUID, port), -> GB/s; None if the dump has no speed.
    """

    source: str
    switches: dict[str, str] = field(default_factory=dict)
    adapters: dict[str, str] = field(default_factory=dict)
    cables: dict[frozenset[tuple[str, int]], Fraction | None] = field(default_factory=dict)

    def node(self, kind: str, guid: str, description: str) -> None:
        """Adds a node, or the description of a node that is there already."""
        nodes = self.switches if kind.startswith("S") else self.adapters
        if description or guid not in nodes:
            nodes[guid] = description

    def cable(self, a: tuple[str, int], b: tuple[str, int], gbps: Fraction | None) -> None:
        """Adds a cable between two ports. Dumps show a cable from both ends; the first speed counts."""
        ends = frozenset((a, b))
        if len(ends) == 2:
            self.cables[ends] = self.cables.get(ends) or gbps


def looks_like_infiniband(content: Text) -> bool:
    """Returns True if a text looks like a dump that `read_infiniband` reads."""
    return bool(
        re.search(r'^(Switch|Ca|Rt)\s+[0-9]+\s+"[SHR]-', content.whole, re.MULTILINE)
        or re.search(r"^\{\s*(CA|SW)\S*\s+Ports:", content.whole, re.MULTILINE)
        or "START_NODES" in content.whole
        or any(_PAIR.fullmatch(line.strip()) for line in content.lines)
    )


def read_infiniband(content: Text) -> Fabric:
    """Returns the fabric in one dump.

    Raises:
        TopologyError: a line has another format, the dump is incomplete, or it has no cable or too many nodes.
    """
    if "START_NODES" in content.whole:
        fabric = _read_csv(content)
    elif re.search(r"^\{\s*(CA|SW)\S*\s+Ports:", content.whole, re.MULTILINE):
        fabric = _read_lst(content)
    elif any(_PAIR.fullmatch(line.strip()) for line in content.lines):
        fabric = _read_pairs(content)
    else:
        fabric = _read_net(content)
    if not fabric.cables:
        raise TopologyError("the dump shows no cable", where=content.at(1), hint="was the subnet manager up?")
    if len(fabric.switches) + len(fabric.adapters) > _MAX_NODES:
        raise TopologyError(f"more than {_MAX_NODES} nodes", where=content.at(1), hint="no cluster is that large")
    return fabric


def _read_net(content: Text) -> Fabric:
    fabric = Fabric(content.where)
    node: str | None = None
    mentions: dict[str, int] = {}
    for number, raw in enumerate(content.lines, 1):
        line = raw.strip()
        if match := _NODE.fullmatch(line):
            node = _guid(match[2])
            fabric.node(match[1], node, (match[3] or "").strip())
        elif match := _PORT.fullmatch(line):
            if node is None:
                raise TopologyError("a port before any node", where=content.at(number), hint="is the dump cut off?")
            other, rest = _guid(match[3]), match[5]
            quoted = _QUOTED.search(rest)
            if match[2] == "S":
                mentions.setdefault(other, number)
            else:
                fabric.node("H", other, quoted[1].strip() if quoted else "")
            fabric.cable((node, int(match[1])), (other, int(match[4])), _rate(rest))
        elif not _OTHER.match(line):
            what = f"this is no line of ibnetdiscover: {line[:40]!r}"
            raise TopologyError(what, where=content.at(number), hint="is the dump damaged?")
    for guid, number in mentions.items():
        if guid not in fabric.switches:
            what = f"switch S-{guid} is named, and its own ports are not listed"
            raise TopologyError(what, where=content.at(number), hint="is the dump cut off?")
    return fabric


def _read_pairs(content: Text) -> Fabric:
    fabric = Fabric(content.where)
    for number, raw in enumerate(content.lines, 1):
        line = raw.strip()
        match = _PAIR.fullmatch(line)
        if match is None:
            if line and not line.startswith("#") and not _PAIR_FREE.fullmatch(line):
                what = f"this is no line of ibnetdiscover -p: {line[:40]!r}"
                raise TopologyError(what, where=content.at(number), hint="is the dump damaged?")
            continue
        fabric.node(match[1], match[3], match[9].strip())
        fabric.node(match[6], match[8], match[10].strip())
        ends = ((match[3], int(match[2])), (match[8], int(match[7])))
        fabric.cable(*ends, _rate(f"{match[4]}{match[5]}"))
    return fabric


def _read_lst(content: Text) -> Fabric:
    fabric = Fabric(content.where)
    for number, raw in enumerate(content.lines, 1):
        if not raw.strip() or raw.startswith("#"):
            continue
        match = _LST.fullmatch(raw.strip())
        if not match:
            what = "this is no line of ibdiagnet's .lst"
            raise TopologyError(what, where=content.at(number), hint="is the dump damaged?")
        ends = []
        for at in (1, 5):
            kind, guid, text, port = match.group(at, at + 1, at + 2, at + 3)
            description = _DESCRIPTION.search(text)
            fabric.node(kind, guid, description[1].strip() if description else "")
            ends.append((guid, int(port, 16)))
        if match[10] == "ACT":
            fabric.cable(ends[0], ends[1], link_gbps(int(match[9]), _BY_GBITS.get(match[11], "")))
    return fabric


def _read_csv(content: Text) -> Fabric:
    fabric = Fabric(content.where)
    speeds: dict[tuple[str, int], Fraction] = {}
    links: list[tuple[int, dict[str, str]]] = []
    for number, section, row in _rows(content):
        try:
            if section == "NODES":
                kind = {"1": "H", "2": "S", "3": "R"}[row["NodeType"]]
                fabric.node(kind, _guid(row["NodeGUID"]), row["NodeDesc"].strip())
            elif section == "PORTS":
                name = _BY_BIT.get(int(row["LinkSpeedActv"]), "")
                if gbps := link_gbps(_WIDTH_BIT.get(int(row["LinkWidthActv"]), 0), name):
                    speeds[_guid(row["NodeGuid"]), int(row["PortNum"])] = gbps
            elif section == "LINKS":
                links.append((number, row))
        except (KeyError, ValueError) as error:
            what = f"a row of {section} without a sound {str(error)[:40]}"
            raise TopologyError(what, where=content.at(number), hint="is the dump damaged?") from None
    for number, row in links:
        try:
            ends = [(_guid(row[f"NodeGuid{i}"]), int(row[f"PortNum{i}"])) for i in (1, 2)]
        except (KeyError, ValueError):
            what = "a row of LINKS without its two ports"
            raise TopologyError(what, where=content.at(number), hint="is the dump damaged?") from None
        for guid, _ in ends:
            if guid not in fabric.switches and guid not in fabric.adapters:
                what = f"a link of node {guid}, which NODES does not have"
                raise TopologyError(what, where=content.at(number), hint="is the dump cut off?")
        fabric.cable(ends[0], ends[1], speeds.get(ends[0]) or speeds.get(ends[1]))
    return fabric


def _rows(content: Text) -> list[tuple[int, str, dict[str, str]]]:
    """Returns (line, section, column -> value) of each row in the sections NODES, PORTS and LINKS of a .db_csv."""
    rows: list[tuple[int, str, dict[str, str]]] = []
    section, header = "", None
    for number, raw in enumerate(content.lines, 1):
        line = raw.strip()
        if start := re.fullmatch(r"START_([A-Z0-9_]+)", line):
            if section:
                raise TopologyError(f"{section} has no end", where=content.at(number), hint="is the dump damaged?")
            section, header = start[1], None
        elif line == f"END_{section}" and section:
            section = ""
        elif section in ("NODES", "PORTS", "LINKS") and line:
            try:
                values = [value.strip() for value in next(csv.reader([line]))]
            except csv.Error as error:
                raise TopologyError(f"no row of a table: {error}", where=content.at(number)) from None
            if header is None:
                header = values
            else:
                rows.append((number, section, dict(zip(header, values, strict=False))))
    if section:
        raise TopologyError(f"{section} has no end", where=content.at(len(content.lines)), hint="is the dump cut off?")
    return rows


def _guid(word: str) -> str:
    return f"{int(word, 16):016x}"[-16:]


def _rate(rest: str) -> Fraction | None:
    match = _RATE.search(rest.rstrip())
    return link_gbps(int(match[1]), match[2]) if match else None


def link_gbps(lanes: int, speed: str) -> Fraction | None:
    """Returns GB/s of a link with lanes of a speed such as ``NDR``; None if the speed is unknown or no lane is up."""
    lane = _LANE_GBPS.get(speed)
    return lane * lanes if lane and lanes else None
