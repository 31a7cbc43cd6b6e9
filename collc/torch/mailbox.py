"""Matches sends and receives of a group by source and tag, and moves their tensors while the callers compute.

A small tensor is sent immediately, and its send is done. A large tensor is offered: when a receive matches, the
receiver reads it in the sender's memory, or requests it if the kernel forbids reading. Then its send is done. Tensors
of one source and tag arrive in the order of their sends.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from itertools import chain

import torch
import torch.distributed as dist

from collc.torch.calls import dense, is_plain
from collc.torch.links import Links
from collc.torch.listener import Listener
from collc.torch.memory import read_memory
from collc.torch.operations import Message, Operation
from collc.torch.wire import EAGER_MOST, Connection, Header, Kind, ProtocolError
from collc.torch.work import Callbacks, Work

_IDLE_SECONDS = 1.0


class Mailbox:
    """The sends and receives of one rank.

    Args:
        addresses: the addresses of all ranks' listeners, in order.
    """

    def __init__(self, listener: Listener, addresses: list[str], rank: int) -> None:
        self._rank, self._size = rank, len(addresses)
        self._lock = threading.RLock()
        self._callbacks = Callbacks("collc transfers")
        self._posted: dict[int, list[Operation]] = {}  # receives by tag, in order
        self._arrived: dict[int, list[Message]] = {}  # messages without a receive, by tag, in order
        self._offered: dict[int, Operation] = {}  # sends by number
        self._taken: dict[tuple[Connection, int], Operation] = {}  # receives whose offered tensor is being moved
        self._jobs: list[tuple[Operation, Message]] = []  # offered tensors to read
        self._silent: dict[int, str] = {}  # ranks that send no more, with the reason
        self._deaf: dict[int, str] = {}  # ranks that receive no more, with the reason
        self._left: set[int] = set()
        self._numbers = 0
        self._shortest = float("inf")  # the shortest timeout so far, in seconds
        self._broken: str | None = None
        self._look_at = 0.0  # the time of the next check of timeouts
        self._closed = False
        self._process = os.getpid()
        self._links = Links(listener, addresses, rank, self._lock, self)
        self._links.start()

    # The calls of the group.

    def send(self, tensors: list[torch.Tensor], to: int, tag: int, seconds: float) -> Work:
        """Sends a tensor. The work is done when the tensor may be changed."""
        operation = self._operation("send", tensors, to, tag, seconds)
        with self._lock:
            why = self._why_closed() or self._deaf.get(to)
            if why is None:
                try:
                    self._send(operation, to)
                except OSError:
                    self._lost(to)
                    why = self._deaf[to]
            if why is not None:
                self._fail(operation, why)
        return operation.work

    def receive(self, tensors: list[torch.Tensor], source: int | None, tag: int, seconds: float) -> Work:
        """Receives a tensor from a rank, or from any rank (None)."""
        operation = self._operation("recv", tensors, source, tag, seconds)
        with self._lock:
            message = None if self._closed else self._find(operation)
            why = self._why_closed()
            if message is not None:  # a message that a rank sent before it died counts, too
                self._match(operation, message)
                if self._jobs:
                    self._links.wake()
            elif why is not None:
                self._fail(operation, why)
            else:
                self._posted.setdefault(tag, []).append(operation)
                self._listen_to(source)
                self._fail_hopeless()
        return operation.work

    def withdraw(self, work: Work) -> None:
        """Cancels a receive that has no message yet."""
        with self._lock:
            for waiting in self._posted.values():
                for receive in [receive for receive in waiting if receive.work is work]:
                    waiting.remove(receive)
                    self._fail(receive, "it was given up")

    def close(self) -> None:
        """Leaves the group. Unfinished operations fail, here and on ranks that wait for this rank."""
        if self._closed or os.getpid() != self._process:
            return
        with self._lock:
            self._closed = True
            for operation in self._everything():
                self._fail(operation, "the group was destroyed before it was done")
        self._links.close()
        self._callbacks.stop()

    def _operation(
        self, call: str, tensors: list[torch.Tensor], peer: int | None, tag: int, seconds: float
    ) -> Operation:
        if os.getpid() != self._process:
            raise dist.DistBackendError(f"{call}: the group belongs to the parent of this forked process")
        (given,) = tensors
        whole = dense(given) if call == "send" or is_plain(given) else torch.empty(given.shape, dtype=given.dtype)
        deadline = time.monotonic() + seconds if seconds > 0 else float("inf")
        with self._lock:
            if 0 < seconds < self._shortest:
                self._shortest = seconds
                self._look_at = 0.0
                self._links.wake()
        return Operation(Work(call, tensors, self._callbacks.depth()), peer, tag, whole, given, seconds, deadline)

    def _why_closed(self) -> str | None:
        return "the group was destroyed" if self._closed else self._broken

    # Sending.

    def _send(self, operation: Operation, to: int) -> None:
        connection = self._links.to(to)
        count = operation.count
        if count <= EAGER_MOST and count <= connection.credit:
            connection.credit -= count
            content = ctypes.string_at(operation.whole.data_ptr(), count) if count else b""
            self._links.send(connection, Header(Kind.EAGER, 0, operation.tag, count), content)
            self._end(operation)
            return
        self._numbers += 1
        self._offered[self._numbers] = operation
        header = Header(Kind.OFFER, self._numbers, operation.tag, count, operation.whole.data_ptr())
        try:
            self._links.send(connection, header)
        except OSError:
            del self._offered[self._numbers]
            raise

    # Matching.

    def _find(self, receive: Operation) -> Message | None:
        """Returns the first waiting message that matches a receive, and removes it; None if there is none."""
        messages = self._arrived.get(receive.tag, [])
        for place, message in enumerate(messages):
            if receive.peer in (None, message.source):
                del messages[place]
                return message
        return None

    def _arrive(self, message: Message) -> None:
        waiting = self._posted.get(message.header.tag, [])
        for place, receive in enumerate(waiting):
            if receive.peer in (None, message.source):
                del waiting[place]
                self._match(receive, message)
                return
        self._arrived.setdefault(message.header.tag, []).append(message)

    def _match(self, receive: Operation, message: Message) -> None:
        receive.work.source = source = message.source
        if message.header.length != receive.count:
            why = (
                f"rank {source} sent {message.header.length} bytes with tag {receive.tag} to rank {self._rank}, "
                f"which received them into a tensor of {receive.count} bytes"
            )
            self._fail(receive, why)
            self._refuse(message.connection, why)
        elif message.content is None:
            self._taken[message.connection, message.header.number] = receive
            self._jobs.append((receive, message))
        else:
            if receive.count:
                ctypes.memmove(receive.whole.data_ptr(), message.content, receive.count)
            credit = message.connection.took(receive.count)
            if credit:
                self._answer(message.connection, Header(Kind.CREDIT, length=credit))
            self._end(receive)

    def _answer(self, connection: Connection, header: Header, content: bytes = b"") -> bool:
        """Sends an answer. Returns False if the sender of tensors is gone, which the end of its connection reports."""
        try:
            if not connection.closed:
                self._links.send(connection, header, content)
        except OSError:
            return False
        return not connection.closed

    def _refuse(self, connection: Connection, why: str) -> None:
        """Accepts no more messages from a rank, and sends it the reason."""
        text = why.encode()
        assert connection.peer is not None
        self._silent.setdefault(connection.peer, why)
        for messages in self._arrived.values():  # later messages must not take the place of the lost tensor
            messages[:] = [message for message in messages if message.connection is not connection]
        self._answer(connection, Header(Kind.REFUSE, length=len(text)), text)
        self._fail_hopeless()

    # The calls of the links.

    def on_message(self, connection: Connection, header: Header, content: bytes) -> None:
        peer = connection.peer
        assert peer is not None
        if header.kind is Kind.BYE:
            self._left.add(peer)
        elif header.kind is Kind.BROKEN:
            self._break_group(content.decode(errors="replace"))
        elif connection.outgoing:
            self._on_answer(connection, header, content)
        elif header.kind is Kind.DATA:
            receive = self._taken.pop((connection, header.number))  # on_data has checked that it exists
            self._answer(connection, Header(Kind.DONE, header.number))
            self._end(receive)
        elif peer in self._silent:
            return  # refused before
        elif header.kind in (Kind.EAGER, Kind.OFFER):
            self._arrive(Message(connection, header, content if header.kind is Kind.EAGER else None))
        else:
            raise ProtocolError

    def _on_answer(self, connection: Connection, header: Header, content: bytes) -> None:
        assert connection.peer is not None
        if header.kind is Kind.CREDIT:
            connection.credit += header.length
        elif header.kind is Kind.DONE:
            operation = self._offered.pop(header.number, None)
            if operation is not None:
                self._end(operation)
        elif header.kind is Kind.PULL:
            operation = self._offered.get(header.number)
            if operation is not None:
                data = Header(Kind.DATA, header.number, operation.tag, operation.count)
                self._links.send(connection, data, operation.memory())
        elif header.kind is Kind.REFUSE:
            self._deaf.setdefault(connection.peer, content.decode(errors="replace"))
            self._fail_sends(connection.peer)
        else:
            raise ProtocolError

    def on_data(self, connection: Connection, header: Header) -> memoryview:
        receive = self._taken.get((connection, header.number))
        if receive is None or receive.count != header.length:
            raise ProtocolError
        return receive.memory()

    def on_end(self, connection: Connection) -> None:
        assert connection.peer is not None
        self._lost(connection.peer)
        for key, receive in list(self._taken.items()):
            if key[0] is connection:
                del self._taken[key]
                self._fail(receive, self._silent[connection.peer])
        for messages in self._arrived.values():
            messages[:] = [m for m in messages if m.connection is not connection or m.content is not None]

    def on_failure(self, error: Exception) -> None:
        self._break_group(f"the thread of transfers of rank {self._rank} failed: {type(error).__name__}: {error}")

    def work(self) -> float:
        """Reads offered tensors, without the lock, and fails late operations. Returns the seconds to sleep."""
        while True:
            with self._lock:
                if not self._jobs:
                    self._fail_late()
                    return self._pause()
                receive, message = self._jobs.pop(0)
            connection, header = message.connection, message.header
            read = connection.readable and read_memory(
                connection.process, header.address, receive.whole.data_ptr(), receive.count
            )
            with self._lock:
                key = (connection, header.number)
                if self._taken.get(key) is not receive:
                    continue  # failed meanwhile
                if read and self._answer(connection, Header(Kind.DONE, header.number)):
                    del self._taken[key]
                    self._end(receive)
                elif not read:
                    connection.readable = False
                    self._answer(connection, Header(Kind.PULL, header.number))

    def _pause(self) -> float:
        """Returns the interval of checks of timeouts, in seconds."""
        return min(_IDLE_SECONDS, max(0.005, self._shortest / 20))

    # Ends.

    def _listen_to(self, source: int | None) -> None:
        """Connects to the ranks that a receive waits for, because the connection shows the end of a rank."""
        others = [peer for peer in range(self._size) if peer != self._rank]
        for peer in others if source is None else [source]:
            if peer not in self._silent:
                try:
                    self._links.to(peer)
                except OSError:
                    self._lost(peer)

    def _lost(self, peer: int) -> None:
        """Handles the end of a rank. Messages that it sent before still count."""
        self._links.drain(peer)
        why = (
            f"rank {peer} has left the group"
            if peer in self._left
            else f"rank {peer} is gone: its process ended, was killed, or left the group after an error"
        )
        self._silent.setdefault(peer, why)
        self._deaf.setdefault(peer, why)
        if peer not in self._left:
            self._break_group(why)
        self._fail_sends(peer)
        self._fail_hopeless()

    def _break_group(self, why: str) -> None:
        """Fails all operations and tells all ranks, because some may wait for a rank that waits for the dead one."""
        if self._broken is not None or self._closed:
            return
        self._broken = why
        for operation in self._everything():
            self._fail(operation, why)
        self._posted.clear()
        self._offered.clear()
        self._taken.clear()
        self._links.tell(Header(Kind.BROKEN), why.encode())

    def _fail_sends(self, to: int) -> None:
        for number, operation in list(self._offered.items()):
            if operation.peer == to:
                del self._offered[number]
                self._fail(operation, self._deaf[to])

    def _fail_hopeless(self) -> None:
        """Fails receives that cannot get a message. A receive from any source fails if some rank was refused."""
        if not self._silent:
            return
        refused = [why for peer, why in self._silent.items() if peer not in self._left]
        nobody = len(self._silent.keys() - {self._rank}) == self._size - 1
        for waiting in self._posted.values():
            for receive in list(waiting):
                if receive.peer is not None:
                    why = self._silent.get(receive.peer)
                else:
                    why = refused[0] if refused else next(iter(self._silent.values())) if nobody else None
                if why is not None:
                    waiting.remove(receive)
                    self._fail(receive, why)

    def _fail_late(self) -> None:
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + self._pause()
        for operation in self._everything():
            if operation.deadline > now:
                continue
            why = f"Timed out waiting {operation.seconds * 1e3:.0f}ms for {operation.work.call} operation to complete"
            waiting = self._posted.get(operation.tag, [])
            if operation in waiting:
                waiting.remove(operation)
                self._fail(operation, why)
            else:
                self._break(operation, why)

    def _break(self, operation: Operation, why: str) -> None:
        """Fails an operation that the other side may be processing, and ends its connection to release its memory."""
        self._fail(operation, why)
        for key, receive in list(self._taken.items()):
            if receive is operation:
                self._silent.setdefault(key[0].peer or 0, why)
                self._links.end(key[0])
        for number, send in list(self._offered.items()):
            if send is operation:
                del self._offered[number]
                assert send.peer is not None
                self._deaf.setdefault(send.peer, why)
                self._links.end(self._links.to(send.peer))

    def _everything(self) -> list[Operation]:
        return [*chain(*self._posted.values()), *self._taken.values(), *self._offered.values()]

    def _end(self, operation: Operation) -> None:
        try:
            operation.deliver()
        except RuntimeError as error:
            self._fail(operation, str(error))
            return
        if operation.work.end():
            self._callbacks.complete(operation.work)

    def _fail(self, operation: Operation, why: str) -> None:
        if operation.work.end(dist.DistBackendError(f"{operation.work.call}: {why}")):
            self._callbacks.complete(operation.work)
