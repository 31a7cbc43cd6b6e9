"""The data about a communicator, from its shared memory or from the files of its ranks."""

from __future__ import annotations

from dataclasses import dataclass, field

# States of a rank. ALIVE: its process runs. LEFT: it has destroyed its communicator. ELSEWHERE: it is on another
# machine, or not initialized yet. UNKNOWN: no record mentions it.
ALIVE, STOPPED, DIED, LEFT, ELSEWHERE, UNKNOWN = "alive", "stopped", "died", "left", "elsewhere", "unknown"

# States of a call, as in PyTorch's flight recorder. SCHEDULED: it is on a stream, and its progress is unknown.
SCHEDULED, STARTED, COMPLETED = "scheduled", "started", "completed"


@dataclass(frozen=True)
class Call:
    """One call of a rank.

    Attributes:
        number: from 1. A collective has the same number on all ranks; a transfer (ncclSend, ncclRecv) counts on its
            rank.
        history: a digest of this and all earlier collectives, equal on ranks that made the same calls.
        age: the seconds since its start; None if unknown.
        begun_ns: its start in nanoseconds since 1970; None for running jobs.
        lasted_ns: the nanoseconds from its start to its end; None if no end was recorded.
    """

    number: int
    collective: str
    text: str
    transfer: bool
    history: str
    state: str
    age: float | None = None
    begun_ns: int | None = None
    lasted_ns: int | None = None


@dataclass(frozen=True)
class Rank:
    """One rank of a communicator.

    Attributes:
        process: its process id here; None if unknown.
        calls: its last calls: collectives in order, then transfers in order.
        newest: the number of its last collective.
        waits_for: the ranks that it waits for, as it wrote before it fell asleep.
        ways: the transport for data of each other rank.
        error: the error of its communicator.
    """

    rank: int
    state: str = UNKNOWN
    process: int | None = None
    host: str = ""
    gpu: str = ""
    newest: int = 0
    calls: tuple[Call, ...] = ()
    waits_for: tuple[int, ...] = ()
    ways: dict[int, str] = field(default_factory=dict)
    error: str = ""

    @property
    def current(self) -> Call | None:
        """The call that it is in; of several started calls, the oldest one."""
        begun = [call for call in self.calls if call.state == STARTED]
        return max(begun, key=lambda call: call.age or 0) if begun else None

    @property
    def last(self) -> Call | None:
        """Its last collective, if it is still recorded."""
        return next((call for call in reversed(self.calls) if not call.transfer and call.number == self.newest), None)


@dataclass(frozen=True)
class Communicator:
    """A communicator.

    Attributes:
        name: ten hexadecimal digits, equal on all its ranks.
        library: the path of the library that serves it.
        plan: the fingerprint of its plan's graph; empty if the library cannot be read.
        failure: the error that broke it for all ranks; empty if it works.
        broken_by: the rank whose own error was the first. Errors about other ranks that died, are late or call another
            function do not count.
    """

    name: str
    nranks: int
    library: str
    plan: str
    failure: str
    ranks: tuple[Rank, ...]
    broken_by: int | None = None
