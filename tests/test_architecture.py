"""The house rules that a machine can check: imports point one way, the library prints nothing, files fit in a head."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import collc

ROOT = Path(collc.__file__).parent

# A module may import from its own layer or an earlier one. Longest prefix wins.
LAYERS = [
    ["collc.errors", "collc.process", "collc.inputs", "collc.start", "collc.resources", "collc.options", "collc"],
    ["collc.topology"],
    ["collc.packing"],
    ["collc.schedule"],
    ["collc.ir"],
    ["collc.lower"],
    ["collc.codegen"],
    ["collc.build"],
    ["collc.simulate", "collc.bench"],
    ["collc.choose", "collc.tune"],
    ["collc.pipeline", "collc.doctor"],
    ["collc.compiler"],
    ["collc.cli", "collc.__main__"],
]
# Meant to run against the pipeline: what they measure is its output.
ABOVE = {"collc.bench": 10, "collc.simulate": 10, "collc.tune": 11, "collc.choose": 11, "collc.torch": 11}

MODULES = sorted(ROOT.rglob("*.py"))


def name_of(path: Path) -> str:
    parts = ["collc", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer(module: str) -> int:
    best, found = "", -1
    for number, prefixes in enumerate(LAYERS):
        for prefix in prefixes:
            if (module == prefix or module.startswith(prefix + ".")) and len(prefix) > len(best):
                best, found = prefix, number
    return found


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            # `from collc import packing` names a package, `from collc.errors import X` a thing inside a module.
            found |= (
                {f"{node.module}.{alias.name}" for alias in node.names} if node.module == "collc" else {node.module}
            )
    return {name for name in found if name.split(".")[0] == "collc"}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_point_one_way(path):
    module = name_of(path)
    own = layer(module)
    top = next((n for prefix, n in ABOVE.items() if module == prefix or module.startswith(prefix + ".")), own)
    for name in imports(path):
        assert layer(name) <= max(own, top), f"{module} imports {name}, which comes later in the pipeline"


@pytest.mark.parametrize("path", [p for p in MODULES if "cli" not in p.parts], ids=name_of)
def test_the_library_prints_nothing_and_needs_no_click(path):
    if name_of(path) == "collc.bench.worker":
        return  # a program of its own that answers on its standard output
    tree = ast.parse(path.read_text())
    assert "click" not in {
        alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    }
    calls = [n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
    assert "print" not in calls


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_every_module_says_what_it_is_for(path):
    text = path.read_text()
    if text.strip():
        assert ast.get_docstring(ast.parse(text)), path


def test_files_fit_in_a_head():
    long = {name_of(p): len(p.read_text().splitlines()) for p in MODULES if len(p.read_text().splitlines()) > 450}
    assert not long
