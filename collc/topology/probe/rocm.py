"""Reads `rocm-smi --showtopo`: link type, hops and NUMA node of AMD GPUs."""

from __future__ import annotations

import re

from collc.errors import TopologyError
from collc.topology.model import LinkKind
from collc.topology.probe.lines import Text
from collc.topology.probe.machine import Machine

_TITLE = re.compile(r"=+\s*(.*?)\s*=+$")
# `GPU[0]  : (Topology) Numa Node: 0`; some versions write `GPU 0 :` and omit `(Topology)`.
_NUMA = re.compile(r"GPU ?\[?([0-9]{1,3})\]?\s*:\s*(?:\(Topology\)|Topology:)?\s*Numa Node:\s*(-?[0-9]{1,4})\b", re.I)
_TYPES, _HOPS = "Link Type between two GPUs", "Hops between two GPUs"


def looks_like_rocm(text: Text) -> bool:
    """Returns True if a text has a section of link types or hops."""
    return any(_section(line) in (_TYPES, _HOPS) for line in text.lines)


def read_rocm(text: Text, name: str) -> Machine:
    """Returns the machine in the output, without speeds.

    Raises:
        TopologyError: a table is missing, incomplete or inconsistent; the message names the line.
    """
    types = _matrix(text, _TYPES, ("XGMI", "PCIE", "0"))
    hops = _matrix(text, _HOPS, None)
    gpus = sorted(types)
    if sorted(hops) != gpus:
        raise TopologyError("the tables of hops and of link types list different GPUs", where=text.where)
    machine = Machine(name, gpus=[f"gpu{i}" for i in gpus], kind=LinkKind.XGMI)
    far = 0
    for i, a in enumerate(gpus):
        for b in gpus[i + 1 :]:
            if types[a][b] == "XGMI" and hops[a][b] == "1":
                machine.direct[f"gpu{a}", f"gpu{b}"] = 1
            far += types[a][b] == "XGMI" and hops[a][b] != "1"
    if far:
        machine.assume(f"{far} pairs that rocm-smi calls XGMI over several hops have no link of their own")
    if machine.direct:
        machine.assume("xGMI links per pair: rocm-smi does not say how many; taken as one")
    _place(text, machine, gpus, types, hops)
    return machine


def _section(line: str) -> str | None:
    match = _TITLE.fullmatch(line.strip())
    return match[1] if match else None


def _matrix(text: Text, title: str, allowed: tuple[str, ...] | None) -> dict[int, dict[int, str]]:
    """Returns GPU -> GPU -> cell of one section."""
    at = [i for i, line in enumerate(text.lines) if _section(line) == title]
    if len(at) != 1:
        what = f"the table `{title}` is missing" if not at else f"the table `{title}` is there {len(at)} times"
        raise TopologyError(what, where=text.at(at[-1] + 1 if at else 1), hint="paste all of rocm-smi --showtopo")
    number = at[0] + 1
    while number < len(text.lines) and not text.lines[number].strip():
        number += 1
    header = text.lines[number].split() if number < len(text.lines) else []
    if not header or not all(re.fullmatch("GPU[0-9]{1,3}", word) for word in header):
        raise TopologyError("the GPUs of the table are not named here", where=text.at(number + 1))
    columns = [int(word[3:]) for word in header]
    rows: dict[int, dict[int, str]] = {}
    for offset, gpu in enumerate(columns):
        line = number + 1 + offset
        words = text.lines[line].split() if line < len(text.lines) else []
        if not words or words[0] != f"GPU{gpu}":
            hint = "the table has been cut, paste all of it"
            raise TopologyError(f"the row of GPU{gpu} is missing", where=text.at(line + 1), hint=hint)
        if len(words) != len(columns) + 1:
            what = f"row GPU{gpu} has {len(words) - 1} cells, the header names {len(columns)} GPUs"
            raise TopologyError(what, where=text.at(line + 1), hint="the table has been cut, paste all of it")
        for word in words[1:]:
            if not re.fullmatch("[0-9]{1,4}", word) if allowed is None else word not in allowed:
                raise TopologyError(f"`{word[:20]}` is not a valid cell of this table", where=text.at(line + 1))
        rows[gpu] = dict(zip(columns, words[1:], strict=True))
        for other in rows:
            if rows[gpu].get(other) != rows[other].get(gpu):
                what = f"GPU{gpu} and GPU{other} do not say the same of each other"
                raise TopologyError(what, where=text.at(line + 1), hint="the table is damaged")
    if len(rows) != len(columns):
        raise TopologyError("a GPU is named twice", where=text.at(number + 1))
    return rows


Cells = dict[int, dict[int, str]]


def _place(text: Text, machine: Machine, gpus: list[int], types: Cells, hops: Cells) -> None:
    """Places GPUs at CPUs by their NUMA nodes; without these, by the hops between GPUs that PCIe joins."""
    numa = {int(m[1]): int(m[2]) for line in text.lines if (m := _NUMA.search(line))}
    if not set(gpus) <= set(numa):
        numa = _by_hops(machine, gpus, types, hops)
    nodes = sorted({numa[gpu] for gpu in gpus})
    machine.cpus = [f"cpu{max(node, 0)}" for node in nodes]
    machine.parent = {f"gpu{gpu}": f"cpu{max(numa[gpu], 0)}" for gpu in gpus}
    machine.assume("PCIe switches do not show in this output: each GPU is placed directly at its CPU")


def _by_hops(machine: Machine, gpus: list[int], types: Cells, hops: Cells) -> dict[int, int]:
    """Returns the number of each GPU's CPU. Two PCIe hops are GPU, CPU, GPU; a third is the link between CPUs."""
    far = [(a, b) for a in gpus for b in gpus if a < b and types[a][b] == "PCIE" and int(hops[a][b]) > 2]
    if not far:
        machine.assume("NUMA nodes are not in this output: all GPUs are placed at one CPU")
        return dict.fromkeys(gpus, 0)
    home: dict[int, int] = {}
    cpus: list[list[int]] = []
    for gpu in gpus:
        fits = (n for n, members in enumerate(cpus) if not any((other, gpu) in far for other in members))
        home[gpu] = next(fits, len(cpus))
        if home[gpu] == len(cpus):
            cpus.append([])
        cpus[home[gpu]].append(gpu)
    machine.assume("NUMA nodes are not in this output: GPUs over three hops of PCIe apart are placed at different CPUs")
    return home
