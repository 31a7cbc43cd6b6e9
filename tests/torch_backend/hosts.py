"""Machines of one: ranks that name themselves, as far as collc can tell."""

from __future__ import annotations

import os


def pretend(rank: int) -> None:
    """RANK_HOSTS=aab: ranks with equal letters are on one machine, and meet the others on the loopback."""
    if hosts := os.environ.get("RANK_HOSTS"):
        os.environ.update(COLLC_HOSTID=hosts[rank], COLLC_SOCKET_IFNAME="lo")
