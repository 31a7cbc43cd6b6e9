"""`collc.Library`: runs all ranks of a host library in this process, on numpy arrays."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from collc.api.arguments import a_number, a_path, answering, one_of
from collc.api.buffers import DTYPES, Array, lay_out
from collc.bench.data import OPS
from collc.bench.find import find_library
from collc.bench.nccl import Nccl
from collc.bench.runner import library_ranks
from collc.checker.library import check_library, read_manifest
from collc.collectives.model import Collective
from collc.errors import RunError, UsageError


class Library:
    """A library of the host target, loaded into this process with a communicator for all of its ranks.

    Loading a library runs its code, so load only libraries that you trust. Each method is one call of the collective on
    every rank. It takes an array for each rank, in rank order, and returns one for each rank. Inputs are not changed.
    Arrays have any shape. If a buffer has a part for each rank, the parts follow each other along the first dimension,
    as in NCCL.

    Args:
        path: a library of `collc.compile` or `collc compile --target host`.
        nranks: the number of ranks [the most that it serves].

    Raises:
        CollcError: the file is missing, no library of collc, for another target, or cannot be loaded.
    """

    path: Path
    name: str
    gpus: tuple[str, ...]
    nranks: int
    build_id: str

    @answering
    def __init__(self, path: str | os.PathLike[str], nranks: int | None = None) -> None:
        wanted = None if nranks is None else a_number("nranks", nranks, 1, 1 << 20)
        self.path = find_library(a_path("path", path))
        manifest = read_manifest(self.path)
        if manifest["target"] != "host":
            hint = "compile it with target='host', or measure it on its GPUs with `collc bench`"
            raise RunError(
                f"is for target {manifest['target']}, and host libraries run here", where=str(path), hint=hint
            )
        self.name, self.gpus, self.build_id = manifest["name"], tuple(manifest["gpus"]), manifest["build_id"]
        self.nranks = library_ranks(manifest, wanted)
        self._nccl = _loaded(self.path, self.build_id)
        self._lock = threading.Lock()
        self._comms: list[ctypes.c_void_p] = []
        comms = (ctypes.c_void_p * self.nranks)()
        self._nccl.check(self._nccl.lib.ncclCommInitAll(comms, self.nranks, None), "ncclCommInitAll")
        self._comms = [ctypes.c_void_p(comm) for comm in comms]

    @answering
    def all_reduce(self, inputs: Sequence[Array], op: str = "sum") -> list[Array]:
        """Returns the reduction of all inputs for every rank; op is sum, prod, max, min or avg."""
        return self._full(Collective.ALL_REDUCE, inputs, op)

    @answering
    def all_gather(self, inputs: Sequence[Array]) -> list[Array]:
        """Returns all inputs, one after the other, for every rank."""
        return self._full(Collective.ALL_GATHER, inputs)

    @answering
    def reduce_scatter(self, inputs: Sequence[Array], op: str = "sum") -> list[Array]:
        """Returns part r of the reduction for rank r. Inputs have a part for each rank."""
        return self._full(Collective.REDUCE_SCATTER, inputs, op)

    @answering
    def broadcast(self, inputs: Sequence[Array | None], root: int = 0) -> list[Array]:
        """Returns the root's input for every rank. The inputs of other ranks are None."""
        return self._full(Collective.BROADCAST, inputs, root=root)

    @answering
    def reduce(self, inputs: Sequence[Array], op: str = "sum", root: int = 0) -> list[Array | None]:
        """Returns the reduction of all inputs for the root, and None for the others."""
        return self._call(Collective.REDUCE, inputs, op, root)

    @answering
    def verify(self) -> list[str]:
        """Checks every claim of the file: its bytes, its programs, its plans with their proofs, its code.

        Returns:
            The parts that cannot be proved because other compilers or another collc made them: ``code``,
            ``device code``. Only the digest in the library covers these.

        Raises:
            CollcError: a claim does not hold.
        """
        # The import is here because only this method needs the code generator and its packages.
        from collc.build.relink import check_code

        return [one.part for one in check_code(self.path, check_library(self.path)) if not one.proved]

    @answering
    def close(self) -> None:
        """Ends the communicator. The library accepts no calls afterwards. A second call does nothing."""
        with self._lock:
            comms, self._comms = self._comms, []
            for comm in comms:
                self._nccl.check(self._nccl.lib.ncclCommDestroy(comm), "ncclCommDestroy")

    def __enter__(self) -> Library:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<collc.Library {self.name}, {self.nranks} ranks, {self.path}>"

    def _full(self, collective: Collective, inputs: object, op: str = "sum", root: int = 0) -> list[Array]:
        return [found for found in self._call(collective, inputs, op, root) if found is not None]

    def _call(self, collective: Collective, inputs: object, op: str, root: int) -> list[Array | None]:
        if collective.reduces:
            one_of("op", op, OPS)
        chosen = a_number("root", root, 0, self.nranks - 1) if collective.rooted else None
        buffers = lay_out(collective, self.nranks, chosen, inputs)
        number = DTYPES[buffers.inputs[0].dtype.name]
        nccl = self._nccl
        with self._lock:
            if not self._comms:
                raise UsageError("is closed", where=str(self.path), hint="open it again")
            nccl.check(nccl.lib.ncclGroupStart(), "ncclGroupStart")
            results = [
                nccl.call(
                    collective,
                    send.ctypes.data,
                    recv.ctypes.data,
                    buffers.count,
                    number,
                    OPS[op],
                    chosen or 0,
                    comm,
                )
                for send, recv, comm in zip(buffers.inputs, buffers.outputs, self._comms, strict=True)
            ]
            ended = nccl.lib.ncclGroupEnd()
        # The first failed call has the reason. The end of the group repeats its result.
        for result in (*results, ended):
            nccl.check(result, collective.value)
        return buffers.results()


def _loaded(path: Path, build_id: str) -> Nccl:
    """Loads a library into this process and returns it.

    The loader identifies libraries by name and never unloads one. If a library was built again under the same name, it
    is loaded from a copy.
    """
    found = Nccl(path)
    if _build_id(found) == build_id:
        return found
    with tempfile.TemporaryDirectory(prefix="collc-") as folder:
        copy = Path(folder) / f"{build_id}.so"
        shutil.copyfile(path, copy)
        found = Nccl(copy)
    if _build_id(found) != build_id:
        raise RunError("was replaced while it was loaded", where=str(path), hint="try again")
    return found


def _build_id(nccl: Nccl) -> str:
    symbol: Callable[[ctypes.CDLL, str], ctypes.c_char] = ctypes.c_char.in_dll
    size = ctypes.c_uint64.in_dll(nccl.lib, "collc_manifest_size").value
    text = ctypes.string_at(ctypes.addressof(symbol(nccl.lib, "collc_manifest")), size)
    return str(json.loads(text)["build_id"])
