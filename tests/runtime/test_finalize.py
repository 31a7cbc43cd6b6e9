"""ncclCommFinalize tells a rank what the calls of the others come to (support/finalized.py says what is checked)."""

from __future__ import annotations

import pytest
from support import finalized
from support.libraries import library
from support.ranks import SUCCESS, Ranks, ranks


@pytest.mark.parametrize("machine", ["odd", "cores"])
def test_on_one_machine(machine: str) -> None:
    with ranks(library(machine), 3, COLLC_TIMEOUT="60") as team:
        finalized.check_all(team)


def test_on_three_machines() -> None:
    team = Ranks(library("1+1+1"), 3, {"COLLC_SOCKET_IFNAME": "lo", "COLLC_TIMEOUT": "60"}, hosts="abc")
    try:
        finalized.check_all(team)
    finally:
        team.close()


def test_within_the_time_limit() -> None:
    with ranks(library("odd"), 3, COLLC_TIMEOUT="0.5") as team:
        assert [answer["result"] for answer in team.init()] == [SUCCESS] * 3
        finalized.the_time_limit_names_the_ranks_that_have_not_come(team)


def test_without_a_time_limit_ranks_that_do_not_come_are_no_error() -> None:
    with ranks(library("odd"), 3) as team:
        assert [answer["result"] for answer in team.init()] == [SUCCESS] * 3
        assert team.ask(0, **finalized.BROADCAST)["result"] == SUCCESS
        assert team.ask(0, do="finalize")["result"] == SUCCESS
