#!/usr/bin/env python3
"""Checks and measures the CUDA target on a machine with one GPU: all ranks of a plan share it, in one process.

It needs Python's standard library, numpy, g++ and nvcc (or libraries that were built elsewhere: --library), but no
network. `make gpu-check-tables` writes the compact tables in this folder.

Every part runs in a separate process, which is killed at the end of its time, so a part that hangs costs only its rows.
Rows are written to stdout and to $OUT/gpu-check.txt as they come; the whole table is printed at the end. The stderr of
the parts is written to $OUT/gpu-check.log.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import building
import constants
import measures
import processes
import results
from gpu import (
    CAPABILITY_MAJOR,
    CAPABILITY_MINOR,
    MULTIPROCESSORS,
    PROTOCOLS,
    TYPES,
    CheckError,
    Cuda,
    Lender,
    Library,
    Progress,
    read_manifest,
)
from table import Part, Runner, Table

HERE = Path(__file__).resolve().parent
MAIN = "hgx-h100"  # the library that collc makes by default
SETS = "hgx-h100-sets"  # for 2, 4 and 8 of its GPUs
SHAPES = tuple(measures.SHAPES)
# The main library with other numbers of slots.
SLOTS = ("2-slots", "8-slots")
NAMES = (MAIN, SETS, "dgx1v", *SHAPES, *SLOTS)
SANITIZER = ("compute-sanitizer", "/usr/local/cuda/bin/compute-sanitizer")
BUILD = HERE.parent / "build" / "gpu-check"
# Seconds until the table is printed as it is. The times of the parts add up to less.
WATCHDOG = 479.0


# The order of the types of parts over all libraries, after the results of the first library.
ORDER = ("throughput", "faults", "hops", "block", "sizes", "calls", "processes", "sizes in graphs", "shapes", "sweeps")
SLOW_WAYS = ("GPU memory", "host slots")  # which also take times
FAULTS = {"abort": processes.aborts, "time-out": processes.time_outs, "killed process": processes.deaths}


def library_parts(name: str, path: Path, options: argparse.Namespace) -> dict[str, list[Part]]:
    """Returns the parts for one library, by type."""
    common = ("--library", str(path), *(("--tiny",) if options.tiny else ()))
    types = ("--types", options.types) if options.types else ()
    size = ("--megabytes", str(options.megabytes))
    if name in SLOTS:
        return {}  # one part compares them all

    def part(what: str, way: str, seconds: float, *more: str) -> Part:
        title = f"{what}: {way}" if way else what
        return Part(title, name, (*common, *more, *(("--way", way) if way else ())), seconds, needs=path)

    if name in SHAPES:
        found = {"results": [part("results", "protocols by the table", 5.0, *types)]}
        if not options.tiny:
            found["shapes"] = [part("shape", p, 3.0, *size) for p in ("Simple", "LL128")]
        if name == "chain" and not options.tiny:
            found["hops"] = [part("hops", p, 5.0) for p in PROTOCOLS]
            found["block"] = [part("block", p, 3.0, *size) for p in PROTOCOLS]
        return found
    long = {SETS: 11.0, "dgx1v": 14.0}.get(name, 20.0)
    found = {"results": [part("results", "protocols by the table", long, *types)]}
    if name != SETS:
        found["results"] += [part("results", p, 10.0 if name != "dgx1v" else 8.0, *types) for p in PROTOCOLS]
    if name not in (SETS, "dgx1v"):
        found["calls"] = [part(what, "", 6.0) for what in ("in place", "transfers", "streams")]
        found["calls"].append(part("graphs", "", 14.0))
    if options.library or name == SETS:  # a process per rank, and few ranks
        found["faults"] = [part("abort", "", 7.0), part("time-out", "", 8.0), part("killed process", "", 8.0)]
        found["processes"] = [part("processes", way, 9.0 if way in SLOW_WAYS else 4.5) for way in processes.WAYS]
    if name == MAIN and not options.tiny:
        found["throughput"] = [part("throughput", p, 6.0, *size) for p in PROTOCOLS]
        found["sweeps"] = [part("sweeps", p, 7.0, *size) for p in ("Simple", "LL128")]
    # A library that was built elsewhere is timed for the numbers of ranks that it serves.
    if not options.tiny and (name == SETS or (name == MAIN and options.library)):
        found["sizes"] = [part("sizes", p, 6.0, *size) for p in (*PROTOCOLS, "chosen")]
        found["sizes in graphs"] = [
            part("sizes", p, 6.0, *size, "--graph")._replace(name=f"sizes: {p}, in graphs")
            for p in ("LL", "LL128", "chosen")
        ]
    return found


def built_parts(libraries: dict[str, Path], folder: Path, options: argparse.Namespace) -> list[Part]:
    """Returns the parts that need libraries which collc does not make by default: other slots, kernels that count."""
    size = ("--megabytes", str(options.megabytes))
    three = [word for name in (SLOTS[0], MAIN, SLOTS[1]) for word in ("--library", str(libraries[name]))]
    parts = [Part(f"slots: {p}", MAIN, (*three, *size, "--way", p), 4.0) for p in ("Simple", "LL128")]
    counting = folder / f"libcollc-{building.COUNTING}.so"
    parts += [
        Part(f"counters: {p}", MAIN, ("--library", str(counting), *size, "--way", p), 4.0, needs=counting)
        for p in PROTOCOLS
    ]
    lending = folder / f"libcollc-{building.LENDING}.so"
    return parts + lending_parts(lending, options)


def lending_parts(path: Path, options: argparse.Namespace) -> list[Part]:
    """Returns the parts about buffers that peers read in place."""
    common = ("--library", str(path), *(("--tiny",) if options.tiny else ()))
    parts = [Part("lending", SETS, common, 6.0, needs=path)]
    if not options.tiny:
        size = ("--megabytes", str(options.megabytes))
        parts.append(Part("lending by size", SETS, (*common, *size), 4.0, needs=path))
    return parts


def nccl_parts(options: argparse.Namespace) -> list[Part]:
    more = ("--megabytes", str(options.megabytes))
    return [Part(f"nccl: {p}", "NCCL", (*more, "--way", p), 3.5, must_pass=False) for p in (*PROTOCOLS, "chosen")]


def sanitizer_part(name: str, path: Path, tool: str) -> Part:
    arguments = ("--library", str(path), "--tiny", "--types", "int8,float", "--way", "each")
    return Part("results: compute-sanitizer", name, arguments, 20.0, False, path, (tool,))


def later_parts(libraries: dict[str, Path], options: argparse.Namespace) -> list[Part]:
    """Returns the parts that run after the libraries are built, the most valuable ones first."""
    by_library = {name: library_parts(name, path, options) for name, path in libraries.items()}
    names = list(libraries)
    parts = [*by_library[names[0]]["results"]]
    for kind in ORDER:
        parts += [part for name in names for part in by_library[name].get(kind, [])]
    parts += [part for name in names[1:] for part in by_library[name].get("results", [])]
    parts += [one for name, path in libraries.items() if lends(path) for one in lending_parts(path, options)]
    if options.tiny:
        return parts
    if MAIN in libraries:
        folder = Path(os.environ.get("OUT") or BUILD)
        parts.append(Part("constants", "", ("--folder", str(folder)), 5.0))
    if not options.library:
        parts += built_parts(libraries, BUILD, options)
    tool = next((path for path in map(shutil.which, SANITIZER) if path), None)
    small = SETS if SETS in libraries else names[0]  # it is slow under the tool
    parts += [sanitizer_part(small, libraries[small], tool)] if tool else []
    return parts + nccl_parts(options)


def first_parts(folder: Path, options: argparse.Namespace) -> list[Part]:
    device = Part("device", "", (), 15.0)
    return [device] if options.library else [device, Part("build", "", ("--folder", str(folder)), 75.0)]


def lends(path: Path) -> bool:
    """Returns whether a library has kernels that read other ranks' buffers."""
    return path.is_file() and bool(read_manifest(path).get("direct"))


