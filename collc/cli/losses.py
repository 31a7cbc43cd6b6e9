"""The rates of a machine before and after each loss that plans survive, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from collc.cli.report import compact, table
from collc.collectives.model import Collective
from collc.packing.survive import Row


def losses_text(rows: Sequence[Row], roots: str = "for the worst root") -> str:
    """One line per state: what is lost, how many losses are alike, the GPUs left, GB/s, and the share that is kept.

    Args:
        roots: of which roots the rates of rooted collectives are.
    """
    whole = rows[0].rates
    wanted = [c for c in Collective if c in whole]
    header = ["lost", "alike", "GPUs", *(c.value for c in wanted)]
    lines = []
    for row in rows:
        lost = "nothing" if row.loss is None else f"{row.loss.kind.value} {row.loss.what}"
        cells = [lost, "" if row.loss is None else str(row.loss.alike)]
        if row.why:
            lines.append([*cells, "none", *("-" for _ in wanted)])
            continue
        cells.append(str(row.nranks))
        for collective in wanted:
            rate = row.rates.get(collective)
            share = "" if rate is None or row.loss is None else f" ({float(rate / whole[collective]):.0%})"
            cells.append("-" if rate is None else compact(rate) + share)
        lines.append(cells)
    text = f"rates in GB/s, of rooted collectives {roots}; in brackets the share of the whole machine's rate\n"
    text += table(header, lines)
    for row in rows:
        if row.why and row.loss is not None:
            text += f"\n{row.loss.kind.value} {row.loss.what}: {row.why}"
    unproved = sum(not row.proved for row in rows)
    return text + (f"\n{unproved} of these machines have a rate below its bound" if unproved else "")


def losses_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The same rows; rates as exact fractions."""
    return [
        {
            "kind": None if row.loss is None else row.loss.kind.value,
            "what": "nothing" if row.loss is None else row.loss.what,
            "alike": 1 if row.loss is None else row.loss.alike,
            "gpus": row.nranks,
            "fingerprint": row.fingerprint or None,
            "allocation": row.allocation,
            "rates_gbps": {collective.value: str(rate) for collective, rate in row.rates.items()},
            "optimal": row.proved if row.rates else None,
            "why_none": row.why or None,
        }
        for row in rows
    ]
