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
OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}
REDUCING = ("all_reduce", "reduce", "reduce_scatter")
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
    """A built library with a communicator of all its ranks on GPU 0."""

    def __init__(self, path: Path, cuda: Cuda) -> None:
        self.lib, self.cuda = ctypes.CDLL(str(path)), cuda
        self.lib.ncclGetLastError.restype = ctypes.c_char_p
        size = ctypes.c_uint64.in_dll(self.lib, "collc_manifest_size").value
        self.manifest = json.loads((ctypes.c_char * size).in_dll(self.lib, "collc_manifest").raw)
        self.programs = self.manifest["allocations"][0]["programs"]
        self.nranks = int(self.manifest["allocations"][0]["nranks"])
        self.comms = (ctypes.c_void_p * self.nranks)()
        self.check(self.lib.ncclCommInitAll(self.comms, self.nranks, (ctypes.c_int * self.nranks)()), "ncclCommInitAll")

    def check(self, status: int, what: str) -> None:
        if status:
            raise CheckError(f"{what}: {(self.lib.ncclGetLastError(None) or b'').decode()} [ncclResult_t {status}]")

    def call(self, collective: str, ends: list[tuple[int, int]], count: int, dtype: int, op: int) -> None:
        """One call on all ranks, from root 0 where there is one; `ends` are addresses of input and output."""
        lib = self.lib
        self.check(lib.ncclGroupStart(), "ncclGroupStart")
        for handle, (send, recv) in zip(self.comms, ends, strict=True):
            comm = ctypes.c_void_p(handle)
            head = (ctypes.c_void_p(send), ctypes.c_void_p(recv), ctypes.c_size_t(count), dtype)
            match collective:
                case "all_reduce":
                    status = lib.ncclAllReduce(*head, op, comm, None)
                case "reduce_scatter":
                    status = lib.ncclReduceScatter(*head, op, comm, None)
                case "reduce":
                    status = lib.ncclReduce(*head, op, 0, comm, None)
                case "broadcast":
                    status = lib.ncclBroadcast(*head, 0, comm, None)
                case _:
                    status = lib.ncclAllGather(*head, comm, None)
            self.check(status, collective)
        self.check(lib.ncclGroupEnd(), "ncclGroupEnd")

    def close(self) -> None:
        for handle in self.comms:
            self.check(self.lib.ncclCommDestroy(ctypes.c_void_p(handle)), "ncclCommDestroy")


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
    if not fatbin.is_file():
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
    objects = [str(folder / f"{source.parent.name}-{source.stem}.o") for source in sources]
    flags = ["-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-pthread", "-ffp-contract=off", *include]
    jobs += [[cxx, *flags, "-c", str(s), "-o", o] for s, o in zip(sources, objects, strict=True)]
    run_all(jobs)
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


def check_results(library: Library, counts: list[int], deadline: float) -> tuple[str, bool]:
    """Every collective, type and operation; sizes from one element to more than all slots hold."""
    done, wrong, left = 0, [], 0
    held = {p["collective"] for p in library.programs}
    for count in counts:
        for collective in (c for c in COLLECTIVES if c in held):
            for type_name in TYPES:
                for op in OPS if collective in REDUCING else ("none",):
                    if time.monotonic() > deadline:
                        left += 1
                        continue
                    done += 1
                    if not one_case(library, collective, type_name, op, count, int(done % 3 == 0)):
                        wrong.append(f"{collective} {type_name} {op} {count}")
    text = f"{done - len(wrong)} of {done} right" + (f", {left} not run: out of time" if left else "")
    return text + (f"; wrong: {', '.join(wrong[:4])}" if wrong else ""), not wrong


def seconds(cuda: Cuda, body: Any, rounds: int) -> float:
    """Median over five of the time of one call among `rounds` back to back."""
    body()
    cuda.synchronize()
    times = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(rounds):
            body()
        cuda.synchronize()
        times.append((time.perf_counter() - start) / rounds)
    return sorted(times)[2]


