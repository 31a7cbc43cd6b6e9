"""The connections of one rank to the others of its group, and the thread that reads them.

Each rank listens on a socket whose address and secret are in the group's store. A rank opens a connection to each rank
that it sends to or waits for, so that it detects the end of that rank's process immediately: by the end of the stream,
or, if a forked child keeps the stream open, by the end of the process. Ranks of one machine use a local socket, ranks
of several machines use TCP (collc/torch/listener.py). A separate thread opens each TCP connection without the lock, and
messages wait until it is open.
"""

from __future__ import annotations

import atexit
import contextlib
import hmac
import os
import select
import socket
import sys
import threading
import time
import weakref
from typing import Protocol

from collc.network.handshake import PeerClosedError, connect_with_secret
from collc.torch.listener import HELLO, Listener, accept_next, connect, handshake_key, is_local
from collc.torch.memory import watch_process
from collc.torch.wire import SECRET_BYTES, Connection, Header, Kind, ProtocolError, user_of
from collc.torch.work import EXIT_SECONDS

_STRANGER_SECONDS = 5.0  # the time limit for the hello of a connection of this machine
_KNOCK_SECONDS = 60.0  # the time limit for the answer of a listening process, which may compute without a free thread
_KNOCK_PAUSE_SECONDS = 0.02
_AFTER_FAILURE_SECONDS = 0.05
_FLUSH_SECONDS = 10.0  # the time limit for peers to read sent messages when a group ends


class Receiver(Protocol):
    """The receiver of messages. The thread of the links calls all methods under their lock, except `work`."""

    def on_message(self, connection: Connection, header: Header, content: bytes) -> None: ...
    def on_data(self, connection: Connection, header: Header) -> memoryview: ...
    def on_end(self, connection: Connection) -> None: ...
    def on_failure(self, error: Exception) -> None: ...
    def work(self) -> float: ...


