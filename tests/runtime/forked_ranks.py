"""Ranks that a process forks off after it has made their id: `forked_ranks.py LIBRARY`. It stays, as their listener."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from collc.bench.nccl import Nccl, UniqueId


def be(rank: int, nccl: Nccl, unique: bytes) -> None:
    comm = ctypes.c_void_p()
    made = nccl.lib.ncclCommInitRank(ctypes.byref(comm), 2, UniqueId.from_buffer_copy(unique), rank)
    nccl.check(made, "ncclCommInitRank")
    # Also creates a communicator of one rank, with an id that the child makes.
    alone = ctypes.c_void_p()
    own = UniqueId.from_buffer_copy(nccl.unique_id())
    nccl.check(nccl.lib.ncclCommInitRank(ctypes.byref(alone), 1, own, 0), "ncclCommInitRank")
    nccl.check(nccl.lib.ncclCommDestroy(alone), "ncclCommDestroy")
    nccl.check(nccl.lib.ncclCommDestroy(comm), "ncclCommDestroy")


def main() -> None:
    nccl = Nccl(Path(sys.argv[1]))
    for _ in range(3):
        unique = nccl.unique_id()
        children = []
        for rank in range(2):
            child = os.fork()
            if child == 0:
                be(rank, nccl, unique)
                os._exit(0)
            children.append(child)
        assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    print("right")


if __name__ == "__main__":
    main()
