#!/usr/bin/env python3
"""Checks and measures the CUDA target on a machine with one GPU: all ranks of a plan share it, in one process.

It needs Python's standard library, numpy, g++ and nvcc (or a library that was built elsewhere: --library), no network.
The generated sources beside this file are what `collc compile --target cuda --keep-source` writes. At its end it prints
a short table, which also goes to $OUT/gpu-check.txt.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
TEMPLATES = HERE.parent / "templates"
TYPES = {
    "int8": (0, "i1"),
    "uint8": (1, "u1"),
    "int32": (2, "i4"),
    "uint32": (3, "u4"),
    "int64": (4, "i8"),
    "uint64": (5, "u8"),
    "half": (6, "f2"),
    "float": (7, "f4"),
    "double": (8, "f8"),
    "bfloat16": (9, "u2"),
}
FLOAT = TYPES["float"][0]
OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}
REDUCING = ("all_reduce", "reduce", "reduce_scatter")
PROTOCOLS = ("Simple", "LL", "LL128")
# Libraries that are built: name -> what they are for.
NAMES = ("hgx-h100", "dgx1v", "chain")
RANKS = (2, 4, 8)
SIZES = (8, 1 << 10, 16 << 10, 128 << 10, 1 << 20, 8 << 20, 64 << 20)
# NCCL allows several ranks on one GPU from this version on, with NCCL_MULTI_RANK_GPU_ENABLE=1; older ones refuse it
# ("Duplicate GPU detected").
OLDEST_NCCL = 23003
BUILT: set[str] = set()  # files of this run that are there already
COLLECTIVES = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter")


class CheckError(Exception):
    """Something that this check needs failed."""


class Cuda:
    """The few calls of the driver API that the check makes itself."""

    def __init__(self) -> None:
        try:
            self.lib = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise CheckError(f"no NVIDIA driver here: {error}") from error
        self("cuInit", 0)
        context = ctypes.c_void_p()
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self("cuCtxSetCurrent", context)

    def __call__(self, name: str, *arguments: Any) -> None:
        status = getattr(self.lib, name)(*arguments)
        if status:
            raise CheckError(f"{name} failed with CUDA error {status}")

    def allocate(self, size: int) -> int:
        at = ctypes.c_uint64()
        self("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(max(size, 1)))
        return at.value

    def release(self, at: int) -> None:
        self("cuMemFree_v2", ctypes.c_uint64(at))

    def put(self, at: int, data: np.ndarray) -> None:
        raw = np.ascontiguousarray(data)
        self("cuMemcpyHtoD_v2", ctypes.c_uint64(at), ctypes.c_void_p(raw.ctypes.data), ctypes.c_size_t(raw.nbytes))

    def get(self, at: int, elements: int, carrier: str) -> np.ndarray:
        data = np.empty(elements, carrier)
        self("cuMemcpyDtoH_v2", ctypes.c_void_p(data.ctypes.data), ctypes.c_uint64(at), ctypes.c_size_t(data.nbytes))
        return data

    def copy(self, to: int, start: int, size: int) -> None:
        self("cuMemcpyAsync", ctypes.c_uint64(to), ctypes.c_uint64(start), ctypes.c_size_t(size), None)

    def synchronize(self) -> None:
        self("cuCtxSynchronize")


class Library:
    """A built library with a communicator of ranks on GPU 0."""

    def __init__(self, path: Path, cuda: Cuda, nranks: int | None = None, protocol: str | None = None) -> None:
        self.lib, self.cuda = ctypes.CDLL(str(path)), cuda
        self.lib.ncclGetLastError.restype = ctypes.c_char_p
        size = ctypes.c_uint64.in_dll(self.lib, "collc_manifest_size").value
        self.manifest = json.loads((ctypes.c_char * size).in_dll(self.lib, "collc_manifest").raw)
        held = self.manifest["allocations"]
        self.nranks = nranks or max(int(one["nranks"]) for one in held)
        served = [one for one in held if one["nranks"] == self.nranks]
        if not served:
            raise CheckError(f"{path.name} serves no {self.nranks} ranks")
        self.programs = served[0]["programs"]
        self.streams: list[ctypes.c_void_p | None] = [None] * self.nranks
        self.comms = (ctypes.c_void_p * self.nranks)()
        # Read when the communicator is made.
        os.environ.pop("COLLC_PROTO", None)
        if protocol is not None:
            os.environ["COLLC_PROTO"] = protocol
        self.check(self.lib.ncclCommInitAll(self.comms, self.nranks, (ctypes.c_int * self.nranks)()), "ncclCommInitAll")

    def check(self, status: int, what: str) -> None:
        if status:
            raise CheckError(f"{what}: {(self.lib.ncclGetLastError(None) or b'').decode()} [ncclResult_t {status}]")

    def call(self, collective: str, ends: list[tuple[int, int]], count: int, dtype: int, op: int) -> None:
        """One call on all ranks, from root 0 where there is one; `ends` are addresses of input and output."""
        lib = self.lib
        self.check(lib.ncclGroupStart(), "ncclGroupStart")
        for handle, (send, recv), stream in zip(self.comms, ends, self.streams, strict=True):
            comm = ctypes.c_void_p(handle)
            head = (ctypes.c_void_p(send), ctypes.c_void_p(recv), ctypes.c_size_t(count), dtype)
            match collective:
                case "all_reduce":
                    status = lib.ncclAllReduce(*head, op, comm, stream)
                case "reduce_scatter":
                    status = lib.ncclReduceScatter(*head, op, comm, stream)
                case "reduce":
                    status = lib.ncclReduce(*head, op, 0, comm, stream)
                case "broadcast":
                    status = lib.ncclBroadcast(*head, 0, comm, stream)
                case _:
                    status = lib.ncclAllGather(*head, comm, stream)
            self.check(status, collective)
        self.check(lib.ncclGroupEnd(), "ncclGroupEnd")

    def close(self) -> None:
        for handle in self.comms:
            self.check(self.lib.ncclCommDestroy(ctypes.c_void_p(handle)), "ncclCommDestroy")


class RealNccl(Library):
    """NCCL itself, all ranks on GPU 0, each on a stream of its own: their kernels must run side by side."""

    def __init__(self, path: Path, cuda: Cuda, nranks: int) -> None:
        self.lib, self.cuda, self.nranks = ctypes.CDLL(str(path)), cuda, nranks
        self.lib.ncclGetLastError.restype = ctypes.c_char_p
        self.streams = []
        for _ in range(nranks):
            stream = ctypes.c_void_p()
            cuda("cuStreamCreate", ctypes.byref(stream), 1)  # does not wait for the null stream
            self.streams.append(stream)
        self.comms = (ctypes.c_void_p * nranks)()
        self.check(self.lib.ncclCommInitAll(self.comms, nranks, (ctypes.c_int * nranks)()), "ncclCommInitAll")


def build(name: str, folder: Path) -> Path:
    """Compiles a generated source with the runtime and the kernels."""
    nvcc = next((c for c in (shutil.which("nvcc"), "/usr/local/cuda/bin/nvcc") if c and os.access(c, os.X_OK)), None)
    cxx = shutil.which("g++") or shutil.which("clang++")
    if nvcc is None or cxx is None:
        raise CheckError(f"cannot build {name}: no {'nvcc' if nvcc is None else 'C++ compiler'} here; see --library")
    folder.mkdir(parents=True, exist_ok=True)
    include = [f"-I{TEMPLATES / 'include'}", f"-I{TEMPLATES / 'runtime'}"]
    fatbin = folder.parent / "collc.fatbin"
    jobs = []
    if str(fatbin) not in BUILT:
        BUILT.add(str(fatbin))
        code = ["-gencode=arch=compute_80,code=[sm_80,sm_90,compute_80]", "-fatbin", "-allow-unsupported-compiler"]
        source = str(TEMPLATES / "cuda" / "device.cu")
        jobs.append([nvcc, "-std=c++17", "-O3", "--threads=0", *include, *code, source, "-o", str(fatbin)])
    assembly = folder / "fatbin.s"
    assembly.write_text(
        ".section .rodata\n.balign 16\n.globl collc_fatbin\n.hidden collc_fatbin\n"
        f'collc_fatbin:\n.incbin "{fatbin}"\n'
        ".globl collc_device_code\n.hidden collc_device_code\n"
        'collc_device_code:\n.asciz "sm_80, sm_90, PTX 8.0"\n.section .note.GNU-stack,"",%progbits\n',
        encoding="utf-8",
    )
    sources = [HERE / f"{name}.cpp", *sorted((TEMPLATES / "runtime").glob("*.cpp"))]
    sources += sorted((TEMPLATES / "runtime" / "cuda").glob("*.cpp"))
    # The runtime is the same in all libraries, and newer than this run only if it was built in it.
    objects = [str(folder.parent / f"{source.parent.name}-{source.stem}.o") for source in sources]
    flags = ["-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-pthread", "-ffp-contract=off", *include]
    todo = [pair for pair in zip(sources, objects, strict=True) if pair[1] not in BUILT]
    jobs += [[cxx, *flags, "-c", str(source), "-o", made] for source, made in todo]
    run_all(jobs)
    BUILT.update(objects)
    out = folder / f"libcollc-{name}.so"
    link = ["-shared", "-pthread", "-ldl", "-Wl,-z,nodelete", "-o", str(out)]
    run_all([[cxx, "-c", str(assembly), "-o", str(folder / "fatbin.o")]])
    run_all([[cxx, *objects, str(folder / "fatbin.o"), *link]])
    return out


def run_all(jobs: list[list[str]]) -> None:
    """Runs commands side by side, as many as there are cores."""
    width = os.cpu_count() or 1
    for at in range(0, len(jobs), width):
        part = jobs[at : at + width]
        running = [subprocess.Popen(job, stderr=subprocess.PIPE, text=True) for job in part]
        for job, process in zip(part, running, strict=True):
            _, log = process.communicate()
            if process.returncode:
                raise CheckError(f"{' '.join(job)[:200]} ended with status {process.returncode}: {log[-400:]}")


def encode(numbers: np.ndarray, type_name: str) -> np.ndarray:
    """Small integers as the bits of a type."""
    if type_name == "bfloat16":
        return (numbers.astype("f4").view("u4") >> 16).astype("u2")
    return numbers.astype(TYPES[type_name][1])


def numbers_of(rank: int, nranks: int, elements: int, op: str) -> np.ndarray:
    """A rank's input: integers for which every partial result is exact in every type."""
    i = np.arange(elements, dtype=np.int64)
    mixed = (i * 2654435761 + rank * 40503 + 977) % 65521
    if op == "prod":
        return np.where((i + rank) % max(nranks, 6) < 5, 1 + mixed % 2, 1)
    if op == "avg":
        return np.where(i % nranks == rank, nranks, 0)
    return mixed % (7 if op == "sum" else 100)


