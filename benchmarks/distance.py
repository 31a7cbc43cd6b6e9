"""How far apart the cores of this machine were while something was measured.

On a virtual machine two cores share a cache in one second and none in the next. So distance.c runs beside a benchmark,
and every time that peerbench.c prints says when it was measured: it was measured near, far, or while the cores moved.
"""

from __future__ import annotations

import bisect
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

HERE = Path(__file__).parent
# A cache line's way to another core and back, below and above which cores are near or far. The runtime takes two cores
# for far apart from 90 ns on for one way; on Intel cores of one chip both ways took 106 to 179 ns beside a benchmark.
NEAR_NS, FAR_NS = 180, 200
EVERY = 0.02  # seconds between two readings of distance.c
Distance = Literal["near", "far", "moved"]
DISTANCES: tuple[Distance, ...] = ("near", "far")


@dataclass(frozen=True)
class Timed:
    """A line of peerbench.c."""

    collective: str
    ranks: int
    size: int
    microseconds: float
    begin: float  # of the samples; seconds of the monotonic clock
    end: float
    right: bool


def timed(printed: str) -> list[Timed]:
    rows = [line.split(",") for line in printed.splitlines() if line.count(",") == 10]
    return [
        Timed(row[1], int(row[2]), int(row[3]), float(row[4]), float(row[9]), float(row[10]), row[8] == "ok")
        for row in rows
    ]


def state(nanoseconds: list[float]) -> Distance:
    """Returns the distance that the readings show. A single core has no readings, and nothing is far."""
    if max(nanoseconds, default=0) < NEAR_NS:
        return "near"
    return "far" if min(nanoseconds) > FAR_NS else "moved"


class Watch:
    """distance.c, from `with` to its end."""

    def __init__(self, out: Path) -> None:
        self._program = out / "distance"
        source = str(HERE / "distance.c")
        subprocess.run(["gcc", "-O2", source, "-o", str(self._program), "-pthread"], check=True)
        self._times: list[float] = []
        self._nanoseconds: list[float] = []
        self._rest = ""

    def __enter__(self) -> Watch:
        with tempfile.NamedTemporaryFile("wb") as out:
            self._readings = Path(out.name).open(encoding="ascii")
            self._process = subprocess.Popen([str(self._program)], stdin=subprocess.PIPE, stdout=out)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._process.communicate()
        self._readings.close()

    def _read(self) -> None:
        *lines, self._rest = (self._rest + self._readings.read()).split("\n")
        for line in lines:
            when, nanoseconds = line.split()
            self._times.append(float(when))
            self._nanoseconds.append(float(nanoseconds))

    def between(self, begin: float, end: float) -> Distance:
        """Returns the distance of the readings in this time, the last one before it and the first one after it."""
        late = time.monotonic() + 10 * EVERY
        while True:
            self._read()
            if (self._times and self._times[-1] > end) or time.monotonic() > late:
                break
            time.sleep(EVERY / 2)
        first = max(0, bisect.bisect_left(self._times, begin) - 1)
        return state(self._nanoseconds[first : bisect.bisect_right(self._times, end) + 1])

    @property
    def seen(self) -> int:
        """Readings so far."""
        return len(self._times)
