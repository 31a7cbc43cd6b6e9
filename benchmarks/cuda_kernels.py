"""What the compilers made of the CUDA target's kernels, per kernel and architecture. `make cuda-kernels` runs it.

    python benchmarks/cuda_kernels.py                  prints the tables
    python benchmarks/cuda_kernels.py --write FILE     writes them as Markdown

No GPU is needed: registers, memory and spills are ptxas' words, widths are counted in the PTX and, by nvdisasm, in the
machine code, occupancy is computed.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from sass import Loop, listing, load_rounds

from collc.build import cuda
from collc.build.nvcc import Nvcc
from collc.build.nvrtc import Nvrtc, compile_kernels
from collc.codegen.specialise import specialise
from collc.collectives.model import Collective
from collc.options import CUDA
from collc.pipeline import Recorder, lower_spread, pack
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology

THREADS = 512  # of a block: kMaxThreads in layout.h
# Shared memory of a block: addresses and flags of a step's FIFO ends, the row of its channel, 48 bytes per share of the
# program, 16 per step of the channel, 72 per FIFO end. The largest program that gpu-check builds (an all_reduce of
# dgx1v) has these numbers.
SHARES, STEPS, ENDS = 96, 6, 24
BASE = 256 * 16 + 16
SHARED = BASE + 48 * SHARES + 16 * STEPS + 72 * ENDS

# Of a multiprocessor: threads, blocks, bytes of shared memory. All have 65,536 registers, given to warps by 256, and
# keep 1 KiB of shared memory per block from sm_80 on. CUDA C++ Programming Guide 13.0, "Technical Specifications per
# Compute Capability".
LIMITS = {
    "60": (2048, 32, 64 << 10),
    "70": (2048, 32, 96 << 10),
    "75": (1024, 16, 64 << 10),
    "80": (2048, 32, 164 << 10),
    "90": (2048, 32, 228 << 10),
    "100": (2048, 32, 228 << 10),
    "120": (1536, 24, 100 << 10),
}
REGISTERS = 65_536

_ENTRY = re.compile(r"Compiling entry function '(\w+)' for 'sm_(\d+)'")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(?:.*?, (\d+) bytes smem)?(?:.*?, (\d+) bytes lmem)?")
_WIDE = re.compile(r"\b(ld|st)\.(?:global|relaxed\.sys\.global|volatile\.global)\.(?:v4\.[uf]32|v2\.u64)")
_CODE = re.compile(r"^\s*\.section\s+\.text\.(collc_\w+),", re.MULTILINE)
LOOKED_AT = "90"  # the architecture whose machine code is read
POLL_MOST = 64  # instructions of a loop that polls; the loops around it are longer

Widths = dict[str, tuple[int, int]]  # 16-byte loads and stores by kernel
Code = dict[str, str]  # machine code by kernel
_LINES_LOAD = re.compile(r"(?:@!?U?P\d+ )?\s*LDG\.E\.128\.STRONG\.SYS R(\d+), (.*)")
_REGISTER = re.compile(r"\bR(\d+)\b")
# What the kernels were before polls were relaxed and freeing a slot became a verb of its own (2026-11-23, nvcc 13.0,
# the same flags): the fields of `Order`.
BEFORE = {
    "simple_f32": (2, 1, 3, 0, 9, 2720),
    "simple_bf16": (2, 1, 3, 0, 9, 2856),
    "ll_f32": (2, 1, 7, 0, 9, 1584),
    "ll128_f32": (2, 1, 11, 0, 9, 2888),
}


# What kernels of floats were before all tables of a block had places that its launch says (2026-11-28, nvcc 13.0, the
# same flags): rounds of loads before the first step, and instructions.
STARTS = {
    "simple_f32": {"75": (6, 3320), "80": (6, 3192), "90": (6, 3328), "100": (6, 3328), "120": (6, 3104)},
    "ll_f32": {"75": (7, 3392), "80": (7, 3256), "90": (7, 3320), "100": (7, 3320), "120": (7, 3264)},
    "ll128_f32": {"75": (7, 3856), "80": (7, 3608), "90": (7, 3904), "100": (7, 3904), "120": (7, 3704)},
}
FLOATS = (
    '#include "collc/cuda/executor.h"\nusing namespace collc::cuda;\n'
    "#define KERNEL(name, protocol) COLLC_KERNEL(kMaxThreads) collc_##name(COLLC_KERNEL_ARGUMENT(Launch) launch) "
    "{ run_block<float, protocol<float>>(launch); }\n"
    "KERNEL(simple_f32, Simple)\nKERNEL(ll_f32, LL)\nKERNEL(ll128_f32, LL128)\n"
)


@dataclass(frozen=True)
class Figures:
    """One kernel on one architecture: registers per thread, the rest in bytes."""

    registers: int
    stack: int
    spilled: int
    shared: int
    local: int

    def blocks(self, architecture: str, shared: int) -> int:
        """Blocks of `THREADS` threads that a multiprocessor holds."""
        threads, most, memory = LIMITS[architecture]
        warps = THREADS // 32
        of_registers = REGISTERS // (-(-self.registers * 32 // 256) * 256) // warps
        kept = 0 if int(architecture) < 80 else 1024
        return min(threads // THREADS, most, of_registers, memory // (shared + self.shared + kept))


def protocol_of(kernel: str) -> str:
    """The protocol of a kernel by its name."""
    return {"ll": "LL", "ll128": "LL128", "exchange": "transfers"}.get(kernel.split("_")[1], "Simple")


def parse(log: str) -> dict[str, Figures]:
    """ptxas' report (-v), by kernel."""
    found: dict[str, Figures] = {}
    parts = _ENTRY.split(log)
    for name, _, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        used = _USED.search(text)
        frames = [tuple(map(int, m)) for m in _FRAME.findall(text)]
        assert used, f"ptxas says nothing of {name}"
        found[name] = Figures(
            int(used[1]),
            sum(stack for stack, _, _ in frames),
            sum(stores + loads for _, stores, loads in frames),
            int(used[2] or 0),
            int(used[3] or 0),
        )
    return found


