"""Ranks on several machines: refused by all of them, with one sentence."""

from __future__ import annotations

from datetime import timedelta

import pytest

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")

import torch.distributed as dist  # noqa: E402

from collc.torch.group import CollcProcessGroup  # noqa: E402
from collc.torch.memory import this_machine  # noqa: E402


def test_ranks_on_different_machines_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLC_HOSTID", "another")
    elsewhere = this_machine()
    monkeypatch.delenv("COLLC_HOSTID")
    store = dist.HashStore()
    store.set("collc-rank-1", f"collc-{'0' * 32} {'0' * 32} {this_machine()}")
    store.set("collc-rank-2", f"collc-{'0' * 32} {'0' * 32} {elsewhere}")
    with pytest.raises(RuntimeError, match="ranks 0 and 2 are on different machines"):
        CollcProcessGroup(store, 0, 3, timedelta(seconds=5))
