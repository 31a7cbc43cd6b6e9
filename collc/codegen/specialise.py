"""Programs whose steps are written out: what `collc compile --specialise` adds to the kernels of a library.

A variant is what a channel does, step by step. Channels of any rank and program that do the same are one variant, and
their shares and FIFO ends stay in the step tables. templates/include/collc/cuda/specialised.h runs them. The runtime
finds the variant of each channel by comparing all of its steps with `Written.table`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from collc.codegen.context import step_flags
from collc.codegen.entry import Entry
from collc.codegen.render import render_kernels
from collc.ir.nodes import Program, Step

# Of training and inference: reductions by type, what only moves data as the sum of a type of that size (backend.cpp).
TYPES = {"f32": "float", "f16": "Half", "bf16": "Bfloat16", "u32": "uint32_t"}
# Steps of all variants together: a kernel holds the code of each, and compilers take their time for it.
MOST_STEPS = 36


@dataclass(frozen=True, slots=True)
class CodedStep:
    """One step of a variant: the template arguments of WrittenChannel::step, and what it is for people."""

    number: int
    lag: int
    flags: int
    nrecv: int
    nsend: int
    comment: str


@dataclass(frozen=True, slots=True)
class Variant:
    """What channels do."""

    number: int
    steps: tuple[CodedStep, ...]
    comment: str


@dataclass(frozen=True, slots=True)
class WrittenKernel:
    """A kernel over all variants: its name without prefix, and the C++ names of its type and protocol."""

    name: str
    type: str
    protocol: str


@dataclass(frozen=True, slots=True)
class KernelsContext:
    """Everything that templates/specialised.cu.j2 needs."""

    version: str
    variants: tuple[Variant, ...]
    kernels: tuple[WrittenKernel, ...]


@dataclass(frozen=True, slots=True)
class Written:
    """The source of the kernels, and `table`, by which the runtime knows the variants: their number, then of each the
    number of its steps and of every step lag, flags, receives and sends, all of 32 bits. `kernels`: names of what the
    source defines, without their prefix.
    """

    source: str
    table: bytes
    kernels: tuple[str, ...]


def specialise(version: str, programs: Iterable[tuple[Program, str]], most_steps: int = MOST_STEPS) -> Written | None:
    """The kernels for some programs with the protocols that they run over; None where there is nothing to write out.

    Programs are taken in their order, each whole, as long as all variants together have at most `most_steps` steps.
    """
    found: dict[tuple[tuple[int, int, int, int], ...], Variant] = {}
    protocols: list[str] = []
    for program, protocol in programs:
        new = dict(found)
        for rank in range(program.nranks):
            for number, channel in enumerate(program.channels):
                steps = _coded(program, channel.steps[rank])
                key = tuple((s.lag, s.flags, s.nrecv, s.nsend) for s in steps)
                if key and key not in new:
                    text = f"{program.collective.value}: rank {rank}, channel {number}"
                    new[key] = Variant(len(new), steps, text)
        if sum(len(variant.steps) for variant in new.values()) > most_steps:
            continue
        found = new
        if protocol not in protocols:
            protocols.append(protocol)
    if not found:
        return None
    kernels = tuple(
        WrittenKernel(f"{protocol.lower()}_{name}", kind, protocol)
        for protocol in protocols
        for name, kind in TYPES.items()
    )
    context = KernelsContext(version, tuple(found.values()), kernels)
    return Written(render_kernels(context), _table(found), tuple(kernel.name for kernel in kernels))


def hot_programs(entries: Sequence[Sequence[Entry]]) -> list[tuple[Program, str]]:
    """The programs of a library that are worth it: without a root, run by size, of the largest set of GPUs first."""
    sets = sorted((entry for entry in entries if entry), key=lambda held: -held[0].program.nranks)
    return [
        (entry.program, entry.when.protocol)
        for held in sets
        for entry in held
        if not entry.program.collective.rooted and entry.when.min_bytes is not None and not entry.program.weights
    ]


def _coded(program: Program, steps: Sequence[Step]) -> tuple[CodedStep, ...]:
    # On a GPU a FIFO with several readers is an end for each.
    return tuple(
        CodedStep(
            number,
            step.lag,
            step_flags(program, step),
            len(step.recv),
            sum(len(program.fifos[f].dsts) for f in step.send),
            _words(step),
        )
        for number, step in enumerate(steps)
    )


def _words(step: Step) -> str:
    parts = [f"receive {len(step.recv)}"] if step.recv else []
    parts += ["own input"] if step.input else []
    parts += [f"send {len(step.send)}"] if step.send else []
    parts += ["own output"] if step.output else []
    return ", ".join(parts)


def _table(variants: Iterable[Sequence[tuple[int, int, int, int]]]) -> bytes:
    held = list(variants)
    words = [len(held)]
    for steps in held:
        words.append(len(steps))
        for step in steps:
            words += step
    return struct.pack(f"<{len(words)}I", *words)
