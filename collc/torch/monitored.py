"""A barrier whose error names the missing ranks, like dist.monitored_barrier for Gloo, with Gloo's messages.

Every rank reports to rank 0, which answers all of them, so that late ranks also get the error.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from collc.torch.mailbox import Mailbox

_TAGS = -(1 << 40)  # below the tags that users choose
_ANSWER_BYTES = 400


def monitored_barrier(
    mailbox: Mailbox, rank: int, size: int, number: int, seconds: float, wait_all_ranks: bool
) -> None:
    """Waits until all ranks have come.

    Args:
        number: the number of this monitored barrier in the group, the same on all ranks.
        seconds: the time limit of rank 0 for the others, and of the others for its answer.
        wait_all_ranks: rank 0 reports all missing ranks instead of the first one.

    Raises:
        DistBackendError: a rank did not come in time. Every rank gets the error.
    """
    tag = _TAGS - number
    if rank != 0:
        _report(mailbox, rank, tag, seconds)
        return
    failure = _collect(mailbox, size, tag, seconds, wait_all_ranks)
    answer = torch.zeros(_ANSWER_BYTES, dtype=torch.uint8)
    text = failure.encode()[:_ANSWER_BYTES]
    answer[: len(text)] = torch.tensor(list(text), dtype=torch.uint8)
    for peer in range(1, size):
        mailbox.send([answer], peer, tag, 0)  # a small send ends immediately; if it fails, that rank has its own error
    if failure:
        raise dist.DistBackendError(failure)


def _collect(mailbox: Mailbox, size: int, tag: int, seconds: float, wait_all_ranks: bool) -> str:
    """Waits for all other ranks, one after the other. Returns an error text about missing ranks, or an empty one."""
    begin = time.monotonic()
    reports = [(peer, mailbox.receive([torch.empty(1, dtype=torch.uint8)], peer, tag, 0)) for peer in range(1, size)]
    missing: list[str] = []
    for peer, report in reports:
        left = begin + seconds - time.monotonic()
        if left <= 0 and not wait_all_ranks:
            _give_up(mailbox, reports)
            return f"Rank 0 timed out in monitoredBarrier after {seconds * 1e3:.0f} ms."
        try:
            report.wait(timedelta(seconds=max(left, 1e-3)))
        except RuntimeError as error:
            missing.append(str(peer))
            if not wait_all_ranks:
                _give_up(mailbox, reports)
                return (
                    f"[Rank 0]: Rank {peer} failed to pass monitoredBarrier in {seconds * 1e3:.0f} ms. "
                    f"Original exception: {error}"
                )
    _give_up(mailbox, reports)
    if missing:
        return f"[Rank 0]: Ranks {', '.join(missing)} failed to pass monitoredBarrier in {seconds * 1e3:.0f} ms"
    return ""


def _give_up(mailbox: Mailbox, reports: list[tuple[int, Any]]) -> None:
    for _, report in reports:
        mailbox.withdraw(report)


def _report(mailbox: Mailbox, rank: int, tag: int, seconds: float) -> None:
    answer = torch.empty(_ANSWER_BYTES, dtype=torch.uint8)
    verdict = mailbox.receive([answer], 0, tag, 0)
    try:
        mailbox.send([torch.zeros(1, dtype=torch.uint8)], 0, tag, 0).wait()
        verdict.wait(timedelta(seconds=seconds) if seconds > 0 else None)
        failure = bytes(answer.tolist()).rstrip(b"\0").decode(errors="replace")
    except RuntimeError as error:
        failure = str(error)
        mailbox.withdraw(verdict)
    if failure:
        raise dist.DistBackendError(
            f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv from "
            f"rank 0. Please check rank 0 logs for faulty rank. Original exception: {failure}"
        )
