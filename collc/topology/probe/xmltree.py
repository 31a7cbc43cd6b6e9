"""Parses XML into elements with their lines, for untrusted files: no entities, limited depth."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn
from xml.parsers import expat

from collc.errors import TopologyError

MAX_DEPTH = 64
# The text is decoded already, so an encoding in the declaration is wrong; and it may follow empty lines.
_DECLARATION = re.compile(r"^\s*(<\?xml[^>]*\?>)")


@dataclass
class Element:
    """One XML element."""

    tag: str
    attributes: dict[str, str]
    line: int
    text: str = ""
    children: list[Element] = field(default_factory=list)

    def get(self, key: str, default: str = "") -> str:
        return self.attributes.get(key, default).strip()

    def inner(self, *path: str) -> str:
        """Returns the text of the element at the end of a path of tags below this one; "" if it is missing."""
        element: Element | None = self
        for tag in path:
            element = next(element.all(tag), None) if element is not None else None
        return element.text.strip() if element is not None else ""

    def all(self, tag: str) -> Iterator[Element]:
        return (child for child in self.children if child.tag == tag)

    def walk(self) -> Iterator[Element]:
        """Yields this element and all elements below it, in the order of the file."""
        todo = [self]
        while todo:
            element = todo.pop()
            yield element
            todo += reversed(element.children)


def _line_ends(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n")


def parse_xml(text: str, where: str) -> Element:
    """Returns the root element of a document.

    Raises:
        TopologyError: the text is not XML, contains a document type, or is nested too deep; the message
            names the line.
    """
    parser = expat.ParserCreate()
    top: list[Element] = []
    stack: list[Element] = []

    def fail(what: str) -> NoReturn:
        raise TopologyError(what, where=f"{where}:{parser.CurrentLineNumber}", hint="is the file complete?")

    def start(tag: str, attributes: dict[str, str]) -> None:
        if len(stack) >= MAX_DEPTH:
            fail(f"elements nested deeper than {MAX_DEPTH} levels")
        element = Element(tag, attributes, parser.CurrentLineNumber)
        (stack[-1].children if stack else top).append(element)
        stack.append(element)

    def end(tag: str) -> None:
        stack.pop()

    def characters(data: str) -> None:
        if stack:
            stack[-1].text += data

    def doctype(name: str, system: str | None, public: str | None, has_internal_subset: bool) -> None:
        # The parser does not load external document types, which hwloc and nvidia-smi name.
        if has_internal_subset:
            fail("a document type declaration, which no dump has")

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = characters
    parser.StartDoctypeDeclHandler = doctype
    try:
        parser.Parse(_DECLARATION.sub(_line_ends, text, count=1).encode("utf-8", "replace"), True)
    except expat.ExpatError as error:
        what = f"not XML: {expat.ErrorString(error.code)}"
        raise TopologyError(what, where=f"{where}:{error.lineno}", hint="is the file complete?") from None
    assert len(top) == 1
    return top[0]
