"""Machine code as nvdisasm prints it: instructions, loops, and loads that a warp waits for one after another."""

from __future__ import annotations

import re

Loop = tuple[int, int]  # its first and last instruction
Waits = tuple[int, dict[str, int]]  # rounds that have been waited for; those that registers were loaded in

_LINE = re.compile(r"^(?:(\.L_x_\d+):|\s+/\*[0-9a-f]{4,}\*/\s+(.*?) ?;)", re.MULTILINE)
_TARGET = re.compile(r"\bBRA\b.*`\((\.L_x_\d+)\)")
_GLOBAL = re.compile(r"\bLDG?\.E((?:\.\w+)*) R(\d+), (.*)")
_ANY = re.compile(r"\bU?[RP]\d+\b")
_LINES_LOAD = re.compile(r"(?:@!?U?P\d+ )?\s*LDG\.E\.128\.STRONG\.SYS R(\d+), (.*)")
_REGISTER = re.compile(r"\bR(\d+)\b")
_ALWAYS = re.compile(r"(?:BRA|BRA\.U) `")


def listing(body: str) -> tuple[list[str], dict[str, int], list[Loop]]:
    """A kernel in nvdisasm's text: instructions, where labels stand, loops by their first and last instruction."""
    labels: dict[str, int] = {}
    lines: list[str] = []
    for label, instruction in _LINE.findall(body):
        if label:
            labels[label] = len(lines)
        else:
            lines.append(instruction)
    backwards = [(labels[t[1]], at) for at, line in enumerate(lines) if (t := _TARGET.search(line)) and t[1] in labels]
    return lines, labels, [(begin, end) for begin, end in backwards if begin <= end]


def load_rounds(body: str) -> list[int]:
    """Returns the round of each load from global memory before a kernel's first barrier.

    A warp issues in order, and waits where an instruction names a register that is still loaded. What it can issue
    before that is round 1, what comes before the next such wait round 2, and so on, on the way to the load that waits
    the least. So addresses that are loaded count, and branches on what is loaded, and loads that only stand behind
    such a wait.
    """
    lines, labels, _ = listing(body)
    before: dict[int, Waits] = {0: (0, {})}
    rounds: dict[int, int] = {}
    todo = [0]
    while todo:
        at = todo.pop()
        line = lines[at]
        waited, loaded = before[at]
        if "BAR." in line:
            continue
        waited = max([waited, *(loaded.get(register, 0) for register in _ANY.findall(line))])
        if load := _GLOBAL.search(line):
            rounds[at] = waited + 1
            words = {".64": 2, ".128": 4, ".256": 8}
            width = next((n for text, n in words.items() if text in load[1]), 1)
            loaded = loaded | {f"R{int(load[2]) + word}": waited + 1 for word in range(width)}
        target = _TARGET.search(line)
        following = [labels[target[1]]] if target and target[1] in labels else []
        if not _ALWAYS.match(line) and not line.startswith(("EXIT", "RET")):
            following.append(at + 1)
        for successor in following:
            if successor >= len(lines):
                continue
            known = before.get(successor)
            made = (waited, loaded) if known is None else _fewer(known, (waited, loaded))
            if made != known:
                before[successor] = made
                todo.append(successor)
    return [rounds[at] for at in sorted(rounds)]


def _fewer(a: Waits, b: Waits) -> Waits:
    """Merges two paths: keeps the loads that both paths have waited for, and the loads that both may still wait for."""
    return min(a[0], b[0]), {r: min(a[1][r], b[1][r]) for r in a[1].keys() & b[1].keys()}


def in_flight(body: str) -> list[int]:
    """Returns, for every wait for lines of LL or LL128, how many loads are issued before an instruction needs one."""
    found: list[int] = []
    loaded: set[str] = set()
    issued = 0
    for line in listing(body)[0]:
        load = _LINES_LOAD.match(line)
        if issued and loaded.intersection(_REGISTER.findall(load[2] if load else line)):
            found.append(issued)
            loaded, issued = set(), 0
        if load:
            loaded |= {str(int(load[1]) + word) for word in range(4)}
            issued += 1
    return [*found, issued] if issued else found
