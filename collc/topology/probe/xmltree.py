"""Parses XML into elements with their lines, for untrusted files: no entities, no document types, limited depth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn
from xml.parsers import expat

from collc.errors import TopologyError

MAX_DEPTH = 64


@dataclass
class Element:
    """One XML element."""

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[Element] = field(default_factory=list)

    def get(self, key: str, default: str = "") -> str:
        return self.attributes.get(key, default).strip()

    def all(self, tag: str) -> Iterator[Element]:
        return (child for child in self.children if child.tag == tag)

    def walk(self) -> Iterator[Element]:
        """Yields this element and all elements below it, in the order of the file."""
        todo = [self]
        while todo:
            element = todo.pop()
            yield element
            todo += reversed(element.children)


def parse_xml(text: str, where: str) -> Element:
    """Returns the root element of a document.

    Raises:
        TopologyError: the text is not XML, has a document type or is nested too deep; the message names the line.
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

    def doctype(*_: object) -> None:
        fail("a document type declaration, which no NCCL topology has")

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.StartDoctypeDeclHandler = doctype
    try:
        parser.Parse(text.encode("utf-8", "replace"), True)
    except expat.ExpatError as error:
        what = f"not XML: {expat.ErrorString(error.code)}"
        raise TopologyError(what, where=f"{where}:{error.lineno}", hint="is the file complete?") from None
    assert len(top) == 1
    return top[0]
