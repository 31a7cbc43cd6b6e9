"""Parts of check.py that compare results with a reference, byte for byte."""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from gpu import OPS, TYPES, Graph, Library, Progress

REDUCING = ("all_reduce", "reduce", "reduce_scatter")
COLLECTIVES = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter")
# Collectives made of transfers, which are copies on this target.
TRANSFERS = ("gather", "scatter", "all_to_all", "send and receive")
UNTOUCHED = 0xCD
# A sum for which each rank's input is first multiplied by the rank's factor.
FACTOR = "factor"
# Bits of the mantissa and bias of the exponent.
FLOATS_OF_8_BITS = {"e4m3": (3, 7), "e5m2": (2, 15)}
MANTISSA_BITS = {"half": 10, "bfloat16": 7, "float": 23, "double": 52, "e4m3": 3, "e5m2": 2}


@dataclass(frozen=True)
class Case:
    collective: str
    type_name: str
    op: str  # "none" if nothing is reduced
    count: int
    in_place: bool = False

    def __str__(self) -> str:
        return f"{self.collective} {self.type_name} {self.op} {self.count}{' in place' * self.in_place}"


def encode(numbers: np.ndarray, type_name: str) -> np.ndarray:
    """Encodes numbers in a type. All must be exact in the type, and 0 or at least its smallest normal number."""
    if type_name == "bfloat16":
        return (numbers.astype("f4").view("u4") >> 16).astype("u2")
    if type_name in FLOATS_OF_8_BITS:
        mantissa, bias = FLOATS_OF_8_BITS[type_name]
        exponent = np.floor(np.log2(np.where(numbers > 0, numbers, 1))).astype("i8")
        steps = np.rint(numbers / 2.0 ** (exponent - mantissa)).astype("i8")
        return np.where(numbers == 0, 0, ((exponent + bias - 1) << mantissa) + steps).astype("u1")
    return numbers.astype(TYPES[type_name][1])


def nearest(number: float, mantissa_bits: int) -> float:
    """Rounds a positive number to the mantissa of a type, ties to even."""
    ulp = 2.0 ** (math.floor(math.log2(number)) - mantissa_bits)
    return round(number / ulp) * ulp


def mean_of_one(nranks: int, type_name: str) -> float:
    """Returns the average over ranks if one rank has the value `nranks` and the others 0.

    As in NCCL, floats are multiplied by the rounded inverse of `nranks`, so the product may differ from 1.
    """
    bits = MANTISSA_BITS.get(type_name)
    return 1 if bits is None else nearest(nranks * nearest(1 / nranks, bits), bits)


@lru_cache(maxsize=32)
def numbers_of(rank: int, nranks: int, elements: int, op: str, salt: int = 0) -> np.ndarray:
    """Returns a rank's input: integers whose partial results are all exact in every type."""
    i = np.arange(elements, dtype=np.int64)
    mixed = (i * 2654435761 + rank * 40503 + 977 + salt * 7919) % 65521
    if op == "prod":
        return np.where((i + rank) % max(nranks, 6) < 5, 1 + mixed % 2, 1)
    if op == "avg":
        return np.where(i % nranks == rank, nranks, 0)
    return mixed % {"sum": 7, FACTOR: 7, "small sum": 2}.get(op, 100)


def factor(rank: int) -> int:
    """Returns the factor of a rank's input in a sum with factors."""
    return 1 + rank % 2


def lengths(collective: str, nranks: int, count: int) -> tuple[int, int]:
    """Returns the numbers of elements of a rank's input and output."""
    send = nranks if collective in ("reduce_scatter", "scatter", "all_to_all") else 1
    recv = nranks if collective in ("all_gather", "gather", "all_to_all") else 1
    return send * count, recv * count


@lru_cache(maxsize=4)
def expected(collective: str, nranks: int, count: int, op: str, salt: int = 0) -> list[np.ndarray | None]:
    """Returns the expected output of each rank, as integers; None if the call must not change it."""
    inputs = [numbers_of(r, nranks, lengths(collective, nranks, count)[0], op, salt) for r in range(nranks)]
    nothing: list[np.ndarray | None] = [None] * (nranks - 1)
    if collective == "broadcast":
        return [inputs[0]] * nranks
    if collective == "all_gather":
        return [np.concatenate(inputs)] * nranks
    if collective == "gather":
        return [np.concatenate(inputs), *nothing]
    if collective == "scatter":
        return [inputs[0][r * count : (r + 1) * count] for r in range(nranks)]
    if collective == "all_to_all":
        return [np.concatenate([i[r * count : (r + 1) * count] for i in inputs]) for r in range(nranks)]
    if collective == "send and receive":
        return [inputs[r - 1] for r in range(nranks)]
    if op == FACTOR:
        inputs = [values * factor(rank) for rank, values in enumerate(inputs)]
    combine: dict[str, np.ufunc] = {"prod": np.multiply, "max": np.maximum, "min": np.minimum}
    total = combine.get(op, np.add).reduce(np.stack(inputs))
    total = total // nranks if op == "avg" else total
    if collective == "all_reduce":
        return [total] * nranks
    if collective == "reduce":
        return [total, *nothing]
    return [total[r * count : (r + 1) * count] for r in range(nranks)]