def expected(collective: str, nranks: int, count: int, op: str) -> list[np.ndarray | None]:
    """What each rank must hold, as integers; None where its output is not touched."""
    elements = count * nranks if collective == "reduce_scatter" else count
    inputs = [numbers_of(r, nranks, elements, op) for r in range(nranks)]
    if collective == "broadcast":
        return [inputs[0]] * nranks
    if collective == "all_gather":
        return [np.concatenate(inputs)] * nranks
    whole = np.stack(inputs)
    total = {"prod": whole.prod, "max": whole.max, "min": whole.min}.get(op, whole.sum)(axis=0)
    total = total // nranks if op == "avg" else total
    if collective == "all_reduce":
        return [total] * nranks
    if collective == "reduce":
        return [total, *[None] * (nranks - 1)]
    return [total[r * count : (r + 1) * count] for r in range(nranks)]


def one_case(library: Library, collective: str, type_name: str, op: str, count: int, shift: int) -> bool:
    """Runs one call and compares every byte; `shift` elements put the buffers off alignment."""
    cuda, n = library.cuda, library.nranks
    number, carrier = TYPES[type_name]
    size = np.dtype(carrier).itemsize
    send = count * (n if collective == "reduce_scatter" else 1)
    recv = count * (n if collective == "all_gather" else 1)
    inputs, outputs, ends = [], [], []
    for rank in range(n):
        inputs.append(cuda.allocate((send + shift) * size))
        outputs.append(cuda.allocate((recv + shift) * size))
        cuda.put(inputs[rank] + shift * size, encode(numbers_of(rank, n, send, op), type_name))
        cuda.put(outputs[rank] + shift * size, np.frombuffer(b"\xcd" * (recv * size), carrier))
        ends.append((inputs[rank] + shift * size, outputs[rank] + shift * size))
    library.call(collective, ends, count, number, OPS.get(op, 0))
    cuda.synchronize()
    right = True
    for rank, result in enumerate(expected(collective, n, count, op)):
        got = cuda.get(ends[rank][1], recv, carrier)
        wanted = np.frombuffer(b"\xcd" * (recv * size), carrier) if result is None else encode(result, type_name)
        right &= got.tobytes() == wanted.tobytes()
    for at in (*inputs, *outputs):
        cuda.release(at)
    return right


