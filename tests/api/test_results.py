"""The functions of the API return the right results, and the same as the commands."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cli import collc as command
from support.libraries import library

import collc
from collc.checker.library import read_library, read_manifest
from collc.errors import UsageError
from collc.ir.printer import parse_program

ROOTED = {"broadcast", "reduce", "gather", "scatter"}


@pytest.mark.parametrize("collective", [c.value for c in collc.Collective])
def test_a_plan_is_the_commands_plan(collective: str, tmp_path: Path) -> None:
    root: dict[str, Any] = {"root": 2} if collective in ROOTED else {}
    planned = collc.plan(collc.load("dgx1v"), collective, gpus=[0, 1, 4, "gpu6"], **root)
    options = ["--root", "2"] if root else []
    shown = json.loads(
        command("plan", "dgx1v", "--gpus", "0,1,4,6", "--collective", collective, *options, "--json").out
    )
    assert planned.to_json() == shown
    assert planned.rate == Fraction(shown["plans"][0]["rate_gbps"])
    assert planned.optimal == (planned.rate == planned.bound)
    assert planned.limit
    assert max(planned.loads) <= 50
    assert collective in str(planned)
    assert bool(planned.trees) != bool(planned.flows)


def test_one_gpu_moves_nothing() -> None:
    planned = collc.plan("dgx1v", gpus="3")
    assert (planned.rate, planned.bound, planned.limit, planned.trees) == (None, None, "", ())
    with pytest.raises(UsageError, match="one GPU alone"):
        collc.lower(planned)


def test_flows_and_orbits_are_not_lowered(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="planned as flows"):
        collc.lower(collc.plan("dgx1v", "alltoall", gpus="0,1"))


def test_relays_links_and_solvers() -> None:
    alone = collc.plan("dgx1v", "all_gather", gpus="0,1,2,3,6").rate
    relayed = collc.plan("dgx1v", "all_gather", gpus="0,1,2,3,6", relay=True).rate
    assert alone is not None
    assert relayed is not None
    assert relayed > alone
    assert collc.plan("dgx1v", gpus="0,1", links=["pcie"]).rate != collc.plan("dgx1v", gpus="0,1").rate
    few = collc.plan("dgx1v", "broadcast", gpus="0-3", solver="ilp", tolerance="1/20")
    assert len(few.trees) <= len(collc.plan("dgx1v", "broadcast", gpus="0-3").trees)


def reduced(values: list[Any], op: str) -> Any:
    found = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}.get(op, np.add)
    result = values[0]
    for value in values[1:]:
        result = found(result, value)
    return result // len(values) if op == "avg" else result


def inputs_of(n: int, rows: int) -> list[Any]:
    random = np.random.default_rng(1)
    return [random.integers(1, 5, size=(rows, 5)) * 3 for _ in range(n)]


@pytest.mark.parametrize("op", ["sum", "prod", "max", "min", "avg"])
def test_collectives_of_a_library(op: str) -> None:
    with collc.Library(library("odd")) as odd:
        n = odd.nranks
        assert (n, odd.gpus, odd.name) == (3, ("gpu0", "gpu1", "gpu2"), "odd")
        given = inputs_of(n, 2 * n)
        kept = [array.copy() for array in given]
        want = reduced(given, op)
        for found in odd.all_reduce(given, op):
            assert (found == want).all()
        for rank, found in enumerate(odd.reduce_scatter(given, op)):
            assert (found == want[2 * rank : 2 * rank + 2]).all()
        for root in range(n):
            results = odd.reduce(given, op, root)
            assert [r is None for r in results] == [rank != root for rank in range(n)]
            assert (results[root] == want).all()
            sent = odd.broadcast([given[root] if rank == root else None for rank in range(n)], root)
            assert all((found == given[root]).all() for found in sent)
        for found in odd.all_gather(given):
            assert (found == np.concatenate(given)).all()
        assert all((a == b).all() for a, b in zip(given, kept, strict=True)), "inputs stay"
        odd.verify()
        odd.close()
        with pytest.raises(UsageError, match="closed"):
            odd.all_reduce(given)


@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16"]
)
def test_types_and_shapes(dtype: str) -> None:
    pytest.importorskip("ml_dtypes", reason="numpy's bfloat16 is in ml_dtypes")  # which tells numpy of it
    with collc.Library(library("odd")) as odd:
        for shape in ((), (1,), (7,), (3, 4, 5), (0,)):
            given = [np.full(shape, rank + 1, dtype) for rank in range(3)]
            for found in odd.all_reduce(given):
                assert (found.shape, found.dtype) == (shape, np.dtype(dtype))
                assert (found == 6).all()
        strided = [np.arange(20).reshape(4, 5).T.astype(dtype) for _ in range(3)]
        assert (odd.all_reduce(strided)[0] == 3 * strided[0]).all()


def test_a_library_that_was_built_again_is_the_new_one(tmp_path: Path) -> None:
    """The loader goes by names, and never unloads a library."""
    path = tmp_path / "lib.so"
    shutil.copy(library("odd"), path)
    with collc.Library(path) as first:
        assert first.nranks == 3
    path.unlink()
    shutil.copy(library("pair"), path)
    with collc.Library(path) as second:
        assert second.all_reduce([np.ones(4), np.ones(4)])[1].tolist() == [2.0] * 4
    assert first.build_id != second.build_id


def test_a_library_for_gpus_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collc.api.running.read_manifest", lambda path: {**read_manifest(path), "target": "cuda"})
    with pytest.raises(collc.CollcError, match="is for target cuda"):
        collc.Library(library("odd"))


@pytest.mark.parametrize("target", ["host", "cuda"])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"])
def test_lowered_programs_compute_their_collective(collective: str, target: str) -> None:
    root: dict[str, Any] = {"root": 1} if collective in ROOTED else {}
    lowered = collc.lower(collc.plan("dgx1v", collective, gpus="0-2", **root), target=target, channels=2, chunk="1K")
    assert parse_program(lowered.text) == lowered.program
    assert "2 channels" in str(lowered)
    given = inputs_of(3, 6)
    results = lowered.run([given[1] if r == 1 else None for r in range(3)] if collective == "broadcast" else given)
    total = reduced(given, "sum")
    want: dict[str, list[Any]] = {
        "all_reduce": [total] * 3,
        "all_gather": [np.concatenate(given)] * 3,
        "reduce_scatter": [total[0:2], total[2:4], total[4:6]],
        "broadcast": [given[1]] * 3,
        "reduce": [None, total, None],
    }
    for found, expected in zip(results, want[collective], strict=True):
        assert (found is None) == (expected is None)
        assert found is None or (found == expected).all()


def test_every_rank_may_reduce_everything() -> None:
    planned = collc.plan("dgx1v", gpus="0-2", solver="exact")
    with pytest.raises(UsageError, match="everywhere"):
        collc.lower(planned, target="cuda", everywhere=True)


def test_a_simulation_is_the_commands(tmp_path: Path) -> None:
    found = collc.simulate("dgx1v", "broadcast", gpus="0-3", root=1, sizes=["64K", 1 << 20], nccl=True)
    argv = ["dgx1v", "--gpus", "0-3", "--collective", "broadcast", "--root", "1", "-b", "64K", "-e", "1M", "-f", "16"]
    shown = json.loads(command("simulate", *argv, "--compare", "nccl", "--json").out)
    assert [row.time_us for row in found.rows] == [row["time_us"] for row in shown["rows"]]
    assert [row.bytes for row in found.rows] == [64 << 10, 1 << 20]
    assert [row.busbw_gbps for row in found.rows] == [row["busbw_gbps"] for row in shown["rows"]]
    beside = shown["compare"]["broadcast"]["nccl"]
    assert [row.nccl_us for row in found.rows] == [row["time_us"] for row in beside]
    assert found.parameters == shown["parameters"]
    assert found.to_json()["rows"][0]["bytes"] == 64 << 10
    assert "broadcast on 4 GPUs" in str(found)


def test_where_nccl_cannot_be_predicted() -> None:
    found = collc.simulate("dgx1v", gpus="0,1,4", sizes=["1K"], nccl=True)
    assert found.rows[0].nccl_us is None
    assert (found.note or "").startswith("nccl is left out")


def test_a_fixed_program_and_one_call() -> None:
    fixed = {"plan": "trees", "protocol": "Simple", "chunk": "64K", "channels": 4}
    one = collc.simulate("dgx1v", "broadcast", sizes=["1M"], throughput=False, **fixed).rows[0]  # type: ignore[arg-type]
    assert (one.plan, one.protocol, one.chunk_bytes, one.channels, one.nccl_us) == (
        "trees",
        "Simple",
        64 << 10,
        4,
        None,
    )
    many = collc.simulate("dgx1v", "broadcast", sizes=["1M"], **fixed).rows[0]  # type: ignore[arg-type]
    assert one.time_us > many.time_us


def test_a_library_from_python(tmp_path: Path) -> None:
    """From a `Topology` rather than a file, as a notebook has it."""
    out = tmp_path / "lib.so"
    made = collc.compile(collc.load("dgx1v"), out, target="host", gpus=[0, 1], collectives=["all_reduce"])
    assert (made.path, made.target, made.note) == (out, "host", None)
    (one,) = made.libraries
    assert (one.path, one.servers, one.size, one.gpu_sets) == (out, ("server0",), out.stat().st_size, 1)
    with collc.Library(made.path) as pair:
        assert pair.build_id == one.build_id
        assert pair.all_reduce([np.ones(3), np.ones(3)])[0].tolist() == [2, 2, 2]
        with pytest.raises(collc.CollcError):
            pair.all_gather([np.ones(3), np.ones(3)])


def test_a_library_from_plans_and_programs_of_ones_own(tmp_path: Path) -> None:
    """One of the best plan's trees at its own rate, and a program of other plans, beside those that are packed."""
    best = collc.plan("dgx1v", gpus="0-2")
    tree = best.trees[0]
    claims: dict[str, Any] = {"rate": tree.weight, "bound": None, "certificate": None, "optimal": False}
    own = replace(best, plan=replace(best.plan, trees=(tree,), **claims))
    gather = collc.lower(collc.plan("dgx1v", "all_gather", gpus="0-2"), channels=2)
    made: dict[str, Any] = {
        "target": "host",
        "gpus": "0-2",
        "collectives": ["all_reduce", "all_gather", "broadcast"],
        "roots": [1],
    }
    (tmp_path / "own.json").write_text(json.dumps(own.to_json()))
    (tmp_path / "gather.ir").write_text(gather.text)
    given: list[dict[str, Any]] = [
        {"plans": own, "programs": gather},
        {"plans": [own], "programs": [gather]},
        {"plans": tmp_path / "own.json", "programs": [tmp_path / "gather.ir"]},
        {"plans": str(tmp_path / "own.json"), "programs": str(tmp_path / "gather.ir")},
    ]
    built = [collc.compile("dgx1v", tmp_path / f"{n}.so", **made, **one) for n, one in enumerate(given)]
    assert len({one.libraries[0].build_id for one in built}) == 1
    held = {plan.collective.value: plan for plan in read_library(built[0].path).documents[0].plans}
    assert (held["all_reduce"].rate, held["all_reduce"].bound) == (tree.weight, best.bound)
    assert [held[name].solver for name in ("all_reduce", "all_gather", "broadcast")] == ["given", "given", "exact"]
    with collc.Library(built[0].path) as library:
        library.verify()
        data = inputs_of(3, 6)
        assert all((found == reduced(data, "sum")).all() for found in library.all_reduce(data))
        assert all((found == np.concatenate(data)).all() for found in library.all_gather(data))


