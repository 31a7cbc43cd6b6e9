"""Reads pasted output of `nvidia-smi topo -m`: a matrix of GPUs and NICs with affinities.

The dump has NVLink counts between GPUs and the PCIe distances of devices. A table that is incomplete, not square or not
symmetric is refused with the line, and no cell is assumed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from collc.errors import TopologyError
from collc.topology.names import name_problem
from collc.topology.probe.lines import Text

# The distances of two devices, in increasing order. Before driver 384, SYS was called SOC.
LEVELS = ("PIX", "PXB", "PHB", "NODE", "SYS")
_SYNONYMS = {"SOC": "SYS", "PSB": "PIX"}
_CELL = re.compile(r"X|NV([0-9]{1,3})|PIX|PXB|PHB|NODE|SYS|SOC|PSB")
_TITLES = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_DEVICE = r"GPU[0-9]{1,3}|NIC[0-9]{1,3}|[A-Za-z][A-Za-z0-9]*_[0-9]{1,3}|[A-Za-z][A-Za-z0-9_.-]*[0-9]"
_GLUED = re.compile(r"(?<=[0-9])(?=GPU[0-9]|NIC[0-9]|mlx[0-9])|(?<=GPU[0-9])(?=[A-Za-z])")
_LEGEND = re.compile(r"\s*(NIC[0-9]{1,3})\s*:\s*(\S+)\s*$")


@dataclass
class Matrix:
    """The contents of `nvidia-smi topo -m`. Pairs are (smaller, larger) device numbers.

    Attributes:
        devices: the topology's names of GPUs and NICs, in the order of the header.
        gpus: the device numbers of the GPUs.
        nvlinks: the number of NVLinks of each pair that has any.
        levels: one of `LEVELS` for each pair without NVLink.
        affinity, numa, gpu_numa: the cells as printed, "" if blank. A number in `gpu_numa` is the NUMA node of the
            GPU's memory, which only Grace machines have.
        line: the line number of the header.
    """

    devices: list[str] = field(default_factory=list)
    gpus: list[int] = field(default_factory=list)
    nvlinks: dict[tuple[int, int], int] = field(default_factory=dict)
    levels: dict[tuple[int, int], str] = field(default_factory=dict)
    affinity: dict[int, str] = field(default_factory=dict)
    numa: dict[int, str] = field(default_factory=dict)
    gpu_numa: dict[int, str] = field(default_factory=dict)
    line: int = 1


def looks_like_topo(text: Text) -> bool:
    """Returns True if a line of the text is the header of a `topo -m` table."""
    return any(_header(line) is not None for line in text.lines)


def read_topo(text: Text) -> Matrix:
    """Returns the contents of the table.

    Raises:
        TopologyError: the table is incomplete or inconsistent; the message names the line.
    """
    start, (tokens, titles) = next((i, h) for i, line in enumerate(text.lines) if (h := _header(line)) is not None)
    matrix = Matrix(line=start + 1)
    if len(set(tokens)) != len(tokens):
        twice = next(t for t in tokens if tokens.count(t) > 1)
        raise TopologyError(f"the header names {twice} twice", where=text.at(start + 1), hint="paste one table")
    rows, last = _rows(text, start, tokens, titles, matrix)
    for name in tokens:
        if name not in rows:
            hint = (
                f"the header on line {start + 1} names {len(tokens)} devices; the table has been cut, paste all of it"
            )
            raise TopologyError(f"the row of {name} is missing", where=text.at(last + 1), hint=hint)
    _check_symmetric(text, tokens, rows)
    numbers = {name: i for i, name in enumerate(tokens)}
    matrix.gpus = [i for i, name in enumerate(tokens) if name.startswith("GPU")]
    for name, (_, cells) in rows.items():
        for other, cell in zip(tokens, cells, strict=True):
            pair = (numbers[name], numbers[other])
            if pair[0] < pair[1]:
                if match := re.fullmatch(r"NV([0-9]+)", cell):
                    if not (name.startswith("GPU") and other.startswith("GPU")):
                        what = f"row {name} says {cell} to {other}, but NVLinks join GPUs alone"
                        raise TopologyError(what, where=text.at(rows[name][0]), hint="the table is damaged")
                    matrix.nvlinks[pair] = int(match[1])
                else:
                    matrix.levels[pair] = _SYNONYMS.get(cell, cell)
    matrix.devices = _device_names(text, tokens)
    return matrix


def _header(line: str) -> tuple[list[str], list[str]] | None:
    """Returns the devices and affinity titles of a header line; None for another line."""
    if "GPU" not in line:
        return None
    rest = line
    titles = []
    for title in _TITLES:
        found = re.search(title.replace(" ", r"\s+"), rest)
        if found:
            titles.append(title)
            rest = rest[: found.start()] + " " + rest[found.end() :]
    tokens = _GLUED.sub(" ", rest).split()
    good = bool(tokens) and tokens[0].startswith("GPU") and all(re.fullmatch(_DEVICE, t) for t in tokens)
    return (tokens, titles) if good and "X" not in tokens and not set(tokens) & set(LEVELS) else None


def _rows(
    text: Text, start: int, tokens: list[str], titles: list[str], matrix: Matrix
) -> tuple[dict[str, tuple[int, list[str]]], int]:
    """Returns row name -> (line, cells), and the line of the last row."""
    rows: dict[str, tuple[int, list[str]]] = {}
    last = start + 1
    for number, line in enumerate(text.lines[start + 1 :], start + 2):
        words = line.split()
        if not words:
            continue
        if line.strip().lower().startswith(("legend", "nic legend")):
            break
        if _header(line) is not None:
            raise TopologyError("a second table begins here", where=text.at(number), hint="paste one table")
        if words[0] not in tokens:
            if _is_row(words):
                raise TopologyError(f"the header does not name {words[0]}", where=text.at(number))
            continue
        name = words[0]
        if name in rows:
            raise TopologyError(f"a second row of {name}", where=text.at(number), hint=f"first on line {rows[name][0]}")
        cells = _cells(text, number, words, len(tokens))
        at = tokens.index(name)
        if cells[at] != "X":
            hint = "a device's own cell is X; is a cell missing before it?"
            raise TopologyError(f"column {tokens[at]} of row {name} is {cells[at]}", where=text.at(number), hint=hint)
        if "X" in cells[:at] + cells[at + 1 :]:
            raise TopologyError(f"row {name} has an X outside its own column", where=text.at(number))
        rows[name] = (number, cells)
        last = number
        _affinity(line, len(tokens), titles, matrix, at)
    return rows, last


def _is_row(words: list[str]) -> bool:
    return len(words) > 2 and sum(bool(_CELL.fullmatch(word)) for word in words[1:]) >= 2 and "=" not in words


def _cells(text: Text, number: int, words: list[str], count: int) -> list[str]:
    cells = words[1 : count + 1]
    for i, cell in enumerate(cells):
        if not _CELL.fullmatch(cell):
            what = f"row {words[0]} has `{cell[:20]}` in column {i + 1} of {count}"
            hint = f"a cell is one of X, NV1, {', '.join(LEVELS)}; has the row been cut?"
            raise TopologyError(what, where=text.at(number), hint=hint)
        if cell == "NV0":
            raise TopologyError(f"row {words[0]} has NV0", where=text.at(number), hint="no links would be PIX to SYS")
    if len(cells) < count:
        what = f"row {words[0]} has {len(cells)} cells, the header names {count} devices"
        raise TopologyError(what, where=text.at(number), hint="the table has been cut, paste all of it")
    return cells


def _affinity(line: str, count: int, titles: list[str], matrix: Matrix, device: int) -> None:
    """Stores the affinity cells of a row, which follow its matrix cells. Blank cells are seen only if tabs are kept."""
    rest = re.sub(rf"^\s*(?:\S+\s+){{{count}}}\S+", "", line, count=1)
    if "\t" in rest:
        cells = [cell.strip() for cell in rest.split("\t")[1:]]
        # Newer drivers print a superfluous tab before the GPU NUMA ID.
        cells = [*cells[:2], *(c for c in cells[2:] if c)]
    else:
        cells = rest.split()
        if len(cells) < len(titles):
            return
    found = dict(zip(titles, cells, strict=False))
    matrix.affinity[device] = found.get("CPU Affinity", "")
    matrix.numa[device] = found.get("NUMA Affinity", "")
    matrix.gpu_numa[device] = found.get("GPU NUMA ID", "")


def _check_symmetric(text: Text, tokens: list[str], rows: dict[str, tuple[int, list[str]]]) -> None:
    for i, a in enumerate(tokens):
        for j, b in enumerate(tokens[:i]):
            line, cells = rows[a]
            other = rows[b][1][i]
            if _SYNONYMS.get(cells[j], cells[j]) != _SYNONYMS.get(other, other):
                hint = f"row {b} on line {rows[b][0]} says {other}; the table is damaged"
                raise TopologyError(f"row {a} says {cells[j]} to {b}", where=text.at(line), hint=hint)


def _device_names(text: Text, tokens: list[str]) -> list[str]:
    """Returns the names of devices: gpu0, gpu1, ...; NICs have their names in the legend, if there is one."""
    legend = {m[1]: m[2] for line in text.lines if (m := _LEGEND.fullmatch(line))}
    names: list[str] = []
    for token in tokens:
        name = token.lower() if token.startswith(("GPU", "NIC")) else token
        better = legend.get(token)
        if better and name_problem(better) is None and better not in names and better not in tokens:
            name = better
        names.append(name)
    return names
