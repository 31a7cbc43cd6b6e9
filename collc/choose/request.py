"""The requested contents of a library, and the graphs and proven plans that they need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from collc.choose.all_kinds import kinds_in_one
from collc.choose.given import given_plans, read_given
from collc.choose.servers import only_server
from collc.collectives.model import COMPILED, Collective
from collc.errors import UsageError
from collc.ir.nodes import Program
from collc.packing.document import PlanFile, plan_file
from collc.packing.sets.allocations import allocations
from collc.packing.sets.gpu_sets import GpuSets, served_sets, written_set
from collc.packing.sets.losses import surviving_sets
from collc.pipeline import Recorder, pack, wanted_programs
from collc.simulator.generations import MACHINES, machine_for
from collc.simulator.params import Machine
from collc.simulator.params_file import read_params
from collc.topology.allocation import parse_gpus
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology
from collc.topology.model import PlanGraph, Topology


@dataclass(frozen=True)
class LibraryRequest:
    """The requested contents of a library.

    Args:
        topology: a topology, or a path or a zoo name.
        gpus: the GPUs of the only allocation, in the ranks' order [all].
        allocations: which sets of GPUs the library serves; excludes `gpus`.
        links: link classes to use [the fast ones].
        classes: classes of links that share large calls, as ``nvlink,pcie``; for one set of GPUs. None, ``nvlink``:
            no other class beside the plan's own links; `collc.choose.idle_links.AUTO`: PCIe too, where it pays.
        roots: of rooted collectives [all].
        model: the model's parameters, a name of `collc.simulator.generations.MACHINES` [by the topology's gpu_model].
        params: a file whose values replace some of these parameters.
        tune_candidates: also hold the programs that `collc tune` compares.
        server: the one server of the topology that the library is for; `gpus` and `allocations` name only its GPUs.
        may_relay: whether idle GPUs could forward data, as on the host target.
        survive: 1: plans for the machine after every single loss too (`collc.packing.sets.losses`).
        relay: GPUs of the machine that are not in `gpus` forward data; for one set of GPUs.
        kinds: one library for every kind of server of the topology (`collc.choose.all_kinds`); excludes `gpus`.
        programs: programs, or files of IR texts, that take the place of ours; for one set of GPUs.
        plans: plans, or a file of them (``collc-plan/1``), that take the place of packed ones; for one set of GPUs.
        in_switch: also hold programs inside a switch (NVLS), for one set of GPUs (target cuda).
    """

    topology: str | Topology
    gpus: str | None = None
    allocations: str | None = None
    links: str | None = None
    classes: str | None = None
    collectives: Sequence[Collective] = COMPILED
    roots: Sequence[int] | None = None
    model: str | None = None
    params: Path | None = None
    tune_candidates: bool = False
    server: str | None = None
    may_relay: bool = False
    survive: int = 0
    kinds: bool = False
    plans: Path | PlanFile | None = None
    programs: Sequence[Path | Program] = ()
    relay: bool = False
    in_switch: bool = False

    def __post_init__(self) -> None:
        if self.model is not None and self.model not in MACHINES:
            raise UsageError(f"no parameters {self.model!r}", hint=f"choose one of {', '.join(MACHINES)}")
        several = self.allocations is not None or self.survive or self.kinds
        if self.in_switch and (several or self.own or self.relay or self.tune_candidates):
            raise UsageError(
                "is for the plans of one set of GPUs, with no other options about them", where="--in-switch"
            )

    @property
    def own(self) -> str | None:
        """The option that gave plans or programs; None if there is none."""
        return "--plan" if self.plans is not None else "--ir" if self.programs else None

    def machine(self) -> Topology:
        """The topology, or its one server that the request is about.

        Raises:
            TopologyError, UsageError: there is no such topology or server.
        """
        given = self.topology
        topology = given if isinstance(given, Topology) else load_topology(given)
        return topology if self.server is None else only_server(topology, self.server)

    def parameters(self, gpu_model: str | None) -> tuple[Machine, str]:
        """The parameters of the model for a topology's GPUs, and one line that says which.

        Raises:
            UsageError: the file of parameters cannot be read, or is wrong.
        """
        machine, why = machine_for(self.model, gpu_model)
        return (
            (machine, why) if self.params is None else (read_params(self.params, machine), f"{why}, with {self.params}")
        )


def find_graphs(request: LibraryRequest, status: Callable[[str], None]) -> tuple[list[PlanGraph], GpuSets]:
    """Reads the topology: the graph of every allocation, and the GPU sets that they serve."""
    status("reading the topology")
    topology = request.machine()
    request.parameters(topology.gpu_model)  # reports a wrong file before the long work
    several = request.kinds or request.survive or request.allocations is not None
    if several and request.own:
        raise UsageError(f"{request.own} is for one set of GPUs", where=request.own, hint="choose the set with --gpus")
    if request.relay and (request.allocations is not None or request.survive or request.kinds):
        raise UsageError(
            "--relay is about one set of GPUs", hint="name it with --gpus; omit --allocations and --survive"
        )
    if request.kinds:
        graphs, sets = kinds_in_one(topology, request.allocations, request.links, request.survive)
    elif request.survive:
        machine, gpus = _server_and_gpus(request, topology)
        graphs, sets = surviving_sets(machine, gpus, request.allocations, request.links)
    elif request.allocations is None:
        gpus = None if request.gpus is None else parse_gpus(topology, request.gpus)
        graph = plan_graph(topology, gpus, request.links, request.relay, may_relay=request.may_relay)
        names = [graph.vertices[rank].name for rank in graph.ranks]
        graphs, sets = [graph], written_set(topology, names)
    elif request.gpus is not None:
        raise UsageError("--allocations chooses the sets of GPUs", hint="omit --gpus")
    else:
        found = allocations(topology, request.allocations, request.links)
        graphs, sets = [a.graph for a in found], served_sets(topology, found, request.links)
    return graphs, sets


def _server_and_gpus(request: LibraryRequest, topology: Topology) -> tuple[Topology, list[str] | None]:
    """The one server that a run finds, and the GPUs asked for by their names there."""
    if request.gpus is not None and request.allocations is not None:
        raise UsageError("--allocations chooses the sets of GPUs", hint="omit --gpus")
    gpus = None if request.gpus is None else parse_gpus(topology, request.gpus)
    if len(topology.servers) == 1:
        _refuse_a_part(topology, gpus)
        return topology, gpus
    whole = plan_graph(topology, gpus, request.links)
    servers = set(whole.rank_servers)
    if len(servers) > 1:
        raise UsageError(
            f"these GPUs of {topology.name} are on {len(servers)} servers, a library survives the losses of one so far",
            where="--survive",
            hint="`collc plan --survive 1` takes several servers",
        )
    machine = only_server(topology, whole.servers[0])
    members = set(topology.servers[whole.servers[0]])
    own = [v.name for v in topology.gpus if v.name in members]
    plain = dict(zip(own, (v.name for v in machine.gpus), strict=True))
    chosen = None if gpus is None else [plain[name] for name in gpus]
    _refuse_a_part(machine, chosen)
    return machine, chosen


def _refuse_a_part(machine: Topology, gpus: list[str] | None) -> None:
    """A run finds a state up to symmetry, which may exchange the chosen GPUs with others."""
    if gpus is not None and len(set(gpus)) < len(machine.gpus):
        size = len(set(gpus))
        raise UsageError(
            f"what survives losses serves all {len(machine.gpus)} GPUs of {machine.name}, or sets by size",
            where="--survive",
            hint=f"omit --gpus, or take --allocations {size}..{size} in its place",
        )


def pack_allocation(
    graph: PlanGraph, request: LibraryRequest, recorder: Recorder, status: Callable[[str], None]
) -> PlanFile:
    """Packs and proves the plans of one allocation."""
    if request.roots is not None and not any(collective.rooted for collective in request.collectives):
        names = ", ".join(collective.value for collective in request.collectives)
        raise UsageError(f"{names} has no root", where="--root", hint="omit --root")
    given = None if request.plans is None else read_given(request.plans)
    wanted = wanted_programs(request.collectives, graph.nranks, request.roots)
    status(f"packing {len(wanted)} plans for {graph.nranks} GPUs")
    plans = pack(graph, wanted, recorder)
    return plan_file(graph, plans if given is None else given_plans(*given, graph, plans))
