"""Reads `nvidia-smi topo -p2p`: which GPUs can read and write each other's memory. It says nothing of links."""

from __future__ import annotations

import re

from collc.errors import TopologyError, first_few
from collc.topology.probe.lines import Text
from collc.topology.probe.machine import Machine

# The legend of nvidia-smi.
_WHY = {
    "OK": "",
    "CNS": "chipset not supported",
    "GNS": "GPU not supported",
    "TNS": "topology not supported",
    "DR": "disabled by registry key",
    "NS": "not supported",
    "U": "unknown",
}
_ASKED = {"r": "read", "w": "write", "n": "NVLink", "a": "atomics", "p": "PCIe"}
_NAMED = 4


def looks_like_p2p(text: Text) -> bool:
    """Whether the first row of a table of GPUs holds a word that `topo -p2p` alone prints."""
    return _first_row(text) is not None


def refuse_p2p_alone(text: Text) -> None:
    """Says that this table cannot describe a machine.

    Raises:
        TopologyError: always.
    """
    hint = "add --from a file with `nvidia-smi topo -m` of this machine"
    what = "`topo -p2p` says which GPUs can access each other, not what joins them"
    raise TopologyError(what, where=text.at(_first_row(text) or 1), hint=hint)


def apply_p2p(text: Text, machine: Machine) -> None:
    """Notes on `machine` which pairs cannot read or write each other's memory.

    Raises:
        TopologyError: the table is damaged, of another machine, or not about access.
    """
    asked = re.search(r"topo\s+(?:-p2p|--p2pstatus)[ =]([a-z])", text.whole)
    if asked and asked[1] not in "rw":
        what = f"`topo -p2p {asked[1]}` is about {_ASKED.get(asked[1], 'something else')}, not about access to memory"
        raise TopologyError(what, where=text.where, hint="run `nvidia-smi topo -p2p r`")
    word = _ASKED[asked[1]] if asked else "read"
    cells, first = _cells(text)
    if len(cells) != len(machine.gpus):
        what = f"{len(cells)} GPUs here, {len(machine.gpus)} in the other dump"
        raise TopologyError(what, where=text.at(first), hint="are both of one machine?")
    blocked: dict[str, list[str]] = {}
    for (a, b), cell in _pairs(cells).items():
        if cell != "OK":
            blocked.setdefault(cell, []).append(f"{machine.gpus[a]}-{machine.gpus[b]}")
    for cell, pairs in sorted(blocked.items()):
        some = first_few(pairs, _NAMED)
        machine.assume(f"GPUs that cannot {word} each other's memory ({_WHY[cell]}): {some}; they meet in host memory")


def _pairs(rows: list[list[str]]) -> dict[tuple[int, int], str]:
    """Pairs (smaller, larger) -> the cell, the worse one where the two directions differ."""
    found = {}
    for a, row in enumerate(rows):
        for b in range(a + 1, len(rows)):
            both = {row[b], rows[b][a]}
            found[a, b] = min(both - {"OK"} or both)
    return found


def _cells(text: Text) -> tuple[list[list[str]], int]:
    """The table by row, and the line of its first row."""
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
    """The line number of the row of GPU0 below a header of GPUs alone, if its cells are those of `topo -p2p`."""
    for number, (above, line) in enumerate(zip(text.lines, text.lines[1:], strict=False), 2):
        names, words = above.split(), line.split()
        if names and names == [f"GPU{i}" for i in range(len(names))] and words[:2] == ["GPU0", "X"]:
            return number if set(words[2:]) & set(_WHY) else None
    return None
