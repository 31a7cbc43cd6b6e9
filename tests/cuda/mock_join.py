"""One rank, which prints the status of creating the communicator. test_cuda_protocols.py runs this file.

mock_join.py LIBRARY RANK NRANKS ID_FILE
"""

from __future__ import annotations

import ctypes
import sys
import time
from pathlib import Path


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


def main() -> str:
    library, rank, nranks, shared = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    lib = ctypes.CDLL(library)
    lib.ncclGetLastError.restype = ctypes.c_char_p
    one = UniqueId()
    if rank == 0:
        if lib.ncclGetUniqueId(ctypes.byref(one)):
            return str(lib.ncclGetLastError(None).decode())
        aside = shared.with_suffix(".part")
        aside.write_bytes(bytes(one))
        aside.replace(shared)
    else:
        while not shared.is_file():
            time.sleep(0.01)
        ctypes.memmove(ctypes.byref(one), shared.read_bytes(), 128)
    comm = ctypes.c_void_p()
    if lib.ncclCommInitRank(ctypes.byref(comm), nranks, one, rank):
        return str(lib.ncclGetLastError(None).decode())
    return "made"


if __name__ == "__main__":
    print(main())