class Buffers:
    """The buffers of one call on all ranks, `shift` elements after an aligned address."""

    def __init__(self, library: Library, case: Case, shift: int = 0) -> None:
        self.library, self.cuda, self.case = library, library.cuda, case
        n, (number, self.carrier) = library.nranks, TYPES[case.type_name]
        size = np.dtype(self.carrier).itemsize
        self.number, self.size = number, size
        # 8-bit floats represent few integers.
        self.op = "small sum" if case.op == "sum" and case.type_name in FLOATS_OF_8_BITS else case.op
        self.send, self.recv = lengths(case.collective, n, case.count)
        self.starts: list[int] = []
        self.ends: list[tuple[int, int]] = []
        for rank in range(n):
            if case.in_place:
                at = self.allocate((max(self.send, self.recv) + shift) * size) + shift * size
                inside = rank * case.count * size
                sends_part, recvs_part = self.recv > self.send, self.send > self.recv
                self.ends.append((at + inside * sends_part, at + inside * recvs_part))
            else:
                at = self.allocate((self.send + shift) * size) + shift * size
                self.ends.append((at, self.allocate((self.recv + shift) * size) + shift * size))

    def allocate(self, size: int) -> int:
        self.starts.append(self.cuda.allocate(size))
        return self.starts[-1]

    def inputs(self, salt: int = 0) -> list[np.ndarray]:
        n, case = self.library.nranks, self.case
        return [encode(numbers_of(r, n, self.send, self.op, salt), case.type_name) for r in range(n)]

    def fill(self, salt: int = 0) -> None:
        untouched = np.full(self.recv * self.size, UNTOUCHED, "u1")
        for (send, recv), data in zip(self.ends, self.inputs(salt)):  # noqa: B905 (Python 3.9 has no strict)
            self.cuda.put(recv, untouched)
            self.cuda.put(send, data)
        # The copies use the null stream, which other streams do not wait for.
        self.cuda.synchronize()

    def call(self) -> None:
        case = self.case
        if case.collective == "send and receive":
            self.library.pass_on(self.ends, case.count, self.number)
        elif case.op == FACTOR:
            values = [encode(np.array([factor(r)]), case.type_name).tobytes() for r in range(self.library.nranks)]
            op = self.library.factors(self.number, values)
            self.library.call(case.collective, self.ends, case.count, self.number, op)
            self.library.forget(op)
        else:
            self.library.call(case.collective, self.ends, case.count, self.number, OPS.get(case.op, 0))

    def wanted(self, salt: int = 0) -> list[bytes]:
        """Returns the expected output of every rank, as bytes."""
        case, n = self.case, self.library.nranks
        found: list[bytes] = []
        results = expected(case.collective, n, case.count, self.op, salt)
        for rank, result in enumerate(results):
            if rank and result is not None and result is results[0]:
                found.append(found[0])
            elif result is not None:
                numbers = result * mean_of_one(n, case.type_name) if self.op == "avg" else result
                found.append(encode(numbers, case.type_name).tobytes())
            elif case.in_place:  # a rank that only sends
                found.append(self.inputs(salt)[rank].tobytes())
            else:
                found.append(bytes([UNTOUCHED]) * (self.recv * self.size))
        return found

    def right(self, salt: int = 0) -> bool:
        wanted = self.wanted(salt)
        return all(
            self.cuda.get(end[1], self.recv, self.carrier).tobytes() == wanted[r] for r, end in enumerate(self.ends)
        )

    def release(self) -> None:
        for at in self.starts:
            self.cuda.release(at)


def one_case(library: Library, case: Case, shift: int) -> bool:
    """Runs one call and returns whether every byte is right."""
    Progress.tell(str(case))
    buffers = Buffers(library, case, shift)
    buffers.fill()
    buffers.call()
    library.cuda.synchronize()
    right = buffers.right()
    if not right:
        library.look()  # raises if the kernels gave up
    buffers.release()
    return right


