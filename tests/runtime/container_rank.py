"""One rank in a separate PID namespace: `container_rank.py LIBRARY RANK ID_FILE EXTRA_DESCRIPTORS [dies]`.

With "dies", rank 1 ends without a word after the first call, and rank 0 must hear of it.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path

FLOAT32 = 7
REMOTE_ERROR = 6
COUNT = 1000


class UniqueId(ctypes.Structure):
    _fields_ = [("data", ctypes.c_char * 128)]


def main() -> None:
    library, rank, id_file, extra = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(extra)]
    nccl = ctypes.CDLL(library)
    nccl.ncclGetLastError.restype = ctypes.c_char_p
    unique = UniqueId()
    if rank == 0:
        check(nccl, nccl.ncclGetUniqueId(ctypes.byref(unique)))
        id_file.with_suffix(".part").write_bytes(bytes(unique))
        id_file.with_suffix(".part").rename(id_file)
    else:
        while not id_file.exists():
            time.sleep(0.01)
        ctypes.memmove(ctypes.byref(unique), id_file.read_bytes(), 128)
    comm = ctypes.c_void_p()
    check(nccl, nccl.ncclCommInitRank(ctypes.byref(comm), 2, unique, rank))
    # Long enough for the other one to look whether this rank lives.
    if rank == 1:
        time.sleep(0.3)
    given, found = (ctypes.c_float * COUNT)(*[rank + 1.0] * COUNT), (ctypes.c_float * COUNT)()
    check(nccl, nccl.ncclAllReduce(given, found, ctypes.c_size_t(COUNT), FLOAT32, 0, comm, None))
    assert all(value == 3.0 for value in found)
    if sys.argv[5:] == ["dies"]:
        if rank == 1:
            os._exit(0)
        result = nccl.ncclAllReduce(given, found, ctypes.c_size_t(COUNT), FLOAT32, 0, comm, None)
        assert result == REMOTE_ERROR
        assert "rank 1 has died" in nccl.ncclGetLastError(None).decode()
    check(nccl, nccl.ncclCommDestroy(comm))
    print(os.getpid(), len(held))


def check(nccl: ctypes.CDLL, result: int) -> None:
    if result != 0:
        sys.exit(nccl.ncclGetLastError(None).decode())


if __name__ == "__main__":
    main()
