"""Run by test_large_calls.py: one of two ranks of the host target, with calls of more than 4 GiB.

    large_calls.py LIBRARY RANK FOLDER

Prints a JSON object: how many bytes each call left wrong.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from collc.bench.nccl import Nccl, UniqueId

COUNT = (1 << 32) + 12  # bytes: neither 32 bits nor whole chunks
PART = 1 << 26
UINT8, SUM = 1, 0
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def content(rank: int, begin: int, end: int) -> Bytes:
    """Returns bytes [begin, end) of a rank's input. No two 8-byte words are equal, so a misplaced word is found."""
    words = np.arange(begin // 8, -(-end // 8), dtype=np.uint64)
    words *= np.uint64(0x9E3779B97F4A7C15)
    words += np.uint64(rank * 0x0123456789ABCDEF)
    return words.view(np.uint8)[: end - begin]


def parts() -> Iterator[tuple[int, int]]:
    for begin in range(0, COUNT, PART):
        yield begin, min(begin + PART, COUNT)


def fill(data: Bytes, rank: int) -> None:
    for begin, end in parts():
        data[begin:end] = content(rank, begin, end)


def wrong(data: Bytes, expected: Callable[[int, int], Bytes]) -> int:
    return sum(int(np.count_nonzero(data[begin:end] != expected(begin, end))) for begin, end in parts())


def main() -> None:
    library, rank, folder = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    nccl = Nccl(library)
    lib, comm, file = nccl.lib, ctypes.c_void_p(), folder / "id"
    if rank == 0:
        (folder / "part").write_bytes(nccl.unique_id())
        (folder / "part").replace(file)
    while not file.is_file():
        time.sleep(0.01)
    unique = UniqueId.from_buffer_copy(file.read_bytes())
    nccl.check(lib.ncclCommInitRank(ctypes.byref(comm), 2, unique, rank), "ncclCommInitRank")
    data, said = np.zeros(COUNT, dtype=np.uint8), {}
    at, count = ctypes.c_void_p(data.ctypes.data), ctypes.c_size_t(COUNT)

    if rank == 0:
        fill(data, 0)
        nccl.check(lib.ncclSend(at, count, UINT8, 1, comm, None), "ncclSend")
    else:
        nccl.check(lib.ncclRecv(at, count, UINT8, 0, comm, None), "ncclRecv")
    said["transfer"] = wrong(data, lambda begin, end: content(0, begin, end))

    fill(data, rank)
    nccl.check(lib.ncclAllReduce(at, at, count, UINT8, SUM, comm, None), "ncclAllReduce")
    said["all_reduce"] = wrong(data, lambda begin, end: content(0, begin, end) + content(1, begin, end))

    fill(data, rank)
    nccl.check(lib.ncclBroadcast(at, at, count, UINT8, 1, comm, None), "ncclBroadcast")
    said["broadcast"] = wrong(data, lambda begin, end: content(1, begin, end))
    nccl.check(lib.ncclCommDestroy(comm), "ncclCommDestroy")
    print(json.dumps(said))


if __name__ == "__main__":
    main()
