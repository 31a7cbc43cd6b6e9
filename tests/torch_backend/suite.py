"""PyTorch's own tests of a backend (torch/testing/_internal/distributed/distributed_test.py) over collc or Gloo.

    suite.py run --backend collc --world 2 [--out FILE] [NAME ...]    one backend, one world; JSON
    suite.py table [--write PAGE] FILE ...    both backends; fails if results are missing or only Gloo passes a test

The file of the installed wheel is read as it is and changed in memory, for both backends alike, so that collc runs
whatever Gloo runs:

- a comparison of `BACKEND` or `backend` with the name "gloo" holds for "collc" as it does for "gloo";
- a set of names that holds "gloo" (`require_backend_is_available({"gloo"})`, DistTestCases) holds "collc" too.

Two parts stay unchanged: the names of profiler events, which a test expects only of the backends in three lists of that
file (PROFILING_SUPPORTED_BACKENDS and two others), and groups that a test creates with "gloo" by name. Ranks are forked
from a process that has loaded PyTorch, where PyTorch's runner spawns them: a test takes one second in place of ten.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import re
import socket
import sys
import tempfile
import time
import types
import unittest
from pathlib import Path
from typing import Any

MODULE = "torch.testing._internal.distributed.distributed_test"
SECONDS = 100  # that a test may take; a few may take longer by PyTorch's own list


class AlsoCollc(ast.NodeTransformer):
    """Makes "collc" equal to "gloo" in the conditions of the tests."""

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        if ast.unparse(node.left) not in ("BACKEND", "backend") or not _is_gloo(node.comparators[0]):
            return node
        both = ast.Tuple([ast.Constant("gloo"), ast.Constant("collc")], ast.Load())
        operation: ast.cmpop = ast.In() if isinstance(node.ops[0], ast.Eq) else ast.NotIn()
        return ast.copy_location(ast.Compare(node.left, [operation], [both]), node)

    def visit_Set(self, node: ast.Set) -> ast.AST:
        if any(_is_gloo(element) for element in node.elts):
            node.elts.append(ast.Constant("collc"))
        return node


def _is_gloo(node: ast.expr) -> bool:
    return ast.unparse(node) in ("'gloo'", "dist.Backend.GLOO")


def load_tests() -> types.ModuleType:
    """The module, changed in memory."""
    import torch.testing._internal.common_distributed as common

    for names in (*common.DistTestCases.backend_feature.values(), *common.DistTestCases.skip_collective.values()):
        if "gloo" in names:
            names.add("collc")
    spec = importlib.util.find_spec(MODULE)
    assert spec is not None
    assert isinstance(spec.loader, importlib.machinery.SourceFileLoader)
    tree = ast.fix_missing_locations(AlsoCollc().visit(ast.parse(Path(str(spec.origin)).read_text(encoding="utf-8"))))
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    exec(compile(tree, str(spec.origin), "exec", dont_inherit=True), module.__dict__)
    return module


def test_case(module: types.ModuleType) -> type[unittest.TestCase]:
    import torch.multiprocessing

    class Suite(module.TestDistBackend, module.DistributedTest._DistTestBase):  # type: ignore[name-defined,misc]
        """All tests; ranks are forked."""

        def setUp(self) -> None:
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    return Suite


class Outcomes(unittest.TestResult):
    """Per test its outcome, its seconds and, of a failure, the last line."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[str, tuple[str, float, str]] = {}
        self._since = 0.0

    def startTest(self, test: unittest.TestCase) -> None:
        self._since = time.monotonic()

    def _add(self, test: Any, outcome: str, why: str) -> None:
        name = str(test.id()).rsplit(".", 1)[-1]
        self.rows[name] = (outcome, round(time.monotonic() - self._since, 1), why)
        print(f"{outcome:6} {time.monotonic() - self._since:6.1f} {name} {why[:300]}", file=sys.stderr, flush=True)

    def addSuccess(self, test: unittest.TestCase) -> None:
        self._add(test, "pass", "")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._add(test, "skip", reason)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        lines = [line for line in str(err[1]).splitlines() if re.match(r"\w*(Error|Exception)\b|Process \d", line)]
        self._add(test, "fail", lines[-1] if lines else str(err[1])[:300])

    addError = addFailure


