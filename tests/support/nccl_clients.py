"""Ranks that open NCCL as a client does: python nccl_clients.py CLIENT PACKAGES [RANKS].

PACKAGES is a folder of packages that `test_clients.py` makes. Without RANKS, this prints the version of the NCCL that
the client opens. With RANKS, this number of processes add ones, then the last rank is killed, and the others add again.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

COUNT = 1000
FLOAT, SUM = 7, 0
# A function of NCCL by its name.
Functions = Callable[[str], int]


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


def functions_of(library: ctypes.CDLL) -> Functions:
    return lambda name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


def opened_by(opener: Path, name: str) -> ctypes.CDLL:
    """Calls dlopen(name) in the library `opener`, whose search path the loader then uses."""
    library = ctypes.CDLL(str(opener))
    library.open_nccl.restype = ctypes.c_void_p
    handle = library.open_nccl(name.encode())
    assert handle, name
    return ctypes.CDLL(name, handle=handle)


def pynccl(packages: Path, variable: str) -> Functions:
    """vLLM and SGLang: PyTorch has brought its NCCL before."""
    ctypes.CDLL(str(packages / "torch" / "lib" / "libtorch_cuda.so"), mode=ctypes.RTLD_GLOBAL)
    return functions_of(ctypes.CDLL(os.environ.get(variable) or "libnccl.so.2"))


def xgboost(packages: Path) -> Functions:
    lib = importlib.import_module("nvidia.nccl.lib")
    folder = os.path.dirname(lib.__file__) if lib.__file__ is not None else next(iter(lib.__path__))
    name = next(name for name in os.listdir(folder) if name.startswith("libnccl.so"))
    return functions_of(opened_by(packages / "xgboost" / "libopener.so", os.path.join(folder, name)))


def jax(packages: Path) -> Functions:
    nccl = importlib.import_module("nvidia.nccl")
    ctypes.cdll.LoadLibrary(str(Path(next(iter(nccl.__path__))) / "lib" / "libnccl.so.2"))
    return functions_of(opened_by(packages / "jax_plugins" / "xla_cuda12" / "libopener.so", "libnccl.so.2"))


def cupy(packages: Path) -> Functions:
    ctypes.CDLL(str(packages / "nvidia" / "nccl" / "lib" / "libnccl.so.2"))
    extension = ctypes.CDLL(str(packages / "cupy_backends" / "libextension.so"))
    extension.address.restype = ctypes.c_void_p
    return lambda name: int(extension.address(name.encode()))


CLIENTS: dict[str, Callable[[Path], Functions]] = {
    "vllm": lambda packages: pynccl(packages, "VLLM_NCCL_SO_PATH"),
    "sglang": lambda packages: pynccl(packages, "SGLANG_NCCL_SO_PATH"),
    "xgboost": xgboost,
    "jax": jax,
    "cupy": cupy,
}


def version_of(functions: Functions) -> int:
    found = ctypes.c_int()
    assert ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(functions("ncclGetVersion"))(ctypes.addressof(found)) == 0
    return found.value


def run_rank(functions: Functions, rank: int, ranks: int) -> None:
    """Reads the unique id from stdin; rank 0 prints it before. Prints the sum, then the error after the next line."""
    pointer, integer, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
    create = ctypes.CFUNCTYPE(integer, pointer, integer, UniqueId, integer)(functions("ncclCommInitRank"))
    add = ctypes.CFUNCTYPE(integer, pointer, pointer, size, integer, integer, pointer, pointer)(
        functions("ncclAllReduce")
    )
    state_of = ctypes.CFUNCTYPE(integer, pointer, pointer)(functions("ncclCommGetAsyncError"))
    unique, comm, state = UniqueId(), ctypes.c_void_p(), ctypes.c_int()
    if rank == 0:
        make = ctypes.CFUNCTYPE(integer, pointer)(functions("ncclGetUniqueId"))
        assert make(ctypes.addressof(unique)) == 0
        print(bytes(unique).hex(), flush=True)
    unique = UniqueId.from_buffer_copy(bytes.fromhex(input()))
    assert create(ctypes.addressof(comm), ranks, unique, rank) == 0
    data = (ctypes.c_float * COUNT)(*[1.0] * COUNT)
    place = ctypes.addressof(data)
    assert add(place, place, COUNT, FLOAT, SUM, comm, None) == 0
    print(version_of(functions), *set(data), flush=True)
    input()
    code = add(place, place, COUNT, FLOAT, SUM, comm, None)
    assert state_of(comm, ctypes.addressof(state)) == 0
    print(code, state.value, flush=True)


def main() -> None:
    client, packages, *more = sys.argv[1:]
    sys.path.append(packages)
    if not more:
        print(version_of(CLIENTS[client](Path(packages))))
        return
    if len(more) == 2:
        run_rank(CLIENTS[client](Path(packages)), int(more[1]), int(more[0]))
        return
    numbers = range(int(more[0]))
    team = [
        subprocess.Popen(
            [sys.executable, *sys.argv, str(rank)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        for rank in numbers
    ]

    def tell(rank: int, line: str) -> None:
        stream = team[rank].stdin
        assert stream is not None
        stream.write(line)

    def hear(rank: int) -> str:
        stream = team[rank].stdout
        assert stream is not None
        return stream.readline()

    unique = hear(0)
    for rank in numbers:
        tell(rank, unique)
    for rank in numbers:
        print(hear(rank), end="")
    team[-1].send_signal(signal.SIGKILL)
    team[-1].wait()
    for rank in numbers[:-1]:
        tell(rank, "add\n")
    for rank in numbers[:-1]:
        print(hear(rank), end="")
        team[rank].wait()


if __name__ == "__main__":
    main()
