"""Cleans pasted terminal output: removes colors, comment and quote marks, log time stamps and carriage returns."""

from __future__ import annotations

import re
from dataclasses import dataclass

from collc.errors import TopologyError

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\x1b[()][A-Z0-9]")
# Color sequences whose escape byte a mail or a chat program has removed or written as text.
_SPELT = re.compile(r"(?:\^\[|\u241b|\\e|\\033|\\x1b)?\[[0-9]{0,3}(?:;[0-9]{1,3}){0,4}m")
# Prefixes of a line: comment and quote marks, the tag of mpirun, the time of a log.
_PREFIXES = (
    re.compile(r" *(?:[#>|] ?)+"),
    re.compile(r" *\[[0-9]+,[0-9]+\](?:<std(?:out|err)>)?: ?"),
    re.compile(
        r" *\[?[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]+)?(?:Z|[+-][0-9:]{4,5})?\]? ?"
    ),
)
# A shell prompt with a command: `user@host:~$ nvidia-smi -L`, `[root@host ~]# ...`, `$ amd-smi topology`.
_TOOLS = "nvidia-smi|rocm-smi|amd-smi|lstopo|hwloc-ls|ibstat|ibnetdiscover|iblinkinfo|lspci|lscpu|numactl|ibdev2netdev"
_HOST_PROMPT = r"\[?[\w.-]+@[\w.-]+[^$#%>]{0,80}[$#%>](?: |$)"
_PROMPT = re.compile(rf"(?:\([\w.-]+\) ?)?(?:{_HOST_PROMPT}|\$$|[$#%] (?=(?:sudo )?(?:{_TOOLS})\b))")
MAX_CHARS = 4 << 20
MAX_LINE = 1 << 16


@dataclass(frozen=True, slots=True)
class Text:
    """A dump or a part of one: its name for messages and its clean lines.

    Attributes:
        first: the number of the file's line before ``lines[0]``. So line `number` of this text is line `first + number`
            of the file.
    """

    where: str
    lines: tuple[str, ...]
    first: int = 0

    def at(self, number: int) -> str:
        return f"{self.where}:{self.first + number}"

    @property
    def whole(self) -> str:
        return "\n".join(self.lines)

    @property
    def as_xml(self) -> str:
        """The text without a prompt, after as many empty lines as the file has lines before it."""
        start = 1 if self.lines and _PROMPT.match(self.lines[0]) else 0
        return "\n" * (self.first + start) + "\n".join(self.lines[start:])

    def sections(self) -> list[Text]:
        """Returns the outputs of commands, if the text has shell prompts with commands; else the whole text."""
        starts = [i for i, line in enumerate(self.lines) if _PROMPT.match(line)]
        if not starts:
            return [self]
        ends = [*starts[1:], len(self.lines)]
        parts = [Text(self.where, self.lines[: starts[0]], self.first)] if starts[0] else []
        # A section begins with its prompt, because the command tells what the output is about.
        parts += [Text(self.where, self.lines[a:b], self.first + a) for a, b in zip(starts, ends, strict=True)]
        return [part for part in parts if part.whole.strip()]


def clean(text: str, where: str) -> Text:
    """Returns the text without additions of terminals and mail. Tabs stay, because they separate columns.

    Raises:
        TopologyError: the text or a line is too large for a dump of a machine.
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
    """Returns the lines without the prefix that all of them have."""
    for _ in _PREFIXES:
        full = [line for line in lines if line.strip()]
        found = next((p for p in _PREFIXES if full and all(p.match(line) for line in full)), None)
        if found is None:
            break
        lines = [found.sub("", line, count=1) for line in lines]
    return lines