def widths(ptx: str) -> Widths:
    """16-byte loads and stores of each kernel's code."""
    parts = re.split(r"^\s*\.visible \.entry (\w+)\(", ptx, flags=re.MULTILINE)
    counted = {}
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        kinds = _WIDE.findall(body)
        counted[name] = (kinds.count("ld"), kinds.count("st"))
    return counted


def machine_code(nvcc: Nvcc, source: str | None = None, chip: str = LOOKED_AT) -> Code:
    """What runs on a chip, of all kernels or those of a source; empty without nvdisasm."""
    tool = shutil.which(nvcc.tool("nvdisasm"))
    if tool is None:
        return {}
    virtual = next(v for v, reals in cuda.SASS.items() if chip in reals)
    cubin = cuda.make_cubin(nvcc, cuda.make_ptx(nvcc, virtual, source), chip)
    parts = _CODE.split(subprocess.run([tool, "-c", str(cubin)], capture_output=True, text=True, check=True).stdout)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def widths_of_code(code: Code) -> Widths:
    """16-byte loads and stores of machine code."""
    return {name: (body.count("LDG.E.128"), body.count("STG.E.128")) for name, body in code.items()}


@dataclass(frozen=True)
class Order:
    """What a kernel's machine code does for order, counted as it stands.

    Args:
        invalidations: of the first-level cache (CCTL.IVALL), one for each acquire.
        in_polls: those of them inside of a loop that polls a counter.
        fences: MEMBAR, each of which waits until all stores before it have arrived.
        frees: relaxed stores of 8 bytes that no fence stands before.
        divisions: mentions of the routines that divide 64 bits.
        instructions: in all.
    """

    invalidations: int
    in_polls: int
    fences: int
    frees: int
    divisions: int
    instructions: int


def in_flight(body: str) -> list[int]:
    """Of every wait for lines of LL or LL128: how many loads are issued before the first that needs one of them."""
    found: list[int] = []
    loaded: set[str] = set()
    issued = 0
    for line in listing(body)[0]:
        load = _LINES_LOAD.match(line)
        if issued and loaded.intersection(_REGISTER.findall(load[2] if load else line)):
            found.append(issued)
            loaded, issued = set(), 0
        if load:
            loaded |= {str(int(load[1]) + word) for word in range(4)}
            issued += 1
    return [*found, issued] if issued else found


