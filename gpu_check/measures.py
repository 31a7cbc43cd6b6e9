"""The parts of check.py that measure times of collc and of NCCL."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gpu import FLOAT, CheckError, Cuda, Graph, Lender, Library, Places, Progress, RealNccl, held_ranks, read_manifest

RANKS = (2, 4, 8)
SIZES = (8, 1 << 10, 16 << 10, 128 << 10, 1 << 20, 8 << 20, 64 << 20)
# NCCL allows several ranks on one GPU from this version on, with NCCL_MULTI_RANK_GPU_ENABLE=1; older versions fail
# ("Duplicate GPU detected").
OLDEST_NCCL = 23003
# Chunk bytes for the time of a single block: the usual slot size of each protocol.
BLOCK_CHUNKS = {"Simple": 512 << 10, "LL": 16 << 10, "LL128": 64 << 10}
LONG = 0.1  # seconds; longer bodies are timed once
# Calls in a timed graph: enough to hide its launch.
IN_A_GRAPH = 20
PLACE = len("called one by one")
Rows = Iterator["tuple[str, str]"]


def seconds(cuda: Cuda, body: Any, most: int = 50) -> float:
    """Returns the time of one call: the median of five series of about 10 ms, or of `most` calls.

    A call of more than `LONG` is timed once.
    """
    body()
    cuda.synchronize()
    start = time.perf_counter()
    body()
    cuda.synchronize()
    took = time.perf_counter() - start
    if took > LONG:
        return took
    rounds = max(2, min(most, int(0.01 / took)))
    times = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(rounds):
            body()
        cuda.synchronize()
        times.append((time.perf_counter() - start) / rounds)
    return sorted(times)[2]


def seconds_in_a_graph(library: Library, body: Any) -> float:
    """Returns the time of one call in a graph, which does not include the CPU time of making the call."""

    def several() -> None:
        for _ in range(IN_A_GRAPH):
            body()

    before, stream = library.streams, library.cuda.stream()
    library.streams = [stream] * library.nranks
    graph = Graph(library.cuda, stream, several)
    took = seconds(library.cuda, graph.launch) / IN_A_GRAPH
    graph.close()
    library.streams = before
    return took


def throughput(path: Path, protocol: str, megabytes: float, simple: dict[str, float]) -> Iterator[Any]:
    """Measures the bytes per second that all ranks together copy and reduce, and the GPU's own copy.

    Yields rows, and for Simple the rates by collective as a fact; later parts get it as `simple`.
    """
    cuda = Cuda()
    size = int(megabytes * (1 << 20)) // 16 * 16
    library, rates = Library(path, cuda, None, protocol), {}
    places, n = Places(cuda, library.nranks, size), library.nranks
    own = size / seconds(cuda, partial(cuda.copy, places.ends[0][1], places.ends[0][0], size), 8) / 1e9
    if protocol == "Simple":
        yield "device-to-device copy", f"{own:.0f} GB/s written"
    for collective, moved in (("broadcast", n - 1), ("all_reduce", 2 * (n - 1))):
        Progress.tell(collective)
        call = partial(library.call, collective, places.ends, size // 4, FLOAT, 0)
        rate = moved * size / seconds(cuda, call, 4) / 1e9
        rates[collective] = rate
        kind = "copied into slots" if collective == "broadcast" else "reduced and copied into slots"
        beside = f", {rate / simple[collective]:.0%} of Simple" if collective in simple else ""
        text = f"{rate:.0f} GB/s {kind} ({rate / own:.0%} of a copy{beside})"
        yield f"{collective}, {megabytes:g} MB, {n} ranks, {protocol}", text
    if protocol == "Simple":
        yield {"rates": rates, "copy": own}
    places.release()
    library.close()


def short(size: int) -> str:
    return f"{size >> 20}M" if size >= 1 << 20 else f"{size >> 10}K" if size >= 1 << 10 else f"{size}B"


def sizes_header(megabytes: float) -> str:
    return "".join(f"{short(size):>10}" for size in SIZES if size <= megabytes * (1 << 20))


def time_sizes(library: Library, megabytes: float, deadline: float, graph: bool = False) -> str:
    """Returns the microseconds of an all_reduce by size, as cells; a dash for sizes that come after the deadline."""
    sizes = [size for size in SIZES if size <= megabytes * (1 << 20)]
    places, cells = Places(library.cuda, library.nranks, sizes[-1]), ""
    for size in sizes:
        if time.monotonic() > deadline:
            cells += f"{'-':>10}"
            continue
        Progress.tell(f"{library.nranks} ranks, {size} bytes")
        call = partial(library.call, "all_reduce", places.ends, size // 4, FLOAT, 0)
        took = seconds_in_a_graph(library, call) if graph else seconds(library.cuda, call)
        cells += f"{took * 1e6:>10.1f}"
    places.release()
    return cells


def sizes(path: Path, way: str, megabytes: float, graph: bool, deadline: float) -> Rows:
    """Times all_reduce over 2, 4 and 8 ranks by size, over one protocol or the library's choice."""
    cuda = Cuda()
    if way == "Simple":
        yield "all_reduce, us", f"called one by one{sizes_header(megabytes)}"
    elif graph and way == "LL":
        yield "all_reduce, us", "in graphs".ljust(PLACE) + sizes_header(megabytes)
    for nranks in RANKS:
        what = f"  {nranks} ranks, {way}"
        try:
            library = Library(path, cuda, nranks, None if way == "chosen" else way)
        except CheckError as error:
            yield what, f"not run: {error}"
            continue
        yield what, " " * PLACE + time_sizes(library, megabytes, deadline, graph)
        library.close()
        if way == "chosen" and library.manifest.get("specialised"):
            # The rows above used generated kernels where a program has them.
            os.environ["COLLC_SPECIALISED"] = "0"
            library = Library(path, cuda, nranks)
            yield f"  {nranks} ranks, by tables", " " * PLACE + time_sizes(library, megabytes, deadline, graph)
            library.close()
            del os.environ["COLLC_SPECIALISED"]


