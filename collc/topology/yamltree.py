"""Parses YAML, even hostile text, into a small tree of scalars, sequences and mappings, each with its line.

The tree is built from the parser's events, not with `yaml.load`. Numbers stay text, because a float cannot represent
0.1. Lines are kept for messages. Depth and size are limited while reading, so that ten megabytes of ``[`` cost nothing.
Anchors, aliases, tags and second documents are refused, because a topology needs none of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

import yaml

from collc.errors import TopologyError

MAX_BYTES = 8 << 20
MAX_DEPTH = 16
MAX_NODES = 2_000_000

_Loader: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Scalar:
    """A single value as written. `plain` is False if it has quotes."""

    text: str
    plain: bool
    line: int


@dataclass(frozen=True, slots=True)
class Items:
    """A YAML sequence."""

    items: tuple[Node, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Table:
    """A YAML mapping in the order of the file; keys are scalars and distinct."""

    entries: tuple[tuple[Scalar, Node], ...]
    line: int

    def get(self, key: str) -> Node | None:
        return next((value for k, value in self.entries if k.text == key), None)


Node = Scalar | Items | Table


def decode(data: bytes, where: str) -> str:
    """Returns the UTF-8 bytes of a file as text.

    Raises:
        TopologyError: the file is too large or not UTF-8; then the message names the line.
    """
    if len(data) > MAX_BYTES:
        raise TopologyError(f"the file is larger than {MAX_BYTES >> 20} MiB", where=where, hint="it is not a topology")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TopologyError(
            f"byte 0x{data[error.start]:02x} is not UTF-8", where=f"{where}:{line}", hint="save the file as UTF-8 text"
        ) from None


def parse(text: str, where: str) -> Node:
    """Parses one YAML document.

    Args:
        where: the name of the file, for messages.

    Raises:
        TopologyError: the text is not YAML, or uses what a topology may not use; names file and line.
    """
    if len(text) > MAX_BYTES:
        raise TopologyError(f"the text is larger than {MAX_BYTES >> 20} MiB", where=where, hint="it is not a topology")
    bad = _CONTROL.search(text)
    if bad:
        line = text.count("\n", 0, bad.start()) + 1
        raise TopologyError(
            f"control character 0x{ord(bad[0]):02x} in the text", where=f"{where}:{line}", hint="is it the right file?"
        )
    loader = _Loader(text)
    try:
        return _Builder(where).build(loader)
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, text, where) from None
    except yaml.YAMLError as error:
        raise TopologyError(f"not YAML: {error}", where=where) from None
    finally:
        loader.dispose()


def _syntax_error(error: yaml.MarkedYAMLError, text: str, where: str) -> TopologyError:
    mark = error.problem_mark or error.context_mark
    number = 1 if mark is None else mark.line + 1
    lines = text.splitlines()
    shown = lines[number - 1] if number <= len(lines) else ""
    tabs = "\t" in shown[: len(shown) - len(shown.lstrip())]
    hint = "indent with spaces, not tabs" if tabs else "see docs/topology.md for the format"
    what = ", ".join(part for part in (error.context, error.problem) if part)
    return TopologyError(f"not YAML: {what}", where=f"{where}:{number}", hint=hint)


class _Builder:
    """Turns events into nodes with an explicit stack."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.root: Node | None = None
        # Open collections: (is a mapping, line, children so far).
        self.stack: list[tuple[bool, int, list[Node]]] = []
        self.count = 0

    def build(self, loader: yaml.SafeLoader) -> Node:
        documents = 0
        while loader.check_event():
            event = loader.get_event()  # type: ignore[no-untyped-call]
            line = event.start_mark.line + 1
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self.fail("a second document starts here", line, "keep one topology per file")
            elif isinstance(event, yaml.NodeEvent):
                self.node(event, line)
            elif isinstance(event, yaml.CollectionEndEvent):
                self.close()
        if self.root is None:
            raise TopologyError(
                "the file is empty", where=f"{self.where}:1", hint="a topology starts with `format: collc-topology/1`"
            )
        return self.root

    def node(self, event: yaml.NodeEvent, line: int) -> None:
        self.count += 1
        if self.count > MAX_NODES:
            self.fail(f"more than {MAX_NODES} values", line, "no topology needs that")
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            self.fail("anchors and aliases are not allowed", line, "use `extends`, `template` or `count` instead")
        assert isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent)
        if event.tag is not None:
            self.fail(f"tags such as {event.tag} are not allowed", line, "remove the tag")
        if isinstance(event, yaml.ScalarEvent):
            self.add(Scalar(event.value, not event.style, line))
            return
        if len(self.stack) >= MAX_DEPTH:
            self.fail(f"nested deeper than {MAX_DEPTH} levels", line, "no topology needs that")
        self.stack.append((isinstance(event, yaml.MappingStartEvent), line, []))

    def close(self) -> None:
        mapping, line, children = self.stack.pop()
        self.add(self.table(line, children) if mapping else Items(tuple(children), line))

    def add(self, node: Node) -> None:
        if self.stack:
            self.stack[-1][2].append(node)
        else:
            self.root = node

    def table(self, line: int, children: list[Node]) -> Table:
        entries: list[tuple[Scalar, Node]] = []
        seen: dict[str, int] = {}
        for key, value in zip(children[::2], children[1::2], strict=True):
            if not isinstance(key, Scalar):
                self.fail("a key must be a single word", key.line, "see docs/topology.md for the format")
            if key.text in seen:
                self.fail(f"key `{key.text}` is given twice, first on line {seen[key.text]}", key.line, "keep one")
            seen[key.text] = key.line
            entries.append((key, value))
        return Table(tuple(entries), line)

    def fail(self, what: str, line: int, hint: str) -> NoReturn:
        raise TopologyError(what, where=f"{self.where}:{line}", hint=hint)
