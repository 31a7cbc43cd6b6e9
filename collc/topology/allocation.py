"""Allocations: which GPUs of a topology, in rank order, from ``0,1,4,7`` or ``server0:0-2,server1:0-4``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from collc.errors import UsageError
from collc.topology.model import Topology

_HINT = "write numbers, ranges or names: 0,1,4,7 or 0-3 or server0:0-2,server1:0-4"
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def parse_gpus(topology: Topology, text: str) -> list[str]:
    """The names of the GPUs that `text` lists; its order is the rank order.

    A number counts the GPUs of the topology, or after ``server:`` those of that server, from 0. A server prefix holds
    for the one item that it stands before; where one item has a prefix, no number may lack it.

    Raises:
        UsageError: an item is unknown, empty or given twice.
    """
    names = [v.name for v in topology.gpus]
    chosen: list[str] = []
    prefixed = any(item.strip().partition(":")[0] in topology.servers for item in text.split(",") if ":" in item)
    for raw in text.split(","):
        item = raw.strip()
        if prefixed and _RANGE.fullmatch(item):
            raise UsageError("is this of the whole topology or of a server?", where=f"--gpus item `{item}`", hint=_HINT)
        for name in [item] if item in names else _item(topology, names, item):
            if name in chosen:
                raise UsageError(f"GPU {name} is listed twice", where=f"--gpus {text}", hint="each GPU is one rank")
            chosen.append(name)
    return chosen


def _item(topology: Topology, gpus: Sequence[str], item: str) -> list[str]:
    where = f"--gpus item `{item}`"
    pool, rest, of = list(gpus), item, topology.name
    prefix, colon, tail = item.partition(":")
    if colon and prefix in topology.servers:
        members = set(topology.servers[prefix])
        pool, rest, of = [g for g in gpus if g in members], tail, prefix
    elif colon:
        raise UsageError("no GPU and no server is called so", where=where, hint=_near(prefix, list(topology.servers)))
    match = _RANGE.fullmatch(rest)
    if not match:
        # Inside a server its own short names work too: server0:gpu1 for server0.gpu1.
        known = [g for g in pool if rest and g in (rest, f"{of}.{rest}")]
        if not known:
            raise UsageError("this is not a GPU of the topology", where=where, hint=_near(rest, pool))
        return known
    first, last = int(match[1]), int(match[2] or match[1])
    if first > last:
        raise UsageError("the range runs backwards", where=where, hint="write the smaller number first")
    if last >= len(pool):
        raise UsageError(f"{of} has GPUs 0 to {len(pool) - 1}", where=where, hint=_HINT)
    return pool[first : last + 1]


def _near(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1)
    return f"did you mean `{near[0]}`?" if near else _HINT
