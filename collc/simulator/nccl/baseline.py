"""The front door of the baseline: one communicator of NCCL, asked for the time of a call of any size."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property

from collc.collectives.model import Collective
from collc.errors import PackingError, UsageError
from collc.simulator.nccl.closed import Closed
from collc.simulator.nccl.fabrics import FABRICS, INFINIBAND, Fabric, fabric_of
from collc.simulator.nccl.programs import KINDS, RING_CHANNELS, predict
from collc.simulator.nccl.rule import ALGORITHMS, Guess, Setting, algorithms, guesses
from collc.simulator.nccl.shape import Shape, shape_of
from collc.simulator.nccl.versions import DEFAULT, PROTOCOLS, chip_of, era_of
from collc.simulator.rows import simulated_row
from collc.simulator.run import Simulator

_NAMES = {"Ring": "rings", "Tree": "chain", "NVLS": "nvls", "NVLSTree": "nvls-tree", "CollNet": "collnet", "PAT": "pat"}


@dataclass(frozen=True)
class Baseline:
    """NCCL's call of one size; `bytes`, `algbw_gbps` and `busbw_gbps` as nccl-tests counts them.

    Args:
        time_us: of the whole call.
        period_us: per call when calls follow each other, which is what nccl-tests prints.
        closed_form: not run as a program of ours.
    """

    collective: Collective
    root: int | None
    nranks: int
    bytes: int
    algorithm: str
    protocol: str
    time_us: float
    period_us: float
    closed_form: bool

    @property
    def algbw_gbps(self) -> float:
        """GB/s of the buffer, as nccl-tests counts it."""
        return self.bytes / self.time_us / 1e3 if self.time_us else 0.0

    @property
    def busbw_gbps(self) -> float:
        """`algbw_gbps` times the factor of nccl-tests."""
        return self.algbw_gbps * self.collective.bus_factor(self.nranks)

    def in_a_row(self) -> Baseline:
        """The same call as one of many consecutive calls."""
        return dataclasses.replace(self, time_us=self.period_us)

    def row(self) -> dict[str, object]:
        """The JSON row that `collc simulate` and `collc bench` share."""
        return simulated_row(
            self.collective, self.root, self.nranks, self.bytes, _NAMES[self.algorithm], self.protocol, self.time_us
        )


SLOTS = 8  # of NCCL's FIFOs (NCCL_STEPS, src/include/device.h)


class Nccl:
    """NCCL on the graph of a simulator.

    Args:
        version: whose rule chooses.
        fabric: a name of `FABRICS`; None: by the names of the NICs.
        sharp: the network's switches reduce, and NCCL_COLLNET_ENABLE=1.
        together: GPUs that get their calls from one thread (nccl-tests' -g).
        ring_nic_gbps: what rings move through one NIC, in place of the fabric's.

    Raises:
        UsageError: no such version or fabric.
    """

    def __init__(
        self,
        simulator: Simulator,
        version: str = DEFAULT,
        fabric: str | None = None,
        *,
        sharp: bool = False,
        together: int = 1,
        ring_nic_gbps: float | None = None,
    ) -> None:
        if not simulator.of_nccl or (simulator.target.slots, simulator.target.round_slots) != (SLOTS, SLOTS):
            own = simulator
            simulator = Simulator(own.graph, own.collective, own.root, own.parameters, slots=SLOTS, of_nccl=True)
        self.simulator, self.era, self.sharp, self.together = simulator, era_of(version), sharp, together
        name = fabric or fabric_of(simulator.graph, chip_of(simulator.machine.name))
        if name not in FABRICS:
            raise UsageError(f"no network {name!r}", where="--fabric", hint=f"choose one of {', '.join(FABRICS)}")
        self.fabric: Fabric = FABRICS[name]
        if ring_nic_gbps is not None:
            self.fabric = dataclasses.replace(self.fabric, ring_nic_gbps=ring_nic_gbps)

    @cached_property
    def shape(self) -> Shape:
        """The machine as NCCL sees it."""
        return shape_of(self.simulator.graph, self.simulator.machine)

    @cached_property
    def setting(self) -> Setting:
        """The arguments of the rule and of the closed forms.

        Raises:
            PackingError: the servers differ, or no ring closes.
        """
        simulator, shape = self.simulator, self.shape
        if shape.servers > 1:
            ring = min(shape.inside_gbps, shape.nic_gbps * self.fabric.efficiency)
            channels = max(16, min(32, 2 * shape.nics))
            if not shape.nics:
                raise PackingError("NCCL's servers need NICs that the topology does not have")
        else:
            ring, channels = self._ring_gbps(), RING_CHANNELS
        chip, fabric = chip_of(simulator.machine.name), self.fabric if shape.servers > 1 else INFINIBAND
        return Setting(simulator.collective, shape, self.era, chip, ring, channels, fabric, self.sharp)

    def _ring_gbps(self) -> float:
        """Returns the bus bandwidth of the rings of one server at the efficiency of its link classes."""
        simulator, n = self.simulator, self.shape.nranks
        rate = simulator.plan("rings").rate
        assert rate is not None
        share = min(simulator.machine.link_class(x.kind).efficiency for x in simulator.graph.links)
        share *= simulator.collective.bus_factor(n)
        return float(rate) * share

    def choices(self) -> tuple[str, ...]:
        """The algorithms that NCCL has here."""
        return tuple(a for a in algorithms(self.setting) if self._has(a))

    def _has(self, algorithm: str) -> bool:
        simulator = self.simulator
        if algorithm in ("NVLS", "NVLSTree"):
            return simulator.machine.nvls is not None
        return self.shape.servers > 1 or algorithm not in KINDS or KINDS[algorithm] in simulator.kinds

    def rule(self, size: int, algorithm: str | None = None, protocol: str | None = None) -> Guess:
        """NCCL's choice for a size.

        Args:
            algorithm: one of `ALGORITHMS`, as NCCL_ALGO would.
            protocol: as NCCL_PROTO would.

        Raises:
            PackingError: NCCL has no such algorithm here.
        """
        usable = self.fabric.protocols if self.shape.servers > 1 else PROTOCOLS
        protocols = tuple(p.name for p in self.simulator.protocols if protocol in (None, p.name) and p.name in usable)
        has = self.choices()
        found = guesses(self.setting, size, protocols)
        found = [guess for guess in found if guess.algorithm in has and algorithm in (None, guess.algorithm)]
        if not found:
            raise PackingError(f"NCCL has no {algorithm or 'Ring'} for {self.simulator.collective.value} here")
        if self.shape.servers > 1 and self.fabric.tuned:
            return min(found, key=lambda guess: self._closed(guess, size))
        return min(found, key=lambda guess: guess.time_us)

    def _closed(self, guess: Guess, size: int) -> float:
        return Closed(self.setting, self.simulator.machine).time_us(guess.algorithm, guess.protocol, size)

    def predict(self, size: int, algorithm: str | None = None, protocol: str | None = None) -> Baseline:
        """Returns the predicted time of the algorithm and protocol that NCCL would choose."""
        assert algorithm is None or algorithm in ALGORITHMS
        guess = self.rule(size, algorithm, protocol)
        simulator = self.simulator
        closed = self.shape.servers > 1 or guess.algorithm not in KINDS
        if closed:
            time = self._closed(guess, size)
            period = max(time, simulator.machine.issue_us * self.together)
            moved = size
        else:
            run = predict(simulator, guess.algorithm, guess.protocol, size)
            time, period, moved = run.time_us, run.period_us(simulator.machine, self.together), run.bytes
        return Baseline(
            simulator.collective,
            simulator.root,
            simulator.graph.nranks,
            moved,
            guess.algorithm,
            guess.protocol,
            time,
            period,
            closed,
        )
