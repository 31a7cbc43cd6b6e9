"""The command lines in README.md and docs/: each is one that collc takes, and each is run or says what it needs.

`NEEDS` lists the lines that need more than this machine. Every other line runs, in a folder with the files that the
pages name: the tutorial's lines by default, in order, and the others in `make docs-commands`.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.cli import Result, collc
from support.libraries import library

ROOT = Path(__file__).parent.parent.parent
# `collc` as a command of its own or behind a launcher.
LINE = re.compile(r"(?:^|\s)(?:-m )?collc ((?:[a-z]+)(?: \S+)*)")
# Lines that name collc but run something else.
NOT_COMMANDS = ("#", "pip", "RUN", "COPY", "collc: ", "eval", "_")
# Requirements of lines that this machine may lack. A line that matches no pattern runs.
NEEDS = {
    r"^probe (?!--from|--merge|--cpu)": "a GPU, or the servers of a job",
    r"--fabric fabric.txt": "a dump of a network and files of its servers; tests/topology has some",
    r"^compile .*--target cuda|^compile (box|cluster)\.yaml($| -o /shared)|^compile dgx1v -o|--counters": "an nvcc",
    r"^bench libcollc-(counting|cluster)": "a GPU, or several machines",
    r"^run --lib /shared|^run --lib \$LIB": "several servers, or a GPU",
    r"nccl-tuner --allocations": "minutes; tests/export runs it on fewer GPUs",
    r"^tune ": "minutes of an idle machine; tests/tune runs it",
}


def joined_lines(path: Path) -> list[str]:
    """The lines of a page; a command that a backslash continues is one line."""
    return re.sub(r"\\\n *", "", path.read_text(encoding="utf-8")).splitlines()


def commands(*pages: str) -> list[tuple[str, str]]:
    """(where, arguments) of every line of a code block that runs collc."""
    found = []
    names = [Path(page) for page in pages] or [Path("README.md"), *sorted(Path("docs").glob("*.md"))]
    for path in (ROOT / name for name in names if (ROOT / name).is_file()):
        inside = False
        for number, line in enumerate(joined_lines(path), 1):
            if line.lstrip().startswith("```"):
                inside = not inside
            elif inside and not line.startswith(NOT_COMMANDS) and (match := LINE.search(line.split(" #")[0])):
                found.append((f"{path.name}:{number}", match[1].rstrip("'")))
    return found


pytestmark = pytest.mark.skipif(not (ROOT / "README.md").is_file(), reason="the documents are not beside these tests")

ALL = commands(*(["README.md"] + [str(p.relative_to(ROOT)) for p in sorted((ROOT / "docs").glob("*.md"))]))


def needs(text: str) -> str | None:
    return next((what for pattern, what in NEEDS.items() if re.search(pattern, text)), None)


def test_the_documents_show_commands() -> None:
    assert len(ALL) >= 60
    assert len([text for _, text in ALL if needs(text) is None]) >= 45, "most of them run"


@pytest.mark.parametrize("pattern", NEEDS)
def test_no_need_is_stale(pattern: str) -> None:
    assert any(re.search(pattern, text) for _, text in ALL)


def test_other_commands_exist() -> None:
    """Targets of make and scripts that a page tells to run."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    named = 0
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        text = path.read_text(encoding="utf-8")
        code = [*re.findall(r"^```\n(.*?)^```", text, re.DOTALL | re.MULTILINE), *re.findall(r"`([^`\n]+)`", text)]
        for block in code:
            for words in re.findall(r"^(?:\$ )?make ((?:[a-z-]+ ?)+)", block, re.MULTILINE):
                named += 1
                assert set(words.split()) <= targets, f"{path.name}: make {words}"
            for script in re.findall(r"python ((?:examples|benchmarks|tests|gpu_check)/[\w/]+\.py)", block):
                named += 1
                assert (ROOT / script).is_file(), f"{path.name}: {script}"
    assert named >= 15


@pytest.mark.parametrize(("where", "text"), ALL, ids=lambda value: value)
def test_a_documented_command_is_taken(where: str, text: str) -> None:
    name, *words = shlex.split(re.split(r" [|>] ", text)[0])
    command = importlib.import_module(f"collc.cli.{name}").command
    context = command.make_context(name, words)
    if name == "run":
        assert not context.params["argv"][0].endswith(".so"), f"{where}: the library is named with --lib"


