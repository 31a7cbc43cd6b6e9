"""Calls of more than 4 GiB that need little memory (see mock_scenarios.py).

Most pages of a buffer are one shared page. Pages around the offsets 2^31 and 2^32, and at both ends of the buffer, are
separate.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator

import numpy as np
from mock_job import Array, Job

WINDOW = 256 << 10
PIECE = 2 << 20  # what repeats
PAGE = 4096
# Of Linux, on every processor that the tests run on; Python's mmap does not have them.
FIXED, NO_RESERVE = 0x10, 0x4000
UINT8, SUM = 1, 0
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]


class Sparse:
    """So many bytes of addresses, which all GPUs may use."""

    def __init__(self, job: Job, size: int) -> None:
        if size < 2 * PIECE:
            raise ValueError(f"{size} bytes are not enough for a part that repeats: at least {2 * PIECE}")
        self.size, whole = size, -(-size // PIECE) * PIECE
        self.at = self._map(None, whole, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | NO_RESERVE, -1)
        piece = os.memfd_create("piece")
        os.ftruncate(piece, PIECE)
        for begin in range(0, whole, PIECE):
            self._map(self.at + begin, PIECE, mmap.MAP_SHARED | FIXED, piece)
        os.close(piece)
        for begin, end in self.windows():
            pages = -(-(end - begin) // PAGE) * PAGE
            self._map(self.at + begin, pages, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | FIXED, -1)
        job.cuda(job.mock.cuMemHostRegister_v2(ctypes.c_void_p(self.at), ctypes.c_size_t(whole), 0))

    def _map(self, at: int | None, size: int, flags: int, file: int) -> int:
        made = LIBC.mmap(at, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, file, 0)
        if made in (None, ctypes.c_size_t(-1).value):
            raise OSError(ctypes.get_errno(), "mmap")
        return int(made)

    def windows(self) -> Iterator[tuple[int, int]]:
        """Where no page is shared: [begin, end), from a page's begin, apart from each other."""
        last = self.size // PAGE * PAGE - WINDOW
        for middle in (0, 1 << 31, 1 << 32):
            if middle + WINDOW < last:
                yield max(0, middle - WINDOW), middle + WINDOW
        yield last, self.size

    def _parts(self) -> Iterator[tuple[int, int]]:
        yield PIECE, 2 * PIECE  # which shows wherever there is no window
        yield from self.windows()

    def fill(self, seed: int) -> None:
        for begin, end in self._parts():
            words = content(seed, begin, end)
            ctypes.memmove(self.at + begin, words.ctypes.data, end - begin)

    def clear(self) -> None:
        for begin, end in self._parts():
            ctypes.memset(self.at + begin, 0xCD, end - begin)

    def wrong(self, *seeds: int) -> list[str]:
        """Returns the parts that do not contain the sum of the data of these seeds."""
        found = []
        for begin, end in self._parts():
            expected = sum((content(seed, begin, end) for seed in seeds), np.zeros(end - begin, dtype=np.uint8))
            if ctypes.string_at(self.at + begin, end - begin) != expected.tobytes():
                found.append(f"{begin:#x}")
        return found


def content(seed: int, begin: int, end: int) -> Array:
    """Bytes that no other place has: [begin, end) of a buffer."""
    return np.random.default_rng([seed, begin]).integers(0, 256, end - begin, dtype=np.uint8)


class LargeCalls(Job):
    def large_calls(self) -> dict[str, list[str]]:
        """A transfer, an all_reduce and a broadcast of two ranks; of each, the parts that have come out wrong."""
        comm, stream, size, lib = self.comm(), self.stream(), self.given["bytes"], self.lib
        count, said = ctypes.c_size_t(size), {}
        mine, result = Sparse(self, size), Sparse(self, size)
        mine.fill(self.rank)
        send, recv = ctypes.c_void_p(mine.at), ctypes.c_void_p(result.at)

        def finish(name: str, *seeds: int) -> None:
            self.wait(stream)
            said[name] = result.wrong(*seeds)
            result.clear()

        result.clear()
        if self.rank == 0:
            self.check(lib.ncclSend(send, count, UINT8, 1, comm, stream))
            self.wait(stream)
        else:
            self.check(lib.ncclRecv(recv, count, UINT8, 0, comm, stream))
            finish("transfer", 0)
        self.check(lib.ncclAllReduce(send, recv, count, UINT8, SUM, comm, stream))
        finish("all_reduce", 0, 1)
        self.check(lib.ncclBroadcast(send, recv, count, UINT8, 1, comm, stream))
        finish("broadcast", 1)
        return said
