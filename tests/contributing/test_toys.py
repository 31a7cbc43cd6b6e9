"""CONTRIBUTING.md is enough: a toy pass and a toy collective are added to a copy of the sources as it says.

The collective is an all_reduce through a root that the caller names; the pass leaves FIFOs the fewest slots.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not (ROOT / "CONTRIBUTING.md").is_file(), reason="it is about the checkout")


@dataclass(frozen=True)
class Edit:
    """Text that goes into a file before a line of it; into a new file without one."""

    file: str
    text: str
    before: str | None = None


COLLECTIVE = (
    Edit("collc/collectives/model.py", '    ALL_REDUCE_AT = "all_reduce_at"\n', "\n    @property\n    def traits"),
    Edit(
        "collc/collectives/model.py",
        """\
    Collective.ALL_REDUCE_AT: Traits(
        9, "AllReduceAt", _WHOLE, _WHOLE, "all_reduce_at", 2, uses_trees=True, reduces=True, spreads=True, rooted=True
    ),
""",
        "}\n# The collectives that have programs",
    ),
    Edit(
        "tests/collectives/test_collectives.py",
        '    "all_reduce_at": ([{0: 0}] * 3, [{0: 0}] * 3),\n',
        "}\n# busbw / algbw",
    ),
    Edit("tests/collectives/test_collectives.py", '    "all_reduce_at": 1.5,\n', "}\neach = "),
    Edit(
        "tests/ir/test_interpret.py",
        "        case Collective.ALL_REDUCE_AT:\n            return [total] * nranks\n",
        "        case Collective.REDUCE:\n",
    ),
    Edit(
        "tests/cuda/test_all_reduce_at.py",
        """\
from cuda_emulator import PackedTables, build_emulator, emulate
from emulated_calls import differences, make_call

from collc import packing
from collc.bench.data import TYPES, Case
from collc.collectives.model import Collective
from collc.options import CUDA
from collc.packing.check import check_packing
from collc.pipeline import Recorder, lower
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology


def test_from_the_planner_to_the_kernels():
    graph = plan_graph(load_topology("dgx1v"), ["gpu0", "gpu1", "gpu2", "gpu3"])
    plan = packing.plan(graph, Collective.ALL_REDUCE_AT, 2)
    check_packing(graph, plan)
    assert plan.optimal
    assert {tree.root for tree in plan.trees} == {2}
    program = lower(plan, graph, CUDA, Recorder()).replace(chunk_bytes=256)
    call, wanted = make_call(Case(Collective.ALL_REDUCE_AT, 4, 2, 901, TYPES["float"], "sum"))
    outcome = emulate(build_emulator(), PackedTables([program], 256), [call], seed=3)
    assert (outcome.failure, differences([(call, wanted)])) == ("", [])
""",
    ),
)
PASS = (
    Edit(
        "collc/lowering/fewest_slots.py",
        '''\
"""fewest_slots: two slots per FIFO, which is all that pipelined hops need.

Before: ``slots=4``. After: ``slots=2``.
"""

from __future__ import annotations

from collc.ir.nodes import Program


def fewest_slots(program: Program) -> Program:
    """Leaves FIFOs two slots."""
    return program.replace(slots=min(program.slots, 2))
''',
    ),
    Edit(
        "collc/pipeline.py",
        "from collc.lowering.fewest_slots import fewest_slots\n",
        "from collc.lowering.fuse_copies import fuse_copies\n",
    ),
    Edit("collc/pipeline.py", '    "fewest_slots": Lowering(fewest_slots),\n', '    "reduce_everywhere": Lowering('),
    Edit(
        "tests/cases/fewest_slots.ir",
        """\
# opt --passes fewest_slots --verify
collc-ir/1 broadcast root=0 ranks=2 slots=4 chunk=256
share 0: block 0 [0, 1)
fifo 0: 0 -> 1 share 0 index 0
channel 0
  rank 0
    copySend share 0 lag 0 send 0
  rank 1
    recv share 0 lag 1 recv 0
