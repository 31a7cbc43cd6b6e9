"""`collc simulate --model-file`: training steps in place of single calls."""

from __future__ import annotations

from collections.abc import Sequence

from collc.cli import report
from collc.cli.report import emit_json, note, table
from collc.errors import UsageError
from collc.simulator.params import Machine
from collc.topology.model import Topology
from collc.training.net import Net, buckets
from collc.training.scaling import Asked, Trained, counts, trained


def require_alone(options: dict[str, object]) -> None:
    """Refuses options that are about single calls."""
    for name, value in options.items():
        if value is not None and value != ():
            raise UsageError(f"{name} is about single calls", where="--model-file", hint=f"omit {name}")


def simulate_net(
    topology: Topology,
    gpus: Sequence[str],
    net: Net,
    machine: Machine,
    why: str,
    asked: Asked,
    *,
    scaling: bool,
    as_json: bool,
) -> None:
    """Prints a row for every number of GPUs and library."""
    numbers = counts(len(gpus)) if scaling else [len(gpus)]
    rows = list(trained(topology, gpus, net, machine, asked, numbers, note))
    if as_json:
        emit_json(
            {
                "model": net.name,
                "source": net.source,
                "gradient_bytes": net.gradient_bytes,
                "parameters": why,
                "steps": [row.to_json() for row in rows],
            }
        )
        return
    calls = len(buckets(net))
    size = net.gradient_bytes / 1e6
    lines = [
        why,
        f"a training step of {net.name}: {size:.1f} MB of gradients in {calls} all_reduces per step, simulated",
        table(
            ["GPUs", "servers", "all_reduce by", "step ms", "communication", "overlap", "speedup", "efficiency"],
            [_cells(row) for row in rows],
        ),
        "communication: share of the step that compute does not hide; overlap: share of the calls that it hides",
    ]
    report.text("\n".join(lines))


def _cells(row: Trained) -> list[str]:
    found = row.step
    return [
        str(row.gpus),
        str(row.servers),
        row.library,
        f"{found.step_us / 1e3:.2f}",
        f"{found.share:.1%}",
        f"{found.overlap:.0%}" if found.communication_us else "-",
        f"{row.speedup:.2f}",
        f"{row.speedup / row.gpus:.0%}",
    ]
