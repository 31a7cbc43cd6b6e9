"""The command lines in README.md and docs/ are ones that collc takes: their options exist and their values fit."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
# `collc` as a command of its own or behind a launcher.
LINE = re.compile(r"(?:^|\s)(?:-m )?collc ((?:[a-z]+)(?: \S+)*)")


def commands() -> list[tuple[str, str]]:
    """(where, arguments) of every line of a code block that runs collc."""
    found = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        inside = False
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if line.lstrip().startswith("```"):
                inside = not inside
            elif inside and not line.startswith(("#", "pip", "RUN")) and (match := LINE.search(line.split(" #")[0])):
                found.append((f"{path.name}:{number}", match[1]))
    return found


def test_the_documents_show_commands() -> None:
    assert len(commands()) >= 30


@pytest.mark.parametrize(("where", "text"), commands(), ids=lambda value: value)
def test_a_documented_command_is_taken(where: str, text: str) -> None:
    name, *words = shlex.split(re.split(r" [|>] ", text)[0])
    command = importlib.import_module(f"collc.cli.{name}").command
    context = command.make_context(name, words)
    if name == "run":
        assert not context.params["argv"][0].endswith(".so"), f"{where}: the library is named with --lib"
