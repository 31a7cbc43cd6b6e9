"""`collc export --format nccl-tuner`: builds a plugin that chooses NCCL's algorithm and protocol by size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from collc.api.forecasts import parameters_of
from collc.cli import report
from collc.cli.report import progress, table
from collc.collectives.sizes import short_size
from collc.errors import PackingError, UsageError
from collc.export.nccl_tuner import TunerTable, by_shape, check_tuned, measured, modeled
from collc.export.orders import ring_links
from collc.export.tuner_library import build_tuner, library_name
from collc.outputs import check_output
from collc.packing.sets.allocations import allocations
from collc.simulator.nccl.versions import DEFAULT
from collc.topology.allocation import parse_gpus
from collc.topology.load import load_topology
from collc.topology.model import Topology

# The bytes of calls in the table. Smaller calls take the time of a launch; for larger ones NCCL's choice is constant.
_SIZES = tuple(1 << k for k in range(10, 31))


@dataclass(frozen=True)
class TunerWish:
    """The options of this format; None if not given."""

    gpus: str | None
    allocations: str | None
    links: str | None
    measured: Path | None
    model: str | None
    params: Path | None
    version: str | None
    fabric: str | None

    def given(self) -> list[str]:
        """Returns the names of the options that were given and that only this format has."""
        own: Mapping[str, object] = {
            "--allocations": self.allocations,
            "--measured": self.measured,
            "--model": self.model,
            "--params": self.params,
            "--nccl-version": self.version,
            "--fabric": self.fabric,
        }
        return [name for name, value in own.items() if value is not None]


def export_tuner(topology: str, wish: TunerWish, output: Path | None, as_json: bool) -> None:
    """Builds the plugin, and prints what it changes.

    Raises:
        UsageError: options exclude each other, or there are fewer than two GPUs.
        PackingError: the only set of GPUs cannot be modeled.
    """
    machine = load_topology(topology)
    path = output or Path(library_name(machine.name))
    check_output(path)
    if wish.measured is not None:
        others = [name for name in wish.given() if name != "--measured"]
        others += [name for name, value in (("--gpus", wish.gpus), ("--links", wish.links)) if value is not None]
        if others:
            raise UsageError(f"{others[0]} is about the model", where="--measured", hint=f"leave {others[0]} out")
        tables, notes = measured(wish.measured), [f"times measured: {wish.measured.name}"]
    else:
        tables, notes = _modeled(machine, wish)
    check_tuned(tables)
    build_tuner(path, f"collc tuner {machine.name}", tables, notes[0])
    if as_json:
        report.emit_json(
            {"format": "nccl-tuner", "output": str(path), "from": notes, "tables": [t.to_json() for t in tables]}
        )
        return
    for text in notes:
        report.line(text)
    report.text(_text(tables))
    report.note(f"wrote {path}: set NCCL_TUNER_PLUGIN={path.absolute()}")


def _modeled(machine: Topology, wish: TunerWish) -> tuple[list[TunerTable], list[str]]:
    if wish.gpus is not None and wish.allocations is not None:
        raise UsageError("--gpus and --allocations exclude each other", hint="give one of them")
    parameters, why = parameters_of(wish.model, wish.params, machine.gpu_model, copies=False)
    version = wish.version or DEFAULT
    notes = [f"simulated, {why}, NCCL {version}"]
    if wish.allocations is not None:
        sets = [list(found.gpus) for found in allocations(machine, wish.allocations, wish.links)]
    else:
        sets = [[v.name for v in machine.gpus] if wish.gpus is None else parse_gpus(machine, wish.gpus)]
    graphs = [ring_links(machine, gpus, wish.links)[0] for gpus in sets if len(gpus) > 1]
    if not graphs:
        raise UsageError("a tuner is about two GPUs or more", where=machine.name)
    without = []
    tables: list[TunerTable] = []
    for (ranks, _), group in by_shape(graphs).items():
        try:
            changed = wish.params is not None
            show = progress("export")
            tables += modeled(group, parameters, _SIZES, version, wish.fabric, changed=changed, status=show)
        except PackingError as error:
            if len(graphs) == 1:
                raise
            without.append(f"{ranks} GPUs are left to NCCL: {error}")
    return tables, notes + without


def _text(tables: Sequence[TunerTable]) -> str:
    rows = []
    for item in tables:
        if not item.tuned:
            continue
        for row in item.rows:
            first = str(row.choices[0]) if row.choices else "NCCL's own"
            gain = f"x{row.gain:.2f}" if row.gain is not None else ""
            rows.append([str(item.ranks), str(item.nodes), item.collective.value, short_size(row.least), first, gain])
    kept = [item for item in tables if not item.tuned]
    lines = [table(["ranks", "nodes", "collective", "from bytes", "choice", "gain"], rows)]
    for ranks, nodes in dict.fromkeys((item.ranks, item.nodes) for item in kept):
        names = ", ".join(item.collective.value for item in kept if (item.ranks, item.nodes) == (ranks, nodes))
        lines.append(f"NCCL's own choice at every size for {ranks} ranks on {nodes} nodes: {names}")
    lines.append("gain: time of NCCL's own choice over that of this one, the least in the row")
    return "\n".join(lines)
