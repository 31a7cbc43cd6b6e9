"""The listening socket of a rank, and the first steps of a connection to it.

Ranks of one machine use a local socket and send the secret over it. Ranks of several machines use TCP, where both ends
prove that they know the secret (collc/network/handshake.py).
"""

from __future__ import annotations

import secrets
import socket
import struct

from collc.network.handshake import HandshakeListener, key_of, watch_peer
from collc.network.interfaces import family_of, outward_address, socket_address
from collc.network.machine import this_machine
from collc.torch.wire import SECRET_BYTES

_CONNECT_SECONDS = 10.0
HELLO = struct.Struct("<Q")  # on TCP: the rank


class Listener:
    """Listens for the other ranks, which must know the address and the secret.

    The local address is in the abstract namespace: it leaves no file, and only processes of this user are accepted.
    Groups on several machines also have a TCP port. The secret is never sent over TCP.
    """

    def __init__(self) -> None:
        self.secret = secrets.token_bytes(SECRET_BYTES)
        self.name = f"collc-{secrets.token_hex(16)}"
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.bind(f"\0{self.name}")
        self.sock.listen(1024)
        self.sock.setblocking(False)
        self.tcp_listener: HandshakeListener | None = None

    @property
    def address(self) -> str:
        return f"{self.name} {self.secret.hex()} {this_machine()}"

    def open_port(self) -> str:
        """Opens a port for other machines. Returns its address and port, separated by a space.

        Raises:
            CollcError: a variable names an interface that does not exist, or no interface is up.
            OSError: this process cannot listen there.
        """
        address = outward_address()
        self.tcp_listener = HandshakeListener(address, 0, handshake_key(self.secret.hex()), HELLO.size)
        return f"{address} {self.tcp_listener.port}"

    def close(self) -> None:
        self.sock.close()
        if self.tcp_listener is not None:
            self.tcp_listener.close()


def handshake_key(secret: str) -> bytes:
    """Returns the key that two ranks of a group use to prove that they know the secret."""
    return key_of("collc.torch", secret)


def is_local(address: str) -> bool:
    """Returns True if a rank is reached by its local socket."""
    _, _, machine, *public = address.split()
    return machine == this_machine() or not public


def connect(address: str) -> socket.socket:
    """Opens a connection to a rank. Over TCP, neither end has proved itself yet.

    Args:
        address: name, secret and machine of the rank, and for a group of several machines its TCP address and port.

    Raises:
        OSError: nothing listens there.
    """
    name, _, _, *public = address.split()
    is_here = is_local(address)
    sock = socket.socket(socket.AF_UNIX if is_here else family_of(public[0]), socket.SOCK_STREAM)
    try:
        sock.settimeout(_CONNECT_SECONDS)
        sock.connect(f"\0{name}" if is_here else socket_address(public[0], int(public[1])))
        if not is_here:
            watch_peer(sock)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def accept_next(listening: socket.socket) -> socket.socket | None:
    """Returns the next connection of a socket; None if no caller waits, or if no descriptor is left for it."""
    try:
        return listening.accept()[0]
    except OSError:
        return None


class Watch:
    """Observes whether the process of a listener is alive, also while it accepts no connections."""

    def __init__(self, address: str) -> None:
        try:
            self._sock: socket.socket | None = connect(address)
        except OSError:
            self._sock = None

    def alive(self) -> bool:
        try:
            return self._sock is not None and bool(self._sock.recv(1))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
