"""The calls of a default library in the model: what `compile` would run for a size, and how long that takes.

`simulate`, `show` and training steps take the times of collc's calls from here. `collc.choose.library.choose_programs`
chooses the programs, for one collective and root and target cuda.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from collc.choose.library import choose_programs, model_machine
from collc.choose.strategy import strategy_for
from collc.choose.table import Choice, Table
from collc.codegen.entry import Entry
from collc.collectives.sizes import bytes_per_call, short_size
from collc.options import CUDA
from collc.packing.model import Plan
from collc.simulator.run import Prediction, Simulator, Variant, own_channels


@dataclass(frozen=True)
class DefaultCalls:
    """The programs of one collective and root in a default library, and a simulator of their calls."""

    plans: tuple[Plan, ...]
    entries: tuple[Entry, ...]
    simulator: Simulator

    def variant(self, size: int) -> Variant:
        """The variant that a call of `size` bytes (nccl-tests' meaning) runs."""
        count = bytes_per_call(self.simulator.collective, size, self.simulator.graph.nranks)
        return self._variant([entry for entry in self.entries if (entry.when.min_bytes or 0) <= count][-1])

    def predict(self, size: int, *, whole: bool = False) -> Prediction:
        """The time of a call of `size` bytes.

        Args:
            whole: run every step, however many.
        """
        return self.simulator.predict(self.variant(size), size, whole=whole)

    def table(self, sizes: Sequence[int], status: Callable[[str], None] = lambda text: None) -> Table:
        """The calls of some sizes, and the choices of the library."""
        found = []
        for size in sizes:
            status(short_size(size))
            found.append(self.predict(size))
        least = bytes_per_call(self.simulator.collective, 1 << 30, self.simulator.graph.nranks)
        choices = []
        for entry in self.entries:
            # The library counts the bytes of a call's argument, and nccl-tests counts the larger buffer.
            start = (entry.when.min_bytes or 0) * (1 << 30) // least
            variant = self._variant(entry)
            near = min(size for size in (max(start, 1 << 10), *sizes) if size >= start)
            choices.append(Choice(start, variant, self.simulator.predict(variant, near).time_us, entry.why))
        return Table(self.simulator.collective, self.simulator.root, tuple(choices), tuple(found))

    def _variant(self, entry: Entry) -> Variant:
        kind = entry.kind(self.plans[entry.plan])
        protocol = self.simulator.machine.protocol(entry.when.protocol)
        channels = entry.spread or own_channels(self.simulator.plan(kind))
        return Variant(kind, protocol.name, min(entry.program.chunk_bytes, protocol.max_chunk), channels)


def default_calls(simulator: Simulator) -> DefaultCalls:
    """The calls of the library that `collc compile` makes by default for the simulator's graph and collective.

    Over several servers the threads that move data between them count (`collc.simulator.couriers`).

    Args:
        simulator: holds the graph, the collective and the parameters of the GPUs.
    """
    graph, machine = simulator.graph, simulator.parameters
    strategy = strategy_for(CUDA, graph, 1)
    packed = [simulator.plan("trees")]
    if simulator.collective.inward:
        # Sums choose among the programs of their mirror (`collc.choose.modeled`).
        packed.insert(0, Simulator(graph, simulator.collective.mirror, simulator.root, machine).plan("trees"))
    chosen = choose_programs(graph, packed, CUDA, strategy, machine=machine)
    entries = tuple(e for e in chosen.entries if chosen.plans[e.plan].collective is simulator.collective)
    kept = Simulator(
        graph, simulator.collective, simulator.root, model_machine(graph, CUDA, machine),
        slots=CUDA.slots, round_slots=CUDA.round_slots,
    )  # fmt: skip
    kept.plans["trees"] = packed[-1]
    return DefaultCalls(chosen.plans, entries, kept)
