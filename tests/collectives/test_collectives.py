"""The table of collectives against NCCL's conventions, written out by hand for three ranks."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import collc
from collc.collectives.blocks import block_layout, buffer_counts, in_place_offsets
from collc.collectives.header import headers
from collc.collectives.model import COMPILED, TRAITS, Collective
from collc.collectives.sizes import bytes_per_call, call_bytes, element_count, near_size
from collc.resources import resource_dir

ROOT = Path(collc.__file__).parent
ALL = {0: 0, 1: 1, 2: 2}
# Root 1 of 3 ranks: block -> place in the input of each rank, then in the output.
LAYOUTS: dict[str, tuple[list[dict[int, int]], list[dict[int, int]]]] = {
    "all_reduce": ([{0: 0}] * 3, [{0: 0}] * 3),
    "all_gather": ([{0: 0}, {1: 0}, {2: 0}], [ALL] * 3),
    "reduce_scatter": ([ALL] * 3, [{0: 0}, {1: 0}, {2: 0}]),
    "broadcast": ([{}, {0: 0}, {}], [{0: 0}] * 3),
    "reduce": ([{0: 0}] * 3, [{}, {0: 0}, {}]),
    "gather": ([{0: 0}, {1: 0}, {2: 0}], [{}, ALL, {}]),
    "scatter": ([{}, ALL, {}], [{0: 0}, {1: 0}, {2: 0}]),
    "alltoall": (
        [{0: 0, 1: 1, 2: 2}, {3: 0, 4: 1, 5: 2}, {6: 0, 7: 1, 8: 2}],
        [{0: 0, 3: 1, 6: 2}, {1: 0, 4: 1, 7: 2}, {2: 0, 5: 1, 8: 2}],
    ),
    "sendrecv": ([{0: 0}, {1: 0}, {2: 0}], [{2: 0}, {0: 0}, {1: 0}]),
}
# busbw / algbw on 4 ranks: nccl-tests, src/*.cu, `GetBw`.
BUS = {
    "all_reduce": 1.5,
    "all_gather": 0.75,
    "reduce_scatter": 0.75,
    "broadcast": 1,
    "reduce": 1,
    "gather": 0.75,
    "scatter": 0.75,
    "alltoall": 0.75,
    "sendrecv": 1,
}
each = pytest.mark.parametrize("collective", Collective, ids=lambda c: c.value)


@each
def test_blocks_lie_where_nccl_puts_them(collective: Collective) -> None:
    layout = block_layout(collective, 3, 1 if collective.rooted else None)
    wanted = LAYOUTS[collective.value]
    assert (list(layout.in_blocks), list(layout.out_blocks)) == wanted
    assert layout.nblocks == len({block for side in wanted for blocks in side for block in blocks})
    most = tuple(max(len(blocks) for blocks in side) for side in wanted)
    assert buffer_counts(collective, 3) == most


@each
def test_the_mirror_swaps_inputs_and_outputs(collective: Collective) -> None:
    mirror = collective.mirror
    assert mirror.mirror is collective
    assert (mirror.rooted, mirror.uses_trees) == (collective.rooted, collective.uses_trees)
    assert (mirror.reduces, mirror.spreads) == (collective.spreads, collective.reduces) or not collective.uses_trees
    if collective is not Collective.SENDRECV:  # turned round, its ring of ranks runs the other way
        row, other = collective.traits, mirror.traits
        assert (row.input.at_root, row.output.at_root) == (other.output.at_root, other.input.at_root)
        assert buffer_counts(collective, 5) == buffer_counts(mirror, 5)[::-1]


@each
def test_bus_factors_and_counts_are_those_of_nccl_tests(collective: Collective) -> None:
    assert collective.bus_factor(4) == BUS[collective.value]
    size, blocks = 1 << 20, 4 if collective.per_rank else 1
    count = element_count(collective, size, 4, 4)
    assert (count * blocks * 4, call_bytes(collective, count, 4, 4)) == (size, size)
    assert bytes_per_call(collective, size, 4) == size // blocks


def test_in_place_calls_overlap_as_nccl_says() -> None:
    """sendbuff == recvbuff + rank * count for all_gather, recvbuff == sendbuff + rank * count for reduce_scatter."""
    moved = {c: in_place_offsets(c, 2) for c in COMPILED}
    assert moved.pop(Collective.ALL_GATHER) == (2, 0)
    assert moved.pop(Collective.REDUCE_SCATTER) == (0, 2)
    assert set(moved.values()) == {(0, 0)}


def test_every_collective_has_a_row_and_a_number_of_its_own() -> None:
    assert set(TRAITS) == set(Collective)
    assert sorted(row.number for row in TRAITS.values()) == list(range(len(TRAITS)))


@pytest.mark.parametrize("name", headers())
def test_the_headers_are_this_table(name: str, request: pytest.FixtureRequest) -> None:
    path = resource_dir("templates") / "include" / "collc" / name
    if request.config.getoption("--update-golden"):
        path.write_text(headers()[name], encoding="ascii")
    assert path.read_text(encoding="ascii") == headers()[name], f"run `make golden`: {name} differs from the table"


def lists_of_collectives(source: str) -> list[int]:
    """Lines with a literal that names several collectives: what they have in common belongs in the table."""
    literals = (ast.Tuple, ast.List, ast.Set, ast.Dict)
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, literals):
            items = node.keys if isinstance(node, ast.Dict) else node.elts
            named = [i for i in items if isinstance(i, ast.Attribute) and ast.unparse(i.value) == "Collective"]
            if len(named) > 1:
                found.append(node.lineno)
    return found


# The collectives that a command compares by default are a choice of the command, not a property of a collective.
CHOICES = {"cli/plan_sets.py"}
PYTHON = [p for p in sorted(ROOT.rglob("*.py")) if p.parent.name != "collectives"]


@pytest.mark.parametrize("path", PYTHON, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_other_module_lists_collectives(path: Path) -> None:
    found = lists_of_collectives(path.read_text())
    assert bool(found) == (str(path.relative_to(ROOT)) in CHOICES), f"{path}: lines {found}"


def test_a_planted_list_is_found() -> None:
    assert lists_of_collectives("X = {Collective.GATHER: 1, Collective.SCATTER: 2}\n") == [1]
    assert not lists_of_collectives("X = (Collective.GATHER, other)\n")


def test_the_runtime_asks_the_table_too() -> None:
    several = re.compile(r"Collective::k\w+\s*\|\|\s*\S*\s*==\s*Collective::k")
    folder = resource_dir("templates")
    sources = [p for p in folder.rglob("*") if p.suffix in (".cpp", ".h", ".cu") and p.name != "collective_traits.h"]
    assert sources
    assert [p.name for p in sources if several.search(p.read_text())] == []
    assert several.search("kind == Collective::kBroadcast || kind == Collective::kReduce")


def test_a_collective_is_named_with_its_root() -> None:
    """Data that moves towards a root moves to it."""
    named = {item: item.with_root(3 if item.rooted else None) for item in Collective}
    assert {named[item] for item in Collective if not item.rooted} == {c.value for c in Collective if not c.rooted}
    rooted = {named[item] for item in Collective if item.rooted}
    # A collective of somebody's own may stand beside these.
    assert rooted >= {"broadcast from rank 3", "scatter from rank 3", "reduce to rank 3", "gather to rank 3"}


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0"),
        (1000, "1000"),
        (1024, "1K"),
        (724077, "707.1K"),
        (1 << 19, "512K"),
        # Blocks of seven and of three ranks, below 256 MiB and 1 MiB.
        (268435440, "256M"),
        (1048560, "1M"),
        (1030000, "1006K"),
        (1 << 30, "1G"),
        (3 << 29, "1.5G"),
    ],
)
def test_sizes_for_people(size: int, shown: str) -> None:
    assert near_size(size) == shown
