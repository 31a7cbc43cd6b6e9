"""Times copies between all pairs of at most 32 ranks, for `collc probe --measure`. Results become comments of the file.

templates/probe/measure.cpp measures, as one program for both targets: host copies between pinned threads, or peer
copies between GPUs through the CUDA driver API, which it opens at run time. This module selects the pairs and reads the
program's output.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from collc.errors import CollcError
from collc.process import run_captured
from collc.topology.model import Topology, VertexKind

# Pairs are timed one after another; with more ranks this takes minutes.
MOST_RANKS = 32
_LINE = re.compile(r"([0-9]+) ([0-9]+) ([0-9]+(?:\.[0-9]+)?) ([0-9]+(?:\.[0-9]+)?)")
_WHERE = "probe --measure"


@dataclass(frozen=True)
class Measured:
    """One ordered pair: bandwidth of large copies, time of a small copy in microseconds, and nominal bandwidth.

    Bandwidths are in GB/s; the nominal one is None if no path joins the pair.
    """

    src: str
    dst: str
    gbps: Fraction
    latency_us: Fraction
    nominal_gbps: Fraction | None


def measure(
    program: Path, topology: Topology, devices: Sequence[str], *, kind: str, seconds: float = 600
) -> list[Measured]:
    """Times all ordered pairs among at most `MOST_RANKS` ranks, spread evenly over the machine.

    Args:
        program: the compiled measure.cpp.
        devices: the program's names of the ranks, in rank order: CPU numbers, or PCI bus ids of GPUs.
        kind: ``host`` or ``cuda``.
        seconds: the maximum duration.

    Raises:
        CollcError: the program fails or prints something unexpected.
    """
    names = [v.name for v in topology.gpus]
    chosen = (
        sorted({i * len(names) // MOST_RANKS for i in range(MOST_RANKS)})
        if len(names) > MOST_RANKS
        else list(range(len(names)))
    )
    if len(chosen) < 2:
        raise CollcError("there is no pair to measure", where=_WHERE, hint="it takes two GPUs or cores")
    command = [str(program), kind, *(devices[i] for i in chosen)]
    try:
        done = run_captured(command, seconds=seconds)
    except subprocess.TimeoutExpired:
        raise CollcError(f"no answer within {seconds:g} s", where=_WHERE, hint="is the machine busy?") from None
    if done.returncode:
        log = done.stderr.strip().splitlines()
        raise CollcError(log[-1] if log else f"it ended with status {done.returncode}", where=_WHERE)
    found = []
    for line in done.stdout.splitlines():
        match = _LINE.fullmatch(line)
        if not match or max(int(match[1]), int(match[2])) >= len(chosen):
            raise CollcError(f"not a measurement: {line[:60]}", where=_WHERE)
        src, dst = (names[chosen[int(match[k])]] for k in (1, 2))
        found.append(Measured(src, dst, Fraction(match[3]), Fraction(match[4]), nominal(topology, src, dst)))
    return found


def nominal(topology: Topology, src: str, dst: str) -> Fraction | None:
    """Returns the GB/s of the widest single path from `src` to `dst` that passes no other rank, or None."""
    ranks = {v.name for v in topology.gpus}
    out: dict[str, list[tuple[str, Fraction]]] = {}
    for link in topology.links:
        out.setdefault(link.src, []).append((link.dst, link.gbps))
    best: dict[str, Fraction] = {}
    todo = [(src, max((link.gbps for link in topology.links), default=Fraction(0)))]
    while todo:
        at, width = max(todo, key=lambda item: item[1])
        todo.remove((at, width))
        if at in best:
            continue
        best[at] = width
        if at != src and at in ranks:
            continue
        todo += [(to, min(width, gbps)) for to, gbps in out.get(at, []) if to not in best]
    return best.get(dst)


def with_measured(topology: Topology, measured: Sequence[Measured]) -> Topology:
    """Returns the topology with a note for each pair. Speeds stay nominal, so that plans do not depend on the day."""
    notes = [
        f"measured {m.src} -> {m.dst}: {float(m.gbps):.4g} GB/s"
        + (f" (nominal {float(m.nominal_gbps):g})" if m.nominal_gbps is not None else "")
        + f", {float(m.latency_us):.3g} us"
        for m in measured
    ]
    asked = len({m.src for m in measured})
    if asked < len(topology.gpus):
        notes.insert(0, f"measured among {asked} of {len(topology.gpus)} ranks, spread evenly")
    return replace(topology, notes=(*topology.notes, *notes))


def cpu_numbers(topology: Topology) -> list[str]:
    """Returns the CPU numbers of a topology of cores."""
    return [v.name.removeprefix("core") for v in topology.vertices if v.kind is VertexKind.GPU]
