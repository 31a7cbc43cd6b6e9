"""Reports the plan that a library uses for each found machine: one line of JSON per file, all in one process.

Arguments: the library, then files of links. Each answer has the state and the allocation, and how many elements of an
all_reduce are wrong; or the error.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

COUNT = 5000


def answer(lib: ctypes.CDLL, path: str) -> dict[str, Any]:
    os.environ["COLLC_TOPOLOGY"] = path
    gpus = sum(line.startswith("gpu ") for line in Path(path).read_text(errors="replace").splitlines())
    n = max(gpus, 2)
    comms = (ctypes.c_void_p * n)()
    if lib.ncclCommInitAll(comms, n, (ctypes.c_int * n)(*range(n))):
        return {"error": lib.ncclGetLastError(None).decode()}
    found: dict[str, Any] = {
        "state": lib.collc_state_of(ctypes.c_void_p(comms[0])),
        "allocation": lib.collc_allocation_of(ctypes.c_void_p(comms[0])),
    }
    data = [np.arange(COUNT, dtype=np.float32) % 97 + rank for rank in range(n)]
    made = [np.zeros(COUNT, dtype=np.float32) for _ in range(n)]
    lib.ncclGroupStart()
    for rank in range(n):
        ends = (ctypes.c_void_p(data[rank].ctypes.data), ctypes.c_void_p(made[rank].ctypes.data))
        lib.ncclAllReduce(*ends, ctypes.c_size_t(COUNT), 7, 0, ctypes.c_void_p(comms[rank]), None)
    found["result"] = lib.ncclGroupEnd()
    found["wrong"] = int(sum((one != sum(data)).sum() for one in made))
    for comm in comms:
        lib.ncclCommDestroy(ctypes.c_void_p(comm))
    return found


def main() -> None:
    lib = ctypes.CDLL(sys.argv[1])
    lib.ncclGetLastError.restype = ctypes.c_char_p
    for path in sys.argv[2:]:
        print(json.dumps(answer(lib, path)), flush=True)


if __name__ == "__main__":
    main()
