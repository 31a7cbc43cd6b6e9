"""The map for newcomers names functions with their files: each of them must be there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLACES = ("", "templates/", "templates/runtime/", "collc/")
NAMED = re.compile(r"`([\w:()]+)`[^`|]*?\(`([\w/.]+\.(?:py|h|cpp|cu))`\)", re.S)


def find_file(name: str) -> Path | None:
    """Returns the file that the page calls `name`; None if there is no such file."""
    return next((ROOT / place / name for place in PLACES if (ROOT / place / name).is_file()), None)


def missing_functions(text: str) -> list[str]:
    """Returns the functions of a page that the file after them does not define or declare."""
    missing = []
    for name, file in NAMED.findall(text):
        path, function = find_file(file), name.removesuffix("()").rpartition("::")[2]
        if path is None or not re.search(rf"\b{function}\b", path.read_text(encoding="utf-8")):
            missing.append(f"{name} ({file})")
    return missing


def test_functions_of_the_map_are_in_their_files() -> None:
    text = (ROOT / "docs/map.md").read_text(encoding="utf-8")
    assert len(NAMED.findall(text)) > 25
    assert missing_functions(text) == []


@pytest.mark.parametrize("line", ["`no_such_function` (`cuda/rank.cpp`)", "`look` (`cuda/no_such_file.cpp`)"])
def test_a_wrong_name_is_found(line: str) -> None:
    assert len(missing_functions(line)) == 1


def test_files_and_folders_of_the_map_exist() -> None:
    text = (ROOT / "docs/map.md").read_text(encoding="utf-8")
    tables = text[text.index("## NCCL's terms") :]
    names = [name for name in re.findall(r"`([\w/.]+)`", tables) if "/" in name]
    assert len(names) > 30
    assert [
        name
        for name in names
        if find_file(name) is None and not (ROOT / name).is_dir() and not (ROOT / "templates" / name).is_dir()
    ] == []
