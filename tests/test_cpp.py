"""House rules for C++ and CUDA that a machine can check: no cycles of includes, sizes of files and functions, format.

What breaks a rule today is listed, and the lists only get shorter.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import networkx
import pytest

from collc.resources import resource_dir

TEMPLATES = resource_dir("templates")
SOURCES = {
    str(path.relative_to(TEMPLATES)): path.read_text(encoding="utf-8")
    for path in sorted(TEMPLATES.rglob("*"))
    if path.suffix in (".cpp", ".h", ".cu") and path.name != "nccl.h"  # nccl.h keeps the order of NCCL's
}
# Where `#include "..."` is looked for, beside the file's own folder.
FOLDERS = ("include", "runtime")
MOST_LINES, MOST_FUNCTION_LINES = 400, 60

LONG_FILES = {"runtime/api.cpp"}
CYCLES: list[list[str]] = [
    ["runtime/api", "runtime/communicator", "runtime/group", "runtime/introduction", "runtime/tuning"],
    ["runtime/environment", "runtime/status"],
    ["runtime/host/rank", "runtime/host/verbs"],
]
LONG_FUNCTIONS = {
    "runtime/host/reduce_kernels.cpp: reduce",
}


def includes(name: str, sources: dict[str, str]) -> set[str]:
    """The files of the house that a source includes."""
    found = set()
    for wanted in re.findall(r'^\s*#\s*include\s+"([^"]+)"', sources[name], re.M):
        places = [str(Path(name).parent / wanted), *(f"{folder}/{wanted}" for folder in FOLDERS)]
        found |= {place for place in places if place in sources}
    return found


def include_cycles(sources: dict[str, str]) -> list[list[str]]:
    """Units that include each other in a circle; a header and the source of its name are one unit."""
    graph: networkx.DiGraph[str] = networkx.DiGraph()
    for name in sources:
        for other in includes(name, sources):
            if other == name or unit(other) != unit(name):
                graph.add_edge(unit(name), unit(other))
    loops = [sorted(part) for part in networkx.strongly_connected_components(graph) if len(part) > 1]
    return sorted(loops + [[name] for name in networkx.nodes_with_selfloops(graph)])


def unit(name: str) -> str:
    return name.rpartition(".")[0]


def without_comments(source: str) -> str:
    """The text with comments and literals blanked, line by line as before."""
    pattern = r'//[^\n]*|/\*.*?\*/|R"\((?:.*?)\)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''
    return re.sub(pattern, lambda m: re.sub(r"[^\n]", " ", m[0]), source, flags=re.S)


_OPENS_A_SCOPE = re.compile(r"\b(namespace|class|struct|union|enum|extern)\b")


def function_lengths(source: str) -> list[tuple[str, int]]:
    """(name, lines from the head to the closing brace) of every function that is not inside another."""
    text = without_comments(source)
    text = re.sub(r"^\s*#(?:[^\n]*\\\n)*[^\n]*", lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.M)
    found = []
    head, depth, start, name = 0, 0, 0, ""
    for at, character in enumerate(text):
        if depth:
            depth += {"{": 1, "}": -1}.get(character, 0)
            if not depth:
                if name:
                    found.append((name, text.count("\n", start, at) + 1))
                head = at + 1
        elif character == "{":
            before = text[head:at]
            call = re.search(r"([\w:~]+)\s*\(", before)
            if _OPENS_A_SCOPE.search(before) and not call:
                head = at + 1  # what is inside is looked at
                continue
            name = call[1] if call else ""
            start = head + len(before) - len(before.lstrip())
            depth = 1
        elif character in ";}":
            head = at + 1
    return found


def long_functions(sources: dict[str, str]) -> set[str]:
    return {
        f"{name}: {function}"
        for name, source in sources.items()
        for function, lines in function_lengths(source)
        if lines > MOST_FUNCTION_LINES
    }


def long_files(sources: dict[str, str]) -> set[str]:
    return {name for name, source in sources.items() if source.count("\n") > MOST_LINES}


def test_includes_have_no_cycle() -> None:
    assert all(any(set(loop) <= set(known) for known in CYCLES) for loop in include_cycles(SOURCES))


def test_planted_cycles_are_found() -> None:
    assert include_cycles({"runtime/a.h": '#include "a.h"\n'}) == [["runtime/a"]]
    two = {
        "runtime/a.cpp": '#include "b.h"\n',
        "runtime/a.h": "",
        "runtime/b.h": "",
        "runtime/b.cpp": '#include "a.h"\n',
    }
    assert include_cycles(two) == [["runtime/a", "runtime/b"]]
    three = {"include/a.h": '#include "b.h"\n', "include/b.h": '#include "c.h"\n', "include/c.h": '#include "a.h"\n'}
    assert include_cycles(three) == [["include/a", "include/b", "include/c"]]
    assert include_cycles({"runtime/a.cpp": '#include "a.h"\n', "runtime/a.h": ""}) == []


def test_files_fit_in_a_head() -> None:
    assert long_files(SOURCES) <= LONG_FILES
    assert set(SOURCES) >= LONG_FILES, "a file of the list is gone"
    assert long_files({"x.h": "\n" * (MOST_LINES + 1)})


def test_functions_fit_in_a_head() -> None:
    assert long_functions(SOURCES) <= LONG_FUNCTIONS
    counted = [function for source in SOURCES.values() for function in function_lengths(source)]
    assert len(counted) > 500, "functions are not found any more"


def test_the_lines_of_functions_are_counted() -> None:
    body = "  work();\n" * 58
    source = f"namespace a {{\nclass B {{\n int c() const {{ return 1; }}\n void d(int x) {{\n{body}}}\n}};\n"
    source += f'Status B::e() : f_(1) {{ // {{\n  if (x) {{ say("}}"); }}\n{body}}}\n}}\n'
    assert function_lengths(source) == [("c", 1), ("d", 60), ("B::e", 61)]
    assert long_functions({"x.cpp": source}) == {"x.cpp: B::e"}


CHECKOUT = TEMPLATES.parent


def formatted_sources() -> list[Path]:
    """Every C, C++ and CUDA source of the checkout; what a test expects as printed text is no source."""
    folders = ("benchmarks", "collc", "examples", "gpu_check", "templates", "tests")
    found = [p for folder in folders for p in sorted((CHECKOUT / folder).rglob("*")) if is_source(p)]
    return [p for p in found if CHECKOUT / "tests" / "golden" not in p.parents]


def is_source(path: Path) -> bool:
    return path.suffix in (".c", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".inc") and path.is_file()


def clang_format() -> str | None:
    beside = Path(sys.executable).parent / "clang-format"
    return str(beside) if beside.is_file() else shutil.which("clang-format")


def unformatted(paths: list[Path], tool: str) -> list[Path]:
    """The files that clang-format would change."""
    command = [tool, f"--style=file:{CHECKOUT / '.clang-format'}", "--dry-run", "-Werror"]
    return [p for p in paths if subprocess.run([*command, str(p)], capture_output=True, timeout=60).returncode != 0]


@pytest.mark.skipif(clang_format() is None, reason="no clang-format; pip install 'collc[dev]' brings one")
@pytest.mark.skipif(not (CHECKOUT / ".clang-format").is_file(), reason="the format is in the checkout")
def test_sources_are_formatted(tmp_path: Path) -> None:
    """`make format` rewrites them."""
    tool = clang_format()
    assert tool is not None
    paths = formatted_sources()
    assert len(paths) > 120, "sources are not found any more"
    assert unformatted(paths, tool) == []
    planted = tmp_path / "planted.cpp"
    planted.write_text("int  main( ) {return 0;}\n")
    assert unformatted([planted], tool) == [planted]
