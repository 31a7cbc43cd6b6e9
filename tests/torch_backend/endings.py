"""Programs that end while a thread of the backend runs PyTorch's code: prints their exit codes as JSON.

Each is a forked child, so that PyTorch is imported once for all of them.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable

import torch

from collc.torch.listener import Listener
from collc.torch.mailbox import Mailbox
from collc.torch.runner import Runner

in_callback = threading.Event()
kept: list[object] = []  # a program's groups live as long as it does


def callback(_: object) -> None:
    """Takes and leaves the interpreter's lock for longer than the interpreter needs to end."""
    in_callback.set()
    until = time.monotonic() + 0.7
    while time.monotonic() < until:
        time.sleep(0.001)


def in_a_collective() -> None:
    runner = Runner(lambda: None)
    work = runner.submit("all_reduce", [], lambda: None, 0.0, at_once=False)
    work.get_future().then(callback)
    kept.extend([runner, work])


def in_a_transfer() -> None:
    listeners = [Listener() for _ in range(2)]
    boxes = [Mailbox(one, [one.address for one in listeners], rank) for rank, one in enumerate(listeners)]
    work = boxes[1].receive([torch.zeros(5)], 0, 0, 60.0)
    work.get_future().then(callback)
    boxes[0].send([torch.ones(5)], 1, 0, 60.0)
    kept.extend([boxes, work])


def in_a_call_that_nobody_ends() -> None:
    broken_off = threading.Event()
    runner = Runner(broken_off.set)

    def task() -> None:
        in_callback.set()
        broken_off.wait()

    work = runner.submit("all_reduce", [], task, 0.0, at_once=False)
    work.get_future().then(callback)
    kept.extend([runner, work])


def exits() -> None:
    sys.exit(3)


def raises() -> None:
    raise ValueError("for the test")


def returns() -> None:
    sys.exit(0)


def main() -> int:
    codes = {}
    for during in (in_a_collective, in_a_transfer, in_a_call_that_nobody_ends):
        for ending in (returns, exits, raises):
            codes[f"{during.__name__} {ending.__name__}"] = run(during, ending)
    print(json.dumps(codes))
    return 0


def run(during: Callable[[], None], ending: Callable[[], None]) -> int:
    process = os.fork()
    if process == 0:
        during()
        assert in_callback.wait(30)
        ending()
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


if __name__ == "__main__":
    sys.exit(main())
