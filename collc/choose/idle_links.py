"""Adds PCIe beside NVLink to a library whose request names no classes of links.

`with_idle_links` takes the contents of a library whose calls run over only the fast links, and cuts those calls
between NVLink and PCIe that gain by it in the model (`collc.choose.by_class`). Where none does, the contents stay.

The model has never been compared with a GPU here. The only known figures for PCIe beside NVLink are FlexLink's
measurements on H800 (arXiv 2510.15882, table 2): its balancer gave PCIe 12 to 21% of all_gathers, which it would get
with 55 to 106% of the speed that its links have here. A class that gets more than it carries makes every call slower
than over NVLink; one that gets less only idles for a while. So PCIe is taken to have `TRUST` of its speed: a call gains
as soon as that much is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction

from collc.build.compile import Contents
from collc.choose.by_class import find_cuts, fitting_contents, of_several
from collc.choose.joined import Cut
from collc.choose.programs import Chosen
from collc.choose.request import LibraryRequest
from collc.choose.search import GAIN
from collc.collectives.model import Collective
from collc.errors import TopologyError
from collc.options import Target, TargetKind
from collc.packing.document import PlanFile
from collc.packing.sets.classes import plan_classes
from collc.packing.solve import plan
from collc.pipeline import Recorder, wanted_programs
from collc.topology.graph import FAST
from collc.topology.joint import joint_graph

# LibraryRequest.classes: those that pay, among the fast links and PCIe.
AUTO = "auto"
TRUST = Fraction(1, 2)
_CLASSES = ("nvlink", "pcie")


def may_share(request: LibraryRequest, target: Target) -> bool:
    """Returns True if PCIe may carry parts of a library's calls: one set of GPUs, and no option excludes it."""
    others = (
        request.links, request.allocations, request.survive, request.plans, request.programs, request.relay,
        request.tune_candidates, request.kinds, request.in_switch,
    )  # fmt: skip
    return request.classes == AUTO and target.kind is TargetKind.CUDA and not any(others)


def with_idle_links(
    request: LibraryRequest,
    target: Target,
    contents: Contents,
    recorder: Recorder,
    status: Callable[[str], None] = lambda text: None,
) -> Contents:
    """The contents with calls cut between the fast links and PCIe, where they gain by that.

    Args:
        contents: of one set of GPUs over the fast links, for a request that `may_share`.
    """
    (document,), (entries,) = contents.documents, contents.entries
    graph = document.graph
    if graph.nservers > 1 or graph.nranks < 2:
        return contents
    if any(link.kind not in FAST for link in graph.links):
        return contents
    topology = request.machine()
    gpus = [graph.vertices[rank].name for rank in graph.ranks]
    wanted = wanted_programs(request.collectives, graph.nranks, request.roots)
    status("looking at PCIe beside NVLink")
    with recorder.timed("pack"):
        gains = _gains(request, document, gpus, recorder)
    if max(gains.values(), default=0) <= GAIN:
        return contents
    made = []
    for collective, root in wanted:
        status(f"packing {collective.value} over NVLink and PCIe")
        with recorder.timed("pack"):
            made.append(of_several(plan_classes(topology, gpus, _CLASSES, collective, root, recorder.store)))
    if any(len(one.classes) < len(_CLASSES) or one.classes[0].graph != graph for one in made):
        return contents  # NVLink alone is planned over another graph, or PCIe shares links with it
    alone = Chosen(document.plans, entries)
    machine = request.parameters(graph.gpu_model)[0]

    def find(collective: Collective, most_chunk: int, turns: bool) -> list[Cut]:
        status(f"splitting {collective.value}")
        first = next(one for one in made if one.joint.collective is collective)
        return find_cuts(first, alone, target, machine, TRUST, most_chunk, turns)

    pay = [collective for collective, gain in gains.items() if gain > GAIN]
    return fitting_contents(topology, made, alone, pay, find, target, recorder) or contents


def _gains(
    request: LibraryRequest, document: PlanFile, gpus: list[str], recorder: Recorder
) -> Mapping[Collective, Fraction]:
    """Returns the share that trusted PCIe adds to each collective's rate; empty if PCIe does not join the GPUs."""
    try:
        own = joint_graph(request.machine(), gpus, _CLASSES[1:])
    except TopologyError:
        return {}
    found: dict[Collective, Fraction] = {}
    for packed in document.plans:
        if packed.collective in found or packed.rate is None or packed.kind != "trees":
            continue
        slow = plan(own, packed.collective, packed.root, store=recorder.store).rate
        found[packed.collective] = TRUST * (slow or 0) / packed.rate
    return found


def uses_idle_links(contents: Contents) -> bool:
    """Returns True if calls are cut into classes of links."""
    return any(entry.program.weights for entries in contents.entries for entry in entries)
