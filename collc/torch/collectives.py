"""Runs the collectives of torch.distributed as calls of the NCCL API.

Arguments are checked in the caller's thread (collc.torch.checks). A tensor that is not contiguous is copied. A call
without elements becomes a small all_reduce, so that ranks that disagree about it get an error and do not hang.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from collc.torch import checks
from collc.torch.calls import (
    BYTES,
    MAX,
    Communicator,
    Dense,
    address_of,
    dense,
    moved_type,
    nccl_operation,
    operation_of,
    reduced_type,
)
from collc.torch.gathered import bitwise, is_bitwise, sparse_sum
from collc.torch.runner import Runner
from collc.torch.work import Work

Tensors = list[torch.Tensor]
_INT64 = 4  # ncclInt64


class Collectives(dist.ProcessGroup):  # type: ignore[misc]
    """The collectives of a process group. The group makes the communicator and the runner."""

    _rank: int
    _size: int
    _seconds: float
    _communicator: Communicator
    _runner: Runner

    def _issue(self, call: str, tensors: Any, task: Callable[[], None], opts: Any = None) -> Work:
        given = getattr(opts, "timeout", None)
        seconds = self._seconds if given is None or given <= timedelta(0) else given.total_seconds()
        return self._runner.submit(call, tensors, task, seconds, not getattr(opts, "asyncOp", True))

    # Blocking calls on dense tensors. The runner calls these.

    def _meet(self) -> None:
        token = torch.zeros(1, dtype=torch.uint8)
        self._communicator.call("ncclAllReduce", address_of(token), address_of(token), 1, BYTES, MAX)

    def _reduce_all(self, tensor: torch.Tensor, op: int) -> None:
        kind, times = reduced_type(tensor)
        if tensor.numel() == 0:
            self._meet()
            return
        address = address_of(tensor)
        self._communicator.call("ncclAllReduce", address, address, tensor.numel() * times, kind, op)

    def _gather_all(self, output: torch.Tensor, given: torch.Tensor) -> None:
        kind, times = moved_type(given)
        if given.numel() == 0:
            self._meet()
            return
        count = given.numel() * times
        self._communicator.call("ncclAllGather", address_of(given), address_of(output), count, kind)

    def _spread(self, tensor: torch.Tensor, root: int) -> None:
        kind, times = moved_type(tensor)
        if tensor.numel() == 0:
            self._meet()
            return
        address = address_of(tensor)
        self._communicator.call("ncclBroadcast", address, address, tensor.numel() * times, kind, root)

    def _reduce_parts(self, output: torch.Tensor, given: torch.Tensor, op: int) -> None:
        kind, times = reduced_type(output)
        if output.numel() == 0:
            self._meet()
            return
        count = output.numel() * times
        self._communicator.call("ncclReduceScatter", address_of(given), address_of(output), count, kind, op)

    def _gathered(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the tensors of all ranks, which have one shape, as one tensor of shape (ranks, *shape)."""
        source = dense(tensor)
        flat = torch.empty((self._size, *source.shape), dtype=source.dtype)
        self._gather_all(flat, source)
        return flat

    # Reductions.

    def _reduction(self, call: str, tensor: torch.Tensor, opts: Any) -> Callable[[], None]:
        """Checks an all_reduce and returns its task."""
        operation = operation_of(opts)
        if tensor.layout is torch.sparse_coo:
            if operation != dist.ReduceOp.SUM:
                raise ValueError(f"{call}: sparse tensors are reduced by SUM alone, not by {operation}")
            return lambda: sparse_sum(self._gathered, tensor)
        checks.tensor(call, "the tensor", tensor)
        if is_bitwise(operation, tensor):
            return lambda: bitwise(self._gathered, tensor, tensor, operation)
        reduced_type(tensor)
        op = nccl_operation(operation, tensor.dtype)

        def run() -> None:
            with Dense(tensor) as whole:
                self._reduce_all(whole, op)

        return run

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Work:
        if len(tensors) != 1:
            raise ValueError(f"all_reduce: one tensor per rank, not {len(tensors)}")
        return self._issue("all_reduce", tensors, self._reduction("all_reduce", tensors[0], opts), opts)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Work:
        tasks = [self._reduction("all_reduce_coalesced", tensor, opts) for tensor in tensors]
        return self._issue("all_reduce_coalesced", tensors, _all(tasks), opts)

    def reduce(self, tensors: Tensors, opts: Any) -> Work:
        tensor, root = checks.one("reduce", "the list", tensors), checks.root("reduce", opts, self._size)
        operation = operation_of(opts)
        if is_bitwise(operation, tensor):
            result = tensor if root == self._rank else torch.empty_like(tensor)
            return self._issue("reduce", tensors, lambda: bitwise(self._gathered, tensor, result, operation), opts)
        (kind, times), op = reduced_type(tensor), nccl_operation(operation, tensor.dtype)

        def run() -> None:
            if tensor.numel() == 0:
                self._meet()
                return
            with Dense(tensor) as whole:
                address = address_of(whole)
                self._communicator.call("ncclReduce", address, address, whole.numel() * times, kind, op, root)

        return self._issue("reduce", tensors, run, opts)

    def _scattering(self, call: str, output: torch.Tensor, given: torch.Tensor, opts: Any) -> Callable[[], None]:
        checks.tensor(call, "the output", output)
        checks.tensor(call, "the input", given)
        checks.times(call, "the input", given, self._size, "output", output)
        operation = operation_of(opts)
        if is_bitwise(operation, output):
            mine = given.view(self._size, *output.shape) if given.is_contiguous() else given.reshape(self._size, -1)
            return lambda: bitwise(self._gathered, mine, output, operation, part=self._rank)
        reduced_type(output)
        op = nccl_operation(operation, output.dtype)

        def run() -> None:
            with Dense(output) as whole:
                self._reduce_parts(whole, dense(given), op)

        return run

    def reduce_scatter_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> Work:
        return self._issue("reduce_scatter", output, self._scattering("reduce_scatter", output, given, opts), opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any = None) -> Work:
        output, parts = checks.one("reduce_scatter", "the output", outputs), _only("reduce_scatter", "input", inputs)
        checks.parts("reduce_scatter", "the input list", parts, self._size, "the output", output)
        given = torch.stack([part.detach() for part in parts])
        return self._issue("reduce_scatter", outputs, self._scattering("reduce_scatter", output, given, opts), opts)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        call = "reduce_scatter_tensor_coalesced"
        tasks = [self._scattering(call, *pair, opts) for pair in _pairs(call, outputs, inputs)]
        return self._issue(call, outputs, _all(tasks), opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # Movements.

    def broadcast(self, tensors: Tensors, opts: Any) -> Work:
        tensor, root = checks.one("broadcast", "the list", tensors), checks.root("broadcast", opts, self._size)

        def run() -> None:
            with Dense(tensor) as whole:
                self._spread(whole, root)

        return self._issue("broadcast", tensors, run, opts)

    def _gathering(self, call: str, output: torch.Tensor, given: torch.Tensor) -> Callable[[], None]:
        checks.tensor(call, "the output", output)
        checks.tensor(call, "the input", given)
        checks.times(call, "the output", output, self._size, "input", given)

        def run() -> None:
            with Dense(output) as whole:
                self._gather_all(whole, dense(given))

        return run

    def all_gather_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> Work:
        return self._issue("all_gather", output, self._gathering("all_gather", output, given), opts)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        call = "all_gather_into_tensor_coalesced"
        tasks = [self._gathering(call, *pair) for pair in _pairs(call, outputs, inputs)]
        return self._issue(call, outputs, _all(tasks), opts)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def _listing(self, call: str, parts: Tensors, given: torch.Tensor) -> Callable[[], None]:
        """Checks an all_gather to a list and returns its task. Tensors may differ in size, but ranks agree on sizes."""
        checks.tensor(call, "the input", given)
        for index, part in enumerate(checks.tensors(call, "the output list", parts, self._size)):
            checks.same_type(call, f"the output list[{index}]", part, "the input", given)
        checks.same_shape(call, f"the output list[{self._rank}]", parts[self._rank], "the input", given)
        even = all(part.numel() == given.numel() for part in parts)

        def run() -> None:
            if even:
                for part, piece in zip(parts, self._gathered(given), strict=True):
                    part.detach().copy_(piece.view(part.shape))
                return
            parts[self._rank].detach().copy_(given)
            for root, part in enumerate(parts):
                with Dense(part) as whole:
                    self._spread(whole, root)

        return run

    def allgather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        given, parts = checks.one("all_gather", "the input", inputs), _only("all_gather", "output", outputs)
        return self._issue("all_gather", outputs, self._listing("all_gather", parts, given), opts)

    def allgather_coalesced(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        call = "all_gather_coalesced"
        if len(outputs) != self._size:
            raise ValueError(f"{call}: {len(outputs)} output lists for {self._size} ranks")
        for given in outputs:
            _pairs(call, given, inputs)
        tasks = [self._listing(call, [lists[k] for lists in outputs], given) for k, given in enumerate(inputs)]
        return self._issue(call, outputs, _all(tasks), opts)

    def gather(self, outputs: list[Tensors], inputs: Tensors, opts: Any) -> Work:
        given, root = checks.one("gather", "the input", inputs), checks.root("gather", opts, self._size)
        parts = _of_root("gather", "output", outputs, root == self._rank)
        if parts is not None:
            checks.parts("gather", "the output list", parts, self._size, "the input", given)
        kind, times = moved_type(given)

        def run() -> None:
            source = dense(given)
            if source.numel() == 0:
                self._meet()
                return
            flat = torch.empty((self._size if parts is not None else 0, *source.shape), dtype=source.dtype)
            count = source.numel() * times
            self._communicator.call("ncclGather", address_of(source), address_of(flat), count, kind, root)
            for part, piece in zip(parts or [], flat, strict=True):
                part.detach().copy_(piece)

        return self._issue("gather", outputs, run, opts)

    def scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any) -> Work:
        output, root = checks.one("scatter", "the output", outputs), checks.root("scatter", opts, self._size)
        parts = _of_root("scatter", "input", inputs, root == self._rank)
        if parts is not None:
            checks.parts("scatter", "the input list", parts, self._size, "the output", output)
        kind, times = moved_type(output)

        def run() -> None:
            if output.numel() == 0:
                self._meet()
                return
            flat = torch.stack([part.detach() for part in parts]) if parts is not None else output
            with Dense(output) as whole:
                count = whole.numel() * times
                self._communicator.call("ncclScatter", address_of(flat), address_of(whole), count, kind, root)

        return self._issue("scatter", outputs, run, opts)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        checks.tensors("all_to_all", "the output list", outputs, self._size)
        checks.tensors("all_to_all", "the input list", inputs, self._size)
        for name, parts in (("output", outputs), ("input", inputs)):
            for index, part in enumerate(parts):
                checks.same_type("all_to_all", f"the {name} list[{index}]", part, "the input list[0]", inputs[0])

        def run() -> None:
            places = [torch.empty_like(output, memory_format=torch.contiguous_format) for output in outputs]
            self._exchange([dense(given) for given in inputs], places)
            for output, place in zip(outputs, places, strict=True):
                output.detach().copy_(place)

        return self._issue("all_to_all", outputs, run, opts)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        given: torch.Tensor,
        output_splits: list[int] | None,
        input_splits: list[int] | None,
        opts: Any = None,
    ) -> Work:
        call = "all_to_all_single"
        checks.tensor(call, "the output", output)
        checks.same_type(call, "the output", output, "the input", checks.tensor(call, "the input", given))
        received = checks.splits(call, "the output", output, output_splits, self._size)
        sent = checks.splits(call, "the input", given, input_splits, self._size)

        def run() -> None:
            source = dense(given)
            with Dense(output) as whole:
                if source.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr():
                    source = source.clone()  # arriving data must not overwrite data that is still to be sent
                self._exchange(source.split(sent), whole.split(received))

        return self._issue(call, output, run, opts)

    alltoall_base = all_to_all_single

    def _exchange(self, sources: Sequence[torch.Tensor], places: Sequence[torch.Tensor]) -> None:
        """Sends sources[i] to rank i and receives places[i] from it, after all ranks have compared all sizes."""
        sizes = [part.numel() * part.element_size() for part in (*sources, *places)]
        table = self._gathered(torch.tensor(sizes, dtype=torch.int64))
        sent, expected = table[:, : self._size], table[:, self._size :].T
        for sender, receiver in (sent != expected).nonzero().tolist():
            raise dist.DistBackendError(
                f"all_to_all: rank {sender} sends {int(sent[sender, receiver])} bytes to rank {receiver}, "
                f"which expects {int(expected[sender, receiver])}"
            )
        lib = self._communicator.lib
        self._communicator.check(lib.ncclGroupStart(), "ncclGroupStart")
        for peer, (source, place) in enumerate(zip(sources, places, strict=True)):
            for name, part in (("ncclSend", source), ("ncclRecv", place)):
                count = part.numel() * part.element_size()
                if count:
                    self._communicator.call(name, address_of(part), count, BYTES, peer)
        self._communicator.check(lib.ncclGroupEnd(), "ncclGroupEnd")

    def barrier(self, opts: Any = None) -> Work:
        return self._issue("barrier", [], self._meet, opts)


def _all(tasks: Sequence[Callable[[], None]]) -> Callable[[], None]:
    def run() -> None:
        for task in tasks:
            task()

    return run


def _only(call: str, name: str, lists: Sequence[Tensors]) -> Tensors:
    if len(lists) != 1:
        raise ValueError(f"{call}: one {name} list per rank, not {len(lists)}")
    return lists[0]


def _of_root(call: str, name: str, lists: Sequence[Tensors], is_root: bool) -> Tensors | None:
    """Returns the list that only the root passes, and None on other ranks."""
    if is_root:
        return _only(call, name, lists)
    if any(len(given) for given in lists):
        raise ValueError(f"{call}: only the root gives an {name} list")
    return None


def _pairs(call: str, outputs: Sequence[Any], inputs: Sequence[torch.Tensor]) -> list[tuple[Any, torch.Tensor]]:
    if len(outputs) != len(inputs):
        raise ValueError(f"{call}: {len(outputs)} outputs for {len(inputs)} inputs")
    return list(zip(outputs, inputs, strict=True))
