"""Bounds on the work and memory that a command spends on a file which it does not trust.

Work is counted, not timed: whatever reads or proves calls `spend` before a loop whose length the file decides, so that
a slow or busy machine gives the same answer, later. Two lines of defence stand behind the count: what cannot be
counted, a call into somebody else's library, may take so much CPU time, and the process may grow by so much memory.
Where nothing is limited, as in the compiler's own checks, `spend` does nothing. All of this can refuse, never accept.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from math import lcm
from pathlib import Path

from collc.errors import CollcError, RunError

WORK = 24_000_000  # steps; Python takes 0.1 to 0.4 microseconds for each
MEMORY = 176 << 20
MOST_BITS = 1 << 12  # of the denominator that the weights of a plan have in common
UNCOUNTED_SECONDS = 3.0  # for all calls that cannot be counted together
LAST_SECONDS = 60.0  # for everything; only what the counts forgot comes here
# The most entries of one list that a file may make a command hold: pairs of vertices, JSON values, lines of a text. An
# entry takes 60 to 200 bytes in each list that a command makes of it.
ENTRIES = 1 << 20
_TICK = 0.01  # of CPU time between two looks


class _Budget:
    def __init__(self, path: Path, hint: str, work: int, memory: int, uncounted: float, last: float) -> None:
        self.path, self.hint, self.work, self.memory, self.uncounted, self.last = (
            path,
            hint,
            work,
            memory,
            uncounted,
            last,
        )
        self.steps_left, self.uncounted_left = work, uncounted
        self.end, self.held = time.process_time() + last, _resident()
        self.end_of_call: float | None = None  # of CPU time, where a call is under way that cannot be counted
        self.refusal: RunError | None = None

    def refuse(self, what: str) -> RunError:
        self.refusal = RunError(f"takes more than {what} to read", where=str(self.path), hint=self.hint)
        return self.refusal

    def look(self, *_: object) -> None:
        """Runs at each tick: raises where memory or time are used up."""
        now = time.process_time()
        if now > self.end:
            raise self.refuse(f"{self.last:g} seconds of CPU time")
        if self.end_of_call is not None and now > self.end_of_call:
            raise self.refuse(f"{self.uncounted:g} seconds of CPU time for labelling its graphs")
        if _resident() - self.held > self.memory:
            raise self.refuse(f"{self.memory >> 20} MiB of memory")


class _Current(threading.local):
    budget: _Budget | None = None


_CURRENT = _Current()


@contextmanager
def limited(
    path: Path,
    *,
    work: int = WORK,
    memory: int = MEMORY,
    uncounted: float = UNCOUNTED_SECONDS,
    last: float = LAST_SECONDS,
    hint: str = "",
) -> Iterator[None]:
    """Ends what runs inside when the work that it counts, its memory or its time are used up.

    A timer interrupts Python between two instructions, so one call into C can overrun by its own length: readers bound
    what they hand to such calls. Signals reach the main thread only; elsewhere work alone is bounded.

    Args:
        path: the file, for the message.
        work: steps that may be spent.
        memory: bytes by which the process may grow.
        uncounted: seconds of CPU time that calls within `uncounted` may take together.
        last: seconds of CPU time that everything together may take.

    Raises:
        RunError: at any limit.
    """
    outer = _CURRENT.budget
    budget = _Budget(path, hint, work, memory, uncounted, last)
    ticks = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGPROF, budget.look) if ticks else None
    _CURRENT.budget = budget
    try:
        try:
            if ticks:
                signal.setitimer(signal.ITIMER_PROF, _TICK, _TICK)
            yield
        finally:
            if ticks:
                _stop(before)
    except Exception:
        # Extensions in C may turn what a look raised into an error of their own.
        if budget.refusal is not None:
            raise budget.refusal from None
        raise
    finally:
        _CURRENT.budget = outer
        if ticks:
            _stop(before)  # where a look ended the first of the two


def check_entries(count: int, what: str, where: str, hint: str = "is it the right file?") -> None:
    """Raises CollcError if a file asks for more entries of one list than `ENTRIES`.

    Args:
        count: the number of entries, counted before any of them is made.
        what: what the entries are, in the plural.
    """
    if count > ENTRIES:
        raise CollcError(f"stands for more than {ENTRIES:,} {what}", where=where, hint=hint)


def spend(work: int) -> None:
    """Counts steps that are about to be taken; raises RunError where they are more than are left."""
    budget = _CURRENT.budget
    if budget is not None:
        budget.steps_left -= work
        if budget.steps_left < 0:
            raise budget.refuse(f"{budget.work} steps")


@contextmanager
def uncounted() -> Iterator[None]:
    """Around a call into a library of others that can take for ever: its CPU time counts in place of its steps."""
    budget = _CURRENT.budget
    if budget is None:
        yield
        return
    begun = time.process_time()
    budget.end_of_call = begun + budget.uncounted_left
    try:
        yield
    finally:
        budget.end_of_call = None
        budget.uncounted_left -= time.process_time() - begun


def common_denominator(values: Iterable[Fraction]) -> int:
    """The smallest, each step paid for: numbers of a file may be long, and what they have in common far longer."""
    found = 1
    for value in values:
        if found % value.denominator:
            found = lcm(found, value.denominator)
            if found.bit_length() > MOST_BITS and _CURRENT.budget is not None:
                raise _CURRENT.budget.refuse(f"{MOST_BITS} bits for a common denominator")
            spend(found.bit_length())
    return found


def _stop(before: object) -> None:
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, signal.SIG_IGN)
    # SIGPROF by default ends a process, and one may be under way.
    if before not in (signal.SIG_DFL, None):
        signal.signal(signal.SIGPROF, before)  # type: ignore[arg-type]


def _resident() -> int:
    """Bytes of memory that this process holds; 0 where the system does not say."""
    with suppress(OSError, ValueError, IndexError), open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