# ----
""",
    ),
    Edit("docs/pipeline.md", "| `fewest_slots` | two slots per FIFO |\n", "| `reduce_everywhere` |"),
)


def copy(target: Path) -> Path:
    """Returns a copy of the sources and of the files that these tests need."""
    hidden = shutil.ignore_patterns("__pycache__", "*.pyc")
    for name in ("collc", "templates", "topologies", "docs", "tests"):
        shutil.copytree(ROOT / name, target / name, ignore=hidden)
    shutil.copy(ROOT / "pyproject.toml", target)
    return target


def make(edits: tuple[Edit, ...], target: Path) -> None:
    for edit in edits:
        path = target / edit.file
        if edit.before is None:
            assert not path.exists()
            path.write_text(edit.text)
            continue
        text = path.read_text()
        assert text.count(edit.before) == 1, (
            f"{edit.file} changed: {edit.before!r} stands there {text.count(edit.before)} times"
        )
        path.write_text(text.replace(edit.before, edit.text + edit.before))


def run(target: Path, *words: str) -> str:
    """Runs Python with only the copy on its path and returns the printed text."""
    compiled = str(target.parent / "pycache")  # beside the copy, for all these processes
    # PYTEST_ADDOPTS is of the run that this test is part of, and may ask for no summary.
    own = {"PYTHONPATH": str(target), "PYTHONPYCACHEPREFIX": compiled, "PYTEST_ADDOPTS": ""}
    environment = {**os.environ, **own}
    done = subprocess.run(
        [sys.executable, *words], cwd=target, env=environment, capture_output=True, text=True, check=False, timeout=1200
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def changed(target: Path) -> dict[str, int]:
    """File -> lines that the copy has and the sources do not."""
    found: dict[str, int] = {}
    for path in (
        p for name in ("collc", "templates", "tests", "docs") for p in (target / name).rglob("*") if p.is_file()
    ):
        name = str(path.relative_to(target))
        if "__pycache__" in name or name == "pyproject.toml":
            continue
        new = path.read_bytes().splitlines()
        old = (ROOT / name).read_bytes().splitlines() if (ROOT / name).is_file() else []
        if new != old:
            found[name] = len(new) - len(old)
    return found


def section(title: str) -> str:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    found = re.search(rf"^## {title}\n(.*?)^## ", text, re.S | re.M)
    assert found is not None
    return found[1]


def test_a_collective_from_the_planner_to_the_kernels(tmp_path: Path) -> None:
    target = copy(tmp_path / "collc")
    make(COLLECTIVE, target)
    run(target, "-m", "pytest", "-q", "tests/collectives", "--update-golden")
    files = changed(target)
    assert len(files) <= 8
    assert sum(files.values()) <= 300
    assert len(files) == 6, files
    named = section("Add a collective")
    assert all(name in named for name in files if "test_all_reduce_at" not in name), files
    pytest_ = ("-m", "pytest", "-q", "-p", "no:cacheprovider")
    run(target, *pytest_, "tests/collectives")
    tests = ("ir/test_interpret.py", "ir/test_verify.py", "cuda/test_all_reduce_at.py", "cuda/test_emulation.py")
    named = "all_reduce_at and not (emulation and not many_schedules) or planner_to_the_kernels"
    said = run(target, *pytest_, *(f"tests/{name}" for name in tests), "-k", named)
    passed = re.search(r"^(\d+) passed", said, re.M)
    assert passed
    assert int(passed[1]) > 4  # one of the planner, three of the emulator, and the tests of the IR
    shown = run(target, "-m", "collc", "plan", "dgx1v", "--collective", "all_reduce_at", "--root", "3")
    assert "all_reduce_at" in shown


@pytest.mark.slow
def test_a_pass(tmp_path: Path) -> None:
    target = copy(tmp_path / "collc")
    make(PASS, target)
    run(target, "-m", "pytest", "-q", "tests/test_cases.py", "--update-golden")
    files = changed(target)
    assert len(files) == 4, files
    named = section("Add a pass")
    assert all(name.replace("fewest_slots", "NAME") in named for name in files), files
    run(target, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_cases.py", "tests/test_architecture.py")
    case = (target / "tests/cases/fewest_slots.ir").read_text()
    assert "slots=2" in case.partition("# ----")[2]
