"""Finds the ranks of a communicator that block the others or have broken it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from collc.status.model import COMPLETED, DIED, LEFT, STARTED, STOPPED, Call, Communicator, Rank


@dataclass(frozen=True)
class Finding:
    """A rank, and a sentence about its fault."""

    rank: int
    what: str


def culprits(communicator: Communicator, patience: float = 0.0) -> list[Finding]:
    """Returns the ranks that others wait for, the most certain first, each rank once.

    Args:
        patience: the seconds that others must have waited before a late rank counts. With 0 it counts immediately, even
            if the start of their calls is unknown.
    """
    found: dict[int, str] = {}
    for finding in (*_gone(communicator), *_different(communicator), *_broken(communicator)):
        found.setdefault(finding.rank, finding.what)
    # If one of these broke the communicator, other ranks may have had no chance to make the newest call.
    if not (found and communicator.failure):
        for finding in _late(communicator, patience):
            found.setdefault(finding.rank, finding.what)
    return [Finding(rank, what) for rank, what in found.items()]


def _gone(communicator: Communicator) -> list[Finding]:
    """Returns ranks whose process has died or is stopped, and ranks that left while others still need them."""
    found = []
    last = _last_number(communicator)
    for rank in communicator.ranks:
        if rank.state == DIED:
            found.append(Finding(rank.rank, f"its process has died{_place(rank)}; {_doing(rank)}"))
        elif rank.state == STOPPED:
            found.append(Finding(rank.rank, f"its process is stopped{_place(rank)}; {_doing(rank)}"))
        elif rank.state == LEFT and rank.newest < last:
            found.append(Finding(rank.rank, f"has destroyed its communicator{_place(rank)}; {_doing(rank)}"))
    return found


def _broken(communicator: Communicator) -> list[Finding]:
    """Returns the rank whose own error was the first, if there is one."""
    found = [rank for rank in communicator.ranks if rank.rank == communicator.broken_by]
    return [Finding(rank.rank, f"has failed{_place(rank)}: {rank.error}; {_doing(rank)}") for rank in found]


def _different(communicator: Communicator) -> list[Finding]:
    """Returns ranks whose call differs from the call of most others, at the first number with different histories.

    Without a majority no call is known to be the wrong one, so all ranks are named.
    """
    logs = {
        rank.rank: {call.number: call for call in rank.calls if not call.transfer and call.history}
        for rank in communicator.ranks
    }
    for number in sorted({number for log in logs.values() for number in log}):
        calls = {rank: log[number] for rank, log in logs.items() if number in log}
        counts = Counter(call.history for call in calls.values()).most_common()
        if len(counts) < 2:
            continue
        if counts[0][1] == counts[1][1]:
            return [Finding(rank, _no_majority(number, rank, calls)) for rank in calls]
        usual = next(call for call in calls.values() if call.history == counts[0][0])
        odd = [(rank, call) for rank, call in calls.items() if call.history != usual.history]
        return [Finding(rank, _difference(number, call, usual, counts[0][1])) for rank, call in odd]
    return []


def _no_majority(number: int, rank: int, calls: dict[int, Call]) -> str:
    mine = calls[rank]
    peer = next(peer for peer, call in calls.items() if call.history != mine.history)
    if mine.text == calls[peer].text:
        return f"its calls up to {number} differ from rank {peer}'s, in one that is no longer known"
    return f"call {number} is {mine.text}; rank {peer}'s is {calls[peer].text}"


def _difference(number: int, call: Call, usual: Call, count: int) -> str:
    others = "the others'" if count > 1 else "the other's"
    if call.text == usual.text:
        return f"its calls up to {number} differ from {others}, in one that is no longer known"
    return f"call {number} is {call.text}; {others} is {usual.text}"


def _late(communicator: Communicator, patience: float) -> list[Finding]:
    """Returns ranks that have not made the newest call while others wait in it."""
    last = _last_number(communicator)
    waiting = [rank for rank in communicator.ranks if _waits_in(rank, last, patience)]
    if not waiting:
        return []
    sample = waiting[0].last
    newest = f"call {last}" + (f" ({sample.text})" if sample else "")
    found = []
    for rank in sorted(communicator.ranks, key=lambda rank: rank.newest):
        if rank.newest >= last or rank.state == LEFT or not (rank.calls or rank.process is not None):
            continue
        found.append(Finding(rank.rank, f"has not made {newest}, in which {_names(waiting)}; {_doing(rank)}"))
    return found


def _waits_in(rank: Rank, number: int, patience: float) -> bool:
    last = rank.last
    if number == 0 or rank.newest != number or last is None or last.state == COMPLETED:
        return False
    return patience == 0 if last.age is None else last.age >= patience


def _last_number(communicator: Communicator) -> int:
    return max((rank.newest for rank in communicator.ranks), default=0)


def _names(ranks: list[Rank]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0].rank} waits"
    return f"{len(ranks)} ranks wait"


def _place(rank: Rank) -> str:
    words = [f"process {rank.process}"] if rank.process is not None else []
    words += [f"on {rank.host}"] if rank.host else []
    return f" ({' '.join(words)})" if words else ""


def _doing(rank: Rank) -> str:
    """Returns a text about what a rank does, or did last."""
    current, last = rank.current, rank.last
    if current is not None:
        since = f" since {current.age:.1f} s" if current.age is not None else ""
        name = current.text if current.transfer else f"call {current.number}, {current.text}"
        return f"it is in {name}{since}" if rank.state != DIED else f"it was in {name}"
    if last is None:
        return "it has made no collective call" if rank.newest == 0 else f"its last call is {rank.newest}"
    if last.state == STARTED:
        return f"it is in call {last.number}, {last.text}"
    return f"its last call is {last.number}, {last.text}"
