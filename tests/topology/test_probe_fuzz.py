"""A small sample of tests/fuzz_readers.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.fuzz import DUMPS, TARGETS, check_dumps

from collc.topology.probe.dumps import topology_from_dumps

Check = Callable[..., None]


@pytest.mark.parametrize("text", DUMPS)
def test_undamaged_dumps_read(text: str) -> None:
    check_dumps([text])
    assert topology_from_dumps([("file", text)]).gpus


@pytest.mark.parametrize(("name", "strategy", "check"), TARGETS, ids=[name for name, _, _ in TARGETS])
def test_only_refusals(name: str, strategy: Callable[[], st.SearchStrategy[object]], check: Check) -> None:
    profile = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
    profile(given(strategy())(check))()
