"""The rates of a machine before and after each loss that plans survive, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from collc.checker.library import Library
from collc.checker.machine import ALL_BUT
from collc.cli.report import compact, table
from collc.collectives.model import Collective
from collc.packing.sets.losses import Row, packed_plans, slowest_rates


def losses_text(rows: Sequence[Row], roots: str = "for the worst root") -> str:
    """Returns a line per state: what is lost, the number of equivalent losses, the remaining GPUs, GB/s and its share.

    Args:
        rows: first the row of the whole machine; in a library for several kinds of servers, the row of each whole kind
            is before the rows of its losses.
        roots: the roots of the rates of rooted collectives, in words.
    """
    wanted = [c for c in Collective if c in rows[0].rates]
    whole: dict[Collective, Fraction] = {}
    counted = any(row.alike for row in rows if not _is_whole(row))
    lines = []
    for row in rows:
        first = _is_whole(row)
        whole = row.rates if first else whole
        cells = [_lost(row), *(["" if first else str(row.alike)] if counted else [])]
        if row.why:
            lines.append([*cells, "none", *("-" for _ in wanted)])
            continue
        cells.append(str(row.nranks))
        for collective in wanted:
            rate = row.rates.get(collective)
            share = "" if rate is None or first else f" ({float(rate / whole[collective]):.0%})"
            cells.append("-" if rate is None else compact(rate) + share)
        lines.append(cells)
    text = f"rates in GB/s, of rooted collectives {roots}; in brackets the share of the whole machine's rate\n"
    text += table(["lost", *(["alike"] if counted else []), "GPUs", *(c.value for c in wanted)], lines)
    for row in rows:
        if row.why:
            text += f"\n{_lost(row)}: {row.why}"
    unproved = sum(not row.proved for row in rows)
    return text + (f"\n{unproved} of these machines have a rate below its bound" if unproved else "")


def _is_whole(row: Row) -> bool:
    """Returns whether the row is of a whole machine or a whole kind of server, without a loss."""
    return row.kind is None and (row.what == "nothing" or row.what.startswith(ALL_BUT))


def _lost(row: Row) -> str:
    return row.what if row.kind is None else f"{row.kind.value} {row.what}"


def losses_title(rows: Sequence[Row]) -> str:
    """Returns one line that says what the rows of a library are about."""
    kinds = sum(row.what.startswith(ALL_BUT) for row in rows)
    losses = len(rows) - max(kinds, 1)
    told = f"{losses} losses that no symmetry exchanges (COLLC_TOPOLOGY, collc run --topology):"
    if not kinds:
        return f"survives {told}"
    return f"for {kinds} kinds of servers" + (f", and survives {told}" if losses else " (COLLC_TOPOLOGY, collc run):")


def losses_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Returns the rows as JSON, with rates as exact fractions."""
    return [
        {
            "kind": None if row.kind is None else row.kind.value,
            "what": row.what,
            "alike": row.alike or None,
            "gpus": row.nranks,
            "fingerprint": row.fingerprint or None,
            "allocation": row.allocation,
            "rates_gbps": {collective.value: str(rate) for collective, rate in row.rates.items()},
            "optimal": row.proved if row.rates else None,
            "why_none": row.why or None,
        }
        for row in rows
    ]


def library_losses(library: Library) -> list[Row]:
    """Returns a row per state of a library's machine, for the largest set of GPUs that the library serves then."""
    rows = []
    for what, state in zip(library.manifest.get("states", []), library.tables.states, strict=False):
        if not state.sets:
            continue
        number = max(state.sets, key=lambda one: len(one.gpus)).allocation
        if number >= len(library.documents):
            continue  # `collc verify` refuses it
        document = library.documents[number]
        plans = packed_plans(document.plans)
        proved = all(plan.optimal for plan in plans)
        rows.append(
            Row(what, None, 0, document.graph.nranks, document.fingerprint, slowest_rates(plans), number, proved=proved)
        )
    return rows
