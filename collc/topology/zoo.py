"""The machines that come with collc: one YAML file each in `topologies/`."""

from __future__ import annotations

import difflib
from pathlib import Path

from collc.resources import resource_dir
from collc.topology.names import name_problem


def directory() -> Path:
    """Returns the folder of the files: in the installed package, else in the checkout."""
    return resource_dir("topologies")


def names() -> tuple[str, ...]:
    """Returns the names of all machines, sorted."""
    return tuple(sorted(path.stem for path in directory().glob("*.yaml")))


def find(name: str) -> Path | None:
    """Returns the file of a machine, or None."""
    path = directory() / f"{name}.yaml"
    return path if name_problem(name) is None and path.is_file() else None


def suggest(name: str) -> str:
    """Returns a hint for a name that is no machine."""
    near = difflib.get_close_matches(Path(name[:200]).stem.lower(), names(), n=1)
    return f"did you mean `{near[0]}`?" if near else "`collc topologies` lists the known machines"


def source(name: str) -> str:
    """Returns the first comment of a machine's file as one line: the machine and the source of its numbers."""
    path = find(name)
    assert path is not None
    lines: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# ").rstrip())
    return " ".join(filter(None, lines))


def title(name: str) -> str:
    """Returns the first part of `source`: the description of the machine."""
    return source(name).partition(":")[0].partition(". ")[0]
