"""House rules for C++ and CUDA that a machine can check: order of rooms, cycles of includes, sizes, format."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import networkx
import pytest

from collc.build.toolchain import find_cxx
from collc.resources import resource_dir

TEMPLATES = resource_dir("templates")
SOURCES = {
    str(path.relative_to(TEMPLATES)): path.read_text(encoding="utf-8")
    for path in sorted(TEMPLATES.rglob("*"))
    if path.suffix in (".cpp", ".h", ".cu") and path.name != "nccl.h"  # nccl.h keeps the order of NCCL's
}
# The folders that `#include "..."` searches after the folder of the file.
FOLDERS = ("include", "runtime")
MOST_LINES, MOST_FUNCTION_LINES = 400, 60

# The folders of the runtime, and for each the folders that it may include; docs/runtime.md gives their purposes. Other
# includes are faults, so the folders form an order. List a new folder here. Headers under include/ are for all folders,
# and include only each other.
ROOMS: dict[str, set[str]] = {
    "base": set(),
    "plan": {"base"},
    "bootstrap": {"base", "plan"},
    "control": {"base", "plan"},
    "transport": {"base", "plan", "bootstrap", "control"},
    "wire": {"base", "plan", "bootstrap", "control", "transport"},
    "executor": {"base", "plan", "bootstrap", "control"},
    "host": {"base", "plan", "bootstrap", "control", "transport", "wire", "executor"},
    "cuda": {"base", "plan", "bootstrap", "control", "transport", "wire", "executor"},
    "communicator": {"base", "plan", "bootstrap", "control", "executor"},
    "api": {"base", "plan", "bootstrap", "control", "executor", "communicator"},
}


def includes(name: str, sources: dict[str, str]) -> set[str]:
    """The files of the house that a source includes."""
    found = set()
    for wanted in re.findall(r'^\s*#\s*include\s+"([^"]+)"', sources[name], re.M):
        places = [str(Path(name).parent / wanted), *(f"{folder}/{wanted}" for folder in FOLDERS)]
        found |= {place for place in places if place in sources}
    return found


def room(name: str) -> str:
    """The room of a file of the runtime, of any other file the folder of templates/ that it is in."""
    parts = Path(name).parts
    return parts[1] if parts[0] == "runtime" and len(parts) > 2 else parts[0]


def broken_orders(sources: dict[str, str]) -> list[str]:
    """One line for each file in no listed room and for each include that its room may not have."""
    wrong = []
    for name in sources:
        own = room(name)
        if name.startswith("runtime/") and own not in ROOMS:
            wrong.append(f"{name}: the room {own} is not listed")
            continue
        for other in sorted(includes(name, sources)):
            allowed = ROOMS.get(own, set()) | {own, "include"}
            if room(other) not in allowed:
                wrong.append(f"{name} includes {other}, which its room may not")
    return wrong


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


def test_rooms_include_one_way() -> None:
    assert broken_orders(SOURCES) == []
    assert {room(name) for name in SOURCES if name.startswith("runtime/")} == set(ROOMS)
    graph: networkx.DiGraph[str] = networkx.DiGraph((own, other) for own, others in ROOMS.items() for other in others)
    assert networkx.is_directed_acyclic_graph(graph)


def test_every_include_of_the_house_is_found() -> None:
    """A name that leads nowhere would not count as an include."""
    for name, source in SOURCES.items():
        wanted = re.findall(r'^\s*#\s*include\s+"([^"]+)"', source, re.M)
        known = {"device.cu", "nccl.h"}
        assert len([one for one in wanted if one not in known]) == len(includes(name, SOURCES) - {"include/nccl.h"}), (
            name
        )


@pytest.mark.parametrize(
    ("name", "include"),
    [
        ("runtime/base/status.h", "api/api.h"),
        ("runtime/bootstrap/acceptor.h", "control/segment.h"),
        ("runtime/control/segment.h", "transport/buffers.h"),
        ("runtime/transport/buffers.h", "host/rank.h"),
        ("runtime/host/rank.h", "cuda/rank.h"),
        ("runtime/cuda/rank.h", "communicator/communicator.h"),
        ("runtime/executor/backend.h", "communicator/communicator.h"),
        ("runtime/communicator/group.h", "host/rank.h"),
        ("include/collc/step_program.h", "base/status.h"),
        ("runtime/newcomer/one.h", "base/status.h"),
        ("runtime/one.h", "base/status.h"),
    ],
)
def test_planted_upward_includes_and_unlisted_rooms_are_found(name: str, include: str) -> None:
    source = SOURCES.get(name, "") + f'#include "{include}"\n'
    assert len(broken_orders({**SOURCES, name: source})) == 1


def test_a_planted_cycle_in_the_runtime_is_found() -> None:
    name = "runtime/base/status.h"
    loops = include_cycles({**SOURCES, name: SOURCES[name] + '#include "base/log.h"\n'})
    wanted = {"runtime/base/log", "runtime/base/status"}
    assert any(wanted <= set(loop) for loop in loops)


def test_includes_have_no_cycle() -> None:
    assert include_cycles(SOURCES) == []


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
    assert long_files(SOURCES) == set()
    assert long_files({"x.h": "\n" * (MOST_LINES + 1)})


def test_functions_fit_in_a_head() -> None:
    assert long_functions(SOURCES) == set()
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

    def differ(some: list[Path]) -> bool:
        done = subprocess.run([*command, *map(str, some)], capture_output=True, timeout=100, check=False)
        return done.returncode != 0

    return [path for path in paths if differ([path])] if differ(paths) else []


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


@pytest.mark.slow
@pytest.mark.parametrize("folder", sorted(ROOMS))
def test_a_header_includes_what_it_needs(folder: str, tmp_path: Path) -> None:
    """A file that includes nothing else can include it, whatever unit it is compiled in."""
    headers = sorted((TEMPLATES / "runtime" / folder).glob("*.h"))
    include = [f"-I{TEMPLATES / name}" for name in FOLDERS]
    wrong = []
    for header in headers:
        (tmp_path / "one.cpp").write_text(f'#include "{folder}/{header.name}"\n')
        command = [find_cxx().path, "-std=c++17", "-fsyntax-only", *include, str(tmp_path / "one.cpp")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wrong += [f"{header.name}: {done.stderr[:200]}"] if done.returncode else []
    assert headers
    assert not wrong


def test_one_function_writes_lines_for_people() -> None:
    """It escapes what comes from outside; nothing else in the runtime knows standard error."""
    runtime = {name: text for name, text in SOURCES.items() if name.startswith("runtime/")}
    assert [name for name, text in runtime.items() if re.search(r"(?m)^[^/]*\(.*\bstderr\b|STDERR_FILENO", text)] == [
        "runtime/base/log.cpp"
    ]


def test_one_function_opens_libraries_that_users_name() -> None:
    """It refuses what is no regular file; the others name their library in the source."""
    runtime = {name: text for name, text in SOURCES.items() if name.startswith("runtime/")}
    assert [name for name, text in runtime.items() if re.search(r"\bdlopen\((?![\")])", text)] == [
        "runtime/base/library.cpp"
    ]