def per_step(body: str) -> list[int]:
    """Of every loop that runs steps: its instructions outside of the loops in it, which move data, poll or go over FIFO
    ends. In a kernel that reads its steps from tables that is the loop in the loop over iterations."""
    lines, _, backwards = listing(body)
    loops = sorted({begin: max(end for b, end in backwards if b == begin) for begin, _ in backwards}.items())

    def inside(outer: Loop) -> list[Loop]:
        return [loop for loop in loops if outer[0] <= loop[0] and loop[1] <= outer[1] and loop != outer]

    def own(loop: Loop) -> int:
        return loop[1] + 1 - loop[0] - len({at for b, e in inside(loop) for at in range(b, e + 1)})

    running = [
        loop
        for loop in loops
        if not any(loop in inside(other) for other in loops)
        and any("LDG" in line and "STRONG.SYS" in line for line in lines[loop[0] : loop[1]])
    ]
    longest = [max(inside(loop), key=lambda one: one[1] - one[0]) for loop in running]
    return sorted(map(own, longest if len(running) == 1 else running))


def order_of(body: str) -> Order:
    """Counted in nvdisasm's text of one kernel. A poll is the smallest loop around a strong load of 8 bytes."""
    lines, labels, loops = listing(body)
    strong = [at for at, line in enumerate(lines) if re.search(r"\bLDG\.E\.64\.STRONG\.SYS", line)]
    polls = {
        min(around, key=lambda loop: loop[1] - loop[0])
        for at in strong
        if (around := [loop for loop in loops if loop[0] <= at <= loop[1] and loop[1] - loop[0] < POLL_MOST])
    }

    def count(text: str) -> int:
        return sum(text in line for line in lines)

    invalid = [at for at, line in enumerate(lines) if "CCTL.IVALL" in line]
    stores = [at for at, line in enumerate(lines) if re.search(r"\bSTG\.E\.64\.STRONG\.SYS", line)]
    starts = {0, *labels.values(), *(at + 1 for at, line in enumerate(lines) if "BRA" in line)}
    freed = sum("MEMBAR" not in " ".join(lines[max(s for s in starts if s <= at) : at]) for at in stores)
    return Order(
        len(invalid),
        sum(any(begin <= at <= end for begin, end in polls) for at in invalid),
        count("MEMBAR"),
        freed,
        count("div_u64") + count("div_s64") + count("rem_u64"),
        len(lines),
    )


def order_table(code: Code) -> list[str]:
    """Before and after, of one kernel for each protocol."""
    rows = []
    for name in BEFORE:
        body = code.get(f"collc_{name}")
        if body is None:
            continue
        after = order_of(body)
        mine = (after.invalidations, after.in_polls, after.fences, after.frees, after.divisions, after.instructions)
        rows.append(
            (f"{name} (sm_{LOOKED_AT})", *(f"{old} -> {new}" for old, new in zip(BEFORE[name], mine, strict=True)))
        )
    head = (
        "kernel",
        "invalidations",
        "of them in polls",
        "fences",
        "frees without",
        "64-bit divisions",
        "instructions",
    )
    return markdown(head, rows)


def starts_table(nvcc: Nvcc) -> list[str]:
    """Before and after, on every chip."""
    chips = [chip for chip in STARTS["ll_f32"] if chip in nvcc.architectures]
    codes = {chip: machine_code(nvcc, FLOATS, chip) for chip in chips}
    rows = []
    for name, before in STARTS.items():
        for chip in chips:
            if body := codes[chip].get(f"collc_{name}"):
                now = (max(load_rounds(body)), len(listing(body)[0]))
                both = (f"{old} -> {new}" for old, new in zip(before[chip], now, strict=True))
                rows.append((name, f"sm_{chip}", *both))
    return markdown(("kernel", "chip", "loads one after another", "instructions"), rows)


def in_flight_table(code: Code) -> list[str]:
    """Kernels alike are a row."""
    rows: dict[tuple[str, str], list[str]] = {}
    for name, body in sorted(code.items()):
        waits = ", ".join(map(str, in_flight(body)))
        if waits and protocol_of(name) in ("LL", "LL128"):
            rows.setdefault((protocol_of(name), waits), []).append(name.removeprefix("collc_"))
    kernels = [(protocol, str(len(names)), waits) for (protocol, waits), names in rows.items()]
    return markdown(("protocol", "kernels", "loads of each wait"), kernels)


def written_source() -> str:
    """Kernels with the steps of the all_reduce of stars of hgx-h100 written out: a root with seven children, leaves."""
    graph = plan_graph(load_topology("hgx-h100"))
    plan = pack(graph, [(Collective.ALL_REDUCE, None)], Recorder())[0]
    _, program = lower_spread(plan, CUDA.max_channels, graph, CUDA)
    made = specialise("0", [(program, "Simple"), (program, "LL")])
    assert made is not None
    return made.source


