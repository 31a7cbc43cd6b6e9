"""`collc.simulate`: predicts the times of calls and the plans that the model chooses. `collc simulate` uses it, too."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from collc.api.arguments import a_collective, a_flag, a_number, a_path, a_text, answering, one_of, size_list
from collc.api.machines import a_graph
from collc.choose.calls import default_calls
from collc.choose.table import Table, choose
from collc.collectives.model import COMPILED, Collective
from collc.collectives.sizes import parse_size, short_size, size_series
from collc.errors import PackingError, UsageError
from collc.packing.model import IN_SWITCH
from collc.simulator.generations import MACHINES, machine_for
from collc.simulator.nccl import Baseline, Nccl
from collc.simulator.nccl.fabrics import FABRICS
from collc.simulator.nccl.versions import DEFAULT as NCCL_VERSION
from collc.simulator.nccl.versions import era_of
from collc.simulator.params import Machine
from collc.simulator.params_file import read_params
from collc.simulator.plans import PLANS
from collc.simulator.run import (
    LEAST_CHUNK,
    Prediction,
    Simulator,
    Variant,
    own_channels,
    switch_variants,
)
from collc.topology.model import PlanGraph, Topology

PROTOCOLS = ("Simple", "LL", "LL128")
MOST_CHANNELS = 512


@dataclass(frozen=True)
class SimulatedCall:
    """One call in the model.

    Attributes:
        collective, root, bytes: as in nccl-tests; root is None for a collective without a root.
        plan: trees, or a conventional plan such as rings.
        protocol: Simple, LL or LL128.
        chunk_bytes, channels: the chunk size and the number of channels of the program.
        time_us: the time in microseconds.
        algbw_gbps, busbw_gbps: GB/s of the buffer, and the same times the factor of nccl-tests.
        nccl_us: the time of NCCL's default choice; None unless requested and known.
        nccl: NCCL's algorithm and protocol, such as "Ring LL128".
    """

    collective: str
    root: int | None
    bytes: int
    plan: str
    protocol: str
    chunk_bytes: int
    channels: int
    time_us: float
    algbw_gbps: float
    busbw_gbps: float
    nccl_us: float | None = None
    nccl: str | None = None


@dataclass(frozen=True)
class Simulation:
    """Calls of ascending sizes in the model.

    Attributes:
        machine: the topology's name.
        nranks: the number of GPUs.
        parameters: the source of the parameters of GPUs.
        rows: one call per size.
        note: the reason if NCCL's times were requested and are missing.
    """

    machine: str
    nranks: int
    parameters: str
    rows: tuple[SimulatedCall, ...]
    note: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the simulation as JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        head = f"{self.rows[0].collective} on {self.nranks} GPUs of {self.machine}, simulated; {self.parameters}"
        lines = [
            f"{r.bytes:>14} bytes {r.time_us:>12.2f} us {r.busbw_gbps:>9.2f} GB/s busbw  {r.plan}" for r in self.rows
        ]
        return "\n".join([head, *lines])


@dataclass(frozen=True)
class Wish:
    """The parts of a variant that the user chose; None for parts that the model chooses."""

    plan: str | None = None
    proto: str | None = None
    chunk: int | None = None
    channels: int | None = None

    def allows(self, variant: Variant) -> bool:
        """Returns whether the variant has the requested protocol, if there is one."""
        return self.proto is None or variant.protocol.lower() == self.proto.lower()

    def fixed(self, simulator: Simulator) -> Variant | None:
        """Returns the only possible variant if the user chose a chunk size or channels, else None."""
        if self.chunk is None and self.channels is None:
            return None
        kind = self.plan or "trees"
        protocol = simulator.machine.protocol(self.proto or "Simple")
        channels = self.channels or own_channels(simulator.plan(kind))
        return Variant(kind, protocol.name, self.chunk or protocol.max_chunk, channels)


def parameters_of(model: str | None, params: Path | None, gpu_model: str | None, copies: bool) -> tuple[Machine, str]:
    """Returns the parameters of GPUs, and a line about their source."""
    machine, why = machine_for(model, gpu_model)
    if params is not None:
        machine = read_params(params, machine)
        why = f"parameters of {machine.name} with those of {params}"
    return (machine.with_copies(), f"{why}, with a copy engine") if copies else (machine, why)


def simulator_of(graph: PlanGraph, collective: Collective, root: int | None, parameters: Machine) -> Simulator:
    """Returns a simulator, after a check that the root exists.

    Raises:
        UsageError: the root is no rank.
    """
    simulator = Simulator(graph, collective, root, parameters)
    if simulator.root is not None and simulator.root >= graph.nranks:
        raise UsageError(f"no rank {root} to be the root", hint=f"ranks are 0 to {graph.nranks - 1}")
    return simulator


def predict(
    simulator: Simulator, wish: Wish, sizes: Sequence[int], show: Callable[[str], None] = lambda text: None
) -> tuple[list[Prediction], Table | None]:
    """Returns a prediction for each size, and the table of the choice (None if the user left no choice).

    Raises:
        UsageError: the machine cannot run the requested variant.
    """
    if wish.proto is not None and all(p.name.lower() != wish.proto.lower() for p in simulator.protocols):
        if simulator.machine.copies:
            raise UsageError(f"{wish.proto} has no use for a copy engine", hint="choose Simple")
        raise UsageError(f"{wish.proto} needs NVLink on every link", hint="choose LL or Simple")
    variant = None if simulator.graph.nranks == 1 else wish.fixed(simulator)
    if simulator.graph.nranks == 1:
        variant = Variant(wish.plan or "trees", "Simple", 512 << 10, 1)
    if variant is not None:
        found = []
        for size in sizes:
            show(short_size(size))
            found.append(simulator.predict(variant, size))
        show("")
        return found, None
    if wish.plan == IN_SWITCH:
        if not wish.allows(Variant(IN_SWITCH, "Simple", 0, 0)):
            raise UsageError(f"programs inside a switch do not run over {wish.proto}", hint="choose Simple")
        best = []
        for size in sizes:
            show(short_size(size))
            best.append(min((simulator.predict(v, size) for v in switch_variants()), key=lambda p: p.time_us))
        show("")
        return best, None
    if wish == Wish():
        chosen = default_calls(simulator).table(sizes, show)
    else:
        kinds = None if wish.plan is None else (wish.plan,)
        chosen = choose(simulator, sizes, kinds=kinds, only=wish.allows, status=show)
    show("")
    return list(chosen.predictions), chosen


@answering
def simulate(
    topology: Topology | str | os.PathLike[str],
    collective: Collective | str = "all_reduce",
    *,
    sizes: Sequence[int | str] | None = None,
    root: int | None = None,
    gpus: str | Sequence[int | str] | None = None,
    links: str | Sequence[str] | None = None,
    plan: str | None = None,
    protocol: str | None = None,
    chunk: int | str | None = None,
    channels: int | None = None,
    model: str | None = None,
    params: str | os.PathLike[str] | None = None,
    throughput: bool = True,
    copy_engine: bool = False,
    nccl: bool = False,
    nccl_version: str | None = None,
    fabric: str | None = None,
) -> Simulation:
    """Predicts the times of calls on a machine. docs/validation.md compares the model with measurements.

    Args:
        topology: a result or an argument of `collc.load`.
        collective: all_reduce, all_gather, reduce_scatter, broadcast or reduce.
        sizes: message sizes in bytes, such as ``1024`` or ``"1K"`` [1 KiB to 1 GiB in factors of four].
        root: the root rank of broadcast and reduce [0].
        gpus, links: as for `collc.plan`.
        plan: trees or a candidate of docs/simulate.md, such as rings, instead of the model's choice.
        protocol: Simple, LL or LL128, instead of the model's choice.
        chunk, channels: the most bytes of a chunk, and the number of channels, instead of the model's choice.
        model: a GPU generation such as h100 [from the topology's gpu_model].
        params: a file of parameters that replace the generation's (docs/simulate.md).
        throughput: give the time per call of consecutive calls, as nccl-tests measures; False: the time of a single
            call from launch to end.
        copy_engine: launched copies move chunks over PCIe, as in Blink.
        nccl: also give the times of NCCL's default choices.
        nccl_version, fabric: with nccl: the version whose rules apply, and the network.

    Raises:
        CollcError: an argument is wrong, or the machine cannot run the request.
    """
    wanted = a_collective("collective", collective, COMPILED)
    series = size_series(1 << 10, 1 << 30, 4) if sizes is None else size_list("sizes", sizes)
    chosen = None if root is None else a_number("root", root, 0, 10**9)
    if chosen is not None and not wanted.rooted:
        raise UsageError(f"{wanted.value} has no root", where="root", hint="omit root")
    wish = Wish(
        None if plan is None else one_of("plan", plan, PLANS),
        None if protocol is None else one_of("protocol", protocol, PROTOCOLS),
        None if chunk is None else _chunk(chunk),
        None if channels is None else a_number("channels", channels, 1, MOST_CHANNELS),
    )
    if model is not None:
        one_of("model", model, MACHINES)
    file = None if params is None else a_path("params", params)
    a_flag("throughput", throughput)
    if not a_flag("nccl", nccl) and (nccl_version, fabric) != (None, None):
        raise UsageError(
            "this is about NCCL", where="fabric" if nccl_version is None else "nccl_version", hint="add nccl=True"
        )
    version = NCCL_VERSION if nccl_version is None else a_text("nccl_version", nccl_version)
    era_of(version)
    if fabric is not None:
        one_of("fabric", fabric, FABRICS)
    machine, graph = a_graph(topology, gpus, links, False)
    parameters, why = parameters_of(model, file, machine.gpu_model, a_flag("copy_engine", copy_engine))
    simulator = simulator_of(graph, wanted, chosen, parameters)
    found, _ = predict(simulator, wish, series)
    if throughput:
        found = [replace(p, time_us=p.period_us(parameters)) for p in found]
    beside: list[Baseline] = []
    note = None
    if nccl:
        try:
            beside = [Nccl(simulator, version, fabric).predict(size) for size in series]
            beside = [p.in_a_row() for p in beside] if throughput else beside
        except PackingError as error:
            note = f"nccl is left out: {error}"
    calls = [_call(p, beside[i] if beside else None) for i, p in enumerate(found)]
    return Simulation(graph.name, graph.nranks, why, tuple(calls), note)


def _call(p: Prediction, nccl: Baseline | None) -> SimulatedCall:
    v = p.variant
    return SimulatedCall(
        *(p.collective.value, p.root, p.bytes, v.plan, v.protocol, v.chunk_bytes, v.channels),
        *(p.time_us, p.algbw_gbps, p.busbw_gbps),
        *((nccl.time_us, f"{nccl.algorithm} {nccl.protocol}") if nccl else ()),
    )


def _chunk(value: object) -> int:
    size = parse_size(value) if isinstance(value, str) else a_number("chunk", value, 0, 1 << 43)
    if size is None or not LEAST_CHUNK <= size <= 1 << 43:
        raise UsageError(f"{value!r:.60} is not a size from {LEAST_CHUNK} bytes on", where="chunk")
    return size
