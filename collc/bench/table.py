"""Prints nccl-tests' table, with the same columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from collc.bench.runner import Row, library_ranks

HEADER = """\
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)"""


def devices(manifest: dict[str, Any], ranks: int | None) -> list[str]:
    """Returns one line per rank, as nccl-tests lists its devices: its GPU in the topology, and the device that runs it.

    A library for several sets of GPUs chooses the set when a communicator is created, so it has only one line.
    """
    nranks = library_ranks(manifest, ranks)
    sets = [a for a in manifest["allocations"] if a["nranks"] == nranks]
    what = "a GPU" if manifest["target"] == "cuda" else "a process on CPUs"
    if len(sets) > 1:
        return [f"{nranks} ranks, each {what}, for the set of GPUs that COLLC_GPUS names (one of {len(sets)})"]
    names = zip(sets[0]["servers"], sets[0]["gpus"], strict=True)
    several = len(set(sets[0]["servers"])) > 1
    return [f"Rank {i:2d}: {f'{server}: ' if several else ''}{gpu}, {what}" for i, (server, gpu) in enumerate(names)]


def left_cells(row: Row) -> str:
    """Returns the columns that out-of-place and in-place calls share."""
    return f"{row.bytes:12d}  {row.count:12d}  {row.type:>8}  {row.op:>6}  {row.root:6d}"


def measured_cells(row: Row) -> str:
    """Returns time, bandwidths and errors for one half of a line."""
    wrong = "N/A" if row.wrong is None else str(row.wrong)
    return f"{_time(row.time_us):>7}  {row.algbw_gbps:6.2f}  {row.busbw_gbps:6.2f} {wrong:>6}"


def _time(microseconds: float) -> str:
    """Returns a time with four significant digits, as nccl-tests prints it."""
    if microseconds >= 10000:
        return f"{microseconds:.0f}"
    for digits, limit in ((2, 100.0), (1, 10000.0)):
        if microseconds < limit:
            return f"{microseconds:.{digits}f}"
    return f"{microseconds:.0f}"


def footer(rows: Sequence[Row]) -> str:
    """Returns the lines about errors and the average bus bandwidth."""
    checked = [row.wrong for row in rows if row.wrong is not None]
    wrong = sum(checked)
    verdict = "OK" if wrong == 0 else "FAILED"
    average = sum(row.busbw_gbps for row in rows) / len(rows) if rows else 0.0
    values = f"{wrong} {verdict}" if checked else "not checked"
    return f"# Out of bounds values : {values}\n# Avg bus bandwidth    : {average:g}"