def written_table(nvcc: Nvcc, found: dict[str, dict[str, Figures]], code: Code) -> list[str]:
    """Tables beside steps written out."""
    source = written_source()
    written = machine_code(nvcc, source)
    if not written:
        return []
    virtual = next(v for v, reals in cuda.SASS.items() if LOOKED_AT in reals)
    figures = assembled(nvcc, cuda.make_ptx(nvcc, virtual, source), LOOKED_AT)
    rows = []
    for protocol in ("simple", "ll"):
        by_table, by_hand = f"collc_{protocol}_f32", f"collc_written_{protocol}_f32"
        (any_step,), (root, leaf) = per_step(code[by_table]), per_step(written[by_hand])
        registers = (found[LOOKED_AT][by_table].registers, figures[by_hand].registers)
        rows.append((protocol_of(by_table), any_step, root, leaf, *registers))
    head = ("protocol", "tables, any step", "written, the root's step", "written, a leaf's two steps")
    return markdown((*head, "registers, tables", "registers, written"), rows)


def assembled(nvcc: Nvcc, ptx: Path, architecture: str) -> dict[str, Figures]:
    """ptxas' report of PTX on an architecture, by kernel."""
    with TemporaryDirectory() as scratch:
        command = [nvcc.path, *cuda.SASS_FLAGS, "-Xptxas", "-v", f"-arch=sm_{architecture}", "-cubin", str(ptx)]
        command += ["-o", f"{scratch}/device.cubin"]
        return parse(subprocess.run(command, capture_output=True, text=True, check=True).stderr)


def by_nvcc(nvcc: Nvcc) -> tuple[dict[str, dict[str, Figures]], Widths]:
    """Per architecture and kernel; and the widths in the PTX for sm_80."""
    pairs = [(v, r) for v, reals in cuda.SASS.items() for r in reals if r in nvcc.architectures]
    texts = {virtual: cuda.make_ptx(nvcc, virtual) for virtual in dict.fromkeys(v for v, _ in pairs)}

    with ThreadPoolExecutor(2) as pool:
        reports = pool.map(lambda pair: assembled(nvcc, texts[pair[0]], pair[1]), pairs)
        found = {real: report for (_, real), report in zip(pairs, reports, strict=True)}
    return found, widths(texts[cuda.PTX].read_text(encoding="utf-8"))


def by_nvrtc(nvrtc: Nvrtc, architectures: Iterable[str]) -> dict[str, dict[str, Figures]]:
    """The same for what only NVRTC compiles."""
    source = cuda.device_source().read_text(encoding="utf-8")
    logs = {sm: compile_kernels(nvrtc, sm, source).log for sm in architectures}
    return {sm: parse(log.read_text(encoding="utf-8")) for sm, log in logs.items()}


