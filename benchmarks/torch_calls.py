"""The collc backend of torch.distributed beside Gloo: time of an all_reduce by size, and of a training step under DDP.

`python benchmarks/torch_calls.py [--write docs/data/torch.yaml]` runs 2 and 4 ranks of this machine. Both
backends live in the same processes and take turns, round by round, so that whatever else the machine does meets both;
a ratio is taken within each round. `--overlap FILE.svg` draws one traced step instead: backward and its all_reduces.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measured import provenance, publish

SIZES = [4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
BACKENDS = ("gloo", "collc")
ROUNDS = 9
HERE = Path(__file__).resolve()


def torchrun(ranks: int, script: Path, *arguments: str) -> Any:
    """Returns rank 0's output, one line of JSON."""
    run = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [*run, str(script), *arguments], stdout=subprocess.PIPE, text=True, env=environment, check=True
    )
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith(("{", "["))))


# Each rank.


def per_call(call: Callable[[], object], seconds: float) -> float:
    """Seconds of one call on this rank, from as many as fill about `seconds`; all ranks do equally many."""
    import torch
    import torch.distributed as dist

    call()
    start = time.perf_counter()
    call()
    often = torch.tensor([max(1, min(500, int(seconds / (time.perf_counter() - start))))])
    dist.all_reduce(often, dist.ReduceOp.MIN)
    dist.barrier()
    start = time.perf_counter()
    for _ in range(int(often)):
        call()
    return (time.perf_counter() - start) / int(often)


def taking_turns(calls: dict[str, Callable[[], object]], seconds: float, rounds: int) -> dict[str, list[float]]:
    """Per backend its times, one per round; who begins alternates."""
    found: dict[str, list[float]] = {backend: [] for backend in calls}
    for turn in range(rounds + 1):
        order = list(calls) if turn % 2 else list(reversed(calls))
        for backend in order:
            took = per_call(calls[backend], seconds)
            if turn:  # the first round warms up
                found[backend].append(took)
    return found


def reduction(tensor: Any, group: Any) -> Callable[[], object]:
    """An all_reduce of zeros, which stay zeros, after one of ones that is checked."""
    import torch.distributed as dist

    dist.all_reduce(tensor, group=group)
    assert (tensor == dist.get_world_size()).all()
    tensor.zero_()
    return lambda: dist.all_reduce(tensor, group=group)


def rank_main(sizes: list[int], rounds: int, seconds: float) -> None:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import collc.torch  # noqa: F401 - registers the backend

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    groups = {backend: dist.new_group(backend=backend) for backend in BACKENDS}
    result: dict[str, Any] = {"all_reduce": {}}
    for size in sizes:
        calls = {backend: reduction(torch.ones(size // 4), group) for backend, group in groups.items()}
        result["all_reduce"][size] = taking_turns(calls, seconds, rounds)

    def training(group: Any) -> Callable[[], object]:
        torch.manual_seed(0)
        layers = [
            *(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(64 * 8 * 8, 1024), nn.ReLU(), nn.Linear(1024, 10)),
        ]
        model = DistributedDataParallel(nn.Sequential(*layers), process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        batch, labels = torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,))
        result["parameters"] = sum(p.numel() for p in model.parameters())

        def step() -> None:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch), labels).backward()
            optimizer.step()

        return step

    result["step"] = taking_turns({b: training(group) for b, group in groups.items()}, 2 * seconds, rounds)
    if dist.get_rank() == 0:
        print(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


# The report.


def row(name: str, times: dict[str, list[float]]) -> str:
    ratios = [g / c for g, c in zip(times["gloo"], times["collc"], strict=True)]
    gloo, ours = (statistics.median(times[b]) * 1e3 for b in BACKENDS)
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    return f"| {name} | {gloo:.3g} | {ours:.3g} | {statistics.median(ratios):.2f} | {spread} |"


def size_text(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def report(results: dict[int, Any], rounds: int, loads: list[float]) -> str:
    import torch

    lines = [
        "# The collc backend of torch.distributed beside Gloo",
        "",
        f"{provenance()}, torch {torch.__version__.partition('+')[0]};",
        "one thread per rank.",
        f"Both backends in the same processes, {rounds} rounds in turn; medians of milliseconds on rank 0. A ratio is",
        "Gloo's time over collc's within a round, so above 1 collc is faster; the last column is its range.",
        f"Load of the machine when it began and ended: {loads[0]:.0f} and {loads[1]:.0f}; niceness {os.nice(0)}.",
    ]
    for ranks, result in results.items():
        lines += ["", f"## {ranks} ranks", "", "| | Gloo ms | collc ms | ratio | rounds |", "|---|---|---|---|---|"]
        lines += [row(f"all_reduce, {size_text(int(s))}", times) for s, times in result["all_reduce"].items()]
        millions = result["parameters"] / 1e6
        lines.append(row(f"DDP step, {millions:.1f} million parameters", result["step"]))
    if any(ranks > (os.cpu_count() or 1) for ranks in results):
        lines += [
            "",
            f"With more ranks than the {os.cpu_count()} cores, ranks wait for a core as well as for each other.",
        ]
    return "\n".join(lines) + "\n"


def draw_overlap(out: Path) -> None:
    """One traced step of the tests' network on two ranks: backward above, its all_reduces below."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    trace = torchrun(2, HERE.parents[1] / "tests" / "torch_backend" / "overlap.py")
    first = min(start for start, _ in trace["backward"])
    figure, axes = pyplot.subplots(figsize=(8, 1.8), layout="constrained")
    rows = {
        "backward": ("backward operations", "tab:blue"),
        "reductions": ("ncclAllReduce, one per bucket", "tab:orange"),
    }
    for place, (name, (_, color)) in enumerate(rows.items()):
        spans = [((start - first) / 1e3, (end - start) / 1e3) for start, end in trace[name]]
        axes.broken_barh(spans, (1 - place - 0.35, 0.7), facecolors=color, edgecolors="white", linewidth=0.3)
    axes.axvline((max(end for _, end in trace["backward"]) - first) / 1e3, color="grey", linewidth=0.8, linestyle=":")
    axes.set_yticks([1, 0], [label for label, _ in rows.values()])
    axes.set_xlabel("milliseconds; dotted: the last operation of backward ends")
    axes.set_xlim(left=0)
    figure.savefig(out, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description="The collc backend of torch.distributed beside Gloo.")
    parser.add_argument("--write", type=Path, help="The file for the tables; otherwise they are printed.")
    parser.add_argument("--overlap", type=Path, help="Draw a traced step to this SVG file, and do nothing else.")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="Bytes of all_reduces.")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--tiny", action="store_true", help="Only to try the program out.")
    arguments = parser.parse_args()
    if "LOCAL_RANK" in os.environ:
        rank_main(
            arguments.sizes[:2] if arguments.tiny else arguments.sizes,
            arguments.rounds,
            0.02 if arguments.tiny else 0.3,
        )
        return
    if arguments.overlap:
        draw_overlap(arguments.overlap)
        return
    passed = ["--rounds", str(arguments.rounds), "--sizes", *map(str, arguments.sizes)]
    passed += ["--tiny"] if arguments.tiny else []
    before = os.getloadavg()[0]
    results = {ranks: torchrun(ranks, HERE, *passed) for ranks in arguments.ranks}
    text = report(results, arguments.rounds, [before, os.getloadavg()[0]])
    publish(text, arguments.write)


if __name__ == "__main__":
    main()
