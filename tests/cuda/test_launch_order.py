"""On the mock driver: calls of several communicators of one GPU, with and without NCCL_LAUNCH_ORDER_IMPLICIT."""

from __future__ import annotations

from pathlib import Path

import pytest
from mock_jobs import job
from test_cuda_runtime import driver_without, library

ORDERED = {"NCCL_LAUNCH_ORDER_IMPLICIT": "1"}
ONE_CALL = {"COLLC_CHANNELS": "1", "MOCK_BLOCKS": "1"}  # is what a GPU holds


WAYS: list[dict[str, str]] = [{}, {"graphs": "two"}, {"graphs": "mixed"}, {"graphs": "mixed the other way"}]


def check(expected: str, scenario: str, settings: dict[str, str], **given: str) -> None:
    """Checks the answer of all ranks: "right", or "stuck" if nothing has ended for some seconds."""
    patience = {"right": 60, "stuck": 2}[expected]
    said = job(scenario, given={"patience": patience, **given}, made=library(allocations="1..3"), **settings)  # type: ignore[arg-type]
    assert said == [expected] * 3


@pytest.mark.parametrize("given", WAYS, ids=str)
def test_calls_begin_in_the_order_in_which_they_are_issued(given: dict[str, str]) -> None:
    """Without that the GPUs run out of room for the call that the others have begun with."""
    check("right", "communicators_on_two_streams", {**ONE_CALL, **ORDERED}, **given)
    check("stuck", "communicators_on_two_streams", {**ONE_CALL, "NCCL_LAUNCH_ORDER_IMPLICIT": "0"}, **given)


def test_it_has_to_be_asked_for() -> None:
    check("stuck", "communicators_on_two_streams", ONE_CALL)


def test_the_branches_of_a_graph_are_in_that_order() -> None:
    check("right", "one_graph_of_two_communicators", {**ONE_CALL, **ORDERED})
    check("stuck", "one_graph_of_two_communicators", ONE_CALL)


def test_before_cuda_12_3_whole_calls_are_in_that_order(tmp_path: Path) -> None:
    """So that calls get stuck which have no order that is the same on all ranks, although there is room for them."""
    old = {"LD_LIBRARY_PATH": driver_without("cuLaunchKernelEx", tmp_path), **ORDERED}
    check("right", "communicators_on_two_streams", {**ONE_CALL, **old})
    check("stuck", "ring_of_pairs", old)


@pytest.mark.parametrize("settings", [{}, ORDERED], ids=str)
def test_calls_run_at_once_if_there_is_room(settings: dict[str, str]) -> None:
    check("right", "ring_of_pairs", settings)


@pytest.mark.parametrize("settings", [{}, {"COLLC_PROTO": "LL"}, {"MOCK_NO_PEER": "all"}], ids=str)
def test_calls_of_many_kinds_in_order(settings: dict[str, str], tmp_path: Path) -> None:
    old = driver_without("cuLaunchKernelEx", tmp_path)
    check("right", "threads_in_turn", {**ORDERED, **settings})
    check("right", "threads_in_turn", {"LD_LIBRARY_PATH": old, **ORDERED, **settings})