def markdown(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A table."""
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows]


def protocols_table(found: dict[str, dict[str, Figures]]) -> list[str]:
    """Per protocol and architecture: the worst kernel."""
    rows = []
    for protocol in ("Simple", "LL", "LL128", "transfers"):
        for sm, kernels in found.items():
            mine = [f for name, f in kernels.items() if protocol_of(name) == protocol]
            if not mine:
                continue
            blocks = min(f.blocks(sm, SHARED) for f in mine)
            rows.append(
                (
                    protocol,
                    f"sm_{sm}",
                    len(mine),
                    max(f.registers for f in mine),
                    SHARED + max(f.shared for f in mine),
                    blocks,
                    f"{blocks * THREADS / LIMITS[sm][0]:.0%}",
                    sum(f.spilled for f in mine),
                    sum(f.local + f.stack for f in mine),
                )
            )
    head = ("protocol", "chip", "kernels", "registers", "shared", "blocks", "occupancy", "spilled", "local")
    return markdown(head, rows)


def kernels_table(found: dict[str, dict[str, Figures]], wide: Widths, code: Widths) -> list[str]:
    """Per kernel: registers on each architecture, spilled and local bytes on all, 16-byte accesses in PTX and code."""
    rows = []
    for name in sorted(wide, key=lambda n: (("Simple", "LL", "LL128", "transfers").index(protocol_of(n)), n)):
        each = [kernels.get(name) for kernels in found.values()]
        held = [f for f in each if f]
        registers = ["-" if f is None else f.registers for f in each]
        spilled, local = sum(f.spilled for f in held), sum(f.local + f.stack for f in held)
        both = [f"{of_ptx}, {of_code}" for of_ptx, of_code in zip(wide[name], code.get(name, ("-", "-")), strict=True)]
        rows.append((name.removeprefix("collc_"), protocol_of(name), *registers, spilled, local, *both))
    chips = [f"sm_{sm}" for sm in found]
    return markdown(("kernel", "protocol", *chips, "spilled", "local", "16 B loads", "16 B stores"), rows)


def report() -> str:
    """The whole document."""
    nvcc, nvrtc = cuda.find_toolkits()
    assert nvcc, "this needs nvcc"
    found, wide = by_nvcc(nvcc)
    made = f"nvcc {nvcc.release}"
    if nvrtc:
        old = [sm for sm in cuda.OLD if sm in nvrtc.architectures and sm not in found]
        found |= by_nvrtc(nvrtc, old)
        made += f", NVRTC {nvrtc.release} for {', '.join('sm_' + sm for sm in old)}" if old else ""
    found = dict(sorted(found.items(), key=lambda item: int(item[0])))
    code = machine_code(nvcc)
    lines = [
        "# Kernels of the CUDA target, as compiled",
        "",
        f"{time.strftime('%Y-%m-%d')}, {made}. Written by `make cuda-kernels`. Compiled only: nothing here was run on",
        "a GPU.",
        "",
        "Registers are per thread, of the worst kernel of a protocol in the first table; spilled and local (with",
        f"stack) are bytes over all kernels. Shared memory is {BASE} bytes, 48 per share of the program and, where all",
        "stays below 47 KiB, 16 per step and 72 per FIFO end of a channel: here that of an all_reduce of dgx1v with",
        f"{SHARES} shares, {STEPS} steps, {ENDS} ends. Blocks are those of {THREADS} threads that a multiprocessor",
        "holds at once by its registers, threads and shared memory; occupancy is their threads over the most of it.",
        "A call needs one block per channel, 32 at most, so one block per multiprocessor is enough.",
        "",
        "## By protocol",
        "",
        *protocols_table(found),
        "",
        "## By kernel",
        "",
        f"16-byte loads and stores are instructions in the PTX for sm_80, then in the machine code for sm_{LOOKED_AT}",
        "(LDG.E.128, STG.E.128), unrolled loops counted whole. Those of LL and LL128 are relaxed accesses at system",
        "scope of two 8-byte words.",
        "",
        *kernels_table(found, wide, widths_of_code(code)),
        "",
        "## Order",
        "",
        f"Counted in the machine code for sm_{LOOKED_AT}, before -> after polls became relaxed with one acquire behind",
        "them, freeing a slot a verb without a fence ([why that is enough](../cuda.md)), and shares are cut with",
        "inverses. A fence waits until all stores before it have arrived, over a link a microsecond or more; an",
        "invalidation empties the first-level cache of the multiprocessor. Of Simple one fence announces the chunks",
        "of a step; the others stand before words to the host, at the end of a wait that failed, as all of LL and",
        "LL128 do. A division of 64 bits is a routine of a hundred instructions and more.",
        "",
        *order_table(code),
        "",
        "## Loads before the first step",
        "",
        "Counted in the machine code, from the beginning of a kernel to its first barrier: how many loads from global",
        "memory a warp waits for one after another, before -> after all tables of a block had places that its launch",
        "says ([how](../cuda.md)). A load counts whose address or whose turn depends on an earlier one. Not measured",
        "on a GPU.",
        "",
        *starts_table(nvcc),
        "",
        "## Loads in flight",
        "",
        f"Counted in the machine code for sm_{LOOKED_AT}: of every place where a kernel waits for lines, how many it",
        "loads before an instruction needs one of them. A wait stands in the code twice, for the first look and for",
        "those that follow. LL has code for four lines of one source, and for a line of one, of up to four and of",
        "up to eight; before 2026-11-26 it had that for one alone. LL128 loads from one source, two lines of each",
        "stripe, of one or two stripes.",
        "",
        *in_flight_table(code),
        "",
        "## Steps written out",
        "",
        "What `--specialise` makes of the all_reduce of stars of hgx-h100 (a root with seven children; leaves), float:",
        f"instructions for sm_{LOOKED_AT} of the loops that run steps, outside of the loops in them, which move data,",
        "poll or go over FIFO ends. The table's one piece of code is for any step and four operations; only a part of",
        "it runs for one.",
        "",
        *written_table(nvcc, found, code),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    text = report()
    if options.write:
        options.write.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