def check_results(library: Library, counts: list[int], types: list[str], deadline: float) -> tuple[str, bool]:
    """Every collective and operation; sizes from one element to more than all slots hold."""
    done, wrong, left = 0, [], 0
    held = {p["collective"] for p in library.programs}
    for count in counts:
        for collective in (c for c in COLLECTIVES if c in held):
            for type_name in types:
                for op in OPS if collective in REDUCING else ("none",):
                    if time.monotonic() > deadline:
                        left += 1
                        continue
                    done += 1
                    if not one_case(library, collective, type_name, op, count, int(done % 3 == 0)):
                        wrong.append(f"{collective} {type_name} {op} {count}")
    text = f"{done - len(wrong)} of {done} right" + (f", {left} not run: out of time" if left else "")
    return text + (f"; wrong: {', '.join(wrong[:4])}" if wrong else ""), not wrong


def seconds(cuda: Cuda, body: Any, most: int = 50) -> float:
    """Median over five of the time of one call among many back to back, some 10 ms of them or `most`."""
    body()
    cuda.synchronize()
    start = time.perf_counter()
    body()
    cuda.synchronize()
    rounds = max(2, min(most, int(0.01 / (time.perf_counter() - start))))
    times = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(rounds):
            body()
        cuda.synchronize()
        times.append((time.perf_counter() - start) / rounds)
    return sorted(times)[2]


