"""Limits the work and memory that a command spends on a file that it does not trust.

Work is counted, not timed, so that a slow or busy machine gives the same answer, only later. Readers and checkers call
`spend` before a loop whose length the file determines. Two more limits follow the count: calls into other libraries,
which cannot be counted, have a limit of CPU time, and the growth of the process has a limit of memory. Without
`limited`, as in the compiler's own checks, `spend` does nothing. A limit can only refuse a file, never accept it.
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
MEMORY = 176 << 20  # bytes
MOST_BITS = 1 << 12  # bits of the common denominator of a plan's weights
UNCOUNTED_SECONDS = 3.0  # CPU time for all uncounted calls together
LAST_SECONDS = 60.0  # CPU time for everything; reached only by work that no count covers
# Entries of one list that a file may make a command store: pairs of vertices, JSON values, lines of a text. An entry
# takes 60 to 200 bytes in each such list.
ENTRIES = 1 << 20
_TICK_SECONDS = 0.01  # CPU time between two checks


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
        self.end, self.start_bytes = time.process_time() + last, _resident()
        self.end_of_call: float | None = None  # in seconds of CPU time, during an uncounted call
        self.refusal: RunError | None = None

    def refuse(self, what: str) -> RunError:
        self.refusal = RunError(f"takes more than {what} to read", where=str(self.path), hint=self.hint)
        return self.refusal

    def look(self, *_: object) -> None:
        """Raises a RunError if memory or time is used up. The timer calls this."""
        now = time.process_time()
        if now > self.end:
            raise self.refuse(f"{self.last:g} seconds of CPU time")
        if self.end_of_call is not None and now > self.end_of_call:
            raise self.refuse(f"{self.uncounted:g} seconds of CPU time for labelling its graphs")
        if _resident() - self.start_bytes > self.memory:
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
    """Ends the code inside if its counted work, its memory or its time is used up.

    A timer interrupts Python between two instructions, so one call into C can overrun by its own duration. Readers must
    therefore limit the input of such calls. Signals reach only the main thread; in other threads only work is limited.

    Args:
        path: the file, for the message.
        work: steps that may be spent.
        memory: maximum growth of the process, in bytes.
        uncounted: seconds of CPU time that calls within `uncounted` may take together.
        last: seconds of CPU time that everything together may take.

    Raises:
        RunError: at any limit.
    """
    outer = _CURRENT.budget
    budget = _Budget(path, hint, work, memory, uncounted, last)
    ticks = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGPROF, budget.look) if ticks else None
    _CURRENT.budget = budget
    try:
        try:
            if ticks:
                signal.setitimer(signal.ITIMER_PROF, _TICK_SECONDS, _TICK_SECONDS)
            yield
        finally:
            if ticks:
                _stop(handler)
    except Exception:
        # A C extension may replace the exception of a check by another exception.
        if budget.refusal is not None:
            raise budget.refusal from None
        raise
    finally:
        _CURRENT.budget = outer
        if ticks:
            _stop(handler)  # again, because a check may have interrupted the first call


def check_entries(count: int, what: str, where: str, hint: str = "is it the right file?") -> None:
    """Raises CollcError if a file asks for more entries of one list than `ENTRIES`.

    Args:
        count: the number of entries, counted before any of them is created.
        what: the name of the entries, in the plural.
    """
    if count > ENTRIES:
        raise CollcError(f"stands for more than {ENTRIES:,} {what}", where=where, hint=hint)


def spend(work: int) -> None:
    """Counts steps before the caller takes them.

    Raises:
        RunError: more steps than are left.
    """
    budget = _CURRENT.budget
    if budget is not None:
        budget.steps_left -= work
        if budget.steps_left < 0:
            raise budget.refuse(f"{budget.work} steps")


@contextmanager
def uncounted() -> Iterator[None]:
    """Limits the CPU time of a call into another library, in place of its steps, because it might never end."""
    budget = _CURRENT.budget
    if budget is None:
        yield
        return
    start = time.process_time()
    budget.end_of_call = start + budget.uncounted_left
    try:
        yield
    finally:
        budget.end_of_call = None
        budget.uncounted_left -= time.process_time() - start


def common_denominator(values: Iterable[Fraction]) -> int:
    """Returns the least common denominator, and spends its bits as work in each step.

    Numbers of a file may be long, and their common denominator far longer.

    Raises:
        RunError: in `limited`: the denominator has more than `MOST_BITS` bits, or the work is used up.
    """
    denominator = 1
    for value in values:
        if denominator % value.denominator:
            denominator = lcm(denominator, value.denominator)
            if denominator.bit_length() > MOST_BITS and _CURRENT.budget is not None:
                raise _CURRENT.budget.refuse(f"{MOST_BITS} bits for a common denominator")
            spend(denominator.bit_length())
    return denominator


def _stop(handler: object) -> None:
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, signal.SIG_IGN)
    # By default SIGPROF ends a process, and a SIGPROF may be pending.
    if handler not in (signal.SIG_DFL, None):
        signal.signal(signal.SIGPROF, handler)  # type: ignore[arg-type]


def _resident() -> int:
    """Returns the resident memory of this process in bytes; 0 if the system does not report it."""
    with suppress(OSError, ValueError, IndexError), open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