def test_own_plans_are_checked_whoever_made_them(tmp_path: Path) -> None:
    best = collc.plan("dgx1v", gpus="0-2")
    assert best.rate
    twice = replace(best, plan=replace(best.plan, rate=2 * best.rate))
    elsewhere = replace(best, plan=replace(best.plan, trees=(replace(best.trees[0], root=7), *best.trees[1:])))
    for wrong in (twice, elsewhere):
        with pytest.raises(collc.CollcError, match="plans"):
            collc.compile("dgx1v", tmp_path / "a.so", target="host", gpus="0-2", plans=wrong)
    assert not list(tmp_path.iterdir())


def test_a_library_for_each_kind_of_server(tmp_path: Path) -> None:
    text = (
        "format: collc-topology/1\nname: two\nservers: 2\ntemplate:\n  gpus: 2\n  nics: [nic0]\n"
        "  links: [[gpu0, gpu1, nvlink, 25], [gpu0, nic0, pcie, 12], [gpu1, nic0, pcie, 12]]\n"
        "switches: [net]\nlinks: [[each.nic0, net, net, 12]]\n"
    )
    (tmp_path / "two.yaml").write_text(text)
    made = collc.compile(tmp_path / "two.yaml", tmp_path / "libs", target="host")
    assert made.path == tmp_path / "libs"
    (one,) = made.libraries
    assert one.servers == ("server0", "server1")
    with collc.Library(one.path) as pair:
        assert pair.all_reduce([np.ones(3), np.ones(3)])[0].tolist() == [2, 2, 2]
    whole = collc.compile(tmp_path / "two.yaml", tmp_path / "all.so", target="host")
    assert (whole.path, whole.libraries[0].servers) == (tmp_path / "all.so", ("server0", "server1"))
