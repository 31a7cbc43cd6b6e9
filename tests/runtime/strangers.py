"""A crowd of strangers at the listener of an id: `strangers.py UNIQUE_ID HOW COUNT [HOLD]`.

HOW: "silent" connections say nothing, "slow" ones a byte now and then, "garbage" sends what is no hello, "wrong" a
hello with another secret, "passing" ones close at once; "mixed" takes turns. COUNT connections are made (0: no end),
and the last HOLD of them stay open. Prints a line at the start and a line after the last connection. Ends with its
standard input.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import select
import socket
import struct
import sys
import time
from collections import deque

HELLO_MAGIC = 0x636C6C34
WAYS = ("silent", "slow", "garbage", "wrong", "passing")


def addresses(unique: bytes) -> list[str | tuple[str, int]]:
    """Where the listener of an id is: its local socket, and TCP if it has one."""
    found: list[str | tuple[str, int]] = ["\0collc:" + unique[48:64].hex()]
    (family,) = struct.unpack_from("=H", unique, 10)
    if family == socket.AF_INET:
        (port,) = struct.unpack_from("!H", unique, 8)
        found.append((socket.inet_ntoa(unique[16:20]), port))
    return found


def hello(unique: bytes, rank: int = 1, nranks: int = 2, secret: bytes | None = None) -> bytes:
    """Returns the hello of a rank, by default with a secret that is wrong in one bit."""
    (number,) = struct.unpack_from("=I", unique, 80)
    wrong = bytes([unique[32] ^ 1]) + unique[33:48]
    words = struct.pack("=4I", HELLO_MAGIC, number, rank, nranks) + os.urandom(16)
    key = (wrong if secret is None else secret).hex().encode()
    return words + hmac.digest(key, b"collc calls" + words, hashlib.sha256)


def connect(address: str | tuple[str, int]) -> socket.socket | None:
    one = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
    one.settimeout(0.2)
    try:
        one.connect(address)
    except OSError:
        one.close()
        return None
    one.setblocking(False)
    return one


def main() -> None:
    unique, how, count = bytes.fromhex(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    hold = int(sys.argv[4]) if len(sys.argv) > 4 else 900
    doors = addresses(unique)
    held: deque[socket.socket] = deque()
    made = turn = 0
    print("begins", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        if count and made >= count:
            if made == count:
                print("made all", flush=True)
                made += 1
            time.sleep(0.02)
        elif (one := connect(doors[turn % len(doors)])) is not None:
            made += 1
            turn += 1
            way = WAYS[turn // len(doors) % len(WAYS)] if how == "mixed" else how
            held.append(one)
            with contextlib.suppress(OSError):
                if way == "slow":
                    one.send(hello(unique)[:1])
                elif way == "garbage":
                    one.send(bytes(range(200)))
                elif way == "wrong":
                    one.send(hello(unique))
                elif way == "passing":
                    held.pop().close()
        else:
            turn += 1
        while len(held) > hold:
            held.popleft().close()
        if how in ("slow", "mixed") and held:
            with contextlib.suppress(OSError):
                held[turn % len(held)].send(b"c")
        if how == "slow":
            turn += 1


if __name__ == "__main__":
    main()
