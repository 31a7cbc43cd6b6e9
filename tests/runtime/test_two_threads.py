"""Two threads in calls of one communicator at once, and the text of an error in another thread."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.libraries import client, library, run_client
from support.ranks import INVALID_ARGUMENT

from collc.bench.nccl import Nccl

HERE = Path(__file__).parent


@pytest.mark.parametrize("way", ["plain", "group", "send", "split", "abort", "revoke"])
def test_one_of_two_threads_is_refused_and_the_other_is_right(way: str) -> None:
    run_client([client(HERE / "two_threads.c", "pair"), way], "one refused\n")


def test_a_thread_without_an_error_hears_of_another_threads() -> None:
    lib = Nccl(library("pair")).lib
    lib.ncclGetLastError.restype = ctypes.c_char_p

    def fail(call: Callable[..., int]) -> bytes:
        assert call(None, None) == INVALID_ARGUMENT
        return bytes(lib.ncclGetLastError(None))

    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as another, ThreadPoolExecutor(1) as asks:
        first = one.submit(fail, lib.ncclCommCount).result()
        assert b"ncclCommCount" in first
        assert asks.submit(lib.ncclGetLastError, None).result() == first
        second = another.submit(fail, lib.ncclCommCuDevice).result()
        assert b"ncclCommCuDevice" in second
        assert asks.submit(lib.ncclGetLastError, None).result() == second
        # A thread that had an error keeps it.
        assert one.submit(lib.ncclGetLastError, None).result() == first
