"""Pasted terminal output -> clean lines: colours, comment and quote marks, log stamps and carriage returns go."""

from __future__ import annotations

import re
from dataclasses import dataclass

from collc.errors import TopologyError

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\x1b[()][A-Z0-9]")
# Marks of colour whose escape byte a mail or a chat has lost, or spelt out.
_SPELT = re.compile(r"(?:\^\[|\u241b|\\e|\\033|\\x1b)?\[[0-9]{0,3}(?:;[0-9]{1,3}){0,4}m")
# Prefixes that a line may have: comment and quote marks, mpirun's tag, a log's time.
_PREFIXES = (
    re.compile(r" *(?:[#>|] ?)+"),
    re.compile(r" *\[[0-9]+,[0-9]+\](?:<std(?:out|err)>)?: ?"),
    re.compile(
        r" *\[?[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]+)?(?:Z|[+-][0-9:]{4,5})?\]? ?"
    ),
)
MAX_CHARS = 4 << 20
MAX_LINE = 1 << 16


@dataclass(frozen=True, slots=True)
class Text:
    """A dump: its name for messages and its lines, cleaned; line i of the file is ``lines[i - 1]``."""

    where: str
    lines: tuple[str, ...]

    def at(self, number: int) -> str:
        return f"{self.where}:{number}"

    @property
    def whole(self) -> str:
        return "\n".join(self.lines)


def clean(text: str, where: str) -> Text:
    """Removes what terminals and mail add. Tabs stay: they are columns.

    Raises:
        TopologyError: the text is far too large for a dump of a machine.
    """
    if len(text) > MAX_CHARS:
        raise TopologyError(f"the file is larger than {MAX_CHARS >> 20} MiB", where=where, hint="it is not a dump")
    plain = _ANSI.sub("", text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n"))
    raw = _SPELT.sub("", plain).split("\n")
    for number, line in enumerate(raw, 1):
        if len(line) > MAX_LINE:
            raise TopologyError("the line is too long for a dump", where=f"{where}:{number}")
    raw = _without_prefixes(raw)
    return Text(where, tuple(line.replace("\xa0", " ").rstrip() for line in raw))


def _without_prefixes(lines: list[str]) -> list[str]:
    """The lines without the prefix that all of them have."""
    for _ in _PREFIXES:
        full = [line for line in lines if line.strip()]
        found = next((p for p in _PREFIXES if full and all(p.match(line) for line in full)), None)
        if found is None:
            break
        lines = [found.sub("", line, count=1) for line in lines]
    return lines