class Links:
    """The connections to other ranks, which are opened when first needed.

    Args:
        addresses: the addresses of all ranks, in order.
        lock: guards the connections, and the calls of the receiver.
    """

    def __init__(
        self, listener: Listener, addresses: list[str], rank: int, lock: threading.RLock, receiver: Receiver
    ) -> None:
        self._listener, self._addresses, self._rank = listener, addresses, rank
        self._lock, self._receiver = lock, receiver
        self._to: dict[int, Connection] = {}
        self._all: dict[int, Connection] = {}  # by descriptor
        self._callers: set[Connection] = set()  # connections whose stream is not open yet
        self._watches: dict[int, Connection] = {}  # by descriptor
        self._strangers: dict[Connection, float] = {}  # connections without a hello, with the time of their start
        self._closed = False
        self._ended = False
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll = select.epoll()
        for descriptor in (listener.sock.fileno(), self._woken):
            self._poll.register(descriptor, select.EPOLLIN)
        _in_use.add(self)
        self._thread = threading.Thread(target=self._serve, name="collc transfers", daemon=True)

    def start(self) -> None:
        """Starts to read."""
        self._thread.start()
        if self._listener.tcp_listener is not None:
            self._listener.tcp_listener.start(self.wake)

    def to(self, peer: int) -> Connection:
        """Returns the connection to a rank, and opens it if needed.

        Raises:
            OSError: the rank is on this machine and no longer listens. For a rank of another machine, the end of the
                connection reports this.
        """
        if peer not in self._to:
            here = is_local(self._addresses[peer])
            self._to[peer] = self._connect_here(peer) if here else self._call(peer)
        return self._to[peer]

    def _connect_here(self, peer: int) -> Connection:
        connection = self._adopt(connect(self._addresses[peer]), peer, outgoing=True)
        secret = bytes.fromhex(self._addresses[peer].split()[1])
        self.send(connection, Header(Kind.HELLO, self._rank, length=SECRET_BYTES), secret)
        return connection

    def _call(self, peer: int) -> Connection:
        """Returns a connection to a rank of another machine, which a thread opens."""
        connection = Connection(None, peer, outgoing=True)
        self._callers.add(connection)
        threading.Thread(
            target=self._introduce, args=(connection, self._addresses[peer]), name="collc caller", daemon=True
        ).start()
        return connection

    def _introduce(self, connection: Connection, address: str) -> None:
        _, secret, _, host, port = address.split()
        sock = None
        until = time.monotonic() + _KNOCK_SECONDS
        while sock is None and not connection.closed and time.monotonic() < until:
            try:
                sock = connect_with_secret(host, int(port), handshake_key(secret), HELLO.pack(self._rank))
            except (TimeoutError, PeerClosedError, ConnectionResetError):
                time.sleep(_KNOCK_PAUSE_SECONDS)
            except OSError:
                break
        with self._lock:
            self._callers.discard(connection)
            if connection.closed or self._ended:
                if sock is not None:
                    sock.close()
            elif sock is None:
                self.end(connection)
            else:
                connection.attach(sock)
                self._begin(connection)
                self._flush(connection)

    def send(self, connection: Connection, header: Header, content: bytes | memoryview = b"") -> None:
        """Sends a message now, or when the stream accepts it.

        Raises:
            OSError: the other end is closed.
        """
        connection.send(header, content)
        self._want(connection)

    def wake(self) -> None:
        """Makes the thread call `work`."""
        if not self._ended:
            self._ring()

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake, b"w")

    def drain(self, peer: int) -> None:
        """Reads all messages that a rank sent before its end, also from connections that are not accepted yet."""
        self._accept()
        self._admit()
        for connection in list(self._all.values()):
            if connection.peer in (None, peer) and not connection.outgoing:
                self._read(connection)

    def tell(self, header: Header, content: bytes = b"") -> None:
        """Sends a message to all ranks with a connection, over outgoing and incoming connections."""
        for connection in self._connections():
            if connection.peer is not None:
                with contextlib.suppress(OSError):
                    self.send(connection, header._replace(length=len(content)), content)

    def say_goodbye(self) -> None:
        """Sends pending messages and a goodbye, as far as the peers read them within a time limit."""
        until = time.monotonic() + _FLUSH_SECONDS
        if self._lock.acquire(timeout=1):
            self.tell(Header(Kind.BYE))
            self._lock.release()
        while any(connection.pending for connection in self._connections()) and time.monotonic() < until:
            time.sleep(0.001)

    def close(self) -> None:
        """Says goodbye, and ends the thread."""
        self.say_goodbye()
        self.end_thread()
        with self._lock:
            self._release()
        _in_use.discard(self)

    def end_thread(self, seconds: float | None = None) -> None:
        """Ends the thread after its present work, and waits for it up to `seconds` (default: without limit)."""
        self._closed = True
        if self._thread.is_alive():
            self._ring()
            self._thread.join(seconds)

    def _release(self) -> None:
        self._ended = True  # from now on, the numbers of these descriptors may belong to other files
        for connection in self._connections():
            self.forget(connection)
        self._listener.close()
        self._poll.close()
        os.close(self._woken)
        os.close(self._wake)

    def forget(self, connection: Connection) -> None:
        """Closes a connection."""
        if connection.closed:
            return
        if connection.attached:
            self._all.pop(connection.sock.fileno(), None)
        self._callers.discard(connection)
        self._strangers.pop(connection, None)
        if connection.watch is not None:
            self._watches.pop(connection.watch, None)
            os.close(connection.watch)
        connection.close()

    def _connections(self) -> list[Connection]:
        return [*self._all.values(), *self._callers]

    def _adopt(self, sock: socket.socket, peer: int | None, *, outgoing: bool) -> Connection:
        connection = Connection(sock, peer, outgoing)
        self._begin(connection)
        if peer is not None:
            self._watch(connection)
        return connection

    def _begin(self, connection: Connection) -> None:
        connection.sock.setblocking(False)
        self._all[connection.sock.fileno()] = connection
        self._poll.register(connection.sock.fileno(), select.EPOLLIN)

    def _watch(self, connection: Connection) -> None:
        connection.watch = watch_process(connection.process) if connection.process else None
        if connection.watch is not None:
            self._watches[connection.watch] = connection
            self._poll.register(connection.watch, select.EPOLLIN)

    def _want(self, connection: Connection) -> None:
        if connection.attached and not connection.closed and connection.pending != connection.writing:
            connection.writing = connection.pending
            events = select.EPOLLIN | (select.EPOLLOUT if connection.writing else 0)
            self._poll.modify(connection.sock.fileno(), events)

    # The thread.

    def _serve(self) -> None:
        while not self._closed:
            try:
                pause = self._receiver.work()
                events = self._poll.poll(pause)
                with self._lock:
                    for descriptor, event in events:
                        self._happened(descriptor, event)
                    self._drop_strangers()
            except Exception as error:  # other threads wait for this thread, so it must not end
                with self._lock:
                    self._receiver.on_failure(error)
                time.sleep(_AFTER_FAILURE_SECONDS)

    def _happened(self, descriptor: int, event: int) -> None:
        if descriptor == self._woken:
            with contextlib.suppress(BlockingIOError):
                os.read(self._woken, 4096)
            self._admit()
        elif descriptor == self._listener.sock.fileno():
            self._accept()
        elif descriptor in self._watches:
            connection = self._watches[descriptor]
            self._read(connection)
            self.end(connection)
        elif descriptor in self._all:
            connection = self._all[descriptor]
            if event & select.EPOLLOUT:
                self._flush(connection)
            if event & ~select.EPOLLOUT:
                self._read(connection)

    def _flush(self, connection: Connection) -> None:
        try:
            connection.flush()
            self._want(connection)
        except OSError:
            self.end(connection)

    def _accept(self) -> None:
        """Accepts connections of processes of this machine, whose hello is still to come."""
        while (sock := accept_next(self._listener.sock)) is not None:
            if user_of(sock) != os.geteuid():
                sock.close()
                continue
            self._strangers[self._adopt(sock, None, outgoing=False)] = time.monotonic()

    def _admit(self) -> None:
        """Accepts connections of ranks of other machines, which have proved that they know the secret."""
        tcp_listener = self._listener.tcp_listener
        while tcp_listener is not None:
            try:
                hello, sock = tcp_listener.next(0)
            except TimeoutError:
                return
            (rank,) = HELLO.unpack(hello)
            if rank < len(self._addresses):
                self._adopt(sock, rank, outgoing=False)
            else:
                sock.close()

    def _read(self, connection: Connection) -> None:
        try:
            alive = connection.receive(self._handle, self._receiver.on_data)
        except ProtocolError:
            alive = False
        if not alive:
            self.end(connection)

    def _handle(self, connection: Connection, header: Header, content: bytes) -> None:
        if header.kind is not Kind.HELLO:
            self._receiver.on_message(connection, header, content)
            return
        if not hmac.compare_digest(content, self._listener.secret) or header.number >= len(self._addresses):
            raise ProtocolError
        connection.peer = header.number
        self._strangers.pop(connection, None)
        self._watch(connection)

    def end(self, connection: Connection) -> None:
        """Closes a connection and reports its end."""
        if connection.closed:
            return
        self.forget(connection)
        if connection.peer is not None:
            self._receiver.on_end(connection)

    def _drop_strangers(self) -> None:
        for connection, since in list(self._strangers.items()):
            if time.monotonic() - since > _STRANGER_SECONDS:
                self.end(connection)

    def leave_to_parent(self) -> None:
        """Closes the copies of a forked child, which would keep the streams open after the end of the parent."""
        self._closed = self._ended = True
        for connection in list(self._all.values()):
            with contextlib.suppress(OSError):
                os.close(connection.sock.detach())
        for descriptor in (self._listener.sock.detach(), self._woken, self._wake, *self._watches):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        if self._listener.tcp_listener is not None:
            self._listener.tcp_listener.leave_to_parent()
        with contextlib.suppress(OSError):
            self._poll.close()


_in_use: weakref.WeakSet[Links] = weakref.WeakSet()


def _at_exit() -> None:
    """Sends goodbyes if a program ends without an error and without destroying its groups.

    Otherwise other ranks would report that it died. Threads end in any case; collc.torch.work has the reason.
    """
    for links in list(_in_use):
        if getattr(sys, "last_value", None) is None:
            links.say_goodbye()
        links.end_thread(EXIT_SECONDS)


atexit.register(_at_exit)


def _in_child() -> None:
    for links in list(_in_use):
        links.leave_to_parent()
    _in_use.clear()


os.register_at_fork(after_in_child=_in_child)
