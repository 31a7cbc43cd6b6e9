"""The trusted code is small: the checker, and nothing that makes plans or programs."""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tokenize
from pathlib import Path

import collc

ROOT = Path(collc.__file__).parent
# Beside the package: data types, what a collective is, fingerprints, and the errors that carry a place.
TYPES: tuple[str, ...] = (
    "__init__.py",
    "errors.py",
    "topology/model.py",
    "topology/__init__.py",
    "packing/__init__.py",
)
TYPES += ("packing/model.py", "ir/__init__.py", "ir/nodes.py", "collectives/__init__.py", "collectives/model.py")
OTHERS = ("collectives/blocks.py", "topology/canonical.py", "topology/graphs.py", "topology/staging.py")
# Bounds on work, and the order of parts in the fingerprint of a large graph. A fault in these modules can
# refuse a right file, but cannot accept a wrong one.
LIMITS = ("limits.py", "topology/fold.py")
# Lines of code of the checker, and of the checker with the other trusted modules. The goal is 1,000. The numbers may
# only fall, unless the checker proves one claim more.
OWN, ALL = 2636, 2783


def code_lines(path: Path) -> int:
    """Lines with code: blank ones, comments and docstrings do not count."""
    text = path.read_text(encoding="utf-8")
    documented = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            documented |= {*range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)}
    empty = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in empty:
            lines |= {*range(token.start[0], token.end[0] + 1)}
    return len(lines - documented)


def imported() -> list[Path]:
    """The modules of collc that the checker brings into a fresh interpreter."""
    script = "import sys, collc.checker.library\n" + (
        "print(*(m.__file__ for n, m in sys.modules.items() if n.split('.')[0] == 'collc'), sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return [Path(line) for line in done.stdout.split()]


def test_it_imports_nothing_that_solves_lowers_generates_or_chooses() -> None:
    names = {str(path.relative_to(ROOT)) for path in imported()}
    assert {name for name in names if not name.startswith("checker/")} == {*TYPES, *OTHERS, *LIMITS}
    assert {f"checker/{path.name}" for path in (ROOT / "checker").glob("*.py")} <= names


def test_it_is_small() -> None:
    counted = {path: code_lines(path) for path in imported() if str(path.relative_to(ROOT)) not in (*TYPES, *LIMITS)}
    own = {path: lines for path, lines in counted.items() if path.parent.name == "checker"}
    assert 500 < sum(own.values()) < OWN, own
    assert sum(counted.values()) < ALL, counted


def test_other_packages_bring_only_a_labelling_of_graphs() -> None:
    """The checker needs only Python's standard library, and igraph for fingerprints."""
    script = (
        "import sys; before = set(sys.modules); import collc.checker.library\n"
        "new = {n.split('.')[0] for n in set(sys.modules) - before}\n"
        "print(*sorted(n for n in new if n not in sys.stdlib_module_names and not n.startswith('_')))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {"collc", "igraph", "texttable"}, done.stdout
