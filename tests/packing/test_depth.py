"""The depth of a tree means one thing, whichever command prints it."""

from __future__ import annotations

import ast
import json
import re
from fractions import Fraction
from pathlib import Path

import pytest
from support.cli import collc, refused

import collc as package
from collc.packing.model import Hop, Tree

CHAIN = """format: collc-topology/1
name: chain
gpus: 4
links: [[gpu0, gpu1, nvlink, 25], [gpu1, gpu2, nvlink, 25], [gpu2, gpu3, nvlink, 25]]
"""


def hops(*pairs: tuple[int, int]) -> tuple[Hop, ...]:
    return tuple(Hop(a, b, ()) for a, b in pairs)


def test_a_tree_of_two_phases() -> None:
    down = hops((0, 1), (1, 2), (0, 3))
    assert Tree(0, Fraction(1), broadcast=down).depth == 2
    tree = Tree(0, Fraction(1), reduce=hops((3, 2), (2, 1), (1, 0)), broadcast=down)
    assert (tree.depth, tree.hops) == (3, 5)
    assert Tree(0, Fraction(1)).depth == 0


def test_whoever_reads_a_tree_that_is_none_gets_an_answer() -> None:
    assert Tree(0, Fraction(1), broadcast=hops((0, 1), (1, 0), (2, 2))).depth == 2


def printed(text: str, before: str) -> dict[str, int]:
    return {line.split()[0]: int(found[1]) for line in text.splitlines() if (found := re.search(before, line))}


def test_plan_compile_and_inspect_print_the_same_depth(tmp_path: Path) -> None:
    path, library = tmp_path / "chain.yaml", tmp_path / "libcollc-chain.so"
    path.write_text(CHAIN)
    compiled = printed(collc("compile", path, "--target", "host", "-o", library).out, r"depth (\d+)")
    document = json.loads(collc("plan", path, "--json").out)
    lines = collc("plan", path).out.splitlines()
    table = lines[next(i for i, line in enumerate(lines) if line.startswith("collective ")) :]
    at = table[0].index("depth") + len("depth")
    planned = {}
    for line in table[1:]:
        words = line[:at].split()
        if words and words[0] in compiled and words[-1].isdigit():
            planned[words[0]] = int(words[-1])
    manifest = json.loads(collc("inspect", library, "--json").out)
    held = {p["collective"]: p["depth"] for p in manifest["allocations"][0]["programs"] if p["plan"] == "trees"}
    assert set(compiled) == set(held) == {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"}
    counted: dict[str, int] = {}
    for plan in document["plans"]:
        for tree in plan.get("trees", ()):
            for phase, (child, parent) in {"reduce": (0, 1), "broadcast": (1, 0)}.items():
                above = {hop[child]: hop[parent] for hop in tree.get(phase, ())}
                for rank in above:
                    far, count = rank, 0
                    while far != tree["root"]:
                        far, count = above[far], count + 1
                    counted[plan["collective"]] = max(counted.get(plan["collective"], 0), count)
    for collective in ("all_reduce", "all_gather", "reduce_scatter"):
        assert counted[collective] == compiled[collective] == held[collective] == planned[collective], collective


def test_one_place_counts_the_depth_of_a_tree() -> None:
    """Nobody else walks the hops of both phases."""
    found = []
    for path in sorted(Path(package.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and re.fullmatch(r"_?(tree_)?(depth|height)s?(_of)?", node.name):
                annotations = {ast.unparse(a.annotation) for a in node.args.args if a.annotation}
                found += [f"{path.name}:{node.name}"] * ("Tree" in annotations)
    assert not found


@pytest.mark.parametrize("command", ["compile", "plan"])
@pytest.mark.parametrize("which", ["connected", "all", "3..3", "2..3"])
def test_where_no_set_is_joined_it_says_so(tmp_path: Path, command: str, which: str) -> None:
    path = tmp_path / "apart.yaml"
    path.write_text("format: collc-topology/1\ngpus: 4\nlinks: []\n")
    line = refused(collc(command, path, "--allocations", which), code=2)
    assert "has no set of" in line
    assert f"--allocations {which}" in line


def test_pairs_alone_are_no_set_of_three(tmp_path: Path) -> None:
    path = tmp_path / "pairs.yaml"
    path.write_text("format: collc-topology/1\ngpus: 4\nlinks: [[gpu0, gpu1, nvlink, 25], [gpu2, gpu3, nvlink, 25]]\n")
    for command in ("compile", "plan"):
        assert "has no set of 3 or more GPUs" in refused(collc(command, path, "--allocations", "connected"), code=2)
