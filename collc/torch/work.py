"""The result of an operation: a dist.Work that reports every failure, in Python and in C++.

These facts about PyTorch 2.13 shape this file, and tests check them. `Future.set_exception` stores the exception as a
value, which C++ (DDP's reducer) then uses as tensors. A future of `.then` whose callback raises really fails, for
waiters in both languages. Callbacks of a future run in the thread that completes it.

When the interpreter ends, Python unwinds the stack of any thread that requests its lock. PyTorch's C++ code then calls
std::terminate, and the process aborts. So every thread here that runs PyTorch's code ends before that.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

EXIT_SECONDS = 1.0  # the time limit for running operations when the program ends
_changing = threading.Lock()  # guards the end and the future of every work, and is only locked for an instant
_here = threading.local()  # in a thread of callbacks: the owner and the depth of the thread


class Work(dist.Work):  # type: ignore[misc]
    """A running operation.

    Args:
        call: its name, for errors.
        tensors: its result.
        depth: the depth of the callback that issued it; 0 for other threads.
    """

    def __init__(self, call: str, tensors: Any, depth: int = 0) -> None:
        super().__init__()
        self.call = call
        self.tensors = tensors
        self.depth = depth
        self.source = -1
        self._done = False
        self._error: BaseException | None = None
        self._running = threading.Lock()
        self._running.acquire()
        self._begun: torch.futures.Future[Any] | None = None
        self._future: torch.futures.Future[Any] | None = None

    def end(self, error: BaseException | None = None) -> bool:
        """Marks the operation as done or failed. Only the first call counts. Returns whether a future is waiting."""
        with _changing:
            if self._done:
                return False
            self._error = error
            self._done = True
            self._running.release()
            return self._future is not None

    def complete_future(self) -> None:
        """Completes the future, and runs its callbacks in this thread."""
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.set_result(None)

    def _outcome(self, _: object) -> Any:
        self._raise_failure()
        return self.tensors

    def _raise_failure(self) -> None:
        if self._error is not None:
            raise self._error.with_traceback(None)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits until the operation is done.

        Args:
            timeout: the time limit of the wait; None or 0 for the time limit of the operation.

        Raises:
            RuntimeError: the operation failed (DistBackendError), or did not end within `timeout` (DistError). In the
                latter case it continues, and the caller may wait again.
        """
        if not self._done:
            seconds = timeout.total_seconds() if timeout else 0.0
            if not self._running.acquire(timeout=seconds if seconds > 0 else -1):
                raise dist.DistError(f"{self.call}: Operation timed out! It has not ended within {seconds:g} s")
            self._running.release()
        self._raise_failure()
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._done

    def is_success(self) -> bool:
        return self._done and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> Any:
        return self.tensors

    def source_rank(self) -> int:
        return self.source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[Any]:
        """Returns a future of the tensors, which fails if the operation does."""
        with _changing:
            late = self._future is None and self._done
            if self._future is None:
                self._begun = torch.futures.Future()
                self._future = self._begun.then(self._outcome)
        if late:  # the thread that ended the work did not see this future
            self.complete_future()
        return self._future


class Callbacks:
    """Threads that complete futures, so that a callback may issue operations and wait for them.

    Callbacks of works that were issued at depth d run one after the other in thread d + 1, and operations that they
    issue have that depth. So a callback never waits for its own thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._queues: list[queue.SimpleQueue[Callable[[], None] | None]] = []
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        _in_use.add(self)

    def depth(self) -> int:
        """Returns the depth of the calling thread; 0 if it is none of these threads."""
        return int(_here.depth) if getattr(_here, "owner", None) is self else 0

    def complete(self, work: Work, after: Callable[[], None] | None = None) -> None:
        """Completes the future of a work, then calls `after`, in the thread of callbacks for its depth."""

        def run() -> None:
            work.complete_future()
            if after is not None:
                after()

        with self._lock:
            while len(self._queues) <= work.depth:
                self._start(len(self._queues))
        self._queues[work.depth].put(run)

    def _start(self, depth: int) -> None:
        tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

        def serve() -> None:
            _here.owner, _here.depth = self, depth + 1
            while (task := tasks.get()) is not None:
                task()

        thread = threading.Thread(target=serve, name=f"{self._name} callbacks {depth}", daemon=True)
        self._queues.append(tasks)
        self._threads.append(thread)
        thread.start()

    def stop(self, seconds: float | None = None) -> None:
        """Runs the remaining callbacks and ends the threads. Waits for each up to `seconds` (default: no limit)."""
        for tasks, thread in zip(self._queues, self._threads, strict=True):
            tasks.put(None)
            if thread is not threading.current_thread():
                thread.join(seconds)


_in_use: weakref.WeakSet[Callbacks] = weakref.WeakSet()


def _at_exit() -> None:
    for callbacks in list(_in_use):
        callbacks.stop(EXIT_SECONDS)


def _in_child() -> None:
    _in_use.clear()  # a forked child has none of the threads


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_in_child)
