"""Every solver call ends. If a call ends at its limit, the plan claims no more than it proves."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from fractions import Fraction
from itertools import product
from pathlib import Path
from random import Random

import pytest
from graphs import both, dgx1, graph, planes, rails
from second_opinion import best_rate
from sweep import joined, plans, random_machine, refused, summary, tried

import collc
from collc.collectives.model import Collective
from collc.errors import UsageError
from collc.packing import plan
from collc.packing import solve as solve_module
from collc.packing.candidates.ring_rates import most_rings
from collc.packing.check import check_packing
from collc.packing.solvers import effort as effort_module
from collc.packing.solvers.effort import Effort, OutOfEffortError
from collc.packing.solvers.highs import Outcome, Program
from collc.topology.model import PlanGraph

C = Collective
ROOT = Path(collc.__file__).parent


def degenerate() -> PlanGraph:
    """9 GPUs and 3 switches, all links 1: thinning its all_reduce once took 400,000 iterations at objective 0."""
    pairs = [
        (0, 1), (0, 9), (0, 11), (1, 3), (1, 6), (1, 11), (2, 3), (2, 9), (2, 11), (3, 11), (4, 9), (4, 10), (4, 11),
        (5, 9), (5, 11), (6, 9), (6, 10), (6, 11), (7, 9), (8, 9), (8, 10), (8, 11),
    ]  # fmt: skip
    one_way = [(5, 4), (7, 11), (10, 0), (10, 7)]
    return graph(9, [*both((a, b, 1) for a, b in pairs), *((a, b, 1) for a, b in one_way)], forwarders=3)


@pytest.fixture
def fresh_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans of this test are not taken from, nor kept in, the cache of the process."""
    from collc.packing import solve

    for name in ("_pack_once", "_solve_once"):
        monkeypatch.setattr(solve, name, getattr(solve, name).__wrapped__)


def limit(monkeypatch: pytest.MonkeyPatch, *, wish: float, proof: float) -> None:
    """Sets the efforts of every search."""
    monkeypatch.setattr(effort_module, "GOAL_EFFORT", wish)
    monkeypatch.setattr(effort_module, "PROOF_EFFORT", proof)


