"""What is known of a communicator, from its shared memory or from the files that its ranks have left."""

from __future__ import annotations

from dataclasses import dataclass, field

# States of a rank. ALIVE: its process runs; LEFT: it has destroyed its communicator; ELSEWHERE: on another machine, or
# it is still being made; UNKNOWN: nobody says anything of it.
ALIVE, STOPPED, DIED, LEFT, ELSEWHERE, UNKNOWN = "alive", "stopped", "died", "left", "elsewhere", "unknown"

# States of a call, as PyTorch's flight recorder names them. SCHEDULED: on a stream, and nothing says how far it is.
SCHEDULED, STARTED, COMPLETED = "scheduled", "started", "completed"


@dataclass(frozen=True)
class Call:
    """One call of a rank.

    Args:
        number: from 1; collectives count on all ranks alike, transfers (ncclSend, ncclRecv) on each rank alone.
        history: of this and all earlier collectives; equal where the same were called.
        age: seconds since its begin; None where that is not known.
        begun_ns: its begin, in nanoseconds since 1970; None in jobs that run.
        lasted_ns: nanoseconds from its begin to its end; None where no end was noted.
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

    Args:
        process: its number here; None where it is not known.
        calls: its last ones, collectives and transfers, each in order.
        newest: the number of its last collective.
        waits_for: ranks without which it cannot go on, as it said before it fell asleep.
        ways: how it reads what other ranks have, by rank.
        error: with which its communicator failed here.
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
        """The call that it is in: of several transfers, or a transfer and a collective, the oldest that it shows."""
        begun = [call for call in self.calls if call.state == STARTED]
        return max(begun, key=lambda call: call.age or 0) if begun else None

    @property
    def last(self) -> Call | None:
        """Its last collective, where that is still known."""
        return next((call for call in reversed(self.calls) if not call.transfer and call.number == self.newest), None)


@dataclass(frozen=True)
class Communicator:
    """All that is known of one communicator.

    Args:
        name: ten hexadecimal digits, the same on all its ranks.
        library: the path of the library that serves it.
        plan: the fingerprint of its plan's graph; empty where the library cannot be read.
        failure: the error that broke it for all ranks; empty if it works.
        broken_by: the rank whose own error was the first: not that another has died, is late or calls something else.
    """

    name: str
    nranks: int
    library: str
    plan: str
    failure: str
    ranks: tuple[Rank, ...]
    broken_by: int | None = None