# The values of the sweeps: bytes of a chunk, channels (blocks of each rank), and maximum threads of a block.
CHUNKS = (32 << 10, 128 << 10, 512 << 10, 2 << 20)
CHANNELS = (1, 2, 4, 8)
THREADS = (64, 128, 256, 512)


def rate_in_slots(path: Path, protocol: str, megabytes: float) -> str:
    """Returns the GB/s that an all_reduce of all ranks stores into slots, under the current environment variables.

    If it does not run, returns the reason.
    """
    try:
        library = Library(path, Cuda(), None, protocol)
    except CheckError as error:
        return f"not run ({error})"
    size, n = int(megabytes * (1 << 20)) // 16 * 16, library.nranks
    places = Places(library.cuda, n, size)
    call = partial(library.call, "all_reduce", places.ends, size // 4, FLOAT, 0)
    rate = 2 * (n - 1) * size / seconds(library.cuda, call, 4) / 1e9
    places.release()
    library.close()
    return f"{rate:.0f}"


def sweeps(path: Path, protocol: str, megabytes: float, deadline: float) -> Rows:
    """Measures a large all_reduce by the size of chunks, the number of channels, and the threads of a block."""
    swept = (("COLLC_CHUNK", "chunk", CHUNKS), ("COLLC_CHANNELS", "channels", CHANNELS))
    for variable, what, values in (*swept, ("COLLC_THREADS", "threads", THREADS)):
        cells = ""
        for value in values:
            name = short(value) if what == "chunk" else str(value)
            Progress.tell(f"{what} {name}")
            os.environ[variable] = str(value)
            late = time.monotonic() > deadline
            cells += f"{name:>7}: {'not run' if late else rate_in_slots(path, protocol, megabytes)}"
            del os.environ[variable]
        yield f"all_reduce, {megabytes:g} MB, {protocol}, GB/s by {what}", cells.strip()


def slots(paths: list[Path], protocol: str, megabytes: float, deadline: float) -> Rows:
    """Measures it by the number of slots of a FIFO, with libraries that differ only in this number."""
    cells = []
    for path in paths:
        Progress.tell(path.name)
        late = time.monotonic() > deadline
        rate = "not run" if late else rate_in_slots(path, protocol, megabytes) if path.is_file() else "not built"
        cells.append(f"{path.stem.replace('libcollc-', '', 1)}: {rate}")
    yield f"all_reduce, {megabytes:g} MB, {protocol}, GB/s by slots", ", ".join(cells)


# What each collective does on the shapes of Blink's micro benchmarks.
SHAPES = {
    "chain": {"broadcast": "forwarded down", "reduce": "summed up", "all_reduce": "summed up and forwarded down"},
    "fan": {"broadcast": "fan-out", "reduce": "fan-in", "all_reduce": "fan-in, then fan-out"},
    "chains": {"broadcast": "out over two chains", "reduce": "two chains into one GPU"},
}


def shape(name: str, path: Path, protocol: str, megabytes: float, deadline: float) -> Rows:
    """Measures the GB/s of the buffer over a chain, a fan or two chains by their size, with GPU memory as links.

    Blink's micro benchmarks: depth (figures 6, 7, 23, 24), breadth (25, 26), two chains into one GPU (8).
    """
    cuda = Cuda()
    size = int(megabytes * (1 << 20)) // 16 * 16
    for collective, what in SHAPES[name].items():
        cells, ranks = [], [n for n in held_ranks(read_manifest(path)) if n > 1]
        for nranks in ranks:
            Progress.tell(f"{collective}, {nranks} ranks, {size} bytes")
            if time.monotonic() > deadline:
                cells.append("not run")
                continue
            library, places = Library(path, cuda, nranks, protocol), Places(cuda, nranks, size)
            call = partial(library.call, collective, places.ends, size // 4, FLOAT, 0)
            cells.append(f"{size / seconds(cuda, call, 4) / 1e9:.1f}")
            places.release()
            library.close()
        yield f"{megabytes:g} MB {what}, {protocol}", f"{', '.join(cells)} GB/s over {', '.join(map(str, ranks))} ranks"


def lending(path: Path, megabytes: float, deadline: float) -> Rows:
    """Times all_reduce by size over Simple, on buffers that peers read in place, and through slots."""
    yield "all_reduce, us", "buffers of ncclMemAlloc".ljust(PLACE) + sizes_header(megabytes)
    for nranks in RANKS:
        for what, wish in (("read where they stand", "1"), ("through slots", "0")):
            os.environ["COLLC_DIRECT"] = wish
            try:
                library = Library(path, Lender(path), nranks, "Simple")
            except CheckError as error:
                yield f"  {nranks} ranks, {what}", f"not run: {error}"
                continue
            yield f"  {nranks} ranks, {what}", " " * PLACE + time_sizes(library, megabytes, deadline)
            library.close()
    del os.environ["COLLC_DIRECT"]


def hops(path: Path, protocol: str) -> Iterator[Any]:
    """Measures the time per hop: the growth of the time of 8 bytes down a chain with its length.

    Yields rows, and the result with graphs as a fact: microseconds without a hop, and per hop.
    """
    cuda = Cuda()
    times: dict[bool, list[float]] = {False: [], True: []}
    for graph in (False, True):
        for nranks in RANKS:
            Progress.tell(f"{nranks} ranks{', in a graph' * graph}")
            library = Library(path, cuda, nranks, protocol)
            places = Places(cuda, nranks, 8)
            call = partial(library.call, "broadcast", places.ends, 2, FLOAT, 0)
            took = seconds_in_a_graph(library, call) if graph else seconds(cuda, call)
            times[graph].append(took * 1e6)
            places.release()
            library.close()
        slope, start = (float(value) for value in np.polyfit([n - 1 for n in RANKS], times[graph], 1))
        text = ", ".join(f"{t:.1f}" for t in times[graph])
        how = "in a graph" if graph else "called"
        yield f"8 bytes down a chain, {protocol}, {how}", f"{slope:.2f} us per hop ({text} us for 1, 3, 7 hops)"
    yield {f"hop {protocol}": [start, slope]}


def block(path: Path, protocol: str, megabytes: float) -> Iterator[Any]:
    """Measures the bytes that one block reads and writes: a broadcast to one rank over one channel.

    Two bytes count for each byte of the buffer. The chunks are large, because the program has shares for 32 blocks,
    which this block moves in turn.
    """
    os.environ["COLLC_CHANNELS"] = "1"
    os.environ["COLLC_CHUNK"] = str(BLOCK_CHUNKS[protocol])
    nranks = next(n for n in held_ranks(read_manifest(path)) if n > 1)
    library = Library(path, Cuda(), nranks, protocol)
    size = int(megabytes * (1 << 20)) // 16 * 16
    places = Places(library.cuda, nranks, size)
    ends = [(places.ends[0][0], places.ends[0][0]), *places.ends[1:]]  # otherwise the root would copy its input, too
    call = partial(library.call, "broadcast", ends, size // 4, FLOAT, 0)
    rate = 2 * size / seconds(library.cuda, call, 4) / 1e9
    places.release()
    library.close()
    yield f"one block, {megabytes:g} MB, {protocol}", f"{rate:.1f} GB/s read and written"
    yield {f"block {protocol}": rate}


CALLS_COUNTED = 5
PARTS = ("waiting", "copying", "reducing")
MOST_CHANNELS = 1024


def read_counters(library: Library) -> list[int]:
    """Returns the ns of waiting, copying and reducing since creation, summed over all ranks and channels."""
    sums = [0, 0, 0]
    for handle in library.comms:
        values = (ctypes.c_uint64 * (3 * MOST_CHANNELS))()
        count = library.lib.collc_breakdown(ctypes.c_void_p(handle), values, MOST_CHANNELS)
        for at in range(3 * min(count, MOST_CHANNELS)):
            sums[at % 3] += values[at]
    return sums


def counters(path: Path, protocol: str, megabytes: float, deadline: float) -> Rows:
    """Measures where the time of blocks goes, with kernels that count."""
    os.environ["COLLC_BREAKDOWN"] = "1"
    library = Library(path, Cuda(), None, protocol)
    whole = int(megabytes * (1 << 20)) // 16 * 16
    places = Places(library.cuda, library.nranks, whole)
    for collective in ("broadcast", "all_reduce"):
        for size in sorted({min(128 << 10, whole), whole}):
            what = f"{collective}, {short(size)}, {protocol}, blocks"
            if time.monotonic() > deadline:
                yield what, "not run: out of time"
                continue
            Progress.tell(what)
            before = read_counters(library)
            for _ in range(CALLS_COUNTED):
                library.call(collective, places.ends, size // 4, FLOAT, 0)
            library.cuda.synchronize()
            spent = [after - b for b, after in zip(before, read_counters(library))]  # noqa: B905
            if sum(spent) <= 0:
                raise CheckError("the kernels counted nothing")
            yield what, ", ".join(f"{name} {part / sum(spent):.0%}" for name, part in zip(PARTS, spent))  # noqa: B905
    places.release()
    library.close()


def find_nccl() -> Path | None:
    """Returns NCCL_LIB, NCCL_HOME/lib/libnccl.so.2, or the NCCL of a wheel of this Python; None if there is none."""
    if os.environ.get("NCCL_LIB"):
        return Path(os.environ["NCCL_LIB"])
    places = [Path(os.environ["NCCL_HOME"]) / "lib"] if os.environ.get("NCCL_HOME") else []
    places += [Path(folder) / "nvidia" / "nccl" / "lib" for folder in sys.path if folder]
    return next((place / "libnccl.so.2" for place in places if (place / "libnccl.so.2").is_file()), None)


def nccl_version(path: Path) -> int:
    """Returns the version in the form of ncclGetVersion: 23003 is 2.30.3."""
    version = ctypes.c_int()
    try:
        ctypes.CDLL(str(path)).ncclGetVersion(ctypes.byref(version))
    except (OSError, AttributeError) as error:
        raise CheckError(str(error)) from error
    return version.value


def nccl(protocol: str, megabytes: float, oldest: int, deadline: float) -> Rows:
    """Yields the rows of `sizes` for the real NCCL, or why there are none.

    A process per protocol, which is killed at the end of its time, because NCCL reads variables only once, and does
    not promise that kernels of ranks on one GPU run concurrently.
    """
    path = find_nccl()
    if path is None:
        yield "all_reduce, NCCL", "not run: no NCCL here; NCCL_LIB=FILE or NCCL_HOME=FOLDER names one"
        return
    os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
    os.environ.pop("NCCL_PROTO", None)
    if protocol != "chosen":
        os.environ["NCCL_PROTO"] = protocol
    try:
        number = nccl_version(path)
    except CheckError as error:
        yield "all_reduce, NCCL", f"not run: {error}"
        return
    name = f"NCCL {number // 10000}.{number // 100 % 100}.{number % 100}"
    if number < oldest:
        yield f"all_reduce, {name}", "not run: before 2.30.3 it allows one rank per GPU"
        return
    if protocol == "Simple":
        yield f"all_reduce, {name}, us", f"called one by one{sizes_header(megabytes)}"
    for nranks in RANKS:
        what = f"  {name}, {nranks} ranks, {protocol}"
        try:
            library = RealNccl(path, Cuda(), nranks)
        except CheckError as error:
            yield what, f"not run: {error}"
            continue
        yield what, " " * PLACE + time_sizes(library, megabytes, deadline)
        library.close()
