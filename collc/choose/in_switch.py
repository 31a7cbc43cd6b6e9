"""Programs inside a switch (NVLS) beside the others of a library: channels, chunks, and the sizes that they serve.

Not every machine runs them, and a switch does not add up every type. So a library that has them holds all of its other
programs as if it did not, and they have separate memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from collc.build.memory import fifo_bytes_by_rank
from collc.checker.layout import When
from collc.choose.modeled import ModelTables
from collc.choose.programs import Chosen
from collc.choose.search import GAIN
from collc.choose.table import Table
from collc.codegen.entry import Entry
from collc.collectives.sizes import bytes_per_call, short_size
from collc.errors import UsageError
from collc.ir.nodes import Program
from collc.packing.model import IN_SWITCH, Plan
from collc.pipeline import Recorder, lower_in_switch
from collc.simulator.run import Simulator, Variant

# Bytes per GPU, in addition to the memory of the other programs.
MOST_BYTES = 36 << 20
# Fewer loops leave the switch waiting for flags; more of them leave chunks so small that flags are all there is.
CHANNELS = (8, 16, 32)
LEAST_CHUNK = 16 << 10


def with_in_switch(
    chosen: Chosen, packed: Sequence[Plan], model: ModelTables, recorder: Recorder, status: Callable[[str], None]
) -> Chosen:
    """The programs of a library, and behind them those inside a switch for calls that they make faster in the model.

    Raises:
        UsageError: the switches of this machine do not copy or add, or the parameters do not say what that takes.
    """
    if not any(plan.in_switch for plan in packed):
        raise UsageError("no switch joins all of these GPUs and copies or adds", where="--in-switch")
    if model.machine.nvls is None:
        problem = f"the parameters of {model.machine.name} do not say what sums inside switches take"
        raise UsageError(problem, where="--in-switch", hint='choose --model h100, or --params with "nvls"')
    ways = []
    for channels in CHANNELS:
        status(f"choosing programs inside the switch: {channels} channels")
        ways.append(_Way(packed, model, channels, recorder))
    best = min(ways, key=lambda way: way.time)
    return dataclasses.replace(chosen, entries=(*chosen.entries, *best.entries()))


class _Way:
    """The programs of all plans over a number of channels, with the largest chunks that fit the memory."""

    def __init__(self, packed: Sequence[Plan], model: ModelTables, channels: int, recorder: Recorder) -> None:
        self.model, self.channels = model, channels
        self.programs: dict[int, Program] = {}
        for number, plan in enumerate(packed):
            if plan.in_switch is not None:
                self.programs[number] = lower_in_switch(plan, model.graph, model.target, channels, recorder)
        self.packed = packed
        self.chunk = model.target.chunk_bytes
        while self.chunk > LEAST_CHUNK and self.memory() > MOST_BYTES:
            self.chunk //= 2
        self.least: dict[object, int | None] = {}
        self.time = 0.0
        for number in self.programs:
            self._compare(packed[number], model.table(packed[number]))

    def memory(self) -> int:
        """Bytes of each GPU."""
        made = [Entry(program.replace(chunk_bytes=self.chunk), number) for number, program in self.programs.items()]
        return max(fifo_bytes_by_rank(made, self.model.graph.nranks))

    def _compare(self, plan: Plan, table: Table) -> None:
        """Stores the least size from which all calls are faster inside the switch; None if the largest is not."""
        if plan.collective in self.least:
            return
        graph, target = self.model.graph, self.model.target
        simulator = Simulator(graph, plan.collective, plan.root, self.model.machine, slots=target.slots)
        simulator.plans = {"trees": plan, IN_SWITCH: plan}
        variant = Variant(IN_SWITCH, "Simple", self.chunk, self.channels)
        self.least[plan.collective] = None
        for number, other in reversed(list(enumerate(table.predictions))):
            time = simulator.predict(variant, other.bytes).time_us
            if time >= other.time_us * (1 - GAIN):
                break
            self.time += time / other.time_us - 1
            self.least[plan.collective] = other.bytes if number else 0

    def entries(self) -> list[Entry]:
        """Those of collectives that some call is faster in."""
        made = []
        for number, program in self.programs.items():
            plan = self.packed[number]
            least = self.least[plan.collective]
            if least is None:
                continue
            when = When(bytes_per_call(plan.collective, least, self.model.graph.nranks), "Simple")
            why = f"inside the switch from {short_size(least)} on, where the machine and the call allow it"
            made.append(Entry(program.replace(chunk_bytes=self.chunk), number, when=when, why=why))
        return made
