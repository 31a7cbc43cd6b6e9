"""Calls of more than 4 GiB over the kernels of the CUDA target, in the emulator: `make large-calls`.

The tests check 64-bit offsets. So most pages of a buffer are one shared page, and races are not reported.
"""

from __future__ import annotations

import pytest
from mock_jobs import job
from support.libraries import PAIR
from test_cuda_runtime import compile_for_mock, mock_driver, written

RIGHT: list[dict[str, list[str]]] = [
    {"all_reduce": [], "broadcast": []},
    {"transfer": [], "all_reduce": [], "broadcast": []},
]


LARGE = (1 << 32) + (1 << 20) + 12  # ends well behind the place where 32 bits do


def wrong_parts(size: int, protocol: str, seconds: float, fault: str | None = None) -> list[dict[str, list[str]]]:
    made = compile_for_mock("pair-mock", written("pair", PAIR), chunk_bytes=512 << 10)
    settings = {"COLLC_PROTO": protocol, "MOCK_COARSE": "1", "MOCK_PATIENCE_MS": "200000"}
    settings["MOCK_JOB_PATIENCE"] = str(seconds)
    own = dict.fromkeys(range(2), settings)
    driver = str(mock_driver(fault=fault))
    return job("large_calls", 2, made=made, given={"bytes": size}, seconds=seconds, own=own, LD_LIBRARY_PATH=driver)


@pytest.mark.parametrize("protocol", ["Simple", "LL128"])
def test_calls_of_16_mib_that_need_little_memory(protocol: str) -> None:
    """The test of 4 GiB relies on buffers whose pages are mostly one shared page."""
    assert wrong_parts((16 << 20) + 12, protocol, 100) == RIGHT


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["Simple", "LL", "LL128"])
def test_calls_of_more_than_4_gib(protocol: str) -> None:
    assert wrong_parts(LARGE, protocol, 3000) == RIGHT


@pytest.mark.slow
def test_offsets_of_32_bits_are_found() -> None:
    """The kernels' fault SHORT_OFFSETS: what lies behind 4 GiB goes to the beginning."""
    sender, receiver = wrong_parts(LARGE, "Simple", 3000, fault="SHORT_OFFSETS")
    assert sorted(sender) == ["all_reduce", "broadcast"]
    for name, parts in {**sender, **receiver}.items():
        assert f"{(1 << 32) - (256 << 10):#x}" in parts, name
        assert f"{(1 << 31) - (256 << 10):#x}" not in parts, name
