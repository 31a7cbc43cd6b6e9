"""The contents of a mailbox: sends and receives that have not ended, and tensors that have arrived."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field

import torch

from collc.torch.wire import Connection, Header
from collc.torch.work import Work


@dataclass(eq=False)
class Operation:
    """A send or receive that has not ended."""

    work: Work
    peer: int | None  # None: from any source
    tag: int
    whole: torch.Tensor  # contiguous
    given: torch.Tensor
    seconds: float
    deadline: float
    count: int = field(init=False)  # bytes

    def __post_init__(self) -> None:
        self.count = self.whole.numel() * self.whole.element_size()

    def memory(self) -> memoryview:
        """Returns a view of the tensor's bytes. There must be at least one, because a view cannot be empty."""
        return memoryview((ctypes.c_char * self.count).from_address(self.whole.data_ptr())).cast("B")

    def deliver(self) -> None:
        """Copies a received tensor to the caller's tensor, if these differ.

        Raises:
            RuntimeError: the tensor cannot be written, such as one whose elements share memory.
        """
        if self.work.call == "recv" and self.whole is not self.given:
            self.given.detach().copy_(self.whole)


@dataclass(eq=False)
class Message:
    """A tensor that has arrived or is offered."""

    connection: Connection
    header: Header
    content: bytes | None  # None: the tensor is offered

    @property
    def source(self) -> int:
        assert self.connection.peer is not None
        return self.connection.peer