def check_cases(library: Library, cases: Iterator[Case], deadline: float) -> tuple[str, bool]:
    """Runs cases until the deadline; returns the text of the row and whether all results were right."""
    done, wrong, left = 0, [], 0
    for case in cases:
        if time.monotonic() > deadline:
            left += 1
            continue
        done += 1
        if not one_case(library, case, int(done % 3 == 0)):
            wrong.append(str(case))
    text = f"{done - len(wrong)} of {done} right" + (f", {left} not reached in time" if left else "")
    return text + (f"; wrong: {', '.join(wrong[:4])}" if wrong else ""), not wrong and done > 0


def held(programs: list[dict[str, str]]) -> list[str]:
    named = {p["collective"] for p in programs}
    return [collective for collective in COLLECTIVES if collective in named]


def all_cases(library: Library, types: list[str], tiny: bool, one_count: bool = False) -> Iterator[Case]:
    """Yields every collective, type and operation; sizes from one element to more than all slots contain."""
    counts = (33, 1) if tiny else (33, 100_003, 1, 3_000_001)
    for count in counts[:1] if one_count else counts:
        large = count > 1_000_000
        for collective in held(library.programs):
            for op in (*OPS, FACTOR) if collective in REDUCING else ("none",):
                if large and op not in ("sum", "none"):
                    continue
                # Collectives whose inputs or outputs have a block for each rank.
                wide = large and collective in ("all_gather", "reduce_scatter")
                for type_name in types:
                    if op == FACTOR and type_name in FLOATS_OF_8_BITS:
                        continue
                    if not large or type_name in ("int8", "bfloat16", "float", "double"):
                        yield Case(collective, type_name, op, 400_003 if wide else count)


def in_place(library: Library, tiny: bool, deadline: float) -> Iterator[tuple[str, str, bool]]:
    """Checks in-place calls."""
    cases = [
        Case(collective, type_name, op, count, True)
        for count in ((33,) if tiny else (33, 100_003))
        for collective in held(library.programs)
        for op in (("sum", "max") if collective in REDUCING else ("none",))
        for type_name in ("float", "int8", "bfloat16")
    ]
    yield ("results in place", *check_cases(library, iter(cases), deadline))


def transfers(library: Library, tiny: bool, deadline: float) -> Iterator[tuple[str, str, bool]]:
    """Checks gather, scatter, all-to-all, and sends and receives around a ring."""
    for collective in TRANSFERS:
        cases = [
            Case(collective, type_name, "none", count)
            for count in ((33,) if tiny else (33, 1, 100_003))
            for type_name in ("float", "int8", "double")
        ]
        yield (f"results, {collective}", *check_cases(library, iter(cases), deadline))


def in_order(library: Library, tiny: bool) -> bool:
    """Copies inputs in, calls, and copies results out, on a stream per rank; the host does not wait in between."""
    cuda, n = library.cuda, library.nranks
    count = 1001 if tiny else 2_000_003
    case = Case("all_reduce", "float", "sum", count)
    buffers, staged, taken = (Buffers(library, case) for _ in range(3))
    staged.fill()
    for send, _ in buffers.ends:
        cuda.put(send, np.full(count, 1e6, "f4"))
    cuda.synchronize()
    for rank in range(n):
        stream, bytes_of = library.streams[rank], count * 4
        # Higher ranks copy more often, so the launch has to wait for each stream separately.
        for _ in range(1 if tiny else 1 + 4 * rank):
            cuda.copy(buffers.ends[rank][0], staged.ends[rank][0], bytes_of, stream)
    buffers.call()
    for rank in range(n):
        cuda.copy(taken.ends[rank][1], buffers.ends[rank][1], count * 4, library.streams[rank])
    cuda.synchronize()
    right = taken.right()
    for one in (buffers, staged, taken):
        one.release()
    return right


def in_turn(library: Library, tiny: bool, streams: list[list[ctypes.c_void_p | None]]) -> bool:
    """Makes calls on two sets of streams in turn, each on the result of the previous call."""
    cuda, n = library.cuda, library.nranks
    case = Case("all_reduce", "double", "sum", 501 if tiny else 1_000_003)
    buffers = Buffers(library, case)
    buffers.fill()
    there_and_back = [buffers.ends, [(recv, send) for send, recv in buffers.ends]]
    before = library.streams
    for turn in range(3):
        library.streams = streams[turn % 2]
        library.call("all_reduce", there_and_back[turn % 2], case.count, buffers.number, 0)
    cuda.synchronize()
    library.streams = before
    first = expected("all_reduce", n, case.count, "sum")[0]
    assert first is not None
    wanted = encode(first * (n * n), "double").tobytes()
    right = all(cuda.get(recv, case.count, "f8").tobytes() == wanted for _, recv in buffers.ends)
    buffers.release()
    return right


