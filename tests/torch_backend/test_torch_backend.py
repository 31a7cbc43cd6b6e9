"""The collc backend of torch.distributed: every collective, and training beside Gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")

from torch_backend.launch import HERE, QUIET, SECONDS, forked, torchrun  # noqa: E402


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.slow_for("3")
def test_every_collective(ranks: int) -> None:
    assert "all right" in forked(ranks, "collectives.py")


def parameters(tmp_path: Path, backend: str, mode: str, ranks: int) -> list[object]:
    out = tmp_path / f"{backend}.pt"
    start = torchrun if backend == "collc" else forked
    start(ranks, "train.py", backend, mode, out)
    loaded = torch.load(out)
    assert isinstance(loaded, list)
    return loaded


def test_ddp_on_two_ranks_gives_gloos_parameters_bit_by_bit(tmp_path: Path) -> None:
    ours, theirs = (parameters(tmp_path, backend, "ddp", 2) for backend in ("collc", "gloo"))
    assert len(ours) == 8
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_gradient_buckets_are_reduced_while_backward_goes_on() -> None:
    lines = forked(2, "overlap.py").splitlines()
    trace = json.loads(next(line for line in lines if line.startswith("{")))
    reductions, backward = trace["reductions"], trace["backward"]
    assert len(reductions) >= 4, "several buckets"
    assert len(backward) >= 8 * 3
    assert reductions[0][0] < max(end for _, end in backward)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_training_on_four_ranks_agrees_with_gloo(tmp_path: Path, mode: str) -> None:
    # Four summands in another order: equal up to rounding, which 50 steps amplify.
    ours, theirs = (parameters(tmp_path, backend, mode, 4) for backend in ("collc", "gloo"))
    assert all(torch.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.slow
def test_the_benchmark_beside_gloo_prints_its_table() -> None:
    program = HERE.parents[1] / "benchmarks" / "torch_calls.py"
    if not program.is_file():
        pytest.skip("benchmarks are in the source tree alone")
    done = subprocess.run(
        [sys.executable, str(program), "--tiny", "--ranks", "2"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [line for line in done.stdout.splitlines() if line.startswith(("| all_reduce", "| DDP step"))]
    assert len(rows) == 3
    assert all(float(cell) > 0 for row in rows for cell in row.split("|")[2:5])


def test_the_step_for_a_gpu_says_why_it_skips() -> None:
    program = HERE.parents[1] / "gpu_check" / "torch_step.py"
    if not program.is_file():
        pytest.skip("gpu_check is in the checkout, not in the wheel")
    if torch.cuda.is_available():
        pytest.skip("a GPU is here: run it by itself")
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout.count("\n")) == (0, 1)
    assert done.stdout.startswith(f"torch step skipped: PyTorch {torch.__version__} finds no GPU")


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.slow), 3])
@pytest.mark.slow_for("3")
def test_futures_callbacks_and_groups(ranks: int) -> None:
    assert "all right" in forked(ranks, "callbacks.py")


# The quick and most telling tests of PyTorch's suite (`make test-torch`); `make test-torch-suite` runs all of it.
SELECTED = [
    "test_DistributedDataParallelCPU",
    "test_all_gather_coalesced_with_empty",
    "test_all_gather_object_default_pg",
    "test_barrier_timeout_full_group",
    "test_batch_isend_irecv_gloo_tags",
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook",
    "test_irecv",
    "test_monitored_barrier_gloo",
    "test_reduce_full_group_max",
    "test_scatter_object_list",
    "test_send_recv_any_source",
    "test_sparse_all_reduce_sum",
]


@pytest.mark.slow
def test_a_selection_of_pytorchs_own_tests(tmp_path: Path) -> None:
    pytest.importorskip("expecttest", reason="PyTorch's own tests need expecttest")
    out = tmp_path / "outcomes.json"
    command = [sys.executable, "-W", "ignore", str(HERE / "suite.py"), "run", "--backend", "collc", "--world", "2"]
    done = subprocess.run(
        [*command, "--out", str(out), *SELECTED],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env={**os.environ, **QUIET},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    outcomes = json.loads(out.read_text())["tests"]
    assert {name: outcome for name, (outcome, *_) in outcomes.items()} == dict.fromkeys(SELECTED, "pass")