class Places:
    """Input and output of every rank, as large as the largest call."""

    def __init__(self, cuda: Cuda, nranks: int, size: int) -> None:
        self.cuda = cuda
        self.ends = [(cuda.allocate(size), cuda.allocate(size)) for _ in range(nranks)]

    def release(self) -> None:
        for at in (at for pair in self.ends for at in pair):
            self.cuda.release(at)


def measure_throughput(path: Path, cuda: Cuda, megabytes: float) -> list[tuple[str, str]]:
    """Bytes that all ranks together copy and reduce per second, by protocol, beside the card's own copy."""
    size = int(megabytes * (1 << 20)) // 16 * 16
    rows, simple = [], {}
    for protocol in PROTOCOLS:
        library = Library(path, cuda, None, protocol)
        places, n = Places(cuda, library.nranks, size), library.nranks
        to, start = places.ends[0][1], places.ends[0][0]
        own = size / seconds(cuda, partial(cuda.copy, to, start, size), 8) / 1e9
        if not rows:
            rows.append(("device-to-device copy", f"{own:.0f} GB/s written"))
        for collective, moved in (("broadcast", n - 1), ("all_reduce", 2 * (n - 1))):
            call = partial(library.call, collective, places.ends, size // 4, FLOAT, 0)
            rate = moved * size / seconds(cuda, call, 4) / 1e9
            kind = "copied into slots" if collective == "broadcast" else "reduced and copied into slots"
            simple.setdefault(collective, rate)
            beside = "" if protocol == "Simple" else f", {rate / simple[collective]:.0%} of Simple"
            text = f"{rate:.0f} GB/s {kind} ({rate / own:.0%} of a copy{beside})"
            rows.append((f"{collective}, {megabytes:g} MB, {n} ranks, {protocol}", text))
        places.release()
        library.close()
    return rows


def time_sizes(library: Library, megabytes: float, deadline: float) -> dict[int, float]:
    """Microseconds of an all_reduce by its size; sizes whose turn comes after the deadline are left out."""
    sizes = [size for size in SIZES if size <= megabytes * (1 << 20)]
    places, found = Places(library.cuda, library.nranks, sizes[-1]), {}
    for size in sizes:
        if time.monotonic() < deadline:
            call = partial(library.call, "all_reduce", places.ends, size // 4, FLOAT, 0)
            found[size] = seconds(library.cuda, call) * 1e6
    places.release()
    return found


def size_rows(nranks: int, found: dict[str, dict[int, float]]) -> list[tuple[str, str]]:
    """The rows of one number of ranks: a size, and its time by each way in the order of `found`."""
    rows = []
    for size in sorted({size for times in found.values() for size in times}):
        cells = "".join(f"{'-' if size not in t else format(t[size], '.1f'):>10}" for t in found.values())
        rows.append(("", f"{nranks:>5}{size:>10}{cells}"))
    return rows


def sizes_header(who: str) -> tuple[str, str]:
    return f"all_reduce{who}, us", "ranks     bytes" + "".join(f"{p:>10}" for p in (*PROTOCOLS, "chosen"))


def measure_sizes(path: Path, cuda: Cuda, megabytes: float, deadline: float) -> list[tuple[str, str]]:
    """all_reduce over 2, 4 and 8 ranks by size, every protocol forced and the library's own choice."""
    rows = [sizes_header("")]
    for nranks in RANKS:
        found: dict[str, dict[int, float]] = {}
        for protocol in (*PROTOCOLS, None):
            try:
                library = Library(path, cuda, nranks, protocol)
            except CheckError as error:
                rows.append((f"all_reduce, {nranks} ranks", f"{protocol or 'chosen'}: {error}"))
                found[protocol or "chosen"] = {}
                continue
            found[protocol or "chosen"] = time_sizes(library, megabytes, deadline)
            library.close()
        rows += size_rows(nranks, found)
    return rows


def find_nccl() -> Path | None:
    """NCCL_LIB, NCCL_HOME/lib/libnccl.so.2, or that of a wheel (PyTorch's) of this Python; None without one."""
    if os.environ.get("NCCL_LIB"):
        return Path(os.environ["NCCL_LIB"])
    places = [Path(os.environ["NCCL_HOME"]) / "lib"] if os.environ.get("NCCL_HOME") else []
    places += [Path(folder) / "nvidia" / "nccl" / "lib" for folder in sys.path if folder]
    return next((place / "libnccl.so.2" for place in places if (place / "libnccl.so.2").is_file()), None)


def nccl_version(path: Path) -> int:
    """As ncclGetVersion says it: 23003 is 2.30.3."""
    version = ctypes.c_int()
    try:
        ctypes.CDLL(str(path)).ncclGetVersion(ctypes.byref(version))
    except (OSError, AttributeError) as error:
        raise CheckError(str(error)) from error
    return version.value


def measure_nccl(
    megabytes: float, limit: float = 80, ranks: tuple[int, ...] = RANKS, oldest: int = OLDEST_NCCL
) -> list[tuple[str, str]]:
    """The table of `measure_sizes` for the real NCCL, or why there is none.

    Every protocol runs in a process of its own, which is ended after its part of `limit` seconds: NCCL reads variables
    once, and does not promise that the kernels of ranks on one GPU run side by side.
    """
    path = find_nccl()
    if path is None:
        return [("all_reduce, NCCL", "not run: no NCCL here; NCCL_LIB=FILE or NCCL_HOME=FOLDER names one")]
    try:
        number = nccl_version(path)
    except CheckError as error:
        return [("all_reduce, NCCL", f"not run: {error}")]
    name = f"NCCL {number // 10000}.{number // 100 % 100}.{number % 100}"
    if number < oldest:
        return [(f"all_reduce, {name}", "not run: before 2.30.3 it allows one rank per GPU")]
    found: dict[int, dict[str, dict[int, float]]] = {nranks: {} for nranks in ranks}
    rows = [sizes_header(f", {name}")]
    for protocol in (*PROTOCOLS, None):
        way = protocol or "chosen"
        environment = {**os.environ, "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
        environment.pop("NCCL_PROTO", None)
        if protocol is not None:
            environment["NCCL_PROTO"] = protocol
        command = [sys.executable, str(Path(__file__).resolve()), "--nccl", str(path), "--megabytes", str(megabytes)]
        command += ["--ranks", ",".join(map(str, ranks))]
        each = limit / (len(PROTOCOLS) + 1)
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            said, log = process.communicate(timeout=each)
            reason = f"status {process.returncode}: {(log.strip().splitlines() or ['no words'])[-1][:200]}"
        except subprocess.TimeoutExpired:
            process.kill()
            said, _ = process.communicate()
            reason = f"did not end within {each:.0f} s, as when the kernels of its ranks wait for each other"
        for line in said.splitlines():
            answer = json.loads(line)
            if "error" in answer:
                reason = answer["error"]
            else:
                found[answer["ranks"]][way] = {int(size): took for size, took in answer["times"].items()}
        for nranks in ranks:
            if way not in found[nranks]:
                rows.append((f"all_reduce, {name}, {nranks} ranks", f"{way}: not run: {reason}"))
                found[nranks][way] = {}
    return rows + [row for nranks in ranks for row in size_rows(nranks, found[nranks])]


def time_nccl(path: Path, megabytes: float, ranks: list[int]) -> int:
    """What `measure_nccl` starts: prints a JSON object per number of ranks as soon as it is measured."""
    try:
        cuda = Cuda()
        for nranks in ranks:
            library = RealNccl(path, cuda, nranks)
            times = time_sizes(library, megabytes, time.monotonic() + 60)
            print(json.dumps({"ranks": nranks, "times": times}), flush=True)
            library.close()
    except CheckError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return 1
    return 0


def measure_hops(path: Path, cuda: Cuda) -> list[tuple[str, str]]:
    """The time per hop: how that of 8 bytes down a chain grows with its length, launch and all else being equal."""
    rows = []
    for protocol in PROTOCOLS:
        times = []
        for nranks in (2, 4, 8):
            library = Library(path, cuda, nranks, protocol)
            places = Places(cuda, nranks, 8)
            took = seconds(cuda, partial(library.call, "broadcast", places.ends, 2, FLOAT, 0))
            times.append(took * 1e6)
            places.release()
            library.close()
        hops = np.array([1, 3, 7])
        slope = float(np.polyfit(hops, times, 1)[0])
        text = ", ".join(f"{t:.1f}" for t in times)
        rows.append((f"8 bytes down a chain, {protocol}", f"{slope:.2f} us per hop ({text} us for 1, 3, 7 hops)"))
    return rows


def sanitize(path: Path) -> tuple[str, bool]:
    """The smallest sizes under compute-sanitizer."""
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.access(tool, os.X_OK):
        return "not run: no compute-sanitizer here", True
    command = [tool, "--error-exitcode=9", sys.executable, str(Path(__file__)), "--library", str(path), "--tiny"]
    command += ["--types", "int8,float"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    except subprocess.TimeoutExpired:
        return "not run to the end: more than 90 s", True
    last = (done.stdout.strip().splitlines() or ["no output"])[-1]
    return ("no errors", True) if done.returncode == 0 else (f"status {done.returncode}: {last}", False)


def check_library(name: str, path: Path, options: argparse.Namespace, deadline: float) -> tuple[list[str], bool]:
    """The rows of the table for one library: results over its own choice of protocols, then over each forced."""
    cuda = Cuda()
    rows, good = [], True
    ways: list[str | None] = [None, *PROTOCOLS]
    start = time.monotonic()
    for number, protocol in enumerate(ways):
        library = Library(path, cuda, None, protocol)
        types = options.types.split(",") if options.types else list(TYPES)
        counts = [33, 100_003, 1, 3_000_001]
        if options.tiny:
            types = types if protocol is None else [t for t in types if t in ("int8", "half", "float", "double")]
            counts = [1, 33] if protocol is None else [33]
        until = start + (deadline - start) * (number + 1) / len(ways)
        text, right = check_results(library, counts, types, until)
        rows.append((f"results, {protocol or 'protocols by the table'}", text))
        good &= right
        library.close()
    return [f"{name:<10} {what:<40} {value}" for what, value in rows], good


def measure(name: str, path: Path, options: argparse.Namespace, deadline: float) -> list[str]:
    """The rows of the table that are times."""
    cuda = Cuda()
    if name == "chain":
        rows = measure_hops(path, cuda)
    elif name == "hgx-h100":
        rows = measure_throughput(path, cuda, options.megabytes) + measure_sizes(
            path, cuda, options.megabytes, deadline
        )
        rows += measure_nccl(options.megabytes)
    else:
        rows = []
    return [f"{name:<10} {what:<40} {value}" for what, value in rows]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", type=Path, action="append", help="use this library instead of building")
    parser.add_argument("--megabytes", type=float, default=64, help="the largest call that is timed")
    parser.add_argument("--seconds", type=float, default=200, help="of the checks of results, all together")
    parser.add_argument("--types", help="check these types alone, separated by commas")
    parser.add_argument("--nccl", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--ranks", default="", help=argparse.SUPPRESS)
    parser.add_argument("--tiny", action="store_true", help="a few elements, no measurements, no sanitizer")
    options = parser.parse_args()
    os.environ["COLLC_SHARE_GPU"] = "1"
    if options.nccl:
        return time_nccl(options.nccl, options.megabytes, list(map(int, options.ranks.split(","))))
    start = time.monotonic()
    lines, good = [], True
    names = [p.stem.removeprefix("libcollc-") for p in options.library or []] or list(NAMES)
    for number, name in enumerate(names):
        try:
            folder = HERE.parent / "build" / "gpu-check" / name
            path = (options.library[number] if options.library else build(name, folder)).resolve()
            if number == 0:
                checks = time.monotonic()
            rows, right = check_library(name, path, options, checks + options.seconds * (number + 1) / len(names))
            if not options.tiny:
                rows += measure(name, path, options, time.monotonic() + 60)
            if number == 0 and not options.tiny:
                text, clean = sanitize(path)
                rows.append(f"{name:<10} {'compute-sanitizer':<40} {text}")
                right &= clean
        except CheckError as error:
            rows, right = [f"{name:<10} {'failed':<40} {error}"], False
        lines += rows
        good &= right
    lines.append(f"{'':<10} {'all checks' if good else 'NOT all checks'} passed in {time.monotonic() - start:.0f} s")
    table = "\n".join(lines)
    print(table)
    if os.environ.get("OUT") and not options.tiny:
        (Path(os.environ["OUT"]) / "gpu-check.txt").write_text(table + "\n", encoding="utf-8")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
