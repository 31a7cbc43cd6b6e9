"""A connection between two ranks: whole messages over a stream that never blocks.

A message is a header of 40 bytes and, for some kinds, a number of bytes that the header has. A process of this machine
must first send a hello with the secret. The ends of a TCP connection prove that they know the secret before it becomes
a connection here.
"""

from __future__ import annotations

import enum
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

_HEADER = struct.Struct("<BxxxxxxxQqQQ")
SECRET_BYTES = 32
EAGER_MOST = 16 << 10  # the most bytes of a tensor that is sent without being requested
_CREDIT_AT = 256 << 10  # the bytes of received small tensors after which the sender gets a credit
TEXT_MOST = 4096  # the most bytes of a reason
_ONCE = 256 << 10  # the bytes read by one system call


class Kind(enum.IntEnum):
    """The kind of a message. The sender of tensors sends HELLO to DATA, their receiver sends DONE to CREDIT."""

    HELLO = 1  # number: rank; with the secret
    EAGER = 2  # a tensor, with its bytes
    OFFER = 3  # a tensor at `address`, which the receiver reads there
    DATA = 4  # the bytes of an offered tensor, after PULL
    DONE = 5  # an offered tensor was read
    PULL = 6  # the receiver cannot read an offered tensor in the sender's memory, and requests its bytes
    REFUSE = 7  # no message of this connection is accepted any more; with the reason
    CREDIT = 8  # `length` bytes of eager tensors were received
    BYE = 9  # this rank leaves the group
    BROKEN = 10  # a rank has died, so the group fails; with the reason


_WITH_BYTES = {Kind.HELLO: SECRET_BYTES, Kind.EAGER: EAGER_MOST, Kind.REFUSE: TEXT_MOST, Kind.BROKEN: TEXT_MOST}


class Header(NamedTuple):
    """The header of every message."""

    kind: Kind
    number: int = 0  # the number of the offer
    tag: int = 0
    length: int = 0  # bytes
    address: int = 0

    def pack(self) -> bytes:
        return _HEADER.pack(*self)


class ProtocolError(Exception):
    """Raised if the peer sends bytes that are no message."""


class Connection:
    """A stream to or from one rank. The owner's lock guards it.

    Args:
        sock: the stream; None until `attach`. Messages wait for it.
        peer: the rank at the other end; None until its hello.
        outgoing: this side opened it and sends its tensors over it.
    """

    def __init__(self, sock: socket.socket | None, peer: int | None, outgoing: bool) -> None:
        self._sock = sock
        self.peer = peer
        self.outgoing = outgoing
        self.process = 0 if sock is None else _process_of(sock)
        self.watch: int | None = None  # a descriptor that becomes readable when that process ends
        self.readable = self.process != 0  # the memory of the process can be read
        self.credit = 4 << 20  # the bytes of eager tensors that may be sent before the next credit
        self._taken = 0  # the bytes of received eager tensors without a credit
        self.writing = False  # the poll waits until more can be written
        self.closed = False
        self._out: deque[memoryview] = deque()
        self._in = bytearray()
        self._target: memoryview | None = None  # the memory for the rest of a DATA message
        self._target_of: Header | None = None

    @property
    def sock(self) -> socket.socket:
        assert self._sock is not None
        return self._sock

    @property
    def attached(self) -> bool:
        return self._sock is not None

    def attach(self, sock: socket.socket) -> None:
        """Gives the connection its stream, to another machine."""
        self._sock = sock

    @property
    def pending(self) -> bool:
        """True if data waits to be written."""
        return bool(self._out)

    def send(self, header: Header, content: bytes | memoryview = b"") -> None:
        """Sends a message now, or as soon as the stream accepts it. Large contents are not copied.

        Raises:
            OSError: the other end is closed.
        """
        if len(content) <= EAGER_MOST:
            self._out.append(memoryview(header.pack() + content))
        else:
            self._out.extend((memoryview(header.pack()), memoryview(content)))
        if len(self._out) <= 2:
            self.flush()

    def flush(self) -> None:
        if self.closed:
            raise BrokenPipeError
        while self._out and self._sock is not None:
            try:
                sent = self._sock.send(self._out[0], socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return
            if sent == len(self._out[0]):
                self._out.popleft()
            else:
                self._out[0] = self._out[0][sent:]

    def receive(
        self, handle: Callable[[Connection, Header, bytes], None], target: Callable[[Connection, Header], memoryview]
    ) -> bool:
        """Handles all messages that have arrived.

        Args:
            handle: is called with a message and its bytes; for DATA, without bytes when all are in the target.
            target: returns the memory for the bytes of a DATA message.

        Returns:
            False if the other end has closed the stream.
        """
        while not self.closed:
            try:
                if self._target is not None:
                    got = self.sock.recv_into(self._target)
                    self._filled(got, handle)
                else:
                    fresh = self.sock.recv(_ONCE)
                    got = len(fresh)
                    self._in += fresh
                    self._parse(handle, target)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not got:
                return False
        return False

    def _filled(self, count: int, handle: Callable[[Connection, Header, bytes], None]) -> None:
        assert self._target is not None
        assert self._target_of is not None
        self._target = self._target[count:]
        if not self._target:
            header, self._target, self._target_of = self._target_of, None, None
            handle(self, header, b"")

    def _parse(
        self, handle: Callable[[Connection, Header, bytes], None], target: Callable[[Connection, Header], memoryview]
    ) -> None:
        at = 0
        while self._target is None and len(self._in) - at >= _HEADER.size and not self.closed:
            header = self._header(at)
            begin = at + _HEADER.size
            if header.kind is Kind.DATA:
                self._target, self._target_of = target(self, header), header
                ready = bytes(self._in[begin : begin + header.length])
                self._target[: len(ready)] = ready
                self._filled(len(ready), handle)
                at = begin + len(ready)
                continue
            end = begin + (header.length if header.kind in _WITH_BYTES else 0)
            if len(self._in) < end:
                break
            handle(self, header, bytes(self._in[begin:end]))
            at = end
        del self._in[:at]

    def _header(self, at: int) -> Header:
        kind, *rest = _HEADER.unpack_from(self._in, at)
        if kind not in Kind.__members__.values() or (self.peer is None) != (kind == Kind.HELLO):
            raise ProtocolError
        header = Header(Kind(kind), *rest)
        if header.kind in _WITH_BYTES and header.length > _WITH_BYTES[header.kind]:
            raise ProtocolError
        return header

    def took(self, count: int) -> int:
        """Counts `count` received bytes of eager tensors. Returns the bytes of a credit to send now, or 0."""
        self._taken += count
        if self._taken < _CREDIT_AT:
            return 0
        credit, self._taken = self._taken, 0
        return credit

    def close(self) -> None:
        self.closed = True
        if self._sock is not None:
            self._sock.close()
        self._out.clear()


def _process_of(sock: socket.socket) -> int:
    """Returns the process at the other end; 0 if it is on another machine or in another namespace."""
    if sock.family != socket.AF_UNIX:
        return 0
    process, _ = _peer_of(sock)
    return process


def user_of(sock: socket.socket) -> int:
    """Returns the user of the process at the other end."""
    _, user = _peer_of(sock)
    return user


def _peer_of(sock: socket.socket) -> tuple[int, int]:
    process, user, _ = struct.unpack("iii", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return process, user
