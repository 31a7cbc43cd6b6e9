"""The NCCL API of a library through ctypes, as far as bench and the tests call it."""

from __future__ import annotations

import ctypes
from pathlib import Path

from collc.collectives.model import COMPILED, Collective
from collc.errors import RunError

UNIQUE_ID_BYTES = 128


class UniqueId(ctypes.Structure):
    """ncclUniqueId, passed by value."""

    _fields_ = (("internal", ctypes.c_byte * UNIQUE_ID_BYTES),)


_comm = ctypes.c_void_p
_size = ctypes.c_size_t
_int = ctypes.c_int
_ptr = ctypes.c_void_p

_SIGNATURES: dict[str, list[type]] = {
    "ncclGetVersion": [ctypes.POINTER(_int)],
    "ncclGetUniqueId": [ctypes.POINTER(UniqueId)],
    "ncclCommInitRank": [ctypes.POINTER(_comm), _int, UniqueId, _int],
    "ncclCommInitAll": [ctypes.POINTER(_comm), _int, ctypes.POINTER(_int)],
    "ncclCommDestroy": [_comm],
    "ncclCommAbort": [_comm],
    "ncclCommCount": [_comm, ctypes.POINTER(_int)],
    "ncclCommUserRank": [_comm, ctypes.POINTER(_int)],
    "ncclCommGetAsyncError": [_comm, ctypes.POINTER(_int)],
    "ncclMemAlloc": [ctypes.POINTER(_ptr), _size],
    "ncclMemFree": [_ptr],
    "ncclGroupStart": [],
    "ncclGroupEnd": [],
}


def _arguments(collective: Collective) -> list[type]:
    """Returns the types of a call's arguments: buffers, count and type, operation and root if needed, and the rest."""
    return [_ptr, _ptr, _size, _int, *[_int] * (collective.reduces + collective.rooted), _comm, _ptr]


_SIGNATURES |= {f"nccl{collective.traits.title}": _arguments(collective) for collective in COMPILED}


class Nccl:
    """A loaded library.

    If a call fails, every method except `call` raises RunError with the library's message.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.lib = ctypes.CDLL(str(path.resolve()), mode=ctypes.RTLD_LOCAL)
        except OSError as error:
            raise RunError(f"cannot be loaded: {error}", where=str(path)) from None
        for name, arguments in _SIGNATURES.items():
            function = getattr(self.lib, name, None)
            if function is not None:
                function.argtypes = arguments
                function.restype = _int
        self.lib.ncclGetErrorString.argtypes = [_int]
        self.lib.ncclGetErrorString.restype = ctypes.c_char_p
        self.lib.ncclGetLastError.argtypes = [_comm]
        self.lib.ncclGetLastError.restype = ctypes.c_char_p

    def check(self, result: int, what: str, hint: str | None = None) -> None:
        if result:
            name = self.lib.ncclGetErrorString(result).decode()
            last = (self.lib.ncclGetLastError(None) or b"").decode()
            raise RunError(f"{what} failed: {name}" + (f": {last}" if last else ""), hint=hint)

    def allocate(self, size: int, hint: str) -> int:
        """Returns the address of a new buffer of ncclMemAlloc on the current GPU."""
        at = _ptr()
        self.check(self.lib.ncclMemAlloc(ctypes.byref(at), size), "ncclMemAlloc", hint)
        return at.value or 0

    def release(self, at: int) -> None:
        self.check(self.lib.ncclMemFree(at), "ncclMemFree")

    def unique_id(self) -> bytes:
        unique = UniqueId()
        self.check(self.lib.ncclGetUniqueId(ctypes.byref(unique)), "ncclGetUniqueId")
        return bytes(unique)

    def comm(self, nranks: int, unique: bytes, rank: int) -> ctypes.c_void_p:
        comm = _comm()
        value = UniqueId.from_buffer_copy(unique)
        self.check(self.lib.ncclCommInitRank(ctypes.byref(comm), nranks, value, rank), "ncclCommInitRank")
        return comm

    def call(
        self,
        collective: Collective,
        send: int,
        recv: int,
        count: int,
        dtype: int,
        op: int,
        root: int,
        comm: ctypes.c_void_p,
    ) -> int:
        """Calls the collective once and returns its ncclResult_t.

        Args:
            send, recv: the addresses of the buffers.

        Raises:
            RunError: the library does not have this collective.
        """
        if collective not in COMPILED:
            raise RunError(f"{collective.value} cannot be called yet")
        operation = [op] if collective.reduces else []
        roots = [root] if collective.rooted else []
        function = getattr(self.lib, f"nccl{collective.traits.title}", None)
        if function is None:
            raise RunError(f"has no nccl{collective.traits.title}", where=str(self.path))
        return int(function(send, recv, count, dtype, *operation, *roots, comm, None))
