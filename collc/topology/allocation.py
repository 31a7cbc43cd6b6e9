"""Parses allocations, lists of GPUs in rank order such as ``0,1,4,7`` or ``server0:0-2,server1:0-4``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from collc.errors import UsageError
from collc.topology.model import Topology

_HINT = "write numbers, ranges or names: 0,1,4,7 or 0-3 or server0:0-2,server1:0-4"
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def parse_gpus(topology: Topology, text: str) -> list[str]:
    """Returns the names of the GPUs that `text` lists, in the order of the list, which is the rank order.

    A number is the index of a GPU in the topology, from 0, or after ``server:`` its index in that server. A prefix
    applies only to its own item. If one item has a prefix, every number and range must have one.

    Raises:
        UsageError: an item is unknown or empty, or a GPU is listed twice.
    """
    names = [v.name for v in topology.gpus]
    result: list[str] = []
    has_prefix = any(item.strip().partition(":")[0] in topology.servers for item in text.split(",") if ":" in item)
    for raw in text.split(","):
        item = raw.strip()
        if has_prefix and _RANGE.fullmatch(item):
            raise UsageError("is this of the whole topology or of a server?", where=f"--gpus item `{item}`", hint=_HINT)
        for name in [item] if item in names else _item(topology, names, item):
            if name in result:
                raise UsageError(f"GPU {name} is listed twice", where=f"--gpus {text}", hint="each GPU is one rank")
            result.append(name)
    return result


def _item(topology: Topology, gpus: Sequence[str], item: str) -> list[str]:
    where = f"--gpus item `{item}`"
    pool, rest, owner = list(gpus), item, topology.name
    prefix, colon, tail = item.partition(":")
    if colon and prefix in topology.servers:
        members = set(topology.servers[prefix])
        pool, rest, owner = [g for g in gpus if g in members], tail, prefix
    elif colon:
        raise UsageError(
            "no GPU and no server is called so", where=where, hint=_suggest(prefix, list(topology.servers))
        )
    match = _RANGE.fullmatch(rest)
    if not match:
        # Names after a prefix may omit the server: server0:gpu1 for server0.gpu1.
        matches = [g for g in pool if rest and g in (rest, f"{owner}.{rest}")]
        if not matches:
            raise UsageError("this is not a GPU of the topology", where=where, hint=_suggest(rest, pool))
        return matches
    first, last = int(match[1]), int(match[2] or match[1])
    if first > last:
        raise UsageError("the range runs backwards", where=where, hint="write the smaller number first")
    if last >= len(pool):
        raise UsageError(f"{owner} has GPUs 0 to {len(pool) - 1}", where=where, hint=_HINT)
    return pool[first : last + 1]


def _suggest(word: str, names: Sequence[str]) -> str:
    matches = difflib.get_close_matches(word, names, n=1)
    return f"did you mean `{matches[0]}`?" if matches else _HINT
