"""A rank that makes seeded calls and compares every element with numpy. It adds the order "calls" to rank_process.py.

{"do": "calls", seed, first, last, parts}: makes the blocks of calls `first` to `last` - 1. The seed and the number of a
block determine its calls, so all ranks make the same calls, and any range of blocks can be run again. With `parts`,
lists of colors, each block runs in a communicator made by a split or a shrink. An answer has "calls", the number of
calls of this rank, and "wrong", the calls with a wrong result.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
from rank_process import RankProcess, serve

from collc.collectives.model import COMPILED, Collective

Array = npt.NDArray[Any]
BLOCK = 20  # calls
NO_COLOR = -1
GUARD = 64  # bytes that no call may touch
BFLOAT16 = 9
# numpy's types by the numbers of ncclDataType_t.
KINDS = {0: "i1", 1: "u1", 2: "i4", 3: "u4", 4: "i8", 5: "u8", 6: "f2", 7: "f4", 8: "f8", BFLOAT16: "u2"}
NAMES = [*(c.value for c in COMPILED), "gather", "scatter", "alltoall", "sendrecv"]
SUM, PROD, MAX, MIN, AVG, SCALED = range(6)


def encoded(numbers: Array, kind: int) -> Array:
    """Small whole numbers as elements of a type."""
    if kind != BFLOAT16:
        return np.asarray(numbers, dtype=KINDS[kind])
    return np.asarray(numbers.astype("f4").view("u4") >> 16, dtype="u2")


def contribution(rank: int, op: int, count: int, salt: int) -> Array:
    """Returns the input of a rank. The reduction of up to 8 ranks is exact in every type."""
    i = np.arange(count) + salt
    if op == PROD:
        return np.asarray(1 + ((i + rank) % 8 == 0))
    if op in (MAX, MIN):
        return np.asarray((i * 7 + rank * 13) % 100)
    return np.asarray(i % 7 if op == AVG else (i + 3 * rank) % 8)


def reduction(nranks: int, op: int, count: int, salt: int) -> Array:
    parts = np.stack([contribution(rank, op, count, salt) for rank in range(nranks)])
    if op == SCALED:
        return np.asarray(2 * parts.sum(axis=0))
    reduce: dict[int, Callable[..., Array]] = {SUM: np.sum, PROD: np.prod, MAX: np.max, MIN: np.min, AVG: np.max}
    return np.asarray(reduce[op](parts, axis=0))


class One:
    """One call of a group, its buffers, and the contents they must have afterwards."""

    def __init__(self, draw: Random, rank: int, nranks: int, number: int) -> None:
        self.name = draw.choice(NAMES)
        self.kind, self.op, self.root = draw.choice(list(KINDS)), draw.randrange(6), draw.randrange(nranks)
        self.count = draw.choice([0, 1, 5, 1000, draw.randrange(64), draw.randrange(6000), draw.randrange(40000)])
        self.in_place, shift = draw.random() < 0.4, draw.randrange(16)
        self.nranks, self.rank = nranks, rank
        salt, n, rooted = number * 31 + 1, nranks, rank == self.root
        if self.name not in ("all_reduce", "reduce", "reduce_scatter"):
            self.op = SUM

        def mine(of: int, blocks: int) -> Array:
            return contribution(of, self.op, self.count * blocks, salt)

        def block(of: int, at: int) -> Array:
            return mine(of, n)[at * self.count : (at + 1) * self.count]

        result: Array | None
        match self.name:
            case "all_reduce" | "reduce":
                send, result = mine(rank, 1), reduction(n, self.op, self.count, salt)
                result = result if rooted or self.name == "all_reduce" else None
            case "broadcast":
                send, result = mine(rank, 1), mine(self.root, 1)
            case "all_gather" | "gather":
                send, result = mine(rank, 1), np.concatenate([mine(r, 1) for r in range(n)])
                result = result if rooted or self.name == "all_gather" else None
            case "reduce_scatter":
                whole = reduction(n, self.op, self.count * n, salt)
                send, result = mine(rank, n), whole[rank * self.count : (rank + 1) * self.count]
            case "scatter":
                send, result = mine(rank, n), block(self.root, rank)
            case "alltoall":
                send, result = mine(rank, n), np.concatenate([block(r, rank) for r in range(n)])
                self.in_place = False
            case _:
                send, result = mine(rank, 1), mine((rank - 1) % n, 1)
                self.in_place = False
        self.send, self.result = encoded(send, self.kind), None if result is None else encoded(result, self.kind)
        self.place(shift)

    def place(self, shift: int) -> None:
        """Buffers at odd places, with guards around what is written."""
        item = self.send.itemsize
        self.at = GUARD + shift * item
        whole = self.count * item * (self.nranks if self.name in (*SPREAD, "alltoall") else 1)
        self.room = np.full(whole + self.at + GUARD, 0xC3, np.uint8)
        self.recv_at, self.send_at = self.at, self.at
        if self.in_place and self.name in SPREAD:
            own = self.at + (self.root if self.name in ("gather", "scatter") else self.rank) * self.count * item
            if self.name in ("all_gather", "gather"):
                self.send_at = own
            else:
                self.recv_at = own
        if self.in_place and self.name in ("gather", "scatter") and self.rank != self.root:
            self.in_place = False
        source = self.room if self.in_place else np.full(self.send.nbytes + self.at, 0, np.uint8)
        if not self.in_place:
            self.recv_at = self.send_at = self.at
        source[self.send_at : self.send_at + self.send.nbytes] = self.send.view(np.uint8)
        self.source = source

    def issue(self, lib: ctypes.CDLL, comm: ctypes.c_void_p, scaled: int) -> int:
        send = ctypes.c_void_p(self.source.ctypes.data + self.send_at)
        recv, count = ctypes.c_void_p(self.room.ctypes.data + self.recv_at), ctypes.c_size_t(self.count)
        op = scaled if self.op == SCALED else self.op
        match self.name:
            case "sendrecv":
                right, left = (self.rank + 1) % self.nranks, (self.rank - 1) % self.nranks
                sent = int(lib.ncclSend(send, count, self.kind, right, comm, None))
                return sent or int(lib.ncclRecv(recv, count, self.kind, left, comm, None))
            case "alltoall":
                return int(lib.ncclAlltoAll(send, recv, count, self.kind, comm, None))
            case "gather" | "scatter":
                function = lib.ncclGather if self.name == "gather" else lib.ncclScatter
                return int(function(send, recv, count, self.kind, self.root, comm, None))
            case name:
                traits = Collective(name)
                function = getattr(lib, f"nccl{traits.traits.title}")
                rest = [*([op] if traits.reduces else []), *([self.root] if traits.rooted else [])]
                return int(function(send, recv, count, self.kind, *rest, comm, None))

    def right(self) -> bool:
        """The result, and that nothing around the buffer was written."""
        if not (self.room[:GUARD] == 0xC3).all() or not (self.room[-GUARD:] == 0xC3).all():
            return False
        if self.result is None:
            return True
        found = self.room[self.recv_at : self.recv_at + self.result.nbytes]
        return bool((found == self.result.view(np.uint8)).all())

    def __str__(self) -> str:
        where = "in place" if self.in_place else "out of place"
        return f"{self.name} type {self.kind} op {self.op} root {self.root} count {self.count} {where}"


SPREAD = ("all_gather", "reduce_scatter", "gather", "scatter")


class Caller(RankProcess):
    rank = 0

    def do(self, order: dict[str, Any]) -> dict[str, Any]:
        if order["do"] == "init":
            self.rank = order["rank"]
        return self.calls(order) if order["do"] == "calls" else super().do(order)

    def calls(self, order: dict[str, Any]) -> dict[str, Any]:
        made, wrong = 0, []
        for block in range(order["first"] // BLOCK, order["last"] // BLOCK):
            draw = Random(f"{order['seed']} {block}")
            comm = self.part(draw, order["parts"]) if order["parts"] else self.comm
            if comm is None:
                continue
            for number in range(block * BLOCK, (block + 1) * BLOCK):
                group = self.group(draw, comm, number)
                made += 1
                wrong += [f"call {number}: {one}" for one in group if not one.right()]
            if comm is not self.comm:
                self.must(self.nccl.lib.ncclCommDestroy(comm))
        return {"result": 0, "calls": made, "wrong": wrong[:5]}

    def must(self, result: int) -> None:
        self.nccl.check(result, "a call")

    def part(self, draw: Random, parts: list[list[int]]) -> ctypes.c_void_p | None:
        """By a split, or where all but some ranks are in one part, by a shrink as well."""
        colors = draw.choice(parts)
        out = [rank for rank, color in enumerate(colors) if color == NO_COLOR]
        comm, lib = ctypes.c_void_p(), self.nccl.lib
        if out and draw.random() < 0.5:
            if self.rank in out:
                return None
            excluded = (ctypes.c_int * len(out))(*out)
            self.must(lib.ncclCommShrink(self.comm, excluded, len(out), ctypes.byref(comm), None, 0))
            return comm
        # A rank's place in its part is that in the whole, or the other way round.
        key = self.rank * draw.choice([1, -1])
        self.must(lib.ncclCommSplit(self.comm, colors[self.rank], key, ctypes.byref(comm), None))
        return comm if comm.value else None

    def group(self, draw: Random, comm: ctypes.c_void_p, number: int) -> list[One]:
        """Makes one call, or several calls in a group. Calls with two sides (send, receive) always are in a group."""
        lib, rank, nranks, scaled = self.nccl.lib, ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        lib.ncclCommUserRank(comm, ctypes.byref(rank))
        lib.ncclCommCount(comm, ctypes.byref(nranks))
        size = draw.choice([1, 1, 1, 2, 3])
        group = [One(draw, rank.value, nranks.value, number * 4 + i) for i in range(size)]
        scaling: list[int] = []
        for one in group:
            two = encoded(np.array([2]), one.kind)
            if one.op == SCALED:
                pointer = ctypes.c_void_p(two.ctypes.data)
                self.must(lib.ncclRedOpCreatePreMulSum(ctypes.byref(scaled), pointer, one.kind, 1, comm))
            scaling.append(scaled.value)
        self.must(lib.ncclGroupStart())
        for one, op in zip(group, scaling, strict=True):
            self.must(one.issue(lib, comm, op))
        self.must(lib.ncclGroupEnd())
        for one, op in zip(group, scaling, strict=True):
            if one.op == SCALED:
                self.must(lib.ncclRedOpDestroy(op, comm))
        return group


if __name__ == "__main__":
    serve(Caller(Path(sys.argv[1])))