def chosen(parts: list[Part], options: argparse.Namespace) -> list[Part]:
    wanted = set(options.parts.split(",")) if options.parts else None
    parts = [part for part in parts if wanted is None or part.name.split(":")[0] in wanted]
    return [part._replace(seconds=part.seconds * options.stretch) for part in parts]


def device() -> Iterator[Any]:
    """Yields the facts about the GPU, and its row."""
    cuda = Cuda()
    sm = cuda.attribute(CAPABILITY_MAJOR) * 10 + cuda.attribute(CAPABILITY_MINOR)
    name, version, size = ctypes.create_string_buffer(256), ctypes.c_int(), ctypes.c_size_t()
    cuda("cuDriverGetVersion", ctypes.byref(version))
    cuda("cuDeviceGetName", name, 256, 0)
    cuda("cuDeviceTotalMem_v2", ctypes.byref(size), 0)
    driver = f"driver for CUDA {version.value // 1000}.{version.value % 1000 // 10}"
    yield {"sm": sm, "cuda": version.value // 1000, "gpu": name.value.decode()}
    held = f"{size.value >> 20} MB, {cuda.attribute(MULTIPROCESSORS)} multiprocessors"
    yield "GPU", f"{name.value.decode()}, sm_{sm}, {held}, {driver}"


def results_of(options: argparse.Namespace, until: float) -> Iterator[Any]:
    """Checks results with one way of choosing protocols, or with each."""
    cuda, start = Cuda(), time.monotonic()
    table = "protocols by the table"
    ways = [table, *PROTOCOLS] if options.way == "each" else [options.way]
    for number, way in enumerate(ways):
        library = Library(options.library[0], cuda, None, None if way == table else way)
        types = options.types.split(",") if options.types else list(TYPES)
        if options.tiny and way != table:
            types = [t for t in types if t in ("int8", "half", "float", "double")]
        deadline = start + (until - start) * (number + 1) / len(ways)
        cases = results.all_cases(library, types, options.tiny, options.tiny and way != table)
        yield (f"results, {way}", *results.check_cases(library, cases, deadline))
        library.close()


def rows_of(options: argparse.Namespace) -> Iterator[Any]:
    """Yields the rows of a part, as (what, value) or (what, value, good), and facts for later parts as dictionaries."""
    until = time.monotonic() + options.until
    path = options.library[0].resolve() if options.library else Path()
    facts, part, size = json.loads(options.facts), options.part, options.megabytes
    if part == "device":
        yield from device()
    elif part == "build":
        start = time.monotonic()
        sources, cuda = building.write_sources(NAMES, options.folder), facts.get("cuda", 13)
        built = building.build(sources, options.folder, facts["sm"], until, cuda=cuda, counting=MAIN, lending=SETS)
        yield "build", f"{len(built.made)} libraries in {time.monotonic() - start:.0f} s"
        for name, words in built.failed.items():
            yield f"build of {name}", f"FAILED: {words}", False
    elif part == "results":
        yield from results_of(options, until)
    elif part == "throughput":
        yield from measures.throughput(path, options.way, size, facts.get("rates", {}))
    elif part == "sizes":
        yield from measures.sizes(path, options.way, size, options.graph, until)
    elif part == "hops":
        yield from measures.hops(path, options.way)
    elif part == "sweeps":
        yield from measures.sweeps(path, options.way, size, until)
    elif part == "slots":
        yield from measures.slots(options.library, options.way, size, until)
    elif part == "shape":
        name = path.stem.replace("libcollc-", "", 1)
        yield from measures.shape(name, path, options.way, size, until)
    elif part == "block":
        yield from measures.block(path, options.way, min(size, 16))
    elif part == "counters":
        yield from measures.counters(path, options.way, size, until)
    elif part == "constants":
        yield constants.write(facts, PROTOCOLS, options.folder)
    elif part == "lending":
        library = Library(path, Lender(path), None, "Simple")
        types = ["int8", "half", "float", "double"]
        cases = results.all_cases(library, types, options.tiny, True)
        yield (
            "results, buffers read where they stand",
            *results.check_cases(library, cases, until - options.until / 2),
        )
        library.close()
        yield from processes.lending(path, options.tiny, until)
    elif part == "lending by size":
        yield from measures.lending(path, size, until)
    elif part == "processes":
        yield from processes.processes(path, options.way, options.tiny, until)
    elif part in FAULTS:
        yield from FAULTS[part](path)
    elif part == "nccl":
        yield from measures.nccl(options.way, size, options.oldest_nccl, until)
    else:
        library = Library(path, Cuda())
        check = {"in place": results.in_place, "transfers": results.transfers, "streams": results.streams}
        yield from check.get(part, results.graphs)(library, options.tiny, until)
        library.close()


def run_part(options: argparse.Namespace) -> int:
    """Runs one part in the process that `Runner` starts: prints a JSON object per row."""
    good = True
    Progress.tell = lambda text: print(json.dumps({"at": text}), flush=True)
    try:
        for found in rows_of(options):
            if isinstance(found, dict):
                print(json.dumps({"facts": found}), flush=True)
                continue
            what, value, right = found if len(found) == 3 else (*found, True)
            good &= right
            print(json.dumps({"row": [what, value], "good": right}), flush=True)
    except CheckError as error:
        good = False
        print(json.dumps({"row": [f"{options.part} {options.way or ''}".strip(), f"FAILED: {error}"], "good": False}))
    return 0 if good else 1


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=Path, action="append", help="use this library instead of building")
    parser.add_argument("--megabytes", type=float, default=64, help="the largest call that is timed")
    parser.add_argument("--types", help="check results of these types alone, separated by commas")
    parser.add_argument("--parts", help="run these parts alone, separated by commas: results, in place, streams, ...")
    parser.add_argument("--stretch", type=float, default=1, help="give everything so many times its time")
    parser.add_argument("--tiny", action="store_true", help="a few elements, no measurements, no sanitizer")
    parser.add_argument("--oldest-nccl", type=int, default=measures.OLDEST_NCCL, help=argparse.SUPPRESS)
    for hidden in ("--part", "--way", "--facts"):
        parser.add_argument(hidden, help=argparse.SUPPRESS, default="{}" if hidden == "--facts" else None)
    parser.add_argument("--until", type=float, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--graph", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main() -> int:
    options = parse()
    if options.part:
        return run_part(options)
    out = Path(os.environ["OUT"]) if os.environ.get("OUT") else None
    try:
        if out:
            out.mkdir(parents=True, exist_ok=True)
        table = Table(out)
    except OSError as error:
        print(f"cannot write to OUT: {error}")
        return 1
    os.environ["GPU_CHECK_STRETCH"] = str(options.stretch)  # for the processes of parts
    runner = Runner(table, Path(__file__).resolve())
    runner.watch(WATCHDOG * options.stretch)
    libraries = {name: BUILD / f"libcollc-{name}.so" for name in NAMES}
    if options.library:
        libraries = {path.stem.replace("libcollc-", "", 1): path.resolve() for path in options.library}
    else:
        variants = [BUILD / f"libcollc-{name}.so" for name in building.VARIANTS]
        for path in (*libraries.values(), *variants):  # from an earlier run
            if path.is_file():
                path.unlink()
    first, later = first_parts(BUILD, options), chosen(later_parts(libraries, options), options)
    first = [part._replace(seconds=part.seconds * options.stretch) for part in first]
    no_gpu = "there is no GPU to run it on"
    runner.run([*first, *later], lambda part: None if part.name == "device" or "sm" in runner.facts else no_gpu)
    wanted = not options.tiny and (not options.parts or "results" in options.parts.split(","))
    if wanted and not any(map(shutil.which, SANITIZER)):
        table.add(next(iter(libraries)), "compute-sanitizer", "not run: no compute-sanitizer here")
    return table.finish(" in")


if __name__ == "__main__":
    sys.exit(main())
