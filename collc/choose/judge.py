"""Programs of several classes of links as they are compiled, and how long their calls take in the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from fractions import Fraction

from collc.ir.join_classes import join_classes
from collc.ir.nodes import Program
from collc.ir.routes import moved_fifos
from collc.packing.candidates.plans import MOST_CHANNELS
from collc.packing.sets.classes import ClassPlans, link_numbers
from collc.pipeline import lower_spread
from collc.simulator.params import Machine
from collc.simulator.run import Simulator, Variant
from collc.topology.graph import FAST
from collc.topology.model import PlanGraph

# Thread blocks of each slower class at most; the fast class has the others. Trees share a link equally, so trees of
# unequal weights leave it idle once the light ones are done: heavy ones are cut until all parts are alike. For 8 GPUs
# these are 8 parts, and with a block for two of them PCIe has half of its rate in the model.
SLOW_CHANNELS = 8


class Judge:
    """The times of calls that are cut, by running the joined programs on the joint graph."""

    def __init__(self, made: ClassPlans, simulators: Mapping[str, Simulator], machine: Machine) -> None:
        self.made, self.simulators, self.machine = made, simulators, machine
        self.programs: dict[tuple[str, int, int], Program] = {}

    def time_us(self, weights: Mapping[str, int], channels: Mapping[str, int], chunk: int, size: int) -> float:
        """Returns the time of a call of `size` bytes.

        Args:
            channels: parts of each class's trees.
            chunk: bytes, of all classes.
        """
        blocks = blocks_of(self.made, channels, MOST_CHANNELS)
        lowered = {name: self._program(name, parts, blocks[name]) for name, parts in channels.items()}
        made = self.made
        joint = Simulator(
            made.graph, made.joint.collective, made.joint.root, self.machine, slots=lowered[next(iter(lowered))].slots
        )
        joint.plans["trees"] = made.joint
        joint.programs["trees", 1] = (made.joint, join_classes(lowered, weights))
        return joint.predict(Variant("trees", "Simple", chunk, 1), size).period_us(self.machine)

    def _program(self, name: str, channels: int, blocks: int) -> Program:
        key = (name, channels, blocks)
        if key not in self.programs:
            one = self.simulators[name]
            target = dataclasses.replace(one.target, max_channels=blocks)
            _, program = lower_spread(one.plan("trees"), channels, one.graph, target)
            self.programs[key] = on_joint(program, one.graph, self.made.graph)
        return self.programs[key]


def blocks_of(made: ClassPlans, channels: Mapping[str, int], most: int) -> dict[str, int]:
    """Thread blocks at most of the classes of a cut: what the slower ones leave is the fastest one's."""
    fast = made.classes[0].name
    slow = {name: min(wanted or SLOW_CHANNELS, SLOW_CHANNELS) for name, wanted in channels.items() if name != fast}
    return {fast: most - sum(slow.values()), **slow}


def on_joint(program: Program, own: PlanGraph, joint: PlanGraph) -> Program:
    """A class's program with the links of the joint graph."""
    return program.replace(fifos=moved_fifos(program, link_numbers(own, joint)))


def slowed(made: ClassPlans, trust: Fraction) -> ClassPlans:
    """The same with slower links of PCIe and networks; only the model may see it."""
    links = tuple(x if x.kind in FAST else dataclasses.replace(x, gbps=x.gbps * trust) for x in made.graph.links)
    return dataclasses.replace(made, graph=dataclasses.replace(made.graph, links=links))
