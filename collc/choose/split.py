"""How much of a call each class of links carries, so that all end at the same time (Blink, equation 8; FlexLink 3.2).

Blink splits at sizes where both paths' rates are known and adds a constant, T_dpa, for switching peer access. Here each
class has the model's own time by size, which contains what a call of this class costs whatever its size. A class whose
smallest call takes longer than the whole call then carries nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from collc.choose.table import Table, choose
from collc.collectives.sizes import size_series
from collc.packing.sets.classes import ClassPlans
from collc.simulator.params import Machine
from collc.simulator.run import Simulator

LEAST = 1 << 10


@dataclass(frozen=True)
class Curve:
    """Microseconds of a class's own calls, by ascending bytes; both grow. Between two sizes time is linear."""

    bytes: tuple[int, ...]
    time_us: tuple[float, ...]

    def carried(self, time_us: float) -> float:
        """Returns the bytes that the class moves within a time; 0 if its smallest call takes longer."""
        if time_us < self.time_us[0]:
            return 0.0
        if time_us < self.time_us[-1]:
            return float(np.interp(time_us, self.time_us, self.bytes))
        return self.bytes[-1] * time_us / self.time_us[-1]

    def slowed(self, rate: Fraction) -> Curve:
        """Returns the curve with `rate` of the bandwidth: each time moves that share of the bytes."""
        return Curve(tuple(int(size * rate) for size in self.bytes), self.time_us)


@dataclass(frozen=True)
class Split:
    """A call over several classes. `shares` are of its bytes, by class; `alone_us` is over the fastest class."""

    bytes: int
    time_us: float
    shares: Mapping[str, float]
    alone_us: float

    @property
    def gain(self) -> float:
        """Returns the bandwidth over the bandwidth of only the fastest class, minus 1: 0.25 for a quarter more."""
        return self.alone_us / self.time_us - 1


def end_together(curves: Mapping[str, Curve], size: int) -> tuple[float, dict[str, float]]:
    """Returns the least time that the classes need together for `size` bytes, and the share that each carries."""
    low, high = 0.0, 1.0
    while sum(curve.carried(high) for curve in curves.values()) < size:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if sum(curve.carried(middle) for curve in curves.values()) < size:
            low = middle
        else:
            high = middle
    moved = {name: curve.carried(high) for name, curve in curves.items()}
    total = sum(moved.values())
    return high, {name: amount / total for name, amount in moved.items()}


def split_by_size(
    plans: ClassPlans,
    machine: Machine,
    sizes: Sequence[int],
    *,
    throughput: bool = True,
    status: Callable[[str], None] = lambda text: None,
) -> list[Split]:
    """The split of calls of some sizes, by the model: each class runs the programs that the model chooses for it.

    Args:
        plans: the classes; those without a plan of their own carry nothing.
        sizes: bytes as nccl-tests counts them.
        throughput: by the times of calls in a row; else of one call.
    """
    call = plans.joint
    curves = {}
    for own in plans.classes:
        if own.graph is not None:
            status(own.name)
            curves[own.name] = class_curve(Simulator(own.graph, call.collective, call.root, machine), sizes, throughput)
    if not curves:
        return []
    first = next(iter(curves.values()))
    found = []
    for size in sizes:
        alone, _ = end_together({"": first}, size)
        time, shares = end_together(curves, size)
        found.append(Split(size, time, shares, alone))
    return found


def class_curve(simulator: Simulator, sizes: Sequence[int], throughput: bool) -> Curve:
    """The model's times from `LEAST` to the largest of `sizes` in factors of four; a class may carry any part."""
    asked = sorted({*size_series(LEAST, max(*sizes, LEAST), 4), *(size for size in sizes if size >= LEAST)})
    return curve_of(choose(simulator, asked), simulator.machine, throughput=throughput)


def curve_of(table: Table, machine: Machine, *, throughput: bool = True) -> Curve:
    """The times of a table's choices by size."""
    times = [p.period_us(machine) if throughput else p.time_us for p in table.predictions]
    grown = np.maximum.accumulate(np.asarray(times))
    kept = [0, *(i for i in range(1, len(grown)) if grown[i] > grown[i - 1])]
    return Curve(tuple(table.predictions[i].bytes for i in kept), tuple(float(grown[i]) for i in kept))
