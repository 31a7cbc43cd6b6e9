"""Writes the data of `collc status` as OpenMetrics text (the format of Prometheus; specification 1.0)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from collc.status.culprits import Finding
from collc.status.model import ALIVE, DIED, ELSEWHERE, LEFT, STOPPED, Communicator, Rank

_STATES = (ALIVE, STOPPED, DIED, LEFT, ELSEWHERE)

Labels = dict[str, str]


def openmetrics(communicators: Sequence[Communicator], culprits: Sequence[Sequence[Finding]]) -> str:
    """Returns the text: a sample of each metric for every rank, and the end mark.

    Args:
        culprits: the findings for each communicator.
    """
    ranks = [(_labels(one, rank), rank) for one in communicators for rank in one.ranks]
    blamed = {(one.name, finding.rank) for one, found in zip(communicators, culprits, strict=True) for finding in found}
    lines = [
        *_family("collc_calls", "counter", "Collective calls that the rank has made."),
        *(_sample("collc_calls_total", labels, rank.newest) for labels, rank in ranks),
        *_family("collc_call_seconds", "gauge", "Seconds since the begin of the call that the rank is in.", "seconds"),
        *_ages(ranks),
        *_family("collc_waits_for", "gauge", "Ranks without which the sleeping rank cannot go on."),
        *(_sample("collc_waits_for", labels, len(rank.waits_for)) for labels, rank in ranks),
        *_family("collc_blamed", "gauge", "1: the rank keeps the others waiting."),
        *(
            _sample("collc_blamed", labels, int((labels["communicator"], rank.rank) in blamed))
            for labels, rank in ranks
        ),
        *_family("collc_state", "stateset", "What is known of the rank's process."),
        *(
            _sample("collc_state", {**labels, "collc_state": state}, int(rank.state == state))
            for labels, rank in ranks
            for state in _STATES
        ),
    ]
    return "\n".join([*lines, "# EOF"]) + "\n"


def _ages(ranks: Iterable[tuple[Labels, Rank]]) -> Iterable[str]:
    for labels, rank in ranks:
        call = rank.current
        if call is not None and call.age is not None:
            name = call.text.split()[0] if not call.transfer else "sendrecv"
            yield _sample("collc_call_seconds", {**labels, "call": name}, round(call.age, 6))


def _labels(one: Communicator, rank: Rank) -> Labels:
    process = "" if rank.process is None else str(rank.process)
    return {"communicator": one.name, "rank": str(rank.rank), "gpu": rank.gpu, "host": rank.host, "process": process}


def _family(name: str, kind: str, help_text: str, unit: str = "") -> list[str]:
    return [f"# TYPE {name} {kind}", *([f"# UNIT {name} {unit}"] if unit else []), f"# HELP {name} {help_text}"]


def _sample(name: str, labels: Labels, value: float) -> str:
    inner = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    return f"{name}{{{inner}}} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
