"""`collc.compile`: builds a library with the NCCL API for a topology, like `collc compile`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from collc.api.arguments import (
    a_collective,
    a_flag,
    a_number,
    a_path,
    a_text,
    answering,
    class_list,
    gpu_list,
    one_of,
    some,
    wrong,
)
from collc.api.machines import a_machine
from collc.api.planning import Planned, read_again
from collc.api.programs import Lowered
from collc.choose.idle_links import AUTO
from collc.collectives.model import COMPILED, Collective
from collc.compiler import CompileRequest, CompileResult, compile_kinds, compile_topology
from collc.errors import UsageError
from collc.ir.nodes import Program
from collc.options import TargetKind
from collc.packing.document import PlanFile
from collc.simulator.generations import MACHINES
from collc.topology.model import Topology


@dataclass(frozen=True)
class Built:
    """One library.

    Attributes:
        path: the file.
        servers: the servers of the topology that it is for.
        build_id: the id of its contents; equal inputs and compilers give equal ids.
        size: the bytes of the file.
        programs: the number of its programs.
        gpu_sets: the number of sets of GPUs that it serves, up to interchangeable GPUs.
    """

    path: Path
    servers: tuple[str, ...]
    build_id: str
    size: int
    programs: int
    gpu_sets: int


@dataclass(frozen=True)
class Compiled:
    """The result of `collc.compile`.

    Attributes:
        path: the library, or the folder of libraries for a topology of several servers.
        target: host or cuda.
        libraries: the library; in a folder, one for each kind of server.
        note: automatic decisions, such as the target, with their reasons.
    """

    path: Path
    target: str
    libraries: tuple[Built, ...]
    note: str | None


@answering
def compile(
    topology: Topology | str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    target: str | None = None,
    gpus: str | Sequence[int | str] | None = None,
    allocations: str | None = None,
    links: str | Sequence[str] | None = None,
    classes: str | Sequence[str] = AUTO,
    relay: bool = False,
    collectives: Sequence[Collective | str] | None = None,
    roots: Sequence[int] | None = None,
    model: str | None = None,
    params: str | os.PathLike[str] | None = None,
    cuda: int | None = None,
    counters: bool = False,
    specialise: bool = False,
    in_switch: bool = False,
    direct: bool = False,
    tune_candidates: bool = False,
    survive: int = 0,
    plans: str | os.PathLike[str] | Planned | Sequence[Planned] | None = None,
    programs: str | os.PathLike[str] | Lowered | Sequence[str | os.PathLike[str] | Lowered] | None = None,
    keep_source: str | os.PathLike[str] | None = None,
    rebuild: bool = False,
) -> Compiled:
    """Builds a library. If it fails, nothing is left at the output path.

    Args:
        topology: a result or an argument of `collc.load`.
        output: the library to write [libcollc-NAME.so]; for several servers a folder [libcollc-NAME], or a file
            ``*.so``, which is one library for all kinds of servers.
        target: host or cuda [cuda if an nvcc is found].
        gpus, links, relay: as for `collc.plan`; relays only for target host.
        classes: path classes that share large calls if this is faster in the model, such as nvlink and pcie. nvlink:
            no other classes. auto: pcie in addition to nvlink, with half of its speed (target cuda).
        allocations: sets of GPUs to serve: connected, all, ``"2..4"``, or sets such as ``"0,1,2/4,5"``.
        collectives: the collectives of the library [all that have programs].
        roots: the roots of broadcast and reduce [all].
        model, params: parameters of GPUs for the choice of programs, as for `collc.simulate` (target cuda).
        cuda: 12 builds all device code with CUDA 12, for older drivers (target cuda).
        counters: kernels measure the parts of their time (target cuda).
        specialise: add kernels with unrolled steps for the most used programs (target cuda).
        in_switch: add programs that add and copy inside a switch (NVLS), for large calls (target cuda).
        direct: let GPUs read each other's buffers of ncclMemAlloc in place (target cuda).
        tune_candidates: add the programs that `collc tune` compares.
        survive: 1 adds plans for the machine after each single loss.
        plans: your own plans instead of packed ones: a file of format collc-plan/1, or results of `collc.plan`, changed
            or not. They are checked, and the library reports their gap to the bound.
        programs: your own programs instead of lowered ones: files of IR text, or results of `collc.lower`.
        keep_source: also write the generated source to this file.
        rebuild: build everything again, without the build cache and prebuilt files.

    Raises:
        CollcError: an argument is wrong, a plan failed, or a compiler is missing or failed.
    """
    if target is not None:
        one_of("target", target, [kind.value for kind in TargetKind])
    if model is not None:
        one_of("model", model, MACHINES)
    if cuda is not None and a_number("cuda", cuda, 12, 12) != 12:
        wrong("cuda", cuda, "12 or None")
    request = CompileRequest(
        topology=a_machine(topology),
        output=None if output is None else a_path("output", output),
        target=None if target is None else TargetKind(target),
        gpus=gpu_list("gpus", gpus),
        allocations=None if allocations is None else a_text("allocations", allocations),
        links=class_list("links", links),
        classes=class_list("classes", classes),
        relay=a_flag("relay", relay),
        collectives=COMPILED if collectives is None else _collectives(collectives),
        roots=None if roots is None else [a_number("roots", root, 0, 10**9) for root in some("roots", roots, "ranks")],
        keep_source=None if keep_source is None else a_path("keep_source", keep_source),
        model=model,
        params=None if params is None else a_path("params", params),
        tune_candidates=a_flag("tune_candidates", tune_candidates),
        survive=a_number("survive", survive, 0, 1),
        plans=None if plans is None else _plans(plans),
        programs=() if programs is None else _programs(programs),
        cuda=None if cuda is None else int(cuda),
        counters=a_flag("counters", counters),
        specialise=a_flag("specialise", specialise),
        in_switch=a_flag("in_switch", in_switch),
        direct=a_flag("direct", direct),
        rebuild=a_flag("rebuild", rebuild),
    )
    kinds = compile_kinds(request)
    if kinds is not None:
        first = kinds.built[0][1]
        if kinds.folder is None:  # one library for all kinds
            servers = tuple(server for kind, _ in kinds.built for server in kind.servers)
            return Compiled(first.library.path, first.target.value, (_built(first, servers),), first.note)
        built = tuple(_built(result, kind.servers) for kind, result in kinds.built)
        return Compiled(kinds.folder, first.target.value, built, first.note)
    result = compile_topology(request)
    graphs = [document.graph for document in result.documents]
    servers = tuple(dict.fromkeys(graph.servers[rank] for graph in graphs for rank in graph.ranks))
    return Compiled(result.library.path, result.target.value, (_built(result, servers),), result.note)


def _collectives(value: object) -> list[Collective]:
    wanted = [a_collective("collectives", item, COMPILED) for item in some("collectives", value, "collectives")]
    return list(dict.fromkeys(wanted))


def _plans(value: object) -> Path | PlanFile:
    if isinstance(value, str | os.PathLike):
        return a_path("plans", value)
    found = [value] if isinstance(value, Planned) else some("plans", value, "what collc.plan returned, or a file")
    for one in found:
        if not isinstance(one, Planned):
            wrong("plans", one, "what collc.plan returned, or a file")
        if one.graph != found[0].graph:
            hint = "plan all of them with the same topology, gpus and links"
            raise UsageError("these plans are for different graphs", where="plans", hint=hint)
    return read_again(found, "plans")


def _programs(value: object) -> list[Path | Program]:
    alone = isinstance(value, str | os.PathLike | Lowered)
    found = [value] if alone else some("programs", value, "what collc.lower returned, or files of IR text")
    return [one.program if isinstance(one, Lowered) else a_path("programs", one) for one in found]


def _built(result: CompileResult, servers: tuple[str, ...]) -> Built:
    library = result.library
    return Built(library.path, servers, library.build_id, library.size, result.nprograms, result.gpu_sets)
