"""Makes specialized kernels, which `collc compile --specialise` adds to a library: their steps are constants.

A variant is the step list of a channel, without its shares and FIFOs. All channels with the same step list, of any rank
and program, are one variant; their shares and FIFO ends stay in the step tables.
templates/include/collc/cuda/specialised.h runs the variants. The runtime finds the variant of each channel by comparing
all steps of the channel with `Written.table`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from collc.codegen.context import step_flags
from collc.codegen.entry import Entry
from collc.codegen.render import render_kernels
from collc.ir.nodes import Program, Step

# The types of training and inference, with their C++ names. A collective that only moves data runs as the sum of a type
# of the same size (backend.cpp).
TYPES = {"f32": "float", "f16": "Half", "bf16": "Bfloat16", "u32": "uint32_t"}
# The largest number of steps of all variants together: a kernel contains the code of each, which takes compile time.
MOST_STEPS = 36


@dataclass(frozen=True, slots=True)
class CodedStep:
    """One step of a variant: the template arguments of WrittenChannel::step, and a comment for people."""

    number: int
    lag: int
    flags: int
    nrecv: int
    nsend: int
    comment: str


@dataclass(frozen=True, slots=True)
class Variant:
    """One variant; the comment names the first channel that has it."""

    number: int
    steps: tuple[CodedStep, ...]
    comment: str


@dataclass(frozen=True, slots=True)
class WrittenKernel:
    """A kernel with the code of all variants: its name without prefix, and the C++ names of its type and protocol."""

    name: str
    type: str
    protocol: str


@dataclass(frozen=True, slots=True)
class KernelsContext:
    """The values that templates/specialised.cu.j2 prints."""

    version: str
    variants: tuple[Variant, ...]
    kernels: tuple[WrittenKernel, ...]


@dataclass(frozen=True, slots=True)
class Written:
    """The specialized kernels of a library.

    Attributes:
        source: their source.
        table: the variants, for the runtime, in 32-bit words: the number of variants, then for each variant its number
            of steps and the lag, flags, number of receives and number of sends of each step.
        kernels: the names of the kernels, without their prefix.
    """

    source: str
    table: bytes
    kernels: tuple[str, ...]


def specialise(version: str, programs: Iterable[tuple[Program, str]], most_steps: int = MOST_STEPS) -> Written | None:
    """Returns the specialized kernels for some programs; None if no variant remains.

    Goes through the programs in their order and skips a program if all variants together would have more than
    `most_steps` steps with it.

    Args:
        version: the version of collc.
        programs: each program with its protocol.
    """
    variants: dict[tuple[tuple[int, int, int, int], ...], Variant] = {}
    protocols: list[str] = []
    for program, protocol in programs:
        candidates = dict(variants)
        for rank in range(program.nranks):
            for number, channel in enumerate(program.channels):
                steps = _step_codes(program, channel.steps[rank])
                key = tuple((s.lag, s.flags, s.nrecv, s.nsend) for s in steps)
                if key and key not in candidates:
                    text = f"{program.collective.value}: rank {rank}, channel {number}"
                    candidates[key] = Variant(len(candidates), steps, text)
        if sum(len(variant.steps) for variant in candidates.values()) > most_steps:
            continue
        variants = candidates
        if protocol not in protocols:
            protocols.append(protocol)
    if not variants:
        return None
    kernels = tuple(
        WrittenKernel(f"{protocol.lower()}_{name}", kind, protocol)
        for protocol in protocols
        for name, kind in TYPES.items()
    )
    context = KernelsContext(version, tuple(variants.values()), kernels)
    return Written(render_kernels(context), _table(variants), tuple(kernel.name for kernel in kernels))


def hot_programs(entries: Sequence[Sequence[Entry]]) -> list[tuple[Program, str]]:
    """Returns the programs of a library that are worth a specialized kernel, with their protocols.

    These have no root and no weights and are chosen by size, not only by tuning. The programs with the most ranks come
    first.

    Args:
        entries: the entries of each allocation.
    """
    allocations = sorted((entry_list for entry_list in entries if entry_list), key=lambda rows: -rows[0].program.nranks)
    return [
        (entry.program, entry.when.protocol)
        for entry_list in allocations
        for entry in entry_list
        if not entry.program.collective.rooted and entry.when.min_bytes is not None and not entry.program.weights
    ]


def _step_codes(program: Program, steps: Sequence[Step]) -> tuple[CodedStep, ...]:
    """Returns the steps of a channel, as a variant has them.

    On a GPU, a FIFO with several readers has a separate end for each reader, so each counts as a send.
    """
    return tuple(
        CodedStep(
            number,
            step.lag,
            step_flags(program, step),
            len(step.recv),
            sum(len(program.fifos[f].dsts) for f in step.send),
            _describe(step),
        )
        for number, step in enumerate(steps)
    )


def _describe(step: Step) -> str:
    """Returns the comment of a step."""
    parts = [f"receive {len(step.recv)}"] if step.recv else []
    parts += ["own input"] if step.input else []
    parts += [f"send {len(step.send)}"] if step.send else []
    parts += ["own output"] if step.output else []
    return ", ".join(parts)


def _table(variants: Iterable[Sequence[tuple[int, int, int, int]]]) -> bytes:
    """Returns `Written.table`."""
    step_lists = list(variants)
    words = [len(step_lists)]
    for steps in step_lists:
        words.append(len(steps))
        for step in steps:
            words += step
    return struct.pack(f"<{len(words)}I", *words)
