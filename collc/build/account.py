"""Records where each file of a build comes from: a compiler, the build cache or the installed package."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

BUILT, CACHE, WHEEL = "built", "cache", "wheel"

_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(frozen=True)
class Part:
    """One file of a build.

    Attributes:
        name: the name of the file, with its compiler if several are possible.
        origin: where the file came from: `BUILT`, `CACHE` or `WHEEL`.
        seconds: the time to make the file; 0 if it was in the cache.
    """

    name: str
    origin: str
    seconds: float

    def row(self) -> dict[str, object]:
        """Returns its row in JSON."""
        return {"part": self.name, "from": self.origin, "seconds": round(self.seconds, 3)}


@dataclass
class Account:
    """The parts of a build, in the order of their completion.

    Args:
        rebuild: each entry of the cache is built once more.
        built_keys: the keys of the cache entries that the outermost account and all accounts inside it have built.
    """

    rebuild: bool = False
    built_keys: set[str] = field(default_factory=set)
    parts: list[Part] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, name: str, origin: str, seconds: float = 0.0) -> None:
        """Adds a part. Any thread may call it."""
        with self._lock:
            self.parts.append(Part(name, origin, seconds))

    def stale(self, key: str) -> bool:
        """Returns whether an entry of the cache must not be used."""
        return self.rebuild and key not in self.built_keys


_CURRENT: contextvars.ContextVar[Account | None] = contextvars.ContextVar("collc_account", default=None)


def current() -> Account:
    """Returns the account of the build that this thread works for; outside a build, a new account that nobody reads."""
    return _CURRENT.get() or Account()


@contextmanager
def accounted(*, rebuild: bool = False) -> Iterator[Account]:
    """Opens an account for the files that this thread builds, and for the work that it gives to `submit`.

    Args:
        rebuild: ignore the contents of the cache and of the package. An account inside another one that rebuilds does
            the same, and builds nothing that the outer account has built.
    """
    outer = current()
    account = Account(outer.rebuild or rebuild, outer.built_keys)
    token = _CURRENT.set(account)
    try:
        yield account
    finally:
        _CURRENT.reset(token)


def submit(pool: Executor, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
    """Calls `pool.submit`; the work then uses the account of this thread."""
    context = contextvars.copy_context()
    return pool.submit(lambda: context.run(work, *args, **kwargs))
