"""Libraries made to cost time and memory: each command answers in one line, within 256 MB and 10 s of CPU time."""

from __future__ import annotations

import itertools
import json
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from typing import Any

import networkx
import pytest
from support.changed import Changed, crafted, tables_library

from collc.build.cache import cache_dir
from collc.build.manifest import manifest_text, sign
from collc.checker import layout
from collc.checker.elf import MOST_BYTES
from collc.checker.layout import ARRAYS, STRUCTS
from collc.checker.library import check_library
from collc.checker.tables import MOST_VALUES
from collc.collectives.model import Collective
from collc.errors import CollcError, RunError
from collc.ir.nodes import Channel, Fifo, Program, Share, Step
from collc.ir.printer import print_program
from collc.limits import MOST_BITS, WORK, common_denominator, limited, spend, uncounted
from collc.packing.document import from_json
from collc.topology.canonical import fingerprint

MEMORY_KIB, SECONDS = 256_000_000 // 1024, 10.0

# The peak of a process counts what its parent held when it started it, so a small one stands between.
MEASURE = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:], capture_output=True, text=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(done.returncode, used.ru_utime + used.ru_stime, used.ru_maxrss)
print(done.stdout[-1000:] + done.stderr[-1000:])
"""


def whole() -> tuple[dict[str, list[tuple[int, ...]]], dict[str, Any], dict[str, Any]]:
    """Rows, manifest and plans of a small library."""
    found = Changed(tables_library("odd"))
    rows = {}
    for array, (first, count) in found.extents.items():
        row = layout.row_layout(array)
        rows[array] = list(row.iter_unpack(found.image()[first : first + count * row.size]))
    manifest, plan = (found.objects[name][1] for name in ("collc_manifest", "collc_plan"))
    claims = json.loads(manifest.rstrip(b"\0"))
    claims["loaded"] = dict.fromkeys(claims["loaded"], "0" * 64)
    return rows, claims, json.loads(zlib.decompress(plan))


def forged(name: str, tables: bytes, claims: dict[str, Any], plans: object) -> Path:
    """A library of these parts with digests that fit."""
    # Stored as it is, or packed so well that little of it is read.
    packed = zlib.compress(plans, 1) if isinstance(plans, bytes) else zlib.compress(json.dumps(plans).encode(), 0)
    made = crafted(name, tables=tables, manifest=manifest_text(claims).encode(), plan=packed)
    path = cache_dir() / "tests" / f"{name}.so"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(made.read_bytes())
    sign(path)
    return path


def hard_graph(ring: int) -> list[tuple[int, int]]:
    """Edges of a graph of Cai, Fürer and Immerman (1992) over a random cubic one: labellings of such take long."""
    base = networkx.random_regular_graph(3, ring, seed=1)
    number: dict[object, int] = {}
    edges: list[tuple[object, object]] = []
    for u in base:
        for chosen in (c for size in (0, 2) for c in itertools.combinations(base[u], size)):
            edges += [((u, chosen), (u, v, v in chosen)) for v in base[u]]
    edges += [((u, v, i), (v, u, i)) for u, v in base.edges for i in (False, True)]
    return [(number.setdefault(a, len(number)), number.setdefault(b, len(number))) for a, b in edges]


def document(edges: list[tuple[int, int]], plans: list[dict[str, Any]]) -> dict[str, Any]:
    count = 1 + max(map(max, edges))
    both = [pair for a, b in edges for pair in ((a, b), (b, a))]
    return {
        "format": "collc-plan/1",
        "topology": {"name": "odd", "fingerprint": "g1-" + "0" * 32},
        "ranks": [{"rank": r, "gpu": f"gpu{r}", "server": ""} for r in range(count)],
        "switches": [],
        "links": [
            {"id": i, "src": f"gpu{a}", "dst": f"gpu{b}", "kind": "nvlink", "gbps": "1"}
            for i, (a, b) in enumerate(both)
        ],
        "plans": plans,
    }


def labelling() -> Path:
    """A plan whose graph takes minutes to label."""
    rows, claims, plans = whole()
    plans["plans"] = [document(hard_graph(400), [])]
    ranks = len(plans["plans"][0]["ranks"])
    claims["allocations"][0] |= {"nranks": 3, "fingerprint": "g1-" + "0" * 32}
    claims["allocations"][0]["gpus"] = [f"gpu{r}" for r in range(ranks)]
    return forged("labelling", layout.pack(rows), claims, plans)


def same_steps() -> Path:
    """Many programs that share the steps of one and differ in their sizes."""
    rows, claims, plans = whole()
    first = rows["programs"][0]
    rows["programs"] += [(n, *first[1:]) for n in range(1, 30_000)]
    rows["allocations"] = [(*rows["allocations"][0][:4], len(rows["programs"]), *rows["allocations"][0][5:])]
    return forged("same-steps", layout.pack(rows), claims, plans)


def many_rows(array: str) -> Path:
    """As many rows of one array as are read."""
    rows, claims, plans = whole()
    fields = len(STRUCTS[ARRAYS[array][0]])
    rows[array] += [tuple([1] * fields)] * ((MOST_VALUES - 20_000) // (fields + 2))
    return forged(f"rows-{array}", layout.pack(rows), claims, plans)


def one_graph(name: str, ranks: int, changed: Callable[[dict[str, Any]], None]) -> Path:
    """A plan for all_gather of ranks that are each joined to each, with a tree from every rank, its proof of prices."""
    rows, claims, plans = whole()
    edges = [(a, b) for a in range(ranks) for b in range(a)]
    proof = {"kind": "prices", "prices": {str(i): str(i % 97 + 1) for i in range(2 * len(edges))}}
    stars = [
        {"root": r, "weight_gbps": f"1/{ranks}", "broadcast": [[r, v, [_link(r, v)]] for v in range(ranks) if v != r]}
        for r in range(ranks)
    ]
    plan = {"collective": "all_gather", "root": None, "solver": "x", "rate_gbps": "1", "bound_gbps": "1"}
    made = document(edges, [plan | {"optimal": False, "certificate": proof, "trees": stars}])
    changed(made)
    made["topology"]["fingerprint"] = fingerprint(from_json(made).graph)
    plans["plans"] = [made]
    claims["name"] = made["topology"]["name"]
    claims["allocations"][0] |= {
        "gpus": [f"gpu{r}" for r in range(ranks)],
        "fingerprint": made["topology"]["fingerprint"],
    }
    return forged(name, layout.pack(rows), claims, plans)


def _link(src: int, dst: int) -> int:
    high, low = max(src, dst), min(src, dst)
    return 2 * (high * (high - 1) // 2 + low) + (src < dst)


def long_fractions(numbers: int) -> Iterator[str]:
    """Fractions whose denominators have hundreds of digits and nothing in common."""
    return (f"1/{10**600 + 2 * i + 1}" for i in range(numbers))


def test_a_library_lists_its_trees() -> None:
    """Trees that programs do not follow must not count in the rate that the manifest tells."""
    rows, claims, plans = whole()
    assert "orbits" not in plans["plans"][0]["plans"][0]
    plans["plans"][0]["plans"][0]["orbits"] = {"generators": [], "trees": [], "loads": []}
    with pytest.raises(CollcError, match="gives its trees as orbits"):
        check_library(forged("orbits", layout.pack(rows), claims, plans))


def prices() -> Path:
    """A certificate that is proved by a cheapest tree from each of many ranks."""
    return one_graph("prices", 70, lambda made: None)


def long_weights() -> Path:
    def changed(made: dict[str, Any]) -> None:
        for tree, weight in zip(made["plans"][0]["trees"], long_fractions(1 << 20), strict=False):
            tree["weight_gbps"] = weight

    return one_graph("weights", 40, changed)


def long_speeds() -> Path:
    def changed(made: dict[str, Any]) -> None:
        made["plans"][0]["certificate"] = {"kind": "cut", "side": ["gpu0"]}
        for link in made["links"]:
            link["gbps"] = f"{10**600}/{10**599 + 2 * link['id'] + 1}"

    return one_graph("speeds", 40, changed)


def many_trees() -> Path:
    """One million bytes contain a plan with the maximum number of trees, each of a tiny weight."""

    def changed(made: dict[str, Any]) -> None:
        plan = made["plans"][0]
        del plan["trees"][1:], plan["certificate"]["prices"]
        plan |= {"collective": "broadcast", "root": 0, "certificate": {"kind": "cut", "side": ["gpu0"]}}
        plan["trees"] *= 40_000
        for tree in plan["trees"]:
            tree["weight_gbps"] = "1/40000"

    return one_graph("trees", 4, changed)


def manifest_of(filling: str) -> Path:
    rows, claims, plans = whole()
    text = manifest_text(claims).replace('"gpus": [', f'"gpus": [{filling * ((7 << 20) // len(filling))}', 1)
    packed = zlib.compress(json.dumps(plans).encode())
    return crafted("manifest", tables=layout.pack(rows), manifest=text.encode(), plan=packed)


def plans_of(filling: bytes) -> Path:
    rows, claims, _ = whole()
    return forged("plans", layout.pack(rows), claims, b'{"plans": [' + filling * ((15 << 20) // len(filling)) + b"1]}")


def large_file() -> Path:
    """All that a file may have, in the last of the segments that are loaded."""
    path = cache_dir() / "tests" / "large.so"
    path.parent.mkdir(parents=True, exist_ok=True)
    data = bytearray(tables_library("odd").read_bytes())
    count = struct.unpack_from("<H", data, 56)[0]
    last = max(at for at in range(64, 64 + 56 * count, 56) if struct.unpack_from("<I", data, at)[0] == 1)
    size = MOST_BYTES - 1 - struct.unpack_from("<Q", data, last + 8)[0]
    struct.pack_into("<QQ", data, last + 32, size, size)
    path.write_bytes(data)
    with path.open("r+b") as file:
        file.truncate(MOST_BYTES - 1)
    return path


MADE: dict[str, Callable[[], Path]] = {
    "labelling": labelling,
    "programs that share steps": same_steps,
    "prices": prices,
    "long weights": long_weights,
    "long speeds": long_speeds,
    "many trees": many_trees,
    "large file": large_file,
    **{f"rows of {array}": partial(many_rows, array) for array in ARRAYS},
    "manifest of texts": lambda: manifest_of('"x",'),
    "manifest of lists": lambda: manifest_of("[],"),
    "manifest of objects": lambda: manifest_of('{"a":1},'),
    "manifest of numbers": lambda: manifest_of("1234.5,"),
    "plans of lists": lambda: plans_of(b"[],"),
    "plans of objects": lambda: plans_of(b'{"a":1},'),
    "plans of long numbers": lambda: plans_of(b'"' + b"9" * 3999 + b'",'),
}


def measured(*command: object) -> tuple[int, float, int, str]:
    """Returns exit code, seconds of CPU time, peak memory in KiB, and the printed text."""
    arguments = [sys.executable, "-I", "-S", "-c", MEASURE, sys.executable, "-m", "collc", *map(str, command)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    figures, said = done.stdout.split("\n", 1)
    code, seconds, memory = figures.split()
    return int(code), float(seconds), int(memory), said.strip()


@cache
def made(name: str) -> Path:
    return MADE[name]()


def within_limits(*command: object) -> str:
    code, seconds, memory, said = measured(*command)
    assert seconds < SECONDS, (seconds, said)
    assert memory < MEMORY_KIB, (memory, said)
    assert code in (0, 1), said
    assert "Traceback" not in said
    return said if code else ""


# The quick ones of each kind; the others take minutes to write.
QUICK = (
    *("labelling", "programs that share steps", "prices", "long weights", "rows of fifo_readers"),
    "manifest of objects",
)


SELECTED = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in MADE]


@pytest.mark.parametrize("name", SELECTED)
def test_verify_of_a_library_made_to_cost_much(name: str) -> None:
    said = within_limits("verify", made(name))
    assert said.startswith("collc: "), said
    assert len(said.splitlines()) == 1, said


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MADE if not name.startswith(("rows of", "plans"))])
def test_the_other_commands_on_such_a_library(name: str) -> None:
    within_limits("inspect", made(name), "--json")
    within_limits("bench", made(name), "-b", "8", "-e", "8")
    within_limits("run", "--lib", made(name), "--", "true")


@pytest.mark.slow
def test_a_large_library_is_proved_by_default() -> None:
    """Every connected allocation of a DGX-1V with every candidate, in half of the steps that a library may take."""
    path = tables_library("dgx1v", allocations="connected", tuning=True)
    assert path.stat().st_size > 2_000_000
    with limited(path, work=WORK // 2):
        check_library(path)


@pytest.mark.parametrize("ranks", [64, 4096])
def test_a_short_text_of_a_large_program(tmp_path: Path, ranks: int) -> None:
    """All ranks of an alltoall have a block for each other: 16 million of them."""
    text = f"collc-ir/1 alltoall ranks={ranks} slots=1 chunk=256\nshare 0: block 0 [0, 1)\n"
    (tmp_path / "large.ir").write_text(text)
    said = within_limits("verify", tmp_path / "large.ir")
    assert ("steps to read" if ranks == 4096 else "the shares of block") in said


def test_a_text_whose_waits_take_long_to_follow(tmp_path: Path) -> None:
    """A right program whose ranks wait for each other in reverse order of the checker's visits."""
    ranks = 3000
    whole = Share(0, Fraction(0), Fraction(1))
    fifos = tuple(Fifo(r + 1, (r,), 0) for r in range(ranks - 1))
    ends = [Step(0, 0, False, (0,), True, ()), Step(0, 0, True, (), True, (ranks - 2,))]
    middle = [(Step(0, 0, False, (r,), True, (r - 1,)),) for r in range(1, ranks - 1)]
    channel = Channel(((ends[0],), *middle, (ends[1],)))
    program = Program(Collective.BROADCAST, ranks - 1, ranks, 2, 256, (whole,), fifos, (channel,))
    (tmp_path / "chain.ir").write_text(print_program(program))
    assert "steps to read" in within_limits("verify", tmp_path / "chain.ir")


