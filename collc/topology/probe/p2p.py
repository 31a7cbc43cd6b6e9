"""Reads `nvidia-smi topo -p2p`: the pairs of GPUs that can access each other's memory. It does not show links."""

from __future__ import annotations

import re

from collc.errors import TopologyError
from collc.topology.probe.lines import Text
from collc.topology.probe.machine import Machine, pair_names

# The meaning of a cell, from the legend of nvidia-smi.
_WHY = {
    "OK": "",
    "CNS": "chipset not supported",
    "GNS": "GPU not supported",
    "TNS": "topology not supported",
    "DR": "disabled by registry key",
    "NS": "not supported",
    "U": "unknown",
}
_FLAGS = {"r": "read", "w": "write", "n": "NVLink", "a": "atomics", "p": "PCIe"}


def looks_like_p2p(text: Text) -> bool:
    """Returns True if the first row of a table of GPUs has a cell that only `topo -p2p` prints."""
    return _first_row(text) is not None


def refuse_p2p_alone(text: Text) -> None:
    """Raises the error that this table does not describe a machine.

    Raises:
        TopologyError: always.
    """
    hint = "add --from a file with `nvidia-smi topo -m` of this machine"
    what = "`topo -p2p` says which GPUs can access each other, not what joins them"
    raise TopologyError(what, where=text.at(_first_row(text) or 1), hint=hint)


def apply_p2p(text: Text, machine: Machine) -> None:
    """Adds a note to `machine` for the pairs that cannot read or write each other's memory.

    Raises:
        TopologyError: the table is damaged, of another machine, or not about access.
    """
    flag = re.search(r"topo\s+(?:-p2p|--p2pstatus)[ =]([a-z])", text.whole)
    if flag and flag[1] not in "rw":
        what = f"`topo -p2p {flag[1]}` is about {_FLAGS.get(flag[1], 'something else')}, not about access to memory"
        raise TopologyError(what, where=text.where, hint="run `nvidia-smi topo -p2p r`")
    word = _FLAGS[flag[1]] if flag else "read"
    cells, first = _cells(text)
    if len(cells) != len(machine.gpus):
        what = f"{len(cells)} GPUs here, {len(machine.gpus)} in the other dump"
        raise TopologyError(what, where=text.at(first), hint="are both of one machine?")
    machine.took(f"{text.at(first - 1)} nvidia-smi topo -p2p", "which GPUs can access each other's memory")
    blocked: dict[str, list[tuple[str, str]]] = {}
    for (a, b), cell in _pairs(cells).items():
        if cell != "OK":
            blocked.setdefault(cell, []).append((machine.gpus[a], machine.gpus[b]))
    for cell, pairs in sorted(blocked.items()):
        names = pair_names(pairs)
        machine.assume(f"GPUs that cannot {word} each other's memory ({_WHY[cell]}): {names}; they meet in host memory")


def _pairs(rows: list[list[str]]) -> dict[tuple[int, int], str]:
    """Returns the cell of each pair (smaller, larger); a cell other than OK if the two directions differ."""
    cell_of = {}
    for a, row in enumerate(rows):
        for b in range(a + 1, len(rows)):
            both = {row[b], rows[b][a]}
            cell_of[a, b] = min(both - {"OK"} or both)
    return cell_of


def _cells(text: Text) -> tuple[list[list[str]], int]:
    """Returns the cells of each row, and the line number of the first row."""
    first = _first_row(text)
    assert first is not None
    count = len(text.lines[first - 2].split())
    rows = []
    for row in range(count):
        number = first + row
        words = text.lines[number - 1].split() if number <= len(text.lines) else []
        if not words or words[0] != f"GPU{row}" or len(words) != count + 1:
            hint = "the table has been cut, paste all of it"
            raise TopologyError(f"the row of GPU{row} is missing or cut", where=text.at(number), hint=hint)
        for column, cell in enumerate(words[1:]):
            if (cell == "X") != (row == column) or (cell != "X" and cell not in _WHY):
                hint = f"a cell is X for the GPU itself, else one of {', '.join(_WHY)}"
                raise TopologyError(f"row GPU{row} has `{cell[:20]}`", where=text.at(number), hint=hint)
        rows.append(words[1:])
    return rows, first


def _first_row(text: Text) -> int | None:
    """Returns the line number of the row of GPU0 below a header of only GPUs, if it has a cell of `topo -p2p`."""
    for number, (header, line) in enumerate(zip(text.lines, text.lines[1:], strict=False), 2):
        names, words = header.split(), line.split()
        if names and names == [f"GPU{i}" for i in range(len(names))] and words[:2] == ["GPU0", "X"]:
            return number if set(words[2:]) & set(_WHY) else None
    return None
