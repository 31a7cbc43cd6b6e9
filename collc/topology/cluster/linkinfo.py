"""Reads `iblinkinfo`: one line for each port, under the name of its adapter or switch.

The output has no node GUIDs. An adapter is known by its description, a switch by its LID.
"""

from __future__ import annotations

import re
from fractions import Fraction

from collc.errors import TopologyError
from collc.topology.cluster.infiniband import Fabric, link_gbps
from collc.topology.probe.lines import Text

_HEAD = re.compile(r"(CA|Switch|RT|Router):\s+(?:0x[0-9a-f]{16}\s+)?(.*?):?\s*")
_PORT = re.compile(
    r"\s*(?:0x[0-9a-f]{16}\s+)?([0-9]+)\s+([0-9]+)\[\s*[0-9]*\s*\]\s*==\(\s*(.*?)\s*\)==>\s*"
    r"([0-9]*)\s*([0-9]*)\[\s*[0-9]*\s*\]\s*\"(.*?)\""
)
_WIDTH = re.compile(r"([0-9]{1,2})X\s+([0-9.]+) Gbps")
# The signaling rate of a lane in Gb/s, as iblinkinfo prints it.
_RATES = {
    "2.5": "SDR",
    "5.0": "DDR",
    "10.0": "QDR",
    "10.3125": "FDR10",
    "14.0625": "FDR",
    "25.78125": "EDR",
    "53.125": "HDR",
    "106.25": "NDR",
    "212.5": "XDR",
}
_MAX_PORT = 1 << 16


def looks_like_linkinfo(content: Text) -> bool:
    """Returns True if a text has a port line of iblinkinfo."""
    return any(_PORT.match(line) for line in content.lines)


def read_linkinfo(content: Text) -> Fabric:
    """Returns the fabric in the output.

    Raises:
        TopologyError: a line with an arrow is damaged, or is under no adapter or switch.
    """
    fabric = Fabric(content.where)
    rows = list(_rows(content))
    switches = {lid: name for kind, name, lid, *_ in rows if kind == "Switch"}
    adapters = {name for kind, name, *_ in rows if kind == "CA"}
    # The far end of an adapter is a switch, also if only adapters are listed.
    switches |= {lid: name for kind, _, _, _, _, lid, _, name in rows if kind == "CA" and name not in adapters and lid}
    for lid, name in switches.items():
        fabric.node("SW", f"lid{lid}", name)
    for kind, name, lid, port, state, far_lid, far_port, far_name in rows:
        near = f"lid{lid}" if kind == "Switch" else name
        far = f"lid{far_lid}" if far_lid in switches else far_name
        for key, description in ((near, name), (far, far_name)):
            if not key.startswith("lid"):
                fabric.node("CA", key, description)
        if far_lid and "LinkUp" in state:
            fabric.cable((near, int(port)), (far, int(far_port or 0)), _gbps(state))
    return fabric


def _rows(content: Text) -> list[tuple[str, str, str, str, str, str, str, str]]:
    """Returns kind and name of the node, its LID and port, the link's state, and LID, port and name at the far end."""
    rows = []
    kind = name = ""
    for number, line in enumerate(content.lines, 1):
        if match := _HEAD.fullmatch(line.strip()):
            kind, name = match[1], match[2].strip()
        elif match := _PORT.match(line):
            if not kind:
                raise TopologyError("a port before any node", where=content.at(number), hint="is the output cut off?")
            lid, port, state, far_lid, far_port, far_name = match.groups()
            if max(int(port), int(far_port or 0)) > _MAX_PORT:
                raise TopologyError("no port has this number", where=content.at(number))
            rows.append((kind, name, lid, port, state, far_lid, far_port, far_name.strip()))
        elif "==(" in line:
            what = f"this is no line of iblinkinfo: {line.strip()[:40]!r}"
            raise TopologyError(what, where=content.at(number), hint="is the output damaged?")
    return rows


def _gbps(state: str) -> Fraction | None:
    match = _WIDTH.search(state)
    return link_gbps(int(match[1]), _RATES.get(match[2], "")) if match else None