def measure(library: Library, megabytes: int) -> list[tuple[str, str]]:
    """Throughput of copy and reduce beside the card's own copy, and the time per hop of a small message."""
    cuda, n = library.cuda, library.nranks
    size = megabytes << 20
    places = [(cuda.allocate(size), cuda.allocate(size)) for _ in range(n)]
    own = size / seconds(cuda, lambda: cuda.copy(places[0][1], places[0][0], size), 8) / 1e9
    rows = [("device-to-device copy", f"{own:.0f} GB/s written")]
    for collective, moved in (("broadcast", n - 1), ("all_reduce", 2 * (n - 1))):
        took = seconds(cuda, lambda c=collective: library.call(c, places, size // 4, TYPES["float"][0], 0), 4)
        rate = moved * size / took / 1e9
        kind = "copied into slots" if collective == "broadcast" else "reduced and copied into slots"
        rows.append(
            (f"{collective}, {megabytes} MB, {n} ranks", f"{rate:.0f} GB/s {kind} ({rate / own:.0%} of a copy)")
        )
    for collective in ("broadcast", "all_reduce"):
        depth = max(p["depth"] for p in library.programs if p["collective"] == collective)
        took = seconds(cuda, lambda c=collective: library.call(c, places, 2, TYPES["float"][0], 0), 50)
        rows.append((f"{collective}, 8 bytes", f"{took * 1e6:.1f} us, {took * 1e6 / depth:.1f} us per hop of {depth}"))
    for pair in places:
        for at in pair:
            cuda.release(at)
    return rows


def sanitize(path: Path) -> tuple[str, bool]:
    """The smallest sizes under compute-sanitizer."""
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.access(tool, os.X_OK):
        return "not run: no compute-sanitizer here", True
    command = [tool, "--error-exitcode=9", sys.executable, str(Path(__file__)), "--library", str(path), "--tiny"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    except subprocess.TimeoutExpired:
        return "not run to the end: more than 100 s", True
    last = (done.stdout.strip().splitlines() or ["no output"])[-1]
    return ("no errors", True) if done.returncode == 0 else (f"status {done.returncode}: {last}", False)


def check_library(name: str, path: Path, options: argparse.Namespace, deadline: float) -> tuple[list[str], bool]:
    """The rows of the table for one library."""
    cuda = Cuda()
    library = Library(path, cuda)
    counts = [1, 33] if options.tiny else [1, 33, 100_003, 3_000_001]
    text, good = check_results(library, counts, deadline)
    rows = [("results", text)]
    if not options.tiny:
        rows += measure(library, options.megabytes)
    library.close()
    return [f"{name:<10} {what:<36} {value}" for what, value in rows], good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", type=Path, action="append", help="use this library instead of building")
    parser.add_argument("--megabytes", type=int, default=64, help="size of the throughput measurements")
    parser.add_argument("--seconds", type=float, default=300, help="when to stop starting new checks of results")
    parser.add_argument("--tiny", action="store_true", help="a few elements, no measurements, no sanitizer")
    options = parser.parse_args()
    os.environ["COLLC_SHARE_GPU"] = "1"
    start = time.monotonic()
    lines, good = [], True
    names = [p.stem.removeprefix("libcollc-") for p in options.library or []] or ["hgx-h100", "dgx1v"]
    for number, name in enumerate(names):
        deadline = start + options.seconds * (number + 1) / len(names)
        try:
            folder = HERE.parent / "build" / "gpu-check" / name
            path = options.library[number] if options.library else build(name, folder)
            rows, right = check_library(name, path.resolve(), options, deadline)
            if number == 0 and not options.tiny:
                text, clean = sanitize(path.resolve())
                rows.append(f"{name:<10} {'compute-sanitizer':<36} {text}")
                right &= clean
        except CheckError as error:
            rows, right = [f"{name:<10} {'failed':<36} {error}"], False
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