def for_ever() -> None:
    while True:
        pass


def fill() -> None:
    held = []
    while True:
        held.append(bytes(1 << 16))


def test_what_runs_inside_is_ended_and_what_comes_after_is_not() -> None:
    said = r"x: takes more than 10 steps to read \(try\)"
    with limited(Path("x"), work=10):
        spend(4)
        spend(6)
    with pytest.raises(RunError, match=said), limited(Path("x"), work=10, hint="try"):
        spend(11)
    labelling = r"x: takes more than 0\.05 seconds of CPU time for labelling its graphs to read"
    with pytest.raises(RunError, match=labelling), limited(Path("x"), uncounted=0.05), uncounted():
        for_ever()
    whole = r"x: takes more than 0\.05 seconds of CPU time to"
    with pytest.raises(RunError, match=whole), limited(Path("x"), last=0.05):
        for_ever()
    with pytest.raises(RunError, match="x: takes more than 32 MiB of memory"), limited(Path("x"), memory=32 << 20):
        fill()
    with limited(Path("x"), last=0.05, uncounted=0.01), uncounted():
        pass
    assert sum(range(5_000_000)) > 0
    spend(1 << 60)


def test_the_count_of_one_file_is_not_that_of_the_next() -> None:
    for _ in range(3):
        with limited(Path("x"), work=10):
            spend(10)


def test_a_common_denominator_is_bounded_where_the_numbers_are_a_files() -> None:
    primes = [Fraction(1, 2**61 + 2 * i + 1) for i in range(200)]
    assert common_denominator(primes).bit_length() > MOST_BITS
    with pytest.raises(RunError, match="4096 bits for a common denominator"), limited(Path("x")):
        common_denominator(primes)
