"""Runs the collectives of a group, one after the other, in the order of their issue.

All ranks must run the same calls in the same order, including calls that callbacks of futures issue (PowerSGD). So the
callbacks of an operation run before the next operation starts, and operations that they issue precede it on every rank.

An operation that the caller waits for runs in the caller's thread if no other is running, because passing it to another
thread and back costs more than a small all_reduce.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from collc.torch.work import EXIT_SECONDS, Callbacks, Work

Task = Callable[[], None]


class Runner:
    """Runs tasks, and ends a task that takes too long.

    Args:
        break_off: ends the running call in another thread (ncclCommAbort). No call works afterwards.
    """

    def __init__(self, break_off: Callable[[], None]) -> None:
        self._break_off = break_off
        self._callbacks = Callbacks("collc")
        self._queues: list[queue.SimpleQueue[tuple[Work, Task, float] | None]] = [queue.SimpleQueue()]
        self._lock = threading.Lock()
        self._outstanding = 0  # operations of depth 0 that have not ended
        self._executing = threading.Lock()
        self._failure: str | None = None  # the reason why no task runs any more
        self._process = os.getpid()
        self._deadline: tuple[float, float, str] | None = None  # of the running call: its end, time limit and name
        self._shortest = float("inf")  # the shortest time limit so far, in seconds
        self._look_sooner = threading.Event()
        self._ended = False
        self._threads = [
            threading.Thread(target=target, name=name, daemon=True)
            for target, name in ((self._serve, "collc"), (self._watch, "collc timeouts"))
        ]
        for thread in self._threads:
            thread.start()
        _in_use.add(self)

    def submit(self, call: str, tensors: Any, task: Task, seconds: float, at_once: bool) -> Work:
        """Issues an operation.

        Args:
            task: the operation; any exception fails the work.
            seconds: the time limit of the task; 0 for none. If it is exceeded, the group fails.
            at_once: the caller is going to wait for it.

        Raises:
            RuntimeError: the runner has ended, or this is a forked child, which has none of the threads.
        """
        if os.getpid() != self._process:
            raise dist.DistBackendError(f"{call}: the group belongs to the parent of this forked process")
        work = Work(call, tensors, self._callbacks.depth())
        if work.depth == 0:
            if self._ended:
                raise dist.DistBackendError(f"{call}: the group was destroyed")
            with self._lock:
                alone = at_once and self._outstanding == 0
                self._outstanding += 1
            if alone:
                try:
                    with self._executing:
                        self._execute(work, task, seconds)
                finally:
                    with self._lock:
                        self._outstanding -= 1
                return work
        self._queue(work.depth).put((work, task, seconds))
        return work

    def _queue(self, depth: int) -> queue.SimpleQueue[tuple[Work, Task, float] | None]:
        with self._lock:
            while len(self._queues) <= depth:
                self._queues.append(queue.SimpleQueue())
            return self._queues[depth]

    def _serve(self, depth: int = 0) -> None:
        tasks = self._queue(depth)
        while (item := tasks.get()) is not None:
            work, task, seconds = item
            with self._executing:
                has_future = self._execute(work, task, seconds)
            if has_future:
                inner = self._queue(depth + 1)
                self._callbacks.complete(work, after=lambda inner=inner: inner.put(None))  # type: ignore[misc]
                self._serve(depth + 1)
            if depth == 0:
                with self._lock:
                    self._outstanding -= 1

    def _execute(self, work: Work, task: Task, seconds: float) -> bool:
        """Runs a task to its end and ends its work with any error. Returns whether a future waits for it."""
        error: BaseException | None = None
        try:
            if self._failure is None:
                self._arm(work.call, seconds)
                task()
        except BaseException as raised:
            error = raised
            if not isinstance(raised, Exception):  # Ctrl-C is raised in the caller, but waiting threads must go on
                work.end(raised)
                raise
        finally:
            self._deadline = None
        if self._failure is not None:
            error = dist.DistBackendError(f"{work.call}: {self._failure}")
        return work.end(error)

    # Timeouts.

    def _arm(self, call: str, seconds: float) -> None:
        if seconds > 0:
            if seconds < self._shortest:
                self._shortest = seconds
                self._look_sooner.set()
            self._deadline = (time.monotonic() + seconds, seconds, call)

    def _watch(self) -> None:
        while self._threads[0].is_alive():
            # Setting a time limit costs no system call: the watching thread polls often enough, and at the deadline.
            pause = min(1.0, max(0.005, self._shortest / 20))
            under_way = self._deadline
            if under_way is not None:
                left = under_way[0] - time.monotonic()
                if left <= 0 and under_way is self._deadline:
                    self.fail(f"Timed out waiting {under_way[1] * 1e3:.0f}ms for {under_way[2]} to complete")
                    return
                pause = min(pause, max(left, 0.0))
            self._look_sooner.wait(pause)
            self._look_sooner.clear()

    def fail(self, why: str) -> None:
        """Ends the running task, and fails all later ones, with this reason. Only the first reason counts."""
        with self._lock:
            if self._failure is not None:
                return
            self._failure = why
        self._break_off()

    @property
    def failed(self) -> bool:
        return self._failure is not None

    def stop(self) -> None:
        """Runs the issued tasks, and ends the threads."""
        if self._ended or os.getpid() != self._process:
            return
        self._ended = True
        self._queues[0].put(None)
        self._threads[0].join()
        self._callbacks.stop()
        self._look_sooner.set()

    def at_exit(self) -> None:
        """Ends the threads of a program that ends without destroying its group (collc.torch.work has the reason)."""
        if os.getpid() != self._process:
            return
        self._ended = True
        self._queues[0].put(None)
        self._threads[0].join(EXIT_SECONDS)
        if self._threads[0].is_alive():
            self.fail("the program ends")
            self._threads[0].join(EXIT_SECONDS)
        self._look_sooner.set()


_in_use: weakref.WeakSet[Runner] = weakref.WeakSet()


def _at_exit() -> None:
    for runner in list(_in_use):
        runner.at_exit()


atexit.register(_at_exit)
