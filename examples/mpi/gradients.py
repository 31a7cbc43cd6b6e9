"""Averages a gradient over MPI's ranks by the NCCL calls: `mpirun -np 8 python gradients.py LIBRARY`.

LIBRARY is what `collc compile --target host` writes. Needs mpi4py and numpy. NCCL is called through ctypes, as from any
language but C; the arrays are host memory, which libraries of the host target take.
"""

from __future__ import annotations

import ctypes
import sys

import numpy as np
from mpi4py import MPI

FLOAT, AVERAGE = 7, 4  # ncclFloat, ncclAvg


class UniqueId(ctypes.Structure):
    """ncclUniqueId, which is passed by value."""

    _fields_ = (("internal", ctypes.c_char * 128),)


def main() -> int:
    nccl = ctypes.CDLL(sys.argv[1])
    nccl.ncclGetLastError.restype = ctypes.c_char_p
    world = MPI.COMM_WORLD

    def call(name: str, *arguments: object) -> None:
        if getattr(nccl, name)(*arguments) != 0:
            print(f"{name}: {nccl.ncclGetLastError(None).decode()}", file=sys.stderr)
            world.Abort(1)

    unique = UniqueId()
    if world.rank == 0:
        call("ncclGetUniqueId", ctypes.byref(unique))
    world.Bcast([unique, ctypes.sizeof(unique), MPI.BYTE])
    comm = ctypes.c_void_p()
    call("ncclCommInitRank", ctypes.byref(comm), world.size, unique, world.rank)

    gradient = np.arange(100_000, dtype=np.float32) % 1000 * (world.rank + 1)
    average = np.empty_like(gradient)
    pointers = (ctypes.c_void_p(array.ctypes.data) for array in (gradient, average))
    call("ncclAllReduce", *pointers, ctypes.c_size_t(gradient.size), FLOAT, AVERAGE, comm, None)

    expected = np.empty_like(gradient)
    world.Allreduce(gradient, expected)
    right = bool(np.allclose(average, expected / world.size, rtol=1e-6))
    call("ncclCommDestroy", comm)
    everywhere = world.allreduce(right, MPI.LAND)
    if world.rank == 0:
        print(f"{world.size} ranks: averages are {'right' if everywhere else 'wrong'}")
    return 0 if everywhere else 1


if __name__ == "__main__":
    raise SystemExit(main())
