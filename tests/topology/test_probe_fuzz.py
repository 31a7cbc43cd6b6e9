"""A small sample of tests/fuzz_readers.py."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from support.fuzz import DUMPS, TARGETS, check_dumps

from collc.topology.probe.dumps import topology_from_dumps


@pytest.mark.parametrize("text", DUMPS)
def test_undamaged_dumps_read(text: str) -> None:
    check_dumps([text])
    assert topology_from_dumps([("file", text)]).gpus


@pytest.mark.parametrize("target", TARGETS, ids=[name for name, _, _ in TARGETS])
def test_only_refusals(target: str) -> None:
    _, strategy, check = target
    profile = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
    profile(given(strategy())(check))()
