"""The house rules that a machine can check: imports point one way, the library prints nothing, files fit in a head."""

from __future__ import annotations

import ast
import tomllib
from functools import cache
from pathlib import Path

import networkx
import pytest

import collc

ROOT = Path(collc.__file__).parent

# The rooms of the house, in order: a module may import from its own room and from those before it. A new one is
# listed here, at its place in the pipeline, and described in docs/pipeline.md.
ROOMS = (
    "errors",
    "limits",
    "process",
    "network",
    "inputs",
    "start",
    "resources",
    "options",
    "outputs",
    "collectives",
    "topology",
    "packing.model",
    "ir.nodes",
    "checker",
    "packing",
    "graphs",
    "schedule",
    "ir",
    "lowering",
    "pipeline",
    "codegen",
    "build",
    "simulator",
    "choose",
    "training",
    "export",
    "compiler",
    "bench",
    "tune",
    "show",
    "torch",
    "doctor",
    "status",
    "api",
    "cli",
    "__main__",
)

MODULES = sorted(ROOT.rglob("*.py"))


def name_of(path: Path) -> str:
    parts = ["collc", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {name_of(path): path.read_text(encoding="utf-8") for path in MODULES}


def room(module: str) -> int:
    """The place of a module's room; -1 for the package itself, which all may import.

    Raises:
        ValueError: no room of that name is listed.
    """
    name = module.removeprefix("collc.")
    return -1 if module == "collc" else ROOMS.index(name if name in ROOMS else name.split(".")[0])


@cache
def imports(source: str) -> frozenset[str]:
    """The modules of collc that a source names in an import, wherever it stands."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            module = node.module or ""
            # `from collc.torch import checks` names a module, `from collc.errors import X` a thing inside one.
            inner = [f"{module}.{alias.name}" for alias in node.names]
            found |= {name if name in SOURCES or module == "collc" else module for name in inner}
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("import_module", "importlib.import_module"):
            found |= {arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)}
    return frozenset(name for name in found if name.split(".")[0] == "collc") - {"collc.__version__"}


# The public names of the package: the functions of its API, and their argument and result types.
FACE = ("collc.api.", "collc.collectives.model", "collc.errors", "collc.topology.model")


def broken_rules(sources: dict[str, str]) -> list[str]:
    """One line for each module whose room is not listed and for each import from a later room."""
    wrong = []
    for module, source in sources.items():
        if module == "collc":
            wrong += [f"collc imports {name}" for name in imports(source) if not name.startswith(FACE)]
            continue
        try:
            own = room(module)
            wrong += [f"{module} imports {name}, which comes later" for name in imports(source) if room(name) > own]
        except ValueError as error:
            wrong.append(f"{module}: {error}")
    return wrong


def cycles(sources: dict[str, str]) -> list[list[str]]:
    """Modules that import each other in a circle."""
    graph: networkx.DiGraph[str] = networkx.DiGraph()
    for module, source in sources.items():
        graph.add_edges_from((module, name) for name in imports(source) if name in sources)
    return [sorted(part) for part in networkx.strongly_connected_components(graph) if len(part) > 1]


def test_imports_point_one_way() -> None:
    assert broken_rules(SOURCES) == []


def test_no_modules_import_each_other() -> None:
    assert cycles(SOURCES) == []


def test_every_room_exists() -> None:
    named = {module.removeprefix("collc.") for module in SOURCES if module != "collc"}
    assert set(ROOMS) == {name.split(".")[0] for name in named} | {name for name in ROOMS if "." in name}
    assert {name for name in ROOMS if "." in name} <= named


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("collc.pipeline", "from collc.simulator.run import Simulator"),
        ("collc.packing.solve", "def late():\n    from collc.ir import interpret"),
        ("collc.topology.load", "import collc.cli.app"),
        ("collc.ir.nodes", "from collc import simulator"),
        ("collc.errors", "from collc.topology.model import Topology"),
        ("collc.lowering.fuse_copies", "import importlib\nimportlib.import_module('collc.build.cache')"),
        ("collc", "from collc.cli import app"),
        ("collc.packing.solve", "from collc import plan"),
        ("collc.newcomer", ""),
        ("collc.newcomer.model", "from collc.errors import CollcError"),
    ],
)
def test_planted_imports_and_unlisted_modules_are_found(module: str, source: str) -> None:
    assert len(broken_rules({**SOURCES, module: source})) == 1


def test_a_planted_cycle_is_found() -> None:
    a, b = "collc.ir.nodes", "collc.ir.verify"
    assert cycles({**SOURCES, a: f"from {b} import verify"})


@pytest.mark.parametrize("path", [p for p in MODULES if "cli" not in p.parts], ids=name_of)
def test_the_library_prints_nothing_and_needs_no_click(path: Path) -> None:
    if name_of(path) == "collc.bench.worker":
        return  # a program of its own that answers on its standard output
    tree = ast.parse(path.read_text())
    assert "click" not in {
        alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    }
    calls = [n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
    assert "print" not in calls


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_every_module_says_what_it_is_for(path: Path) -> None:
    text = path.read_text()
    if text.strip():
        assert ast.get_docstring(ast.parse(text)), path


def test_files_fit_in_a_head() -> None:
    long = {name_of(p): len(p.read_text().splitlines()) for p in MODULES if len(p.read_text().splitlines()) > 450}
    assert not long


def test_mypy_reads_every_python_file() -> None:
    """All of them in strict mode; only other projects' modules without types may be left out, by name."""
    top = Path(__file__).parent.parent
    settings = tomllib.loads((top / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]
    assert settings["strict"]
    sources = {p: [*p.rglob("*.py")] if p.is_dir() else [p] * (p.suffix == ".py") for p in top.iterdir()}
    skipped = ("build", "dist")
    found = {p.name: files for p, files in sources.items() if files and p.name not in skipped and p.name[0] != "."}
    assert set(found) <= set(settings["files"])
    own = {"collc", *(path.stem for files in found.values() for path in files)}
    for override in settings["overrides"]:
        assert set(override) <= {"module", "ignore_missing_imports", "follow_imports", "follow_imports_for_stubs"}
        assert own.isdisjoint(name.split(".")[0] for name in override["module"])


def test_only_the_pipeline_calls_passes() -> None:
    """In the library and in benchmarks; tests of single passes may."""
    elsewhere = [p for p in [*MODULES, *sorted((ROOT.parent / "benchmarks").glob("*.py"))] if p.name != "pipeline.py"]
    for path in elsewhere:
        named = {name for name in imports(path.read_text(encoding="utf-8")) if name.startswith("collc.lowering.")}
        named |= imports(path.read_text(encoding="utf-8")) & {"collc.ir.build"}
        assert not named or path.parent.name == "lowering", f"{path} imports {named}: ask collc.pipeline"


# The functions that choose among candidates. Other modules ask `collc.choose.calls` or `collc.choose.library`.
CANDIDATES: dict[str, set[str] | None] = {
    "collc.choose.search": None,
    "collc.choose.table": {"in_turns"},
    "collc.simulator.run": {"variants"},
}


def named_candidates(source: str) -> list[str]:
    """The functions of `CANDIDATES` that a source imports."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module in CANDIDATES:
            names = CANDIDATES[node.module]
            found += [alias.name for alias in node.names if names is None or alias.name in names]
    return found


def test_only_choose_compares_candidates() -> None:
    elsewhere = {m: source for m, source in SOURCES.items() if not m.startswith("collc.choose.")}
    assert {m: found for m, source in elsewhere.items() if (found := named_candidates(source))} == {}


def test_a_planted_search_is_found() -> None:
    assert named_candidates("from collc.choose.search import fastest") == ["fastest"]
    assert named_candidates("def late():\n    from collc.simulator.run import Simulator, variants") == ["variants"]
    assert named_candidates("from collc.choose.table import Table") == []


# The rooms of the package's API: there methods have docstrings too. Elsewhere a class speaks for its methods.
API = (
    *("errors", "options", "collectives", "packing", "graphs", "schedule", "ir", "lowering", "pipeline"),
    *("codegen", "build", "simulator", "choose", "compiler", "api"),
)


def undocumented(module: str, source: str) -> list[str]:
    """Public functions, classes and, in rooms of the API, methods without a docstring."""
    found = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            inner = node.body if isinstance(node, ast.ClassDef) and module.split(".")[1:2] in [[r] for r in API] else []
            methods = [n for n in inner if isinstance(n, ast.FunctionDef) and not n.name.startswith("_")]
            named = [(node, node.name), *((n, f"{node.name}.{n.name}") for n in methods)]
            found += [f"{module}: {name}" for n, name in named if not ast.get_docstring(n) and not is_overload(n)]
    return found


def is_overload(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and "overload" in map(ast.unparse, node.decorator_list)


def test_public_functions_say_what_they_do() -> None:
    # collc.torch implements the interface of torch.distributed, which documents it.
    assert [name for m, source in SOURCES.items() if "torch" not in m for name in undocumented(m, source)] == []


def test_a_planted_function_without_a_docstring_is_found() -> None:
    source = '"""x"""\ndef f():\n    pass\nclass C:\n    """y"""\n    def m(self):\n        pass\n'
    assert undocumented("collc.packing.x", source) == ["collc.packing.x: f", "collc.packing.x: C.m"]
    assert undocumented("collc.bench.x", source) == ["collc.bench.x: f"]
