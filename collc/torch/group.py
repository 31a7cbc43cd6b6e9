"""torch.distributed's process group over the NCCL API of a host library.

Operations run in the order in which they were issued, in one thread per group; the caller goes on (backward and
communication overlap) and waits on the Work objects. Sends and receives run when the caller next waits for one of them
or issues a collective, all that are pending as one group: any order of isend and irecv on the two sides works.
"""

from __future__ import annotations

import ctypes
import queue
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future

from collc.bench.nccl import Nccl
from collc.errors import RunError
from collc.torch.calls import (
    BYTES,
    Communicator,
    Dense,
    address_of,
    nbytes,
    nccl_operation,
    nccl_type,
    require_same_size,
)
from collc.torch.library import library_for

Task = Callable[[], Any]


class _TransferWork(dist.Work):  # type: ignore[misc]
    """A send or receive that runs when someone waits for it."""

    def __init__(self, group: CollcProcessGroup, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self.group = group
        self.tensors = tensors
        self.future: torch.futures.Future[Any] = torch.futures.Future()

    def wait(self, timeout: timedelta | None = None) -> bool:
        self.group.flush()
        self.future.wait()
        return True

    def is_completed(self) -> bool:
        self.group.flush()
        return bool(self.future.done())

    def get_future(self) -> torch.futures.Future[Any]:
        self.group.flush()
        return self.future

    def result(self) -> list[torch.Tensor]:
        return self.tensors


class CollcProcessGroup(dist.ProcessGroup):  # type: ignore[misc]
    """One rank's part of a group of processes on this machine.

    Args:
        store: where the ranks of this group find the unique id that rank 0 makes.
    """

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        world = dist.get_world_size() if dist.is_initialized() else size
        if rank == 0:
            store.set("collc-unique-id", Nccl(library_for(max(size, world, 2))).unique_id().hex())
        store.wait(["collc-unique-id"], timeout)
        library = library_for(max(size, world, 2))  # rank 0 may have compiled it; the others find it then
        unique = bytes.fromhex(store.get("collc-unique-id").decode())
        self._rank, self._size = rank, size
        self._communicator = Communicator(library, size, rank, unique)
        self._transfers: list[tuple[_TransferWork, str, torch.Tensor, int]] = []
        self._lock = threading.Lock()
        self._tasks: queue.SimpleQueue[tuple[Task, Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="collc", daemon=True)
        self._thread.start()

    # What torch asks a group.

    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return self._rank

    def getBackendName(self) -> str:
        return "collc"

    @property
    def pg_name(self) -> str:
        return str(dist.distributed_c10d._world.pg_names[self])

    @property
    def group_name(self) -> str:
        return self.pg_name

    def shutdown(self) -> None:
        """Finishes what was issued and destroys the communicator."""
        self.flush()
        self._tasks.put(None)
        self._thread.join()
        if self._communicator.comm:
            self._communicator.check(self._communicator.lib.ncclCommDestroy(self._communicator.comm), "ncclCommDestroy")
            self._communicator.comm = ctypes.c_void_p()

    def abort(self) -> None:
        """Ends what runs on all ranks."""
        self._communicator.lib.ncclCommAbort(self._communicator.comm)

    # The thread.

    def _serve(self) -> None:
        while True:
            item = self._tasks.get()
            if item is None:
                return
            task, future = item
            try:
                future.set_result(task())
            except Exception as error:  # whatever it was belongs to whoever waits
                future.set_exception(error)

    def _issue(self, task: Task, result: Any) -> dist.Work:
        self.flush()
        future: torch.futures.Future[Any] = torch.futures.Future()

        def run() -> Any:
            task()
            return result

        self._tasks.put((run, future))
        return _create_work_from_future(future)

    def flush(self) -> None:
        """Hands all pending sends and receives to the thread, as one group."""
        with self._lock:
            pending, self._transfers = self._transfers, []
        if not pending:
            return

        def run() -> None:
            lib = self._communicator.lib
            self._communicator.check(lib.ncclGroupStart(), "ncclGroupStart")
            for _, name, tensor, peer in pending:
                self._communicator.call(name, address_of(tensor), nbytes(tensor), BYTES, peer)
            self._communicator.check(lib.ncclGroupEnd(), "ncclGroupEnd")

        def settle() -> None:
            try:
                run()
            except RunError as error:
                for work, *_ in pending:
                    work.future.set_exception(error)
            else:
                for work, *_ in pending:
                    work.future.set_result(work.tensors)

        done: torch.futures.Future[Any] = torch.futures.Future()
        self._tasks.put((settle, done))

    # Collectives. Tensors that are not contiguous travel through a copy.

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> dist.Work:
        (tensor,) = tensors
        kind, op = nccl_type(tensor), nccl_operation(opts, tensor)

        def run() -> None:
            with Dense(tensor) as dense:
                self._communicator.call("ncclAllReduce", address_of(dense), address_of(dense), dense.numel(), kind, op)

        return self._issue(run, tensors)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> dist.Work:
        parts = [(tensor, nccl_type(tensor), nccl_operation(opts, tensor)) for tensor in tensors]

        def run() -> None:
            for tensor, kind, op in parts:
                with Dense(tensor) as dense:
                    address = address_of(dense)
                    self._communicator.call("ncclAllReduce", address, address, dense.numel(), kind, op)

        return self._issue(run, tensors)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> dist.Work:
        (tensor,) = tensors
        root = int(opts.rootRank)

        def run() -> None:
            with Dense(tensor) as dense:
                address = address_of(dense)
                self._communicator.call("ncclBroadcast", address, address, nbytes(dense), BYTES, root)

        return self._issue(run, tensors)

    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> dist.Work:
        (tensor,) = tensors
        kind, op, root = nccl_type(tensor), nccl_operation(opts, tensor), int(opts.rootRank)

        def run() -> None:
            with Dense(tensor) as dense:
                address = address_of(dense)
                self._communicator.call("ncclReduce", address, address, dense.numel(), kind, op, root)

        return self._issue(run, tensors)

    def _allgather_base(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> dist.Work:
        def run() -> None:
            with Dense(output) as dense:
                source = given.contiguous()
                self._communicator.call("ncclAllGather", address_of(source), address_of(dense), nbytes(source), BYTES)

        return self._issue(run, output)

    all_gather_single = _allgather_base

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None) -> dist.Work:
        (parts,), (given,) = outputs, inputs
        require_same_size(parts, given)

        def run() -> None:
            source = given.contiguous()
            flat = torch.empty((self._size, *source.shape), dtype=source.dtype)
            self._communicator.call("ncclAllGather", address_of(source), address_of(flat), nbytes(source), BYTES)
            for part, piece in zip(parts, flat, strict=True):
                part.copy_(piece)

        return self._issue(run, outputs)

    def allgather_into_tensor_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> dist.Work:
        works = [self._allgather_base(output, given) for output, given in zip(outputs, inputs, strict=True)]
        return works[-1]

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def _reduce_scatter_base(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> dist.Work:
        kind, op = nccl_type(output), nccl_operation(opts, output)

        def run() -> None:
            with Dense(output) as dense:
                source = given.contiguous()
                self._communicator.call(
                    "ncclReduceScatter", address_of(source), address_of(dense), dense.numel(), kind, op
                )

        return self._issue(run, output)

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter(
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any = None
    ) -> dist.Work:
        (output,), (parts,) = outputs, inputs
        require_same_size(parts, output)
        return self._reduce_scatter_base(output, torch.stack([part.contiguous() for part in parts]), opts)

    def reduce_scatter_tensor_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> dist.Work:
        works = [self._reduce_scatter_base(output, given, opts) for output, given in zip(outputs, inputs, strict=True)]
        return works[-1]

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    def gather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any) -> dist.Work:
        (given,), root = inputs, int(opts.rootRank)
        parts = outputs[0] if outputs else []
        if parts:
            require_same_size(parts, given)

        def run() -> None:
            source = given.contiguous()
            flat = torch.empty((self._size, *source.shape), dtype=source.dtype)
            self._communicator.call("ncclGather", address_of(source), address_of(flat), nbytes(source), BYTES, root)
            for part, piece in zip(parts, flat, strict=False):
                part.copy_(piece)

        return self._issue(run, outputs)

    def scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any) -> dist.Work:
        (output,), root = outputs, int(opts.rootRank)
        parts = inputs[0] if inputs else []
        if parts:
            require_same_size(parts, output)

        def run() -> None:
            flat = torch.stack([part.contiguous() for part in parts]) if parts else output.contiguous()
            with Dense(output) as dense:
                self._communicator.call("ncclScatter", address_of(flat), address_of(dense), nbytes(dense), BYTES, root)

        return self._issue(run, outputs)

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None) -> dist.Work:
        def run() -> None:
            sources = [given.contiguous() for given in inputs]
            places = [torch.empty_like(output, memory_format=torch.contiguous_format) for output in outputs]
            self._exchange(sources, places)
            for output, place in zip(outputs, places, strict=True):
                output.copy_(place)

        return self._issue(run, outputs)

    def alltoall_base(
        self,
        output: torch.Tensor,
        given: torch.Tensor,
        output_splits: list[int] | None,
        input_splits: list[int] | None,
        opts: Any = None,
    ) -> dist.Work:
        def run() -> None:
            source = given.contiguous()
            with Dense(output) as dense:
                sent = input_splits or [source.shape[0] // self._size] * self._size
                received = output_splits or [dense.shape[0] // self._size] * self._size
                self._exchange(source.split(sent), dense.split(received))

        return self._issue(run, output)

    all_to_all_single = alltoall_base

    def _exchange(self, sources: Sequence[torch.Tensor], places: Sequence[torch.Tensor]) -> None:
        lib = self._communicator.lib
        self._communicator.check(lib.ncclGroupStart(), "ncclGroupStart")
        for peer, (source, place) in enumerate(zip(sources, places, strict=True)):
            self._communicator.call("ncclSend", address_of(source), nbytes(source), BYTES, peer)
            self._communicator.call("ncclRecv", address_of(place), nbytes(place), BYTES, peer)
        self._communicator.check(lib.ncclGroupEnd(), "ncclGroupEnd")

    def barrier(self, opts: Any = None) -> dist.Work:
        token = torch.zeros(1, dtype=torch.uint8)

        def run() -> None:
            self._communicator.call("ncclAllReduce", address_of(token), address_of(token), 1, BYTES, 2)

        return self._issue(run, [token])

    def send(self, tensors: list[torch.Tensor], peer: int, tag: int = 0) -> dist.Work:
        (tensor,) = tensors
        return self._transfer("ncclSend", tensors, tensor.contiguous(), peer)

    def recv(self, tensors: list[torch.Tensor], peer: int, tag: int = 0) -> dist.Work:
        (tensor,) = tensors
        if not tensor.is_contiguous():
            raise ValueError("collc receives into contiguous tensors only")
        return self._transfer("ncclRecv", tensors, tensor, peer)

    def _transfer(self, name: str, tensors: list[torch.Tensor], dense: torch.Tensor, peer: int) -> dist.Work:
        work = _TransferWork(self, tensors)
        with self._lock:
            self._transfers.append((work, name, dense, peer))
        return work


def _make(store: dist.Store, rank: int, size: int, timeout: timedelta) -> CollcProcessGroup:
    return CollcProcessGroup(store, rank, size, timeout)


def register() -> None:
    """Makes "collc" a backend of torch.distributed; once."""
    if not hasattr(dist.Backend, "COLLC"):
        dist.Backend.register_backend("collc", _make, devices=["cpu"])