def run(backend: str, world: int, names: list[str]) -> dict[str, tuple[str, float, str]]:
    """Runs the tests of these names, or all."""
    with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
        free.bind(("127.0.0.1", 0))
        os.environ.update(
            BACKEND=backend,
            WORLD_SIZE=str(world),
            TEMP_DIR=folder,
            INIT_METHOD=f"file://{folder}/shared_init_file",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(free.getsockname()[1]),
            DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=str(SECONDS),
            GLOO_SOCKET_IFNAME="lo",
        )
        import collc.torch  # noqa: F401 - registers the backend

        case = test_case(load_tests())
        wanted = [name for name in unittest.TestLoader().getTestCaseNames(case) if not names or name in names]
        outcomes = Outcomes()
        case.setUpClass()
        for name in wanted:
            with contextlib.redirect_stdout(io.StringIO()):
                case(name).run(outcomes)
    return outcomes.rows


def table(files: list[Path]) -> tuple[str, list[str]]:
    """Returns the page, a section for each world, and the faults: missing results, and tests that only Gloo passes."""
    found = [json.loads(file.read_text()) for file in files]
    lines = [
        "# PyTorch's own tests over collc and Gloo",
        "",
        "torch/testing/_internal/distributed/distributed_test.py of the installed wheel, unchanged on disk; how the",
        "harness lets collc run what Gloo runs stands in tests/torch_backend/suite.py.",
        "The rows are the counts, and the tests whose outcome differs between the two.",
        "",
    ]
    missing: list[str] = []
    for world in sorted({result["world"] for result in found}):
        rows = {result["backend"]: result["tests"] for result in found if result["world"] == world}
        missing += [f"world {world}: no results of {backend}" for backend in ("collc", "gloo") if backend not in rows]
        lines += [f"## World of {world}", "", f"| test | {' | '.join(rows)} |", "|---|" + "---|" * len(rows)]
        for outcome in ("pass", "fail", "skip"):
            counts = [str(sum(test[0] == outcome for test in tests.values())) for tests in rows.values()]
            lines.append(f"| all: {outcome} | {' | '.join(counts)} |")
        for name in sorted(next(iter(rows.values()))):
            cells = {backend: tests.get(name, ("-",))[0] for backend, tests in rows.items()}
            if len(set(cells.values())) > 1:
                lines.append(f"| {name} | {' | '.join(cells.values())} |")
            if cells.get("gloo") == "pass" and cells.get("collc") != "pass":
                missing.append(name)
        lines.append("")
    return "\n".join(lines).rstrip() + "\n", missing


def main() -> int:
    parser = argparse.ArgumentParser(description="PyTorch's own tests of a backend, over collc or Gloo.")
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run")
    one.add_argument("--backend", choices=["collc", "gloo"], required=True)
    one.add_argument("--world", type=int, required=True)
    one.add_argument("--out", type=Path)
    one.add_argument("names", nargs="*")
    both = commands.add_parser("table")
    both.add_argument("--write", type=Path)
    both.add_argument("files", type=Path, nargs="+")
    arguments = parser.parse_args()
    if arguments.command == "table":
        text, missing = table(arguments.files)
        sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
        from measured import publish

        publish(text, arguments.write)
        print(*missing, sep="\n", end="\n" if missing else "", file=sys.stderr)
        return 1 if missing else 0
    rows = run(arguments.backend, arguments.world, arguments.names)
    text = json.dumps({"backend": arguments.backend, "world": arguments.world, "tests": rows}, indent=1)
    if arguments.out:
        arguments.out.write_text(text, encoding="utf-8")
    else:
        print(text)
    return 1 if any(outcome == "fail" for outcome, *_ in rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
