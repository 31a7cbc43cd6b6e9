"""A ring written by hand against a tuned library, factor by factor, in the simulator.

The first all_reduce that people write is Baidu's ring of 2017: one ring, one thread block, one kernel launch per step,
whole shares as chunks. Each line below mends one thing. Run: `python examples/handwritten_ring.py [MACHINE]`
(default dgx1v), one of `collc topologies` with 8 GPUs or fewer on NVLink.
"""

from __future__ import annotations

import dataclasses
import sys

from collc.choose.table import choose
from collc.collectives.model import Collective
from collc.packing.candidates.plans import rings_of
from collc.simulator.generations import MACHINES
from collc.simulator.params import Machine
from collc.simulator.run import Simulator, Variant
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology

SIZES = {"64K": 64 << 10, "1M": 1 << 20, "16M": 16 << 20, "256M": 256 << 20}
WHOLE = 1 << 29
OF = {"dgx1v": "v100", "dgx2": "v100", "dgx-a100": "a100", "hgx-h100": "h100"}


def launch_per_step(machine: Machine) -> Machine:
    """Every hop waits for a launch of its own instead of a flag."""
    simple = dataclasses.replace(machine.protocol("Simple"), hop_us=machine.launch_us + machine.step_us)
    return machine.replace(protocols=(dataclasses.replace(simple, max_chunk=WHOLE),))


def whole_shares(machine: Machine) -> Machine:
    """Slots as large as a share: nothing is pipelined within it."""
    simple = dataclasses.replace(machine.protocol("Simple"), max_chunk=WHOLE)
    return machine.replace(protocols=(simple,))


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "dgx1v"
    machine = MACHINES[OF.get(name, "generic")]
    graph = plan_graph(load_topology(name))

    def line(label: str, model: Machine, variant: Variant) -> None:
        simulator = Simulator(graph, Collective.ALL_REDUCE, None, model)
        show(label, [simulator.predict(variant, size).time_us for size in SIZES.values()])

    def show(label: str, times: list[float]) -> None:
        shown = (f"{t:10.1f} us {size / t / 1e3:7.2f}" for t, size in zip(times, SIZES.values(), strict=True))
        print(f"{label:44}" + "".join(shown))

    simulator = Simulator(graph, Collective.ALL_REDUCE, None, machine)
    rings = rings_of(simulator.plan("rings"))
    print(f"all_reduce on {name}, parameters of {machine.name}: time and algbw in GB/s")
    print(f"{'':44}" + "".join(f"{label:>21}" for label in SIZES))
    line("by hand: one block, a launch per step", launch_per_step(machine), Variant("ring", "Simple", WHOLE, 1))
    line("one launch, flags between the steps", whole_shares(machine), Variant("ring", "Simple", WHOLE, 1))
    line("chunks of 512K", machine, Variant("ring", "Simple", 512 << 10, 1))
    line("8 blocks on the same ring", machine, Variant("ring", "Simple", 512 << 10, 8))
    blocks = max(2 * rings, 24 // rings * rings)
    line(
        f"{rings} ring{'s' * (rings > 1)} at once, {blocks} blocks",
        machine,
        Variant("rings", "Simple", 512 << 10, blocks),
    )
    table = choose(simulator, list(SIZES.values()))
    show("plan, protocol and chunk by size", [p.time_us for p in table.predictions])
    for label, found in zip(SIZES, table.predictions, strict=True):
        print(f"  {label}: {found.variant.label()}")


if __name__ == "__main__":
    main()
