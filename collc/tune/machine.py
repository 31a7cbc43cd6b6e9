"""`tune --machine`: measures copies on this machine, and computes the thresholds between a library's ways to copy.

The library measures (templates/runtime/base/measure_copies.h). The outer loop is over rounds of all ways and sizes, so
that a disturbance affects all equally. The thresholds follow from the medians by the rules of `thresholds`, which
docs/runtime.md explains: once for cores that share a cache, once for cores that do not, if the machine has both.
Thresholds of an earlier run for the other distance stay in the file. A library reads the file when it creates a
communicator (templates/runtime/plan/thresholds.h).
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from typing import Any

from collc.build.cache import cache_dir
from collc.errors import RunError
from collc.outputs import check_output
from collc.process import python_module, run_captured
from collc.tune.files import write_whole

FORMAT = "collc-machine/2"
SIZES = tuple(1 << n for n in range(14, 25, 2))
SECONDS = 0.75  # the time of measuring, for as many rounds as fit, at least LEAST for each pair of cores
LEAST = 3
MARGIN = 0.95  # another way must take less than this fraction of the time
PAST_ALL = 4 * SIZES[-1]  # the bytes of results that are always written past the caches
UNIT = 1 << 10  # thresholds between two sizes are multiples of this number of bytes
MOVED = 1.5  # if a load of the other core's line takes this much more or less time, the threads were on other cores
DISTANCES = ("near", "far")
FAR_CHUNKS = 16 << 10  # the least bytes of a just computed chunk that the kernel copies between far cores
APART = 0.09  # cores are far if a load of the other's line takes this many microseconds or more (line_load.h: kFarLoad)
MOST_CORES = 256  # the most cores that are measured


@dataclass(frozen=True)
class Costs:
    """The microseconds of one copy by each way of measure_copies.h, in its order; -1 if the system refuses it.

    The last value is the time of a load of a cache line that the other core has just written.
    """

    slots: float
    streamed_slots: float
    slots_streamed: float
    all_streamed: float
    kernel: float
    both_slots: float
    both_streamed_slots: float
    both_slots_streamed: float
    both_kernel: float
    both_summed_slots: float
    both_summed_streamed: float
    both_summed_kernel: float
    own: float
    own_streamed: float
    own_slots: float
    own_kernel: float
    line_load: float


@dataclass(frozen=True)
class Thresholds:
    """The least bytes for each way, and with `_end` the bytes where its range ends; None for never or no end.

    These are the members of thresholds.h, in its order.
    """

    kernel_copies: int | None
    kernel_copies_end: int | None
    kernel_copies_crowded: int | None
    kernel_copied_chunks: int | None
    streamed_results: int | None
    streamed_broadcasts: int | None
    streamed_slots: int | None
    streamed_broadcast_slots: int | None
    pulled_broadcasts: int | None
    pulled_broadcasts_end: int | None
    kernel_sums: int | None
    kernel_sums_end: int | None
    sums_everywhere: int | None
    sums_everywhere_end: int | None


@dataclass(frozen=True)
class MachineReport:
    """The measurements and the thresholds by distance.

    Attributes:
        moved: the number of measurements (rounds x sizes) that do not count because threads moved to other cores.
        kept: the distances whose costs come from an earlier run.
    """

    output: Path
    machine: str
    seconds: float
    rounds: int
    moved: int
    kept: Sequence[str]
    costs: Mapping[str, Mapping[int, Costs]]
    thresholds: Mapping[str, Thresholds]

    def to_json(self) -> dict[str, Any]:
        return {
            "file": str(self.output),
            "machine": self.machine,
            "seconds": self.seconds,
            "rounds": self.rounds,
            "moved": self.moved,
            "kept": list(self.kept),
            "costs_us": {
                distance: {str(size): asdict(costs) for size, costs in by_size.items()}
                for distance, by_size in self.costs.items()
            },
            "thresholds": {distance: asdict(found) for distance, found in self.thresholds.items()},
        }


_Way = Callable[[Costs], float]


def thresholds(costs: Mapping[int, Costs], *, far: bool = False) -> Thresholds:
    """Returns the thresholds by the rules of docs/runtime.md: above them a way stays faster than the other ways.

    Args:
        costs: the costs at each size in bytes.
        far: the costs are those between far cores.
    """
    kernel = _within(costs, lambda c: c.both_kernel, lambda c: min(c.both_slots, c.both_slots_streamed))
    broadcasts = _from(
        costs,
        lambda c: min(c.slots_streamed, c.all_streamed),
        lambda c: min(c.slots, c.streamed_slots),
    )
    pulled = _within(costs, lambda c: c.kernel, lambda c: min(c.slots, c.streamed_slots, c.all_streamed))
    sums = _within(costs, lambda c: c.both_summed_kernel, _summed_through_slots)
    everywhere = _everywhere(costs)
    chunks = _from(costs, lambda c: c.kernel, lambda c: c.slots)
    if far and all(cost.kernel >= 0 for cost in costs.values()):
        # Both ways wait for the writer's lines, and the writer waits for the lines of the slot. No measured way has
        # only this cost, so the threshold is fixed.
        chunks = FAR_CHUNKS
    return Thresholds(
        kernel_copies=kernel[0],
        kernel_copies_end=kernel[1],
        kernel_copies_crowded=_from(costs, lambda c: c.own_kernel, lambda c: c.own_slots),
        # The cost of the reader for a chunk that was just computed. The writer has the chunk in its caches.
        kernel_copied_chunks=chunks,
        streamed_results=_from(costs, lambda c: c.own_streamed, lambda c: c.own) or PAST_ALL,
        # The library counts the outputs of both ranks together.
        streamed_broadcasts=None if broadcasts is None else 2 * broadcasts,
        streamed_slots=_from(costs, lambda c: c.both_streamed_slots, lambda c: c.both_slots),
        streamed_broadcast_slots=_from(
            costs,
            lambda c: min(c.streamed_slots, c.all_streamed),
            lambda c: min(c.slots, c.slots_streamed),
        ),
        pulled_broadcasts=pulled[0],
        pulled_broadcasts_end=pulled[1],
        kernel_sums=sums[0],
        kernel_sums_end=sums[1],
        sums_everywhere=everywhere[0],
        sums_everywhere_end=everywhere[1],
    )


def _summed_through_slots(costs: Costs) -> float:
    return min(costs.both_summed_slots, costs.both_summed_streamed)


def _everywhere(costs: Mapping[int, Costs]) -> tuple[int | None, int | None]:
    """Returns the range of sizes where the kernel should copy the whole inputs of both ranks, and both reduce all.

    Otherwise each rank reduces a half, and the results of the halves are exchanged. A result has just been written, so
    its copy takes at least as long as a copy of received data. Times of halves are interpolated linearly between the
    measured sizes.
    """
    sizes = sorted(costs)
    if any(costs[size].both_summed_kernel < 0 for size in sizes):
        return None, None

    def half(size: int, way: _Way) -> float:
        below = max(s for s in sizes if s < size)
        part = (size / 2 - below) / (size - below)
        return way(costs[below]) + part * (way(costs[size]) - way(costs[below]))

    def by_halves(size: int) -> float:
        summed = half(size, lambda c: min(_summed_through_slots(c), c.both_summed_kernel))
        # The half of the rank itself is not copied.
        moved = half(size, lambda c: min(c.both_kernel, c.both_slots, c.both_slots_streamed) - c.own)
        written = half(size, lambda c: min(c.kernel, c.slots))
        return summed + max(moved, written)

    found = {size: (costs[size].both_summed_kernel, by_halves(size)) for size in sizes[1:]}
    return _interval(found)


def _from(costs: Mapping[int, Costs], way: _Way, instead: _Way) -> int | None:
    """Returns the least size such that `way` is faster than `instead` at it and above; None if there is none.

    If both take nearly the same time at the largest size, that size does not count against `way`, because no larger
    size was measured.
    """
    first, end = _within(costs, way, instead)
    if end is None:
        return first
    *smaller, largest = sorted(costs)
    if _lost(MARGIN * way(costs[largest]), instead(costs[largest])) >= 0:
        return None
    first, end = _within({size: costs[size] for size in smaller}, way, instead)
    return first if end is None else None


def _within(costs: Mapping[int, Costs], way: _Way, instead: _Way) -> tuple[int | None, int | None]:
    """Returns the last range of sizes [begin, end) where `way` is faster than `instead`.

    (None, None) means that there is no such range, and an end of None that it has no end. Ends between two measured
    sizes are interpolated. The range begins where `way` is faster by MARGIN, and ends where it is no longer faster, so
    that a single measurement does not split a range where both take nearly the same time.
    """
    return _interval({size: (way(costs[size]), instead(costs[size])) for size in sorted(costs)})


def _interval(times: Mapping[int, tuple[float, float]]) -> tuple[int | None, int | None]:
    """Returns the range of `_within` for the times (new way, old way) at each size, ascending."""
    worth = {size: _lost(new, MARGIN * old) for size, (new, old) in times.items()}
    lost = {size: _lost(new, old) for size, (new, old) in times.items()}
    faster = [size for size in worth if worth[size] <= 0]
    if not faster:
        return None, None
    after = min((size for size in lost if size > faster[-1] and lost[size] >= 0), default=None)
    before = max((size for size in worth if size < faster[-1] and lost[size] >= 0), default=None)
    first = min(size for size in faster if before is None or size > before)
    slower = max((size for size in worth if size < first), default=None)
    begin = first if slower is None else _crossing((slower, worth[slower]), (first, worth[first]))
    if after is None:
        return begin, None
    last = max(size for size in lost if size < after)
    return begin, _crossing((last, lost[last]), (after, lost[after]))


def _lost(time: float, instead: float) -> float:
    """Returns how many microseconds longer a way takes than another; infinite if the system refuses it."""
    return time - instead if time >= 0 else math.inf


def _crossing(one: tuple[int, float], other: tuple[int, float]) -> int:
    """Returns the size between two sizes where the loss is 0, by linear interpolation, as a multiple of UNIT."""
    (size, lost), (next_size, next_lost) = one, other
    if math.isinf(lost) or math.isinf(next_lost):
        return next_size
    return round((size + (next_size - size) * lost / (lost - next_lost)) / UNIT) * UNIT


def default_file() -> Path:
    """Returns the file that libraries read without COLLC_MACHINE."""
    return cache_dir() / "machine.txt"


def machine_text(
    machine: str, release: str, costs: Mapping[str, Mapping[int, Costs]], found: Mapping[str, Thresholds]
) -> str:
    """Returns the text of the file (templates/runtime/plan/thresholds.h).

    For a distance without thresholds in `found`, the file keeps the embedded ones.
    """
    lines = [*_head(machine, release)]
    lines += [f"# microseconds of a copy, by distance and bytes: {', '.join(field.name for field in fields(Costs))}"]
    for distance in DISTANCES:
        for size, cost in sorted(costs.get(distance, {}).items()):
            lines.append(f"# {distance} {size}: " + " ".join(map(microseconds, astuple(cost))))
    for field in fields(Thresholds):
        values = [getattr(found[d], field.name) if d in found else "embedded" for d in DISTANCES]
        lines.append(" ".join([field.name, *("never" if value is None else str(value) for value in values)]))
    return "\n".join([*lines, "end"]) + "\n"


def _head(machine: str, release: str) -> tuple[str, str, str]:
    return FORMAT, f"machine {machine}", f"kernel {release}"


def earlier_costs(text: str, machine: str, release: str) -> dict[str, dict[int, Costs]]:
    """Returns the costs in a file by distance, if they are complete and of this machine."""
    found: dict[str, dict[int, Costs]] = {}
    lines = text.splitlines()
    if tuple(lines[:3]) != _head(machine, release):
        return found
    for line in lines:
        words = line.replace(":", "").split()
        if len(words) != 3 + len(fields(Costs)) or words[0] != "#" or words[1] not in DISTANCES:
            continue
        try:
            values = [-1.0 if word == "-" else float(word) for word in words[3:]]
            found.setdefault(words[1], {})[int(words[2])] = Costs(*values)
        except ValueError:
            continue
    return {distance: costs for distance, costs in found.items() if sorted(costs) == list(SIZES)}


def tune_machine(library: Path, output: Path | None) -> MachineReport:
    """Measures with a library's code, in a separate process, writes the file, and returns the report.

    Args:
        output: the file; None for `default_file`.

    Raises:
        RunError: the library cannot be loaded or does not measure, or the file cannot be written.
    """
    path = output or default_file()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_output(path)
    command = python_module(__name__, str(library.resolve()))
    try:
        done = run_captured(command, seconds=600)
    except (OSError, subprocess.SubprocessError) as error:
        raise RunError(f"the copies of this machine cannot be measured: {error}", where=str(library)) from None
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise RunError(f"the copies of this machine cannot be measured: {said}", where=str(library))
    answer = json.loads(done.stdout)
    rounds = [{int(size): Costs(*ways) for size, ways in each.items()} for each in answer["rounds"]]
    costs, moved = settled_costs(rounds)
    machine = answer["machine"]
    earlier = earlier_costs(_text_of(path), machine, platform.release())
    kept = [distance for distance in DISTANCES if distance in earlier and distance not in costs]
    costs |= {distance: earlier[distance] for distance in kept}
    found = {d: thresholds(costs[d], far=d == "far") for d in DISTANCES if d in costs}
    write_whole(path, machine_text(machine, platform.release(), costs, found))
    return MachineReport(path, machine, answer["seconds"], len(rounds), moved, kept, costs, found)


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def distance_of(costs: Costs) -> str:
    """Returns the distance of the two cores, by the time of a load of a line between them."""
    return DISTANCES[costs.line_load >= APART]


def settled_costs(rounds: Sequence[Mapping[int, Costs]]) -> tuple[dict[str, dict[int, Costs]], int]:
    """Returns the medians over the rounds by distance, and the number of measurements that are in none of them.

    Virtual machines may move threads to other cores. A distance counts if every size was measured at it. If there is no
    such distance, the one with the most measurements counts, and a size without any keeps its other measurements. If a
    load takes MOVED times as long as usual at a distance, or that much less, the cores were others. Such measurements
    are left out if the size has others.
    """
    total = sum(len(each) for each in rounds)
    by_distance: dict[str, dict[int, list[Costs]]] = {distance: {} for distance in DISTANCES}
    for each in rounds:
        for size, costs in each.items():
            by_distance[distance_of(costs)].setdefault(size, []).append(costs)
    whole = {distance: found for distance, found in by_distance.items() if len(found) == len(rounds[0])}
    if not whole:
        most = max(DISTANCES, key=lambda distance: sum(map(len, by_distance[distance].values())))
        every = {size: [each[size] for each in rounds] for size in rounds[0]}
        whole = {most: every | by_distance[most]}
    settled = {}
    for distance, found in whole.items():
        usual = statistics.median_low(costs.line_load for here in found.values() for costs in here)
        kept = {
            size: [one for one in here if usual / MOVED <= one.line_load <= usual * MOVED]
            for size, here in found.items()
        }
        total -= sum(map(len, kept.values()))
        settled[distance] = {size: _median(kept[size] or here) for size, here in found.items()}
    return settled, total


def cores_to_measure(lines: Sequence[float]) -> list[int]:
    """Returns the other core of each pair to measure: the nearest, and also the furthest if only that one is far.

    Args:
        lines: the microseconds of a load of a line between the first core and each core; -1 if unknown.
    """
    others = sorted((time, core) for core, time in enumerate(lines) if core > 0 and time >= 0)
    if not others:
        return [1]
    (nearest, first), (furthest, last) = others[0], others[-1]
    return [first, last] if nearest < APART <= furthest else [first]


def _median(rounds: Sequence[Costs]) -> Costs:
    return Costs(*(statistics.median(column) for column in zip(*map(astuple, rounds), strict=True)))


def microseconds(value: float) -> str:
    """Returns the text of a copy's time, with three digits or more; a dash if the system refuses the copy."""
    return "-" if value < 0 else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def main() -> None:
    """Measures with the library of the first argument, and prints the answer as JSON."""
    try:
        library = ctypes.CDLL(sys.argv[1], mode=os.RTLD_LOCAL)
        measure, measure_lines = library.collc_measure_copies, library.collc_measure_lines
        library.collc_machine.restype = ctypes.c_char_p
    except (OSError, AttributeError) as error:
        sys.exit(f"{error}")
    measure.argtypes = [ctypes.POINTER(ctypes.c_uint64), *[ctypes.c_uint32] * 3, ctypes.POINTER(ctypes.c_double)]
    measure_lines.argtypes = [ctypes.c_uint32, ctypes.POINTER(ctypes.c_double)]
    nways = len(fields(Costs))
    sizes = (ctypes.c_uint64 * len(SIZES))(*SIZES)
    times = (ctypes.c_double * (len(SIZES) * nways))()
    rounds: list[dict[int, list[float]]] = []
    begin = time.monotonic()
    lines = (ctypes.c_double * MOST_CORES)()
    others = cores_to_measure(lines[: min(measure_lines(MOST_CORES, lines), MOST_CORES)])
    least = LEAST * len(others)
    while len(rounds) < least or time.monotonic() - begin < SECONDS * (1 - 1 / len(rounds)):
        if not measure(sizes, len(SIZES), nways, others[len(rounds) % len(others)], times):
            sys.exit("no memory or thread for it, or the library is of another version")
        rounds.append({size: times[i * nways : (i + 1) * nways] for i, size in enumerate(SIZES)})
    answer = {"machine": library.collc_machine().decode(), "seconds": time.monotonic() - begin, "rounds": rounds}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
