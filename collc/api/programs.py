"""`collc.lower`: turns a plan into a verified program, which the interpreter can run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from collc.api.arguments import a_flag, a_number, answering, one_of, wrong
from collc.api.buffers import Array, lay_out
from collc.api.planning import Planned, require_sound
from collc.collectives.model import COMPILED, Collective
from collc.collectives.sizes import parse_size
from collc.errors import UsageError
from collc.ir.arithmetic import OPERATIONS, reduction
from collc.ir.interpret import run
from collc.ir.nodes import Program
from collc.ir.printer import print_program
from collc.options import TARGETS, TargetKind
from collc.packing.model import Plan
from collc.pipeline import Recorder, lower_spread
from collc.pipeline import lower as lowered

# More channels help on no target, and such programs take minutes to lower.
_MOST_CHANNELS = 512


@dataclass(frozen=True)
class Lowered:
    """A verified program and the plan that it runs.

    Attributes:
        planned: the plan that was lowered.
        plan: its trees as the program runs them: split into one part per channel if channels were requested.
        program: the steps of each rank and channel, the FIFOs between ranks, the shares of the buffer.
        target: host or cuda.
    """

    planned: Planned
    plan: Plan
    program: Program
    target: str

    @property
    def text(self) -> str:
        """The text form of the program, which `collc opt` and `collc verify` read."""
        return print_program(self.program)

    @property
    def nranks(self) -> int:
        """The number of ranks."""
        return self.program.nranks

    def __str__(self) -> str:
        steps = sum(len(rank) for channel in self.program.channels for rank in channel.steps)
        return (
            f"{self.program.collective.value} for {self.target}: {self.nranks} ranks, {len(self.program.channels)} "
            f"channel{'s' * (len(self.program.channels) != 1)}, {len(self.program.fifos)} FIFOs, {steps} steps"
        )

    @answering
    def run(self, inputs: Sequence[Array | None], op: str = "sum", seed: int = 0) -> list[Array | None]:
        """Runs the program in the interpreter, which is slow and defines the meaning of programs.

        Args:
            inputs: an array for each rank, in the layout of `collc.Library`; None for a rank without input.
            op: sum, prod, max or min, for collectives that reduce.
            seed: of the random order in which ranks and channels progress. The result does not depend on it.

        Returns:
            An array for each rank; None for a rank without output.

        Raises:
            CollcError: an argument is wrong.
        """
        one_of("op", op, OPERATIONS)
        a_number("seed", seed, 0, 2**63)
        program = self.program
        buffers = lay_out(program.collective, program.nranks, program.root, inputs)
        run(program, buffers.inputs, buffers.outputs, reduction(op), count=buffers.count, seed=int(seed))
        return buffers.results()


@answering
def lower(
    planned: Planned,
    *,
    target: str = "host",
    channels: int = 0,
    chunk: int | str | None = None,
    everywhere: bool = False,
) -> Lowered:
    """Turns a plan into a program, as in a library, verified after every pass.

    Args:
        planned: a result of `collc.plan`, for a collective with trees.
        target: host or cuda.
        channels: the number of channels that trees are split into [0: one per tree, up to the target's most].
        chunk: the most bytes of a chunk, such as ``65536`` or ``"64K"``, a multiple of 128 [the target's].
        everywhere: every rank reduces all inputs, for small all_reduces in one memory (only target host; libraries of
            target cuda have such programs, too, but this function does not make them).

    Raises:
        CollcError: an argument is wrong, or the plan cannot be lowered.
    """
    if not isinstance(planned, Planned):
        wrong("planned", planned, "what collc.plan returned")
    kind = TargetKind(one_of("target", target, [k.value for k in TargetKind]))
    a_number("channels", channels, 0, _MOST_CHANNELS)
    a_flag("everywhere", everywhere)
    made = TARGETS[kind]
    if chunk is not None:
        made = replace(made, chunk_bytes=_chunk(chunk, made.chunk_bytes))
    require_sound(planned, "planned")
    plan, graph = planned.plan, planned.graph
    if plan.collective not in COMPILED:
        names = ", ".join(c.value for c in COMPILED)
        raise UsageError(
            f"{plan.collective.value} is planned as flows, and programs run trees",
            where="planned",
            hint=f"plan one of {names}",
        )
    if plan.rate is None or plan.orbits is not None:
        why = "one GPU alone runs no steps" if plan.rate is None else "so many GPUs have too many trees to list"
        raise UsageError(why, where="planned", hint="plan 2 to 1024 GPUs")
    if everywhere:
        if kind is not TargetKind.HOST or plan.collective is not Collective.ALL_REDUCE or channels:
            raise UsageError("this is for all_reduce on target host, without channels", where="everywhere")
        return Lowered(planned, plan, lowered(plan, graph, made, Recorder(), everywhere=True), kind.value)
    cut, program = lower_spread(plan, channels, graph, made)
    return Lowered(planned, cut, program, kind.value)


def _chunk(value: object, most: int) -> int:
    size = parse_size(value) if isinstance(value, str) else a_number("chunk", value, 0, 1 << 43)
    if size is None or not 128 <= size <= most or size % 128:
        raise UsageError(f"{value!r:.60} is not a multiple of 128 from 128 to {most}", where="chunk")
    return size