def run(text: str, folder: Path) -> Result:
    """Runs a line as a shell would, bench with few and small calls."""
    line, _, target = text.partition(" | ")[0].partition(" > ")
    name, *words = shlex.split(line.replace("$LIB", "libcollc-dgx1v.so"))
    if name == "bench" and "-e" not in words:
        words += ["-b", "1K", "-e", "4K", "-n", "2", "-w", "1"]
    if name == "simulate" and not {"-b", "--chunk"} & set(words):
        words += ["-b", "1M", "-e", "1M"]
    words = [word for word in words if word != "--open"]
    if name == "simulate":  # of equal servers, whose symmetry makes large calls quick
        words = ["rails4.yaml" if word == "cluster.yaml" else word for word in words]
    if name == "run":  # it takes the place of the process; what it would run is the reader's
        words = [*words[: words.index("--")], "--", "true"]
        done = subprocess.run(
            [sys.executable, "-m", "collc", "run", *words], cwd=folder, capture_output=True, text=True
        )
        return Result(done.returncode, done.stdout, done.stderr)
    result = collc(name, *words)
    if target:
        (folder / target.split()[0]).write_text(result.out, encoding="utf-8")
    return result


def test_the_tutorial_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    (tmp_path / "build" / "tutorial").mkdir(parents=True)
    lines = joined_lines(ROOT / "docs" / "tutorial.md")
    shown = [line for line in lines if line.startswith("collc ") and "# needs" not in line]
    assert len(shown) >= 9
    for line in shown:
        result = run(line.removeprefix("collc "), tmp_path)
        assert result.code == 0, f"{line}: {result.err}"
    text = "\n".join(lines)
    for name in re.findall(r"build/tutorial/[\w.-]+", text):
        assert (tmp_path / name).exists(), name
    rates = collc("plan", "build/tutorial/box.yaml", "--gpus", "0,1,4,6", "--collective", "all_reduce", "--json").out
    assert json.loads(rates)["plans"][0]["rate_gbps"] == "25", "the page says 25 GB/s"
    rates = collc("plan", "build/tutorial/box.yaml", "--gpus", "0-3", "--collective", "all_reduce", "--json").out
    assert json.loads(rates)["plans"][0]["rate_gbps"] == "75", "the page says 75 GB/s"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the pages speak of."""
    found = tmp_path_factory.mktemp("pages")

    def at(name: str) -> Path:
        return found / name

    dump = ROOT / "tests" / "data" / "topology" / "dgx1v-topo-m.txt"
    assert collc("probe", "--from", dump, "-o", at("box.yaml")).code == 0
    shutil.copy(at("box.yaml"), at("TOPO"))
    for name in ("box", "dgx1v", "four"):
        shutil.copy(library("dgx1v"), at(f"libcollc-{name}.so"))
    at("plan.json").write_text(collc("plan", "dgx1v", "--gpus", "0-2", "--json").out, encoding="utf-8")
    for name in ("run.json", "before.json"):
        rows = collc("simulate", "dgx1v", "--gpus", "0-2", "-b", "1M", "-e", "4M", "--json").out
        at(name).write_text(rows, encoding="utf-8")
    at("mine.json").write_text('{"format": "collc-params/1", "base": "h100", "launch_us": 7.1}', encoding="utf-8")
    nodes = ", ".join(f"node{i}" for i in range(8))
    at("cluster.yaml").write_text(
        f"format: collc-topology/1\nname: cluster\ntemplate: dgx1v\nservers: [{nodes}]\nswitches: [leaf]\n"
        "links:\n  - [each.mlx5_0, leaf, net, 12.5]\n",
        encoding="utf-8",
    )
    less = "format: collc-topology/1\nname: less\nextends: dgx1v\nremove: [gpu5]\n"
    at("without-gpu5.yaml").write_text(less, encoding="utf-8")
    at("rails4.yaml").write_text(collc("topologies", "--make", "rails", "servers=4").out, encoding="utf-8")
    at("nccl/lib").mkdir(parents=True)
    dumped = ("--dump-after", "build", "--dump-after", "fuse_copies", "--dump-dir", at("collc-dump"))
    assert collc("compile", "dgx1v", "--gpus", "0-1", "--target", "host", "-o", at("pair.so"), *dumped).code == 0
    at("now.links").write_text(collc("probe", "--from", dump, "--format", "links").out, encoding="utf-8")
    return found


RUN = [one for one in ALL if needs(one[1]) is None and not one[0].startswith("tutorial.md")]


@pytest.mark.slow
@pytest.mark.parametrize(("where", "text"), RUN, ids=lambda value: value)
def test_a_documented_command_runs(where: str, text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    kept = dict(os.environ)
    result = run(text, folder)
    os.environ.clear()  # a command normally is a process, so it may set variables
    os.environ.update(kept)
    assert result.code == 0, f"{where}: {result.err}"
