"""Connects to each TCP port of some processes as soon as it opens, and sends garbage, nothing, or wrong secrets."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from support.ports import ports_of

EACH = 125  # connections of every kind


class Siege:
    """500 connections to each port, which stay; the ports are found by the sockets that the processes hold.

    Attributes:
        met: the ports of each process so far, once all connections to them are under way.
    """

    def __init__(self, processes: Sequence[int], hello: bytes) -> None:
        # A whole hello with a wrong proof, half of one, and two that are none.
        self._words = (hello, hello[: len(hello) // 2], b"\xff" * 4096, b"")
        self._processes = processes
        self._sockets: list[socket.socket] = []
        self._over = threading.Event()
        self.met: dict[int, set[int]] = {process: set() for process in processes}

    def run(self) -> None:
        while not self._over.is_set():
            for first in self._processes:
                for process in _with_children(first):
                    with contextlib.suppress(OSError):  # it has ended
                        for port in ports_of(process) - self.met[first]:
                            self._crowd(port)
                            self.met[first].add(port)
            time.sleep(0.001)

    def _crowd(self, port: int) -> None:
        made = []
        for words in self._words:
            for _ in range(EACH):
                one = socket.socket()
                one.setblocking(False)  # a process that is stopped has no seats: the rest waits in the system
                one.connect_ex(("127.0.0.1", port))
                made.append((one, words))
        for one, words in made:
            with contextlib.suppress(OSError):
                one.sendall(words)
            self._sockets.append(one)

    def wait_for(self, counts: Sequence[int]) -> None:
        """Waits until `counts` ports of each process have had a visitor."""
        deadline = time.monotonic() + 60
        while (now := [len(self.met[process]) for process in self._processes]) != list(counts):
            assert time.monotonic() < deadline, f"{now} ports, not {counts}"
            time.sleep(0.01)

    def end(self) -> None:
        self._over.set()

    def go(self) -> None:
        for one in self._sockets:
            one.close()


def _with_children(process: int) -> list[int]:
    found = [process]
    for one in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{one}/task").iterdir():
                found += map(int, (task / "children").read_text(encoding="ascii").split())
    return found


@contextlib.contextmanager
def besieged(processes: Sequence[int], hello: bytes) -> Iterator[Siege]:
    """Meanwhile, in a thread."""
    siege = Siege(processes, hello)
    thread = threading.Thread(target=siege.run)
    thread.start()
    try:
        yield siege
    finally:
        siege.end()
        thread.join()
        siege.go()