def test_one_function_runs_highs() -> None:
    importing: list[str] = []
    running: list[str] = []
    for path in sorted(ROOT.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = [
            name
            for node in ast.walk(tree)
            for name in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
        ]
        names += [
            str(node.args[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant)
        ]
        if any(name.split(".")[0] == "highspy" for name in names):
            importing.append(path.relative_to(ROOT).as_posix())
    assert importing == ["packing/solvers/highs.py"]
    tree = ast.parse((ROOT / "packing/solvers/highs.py").read_text(encoding="utf-8"))
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        calls = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
        running += [function.name for call in calls if isinstance(call, ast.Attribute) and call.attr == "run"]
    assert running == ["solve"]


@pytest.mark.parametrize("kind", ["Program(maximize=True)", "Program(nodes=10)"])
def test_highs_writes_nothing(kind: str) -> None:
    """HiGHS 1.16 prints its version from the constructor, in C: JSON on standard output would be spoilt."""
    program = (
        f"from collc.packing.solvers.highs import Program\nprogram = {kind}\nprogram.column(1.0, 0.0, 1.0)\n"
        "program.row(0.0, 1.0, {0: 1.0})\nassert program.solve().value == 'optimal'\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.usefixtures("fresh_plans")
def test_a_degenerate_packing_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int]] = []
    solve = Program.solve

    def counted(self: Program) -> Outcome:
        before = self.iterations
        outcome = solve(self)
        calls.append((self.iterations - before, self.nrows))
        return outcome

    monkeypatch.setattr(Program, "solve", counted)
    made = plan(degenerate(), C.ALL_REDUCE)
    assert (made.rate, made.optimal) == (Fraction(27, 16), True)
    assert len(made.trees) <= 36
    # Four ways of 2,000 + 20 x rows iterations at most; without limits single calls took 430,000.
    assert all(steps <= 4 * (2000 + 20 * rows) for steps, rows in calls)
    assert sum(steps for steps, _ in calls) < 100_000


def test_all_collectives_of_the_degenerate_graph() -> None:
    machine = degenerate()
    for collective in Collective:
        made = plan(machine, collective)
        assert made.optimal
        assert float(made.rate or 0) == pytest.approx(best_rate(machine, collective), rel=1e-6)


@pytest.mark.usefixtures("fresh_plans")
@pytest.mark.parametrize("collective", Collective)
@pytest.mark.parametrize("machine", [dgx1(), planes(5, 2), rails(3, 6), random_machine(4)], ids=lambda g: g.name)
@pytest.mark.parametrize("outcome", ["no effort", "no call ends"])
@pytest.mark.slow_for(
    "no call ends-dgx1v-Collective.ALL_GATHER",
    "no call ends-dgx1v-Collective.REDUCE_SCATTER",
    "no call ends-rails-Collective.BROADCAST",
    "no call ends-rails-Collective.REDUCE",
)
def test_a_search_that_ends_early_claims_only_what_it_proves(
    machine: PlanGraph, collective: Collective, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = plan(machine, collective)
    if outcome == "no effort":
        limit(monkeypatch, wish=1.0, proof=1.0)
    else:
        monkeypatch.setattr(Program, "solve", lambda self: Outcome.LIMIT)
    made = plan(machine, collective)
    check_packing(machine, made)
    assert made.rate is not None
    assert made.bound is not None
    assert best.rate is not None
    assert 0 < made.rate <= best.rate <= made.bound
    assert made.optimal == (made.rate == made.bound)
    if outcome == "no call ends" and collective.uses_trees:
        # The other solver needs no LP, so it closes most of the gap.
        assert made.rate >= best.rate * Fraction(8, 10)


@pytest.mark.usefixtures("fresh_plans")
@pytest.mark.slow
def test_the_last_lp_counts_where_the_proof_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = random_machine(75)
    rates = []
    for proof in (1e4, 1e6, 1e8):
        limit(monkeypatch, wish=1e4, proof=proof)
        made = plan(machine, C.ALL_REDUCE)
        check_packing(machine, made)
        rates.append((made.rate, made.optimal))
    assert rates[0][0] < rates[1][0] < rates[2][0]  # type: ignore[operator]
    assert [optimal for _, optimal in rates] == [False, False, True]


@pytest.mark.usefixtures("fresh_plans")
def test_fewest_trees_at_a_limit_are_best_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collc.packing.solvers.ilp._MAX_NODES", 0)
    made = plan(dgx1(), C.BROADCAST, 0, "ilp")
    assert made.rate == 150
    assert "best found" in made.remark


def test_an_integer_program_ends_at_its_nodes() -> None:
    # Market split (Cornuejols and Dawande 1998): a few equations with random coefficients need millions of nodes.
    rng = Random(5)
    program = Program(nodes=1)
    items = [program.column(0.0, 0.0, 1.0, integer=True) for _ in range(40)]
    for _ in range(5):
        sizes = [rng.randint(0, 99) for _ in items]
        half = float(sum(sizes) // 2)
        program.row(half, half, dict(zip(items, map(float, sizes), strict=True)))
    assert program.solve() is Outcome.LIMIT


def test_rings_at_a_limit_still_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Program, "solve", lambda self: Outcome.LIMIT)
    loads = [((0, 2), (1, 1)), ((1, 2), (2, 1))]
    chosen = most_rings(loads, [2, 2, 2])
    assert len(chosen) == 2
    assert all(count >= 0 for count in chosen)


@pytest.mark.parametrize("seed", range(20))
def test_the_best_rings_are_the_first_set_whatever_the_solver_returns(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = Random(seed)
    loads = [tuple((link, rng.randint(1, 2)) for link in sorted(rng.sample(range(5), 3))) for _ in range(6)]
    room = [rng.randint(1, 3) for _ in range(5)]

    def fits(chosen: tuple[int, ...]) -> bool:
        used = Counter(dict.fromkeys(range(5), 0))
        for load, times in zip(loads, chosen, strict=True):
            used.update({link: hops * times for link, hops in load})
        return all(used[link] <= room[link] for link in range(5))

    fitting = [chosen for chosen in product(range(4), repeat=6) if fits(chosen)]
    most = max(map(sum, fitting))
    best = [chosen for chosen in fitting if sum(chosen) == most]
    assert tuple(most_rings(loads, room)) == max(best)
    for answer in best:
        monkeypatch.setattr(Program, "values", lambda self, answer=answer: [float(x) for x in answer])
        assert tuple(most_rings(loads, room)) == max(best)


def test_effort_is_counted() -> None:
    effort = Effort(10)
    effort.spend(10)
    with pytest.raises(OutOfEffortError):
        effort.spend(1)


@pytest.mark.parametrize("seed", [0, 2, 6, 8, 38, 46, 49, 60])
def test_random_machines_of_the_sweep(seed: int) -> None:
    machine = random_machine(seed)
    if not joined(machine):
        assert "rank" in refused(machine)
        return
    found = dict(plans(machine))
    assert set(found) == {c.value for c in Collective}
    assert all(found[name]["optimal"] for name in found)


def test_the_sweep_tells_what_went_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    good = tried(2, 20.0)
    assert set(good["plans"]) == {c.value for c in Collective}

    def broken(*_: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr("sweep.check_packing", broken)
    lines, well = summary([good, tried(3, 20.0)], 20.0)
    assert not well
    assert any("seed 3: ValueError: a bug" in line for line in lines)
    slow = {"seed": 9, "plans": {"all_reduce": {"seconds": 21.0, "optimal": True}}}
    assert summary([good, slow], 20.0)[1] is False
    assert summary([good], 20.0)[1] is True


@pytest.mark.parametrize("solver", ["mwu", "ilp"])
def test_solvers_for_hundreds_of_gpus_refuse_thousands(solver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solve_module, "ORBITS_FROM", 8)
    with pytest.raises(UsageError, match=f"the solver {solver} packs up to 8 GPUs, these are 18"):
        plan(rails(3, 6), C.ALL_GATHER, solver=solver)