def two_communicators(library: Library, tiny: bool) -> bool:
    """Makes calls of two communicators on two streams, without synchronization between them."""
    cuda = library.cuda
    other = Library(library.path, cuda, library.nranks)
    case = Case("all_reduce", "float", "sum", 77 if tiny else 300_001)
    mine, theirs = Buffers(library, case), Buffers(other, case)
    mine.fill()
    theirs.fill(1)
    library.streams, other.streams = ([cuda.stream()] * library.nranks for _ in range(2))
    for _ in range(2 if tiny else 10):
        mine.call()
        theirs.call()
    cuda.synchronize()
    right = mine.right() and theirs.right(1)
    for one in (mine, theirs):
        one.release()
    other.close()
    return right


def streams(library: Library, tiny: bool, deadline: float) -> Iterator[tuple[str, str, bool]]:
    """Checks calls that only streams order."""
    cuda = library.cuda
    sets: list[list[ctypes.c_void_p | None]] = [[cuda.stream() for _ in range(library.nranks)] for _ in range(2)]
    library.streams = sets[0]
    checks: list[tuple[str, Callable[[], bool]]] = [
        ("streams: copy in, call, copy out", partial(in_order, library, tiny)),
        ("streams: calls take turns on two", partial(in_turn, library, tiny, sets)),
        ("streams: two communicators", partial(two_communicators, library, tiny)),
    ]
    for what, check in checks:
        if time.monotonic() > deadline:
            yield what, "not run: out of time", True
            continue
        Progress.tell(what)
        right = check()
        if not right:
            library.look()
        yield what, "right" if right else "wrong", right


def replay(library: Library, cases: list[Case], sets: int) -> list[str]:
    """Captures calls and launches the graph three times with new data, with plain calls in between.

    Args:
        sets: number of sets of streams (a stream per rank) that the calls use in turn; only the begin and the end of
            the graph join them. 0: all ranks on one stream.

    Returns:
        Descriptions of the wrong results.
    """
    cuda, main = library.cuda, library.cuda.stream()
    others = [cuda.stream() for _ in range(sets * library.nranks - 1)]
    every = [main, *others]
    turns = [every[at : at + library.nranks] for at in range(0, len(every), library.nranks)]
    if sets == 0:
        turns = [[main] * library.nranks]
    library.streams = turns[0]
    all_buffers = [Buffers(library, case) for case in cases]
    wrong = []

    def body() -> None:
        for other in others:
            cuda.follow(other, main)
        for number, buffers in enumerate(all_buffers):
            library.streams = turns[number % len(turns)]
            buffers.call()
        library.streams = turns[0]
        for other in others:
            cuda.follow(main, other)

    graph = Graph(cuda, main, body)
    for salt in range(3):
        for buffers in all_buffers:
            buffers.fill(salt)
        graph.launch()
        cuda.synchronize()
        wrong += [f"replay {salt}: {buffers.case}" for buffers in all_buffers if not buffers.right(salt)]
        all_buffers[0].fill(salt + 1)
        all_buffers[0].call()
        cuda.synchronize()
        if not all_buffers[0].right(salt + 1):
            wrong.append(f"the plain call after replay {salt}")
    graph.close()
    for buffers in all_buffers:
        buffers.release()
    return wrong


def graphs(library: Library, tiny: bool, deadline: float) -> Iterator[tuple[str, str, bool]]:
    """Checks calls that are captured in a graph and replayed."""
    cases = [
        Case("all_reduce", "float", "sum", 101 if tiny else 1_003),
        Case("broadcast", "int8", "none", 55 if tiny else 400_007),
        Case("all_gather", "half", "none", 33),
        Case("reduce_scatter", "double", "max", 17 if tiny else 3_001),
        Case("send and receive", "float", "none", 9),
        *([] if tiny else [Case("all_reduce", "bfloat16", "sum", 2_000_003)]),
    ]
    cases = [case for case in cases if case.collective in (*held(library.programs), *TRANSFERS)]
    ways = ("all ranks on one stream", "streams joined by events", "calls take turns on two sets")
    for sets, what in enumerate(ways):
        what = f"graph: {what}"
        if time.monotonic() > deadline:
            yield what, "not run: out of time", True
            continue
        Progress.tell(what)
        wrong = replay(library, cases, sets)
        if wrong:
            library.look()
        yield (
            what,
            f"wrong: {', '.join(wrong[:3])}" if wrong else "right, 3 replays with plain calls between",
            not wrong,
        )
