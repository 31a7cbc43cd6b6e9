"""What a build makes, and what it takes from the build cache or the installed package: shown to whoever asks."""

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
    """One file of a build: its name, with its compiler where there may be several; where it came from (`BUILT`,
    `CACHE`, `WHEEL`); the seconds that this took."""

    name: str
    origin: str
    seconds: float

    def row(self) -> dict[str, object]:
        """Its row in JSON."""
        return {"part": self.name, "from": self.origin, "seconds": round(self.seconds, 3)}


@dataclass
class Account:
    """The parts of a build, in the order in which they were ready.

    Args:
        rebuild: everything is made anew, once.
        made: the keys of the cache that were made anew since `rebuild` began.
    """

    rebuild: bool = False
    made: set[str] = field(default_factory=set)
    parts: list[Part] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, name: str, origin: str, seconds: float = 0.0) -> None:
        """Notes a part; from any thread."""
        with self._lock:
            self.parts.append(Part(name, origin, seconds))

    def stale(self, key: str) -> bool:
        """Whether an entry of the cache must not be used."""
        return self.rebuild and key not in self.made


_CURRENT: contextvars.ContextVar[Account | None] = contextvars.ContextVar("collc_account", default=None)


def current() -> Account:
    """The account of the build that this thread works for; outside of one, an account that nobody reads."""
    return _CURRENT.get() or Account()


@contextmanager
def accounted(*, rebuild: bool = False) -> Iterator[Account]:
    """Opens an account for what this thread builds, and for what it hands to others with `submit`.

    Args:
        rebuild: ignore what the cache and the package hold. Accounts inside one that rebuilds do so too, and make
            nothing again that it has made.
    """
    outer = current()
    account = Account(outer.rebuild or rebuild, outer.made)
    token = _CURRENT.set(account)
    try:
        yield account
    finally:
        _CURRENT.reset(token)


def submit(pool: Executor, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
    """`pool.submit` for the account of this thread."""
    here = contextvars.copy_context()
    return pool.submit(lambda: here.run(work, *args, **kwargs))
