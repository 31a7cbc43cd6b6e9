"""The contents of a library whose calls run over several classes of links at once (`compile --classes`).

`collc.choose.library` chooses the programs of the fastest class. As soon as it pays in the model, larger calls are cut
into classes: each class has a program of its own trees, all joined into one program, and the weights of each size end
them together (`collc.choose.split`). The model runs the joined program on the joint graph to judge it.

`collc.choose.idle_links` does the same where nobody asks, with less trust in the slower classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction

from collc.build.compile import Contents
from collc.choose.joined import Cut, JoinedLibrary, own_plan
from collc.choose.judge import SLOW_CHANNELS, Judge, slowed
from collc.choose.programs import Chosen
from collc.choose.request import LibraryRequest
from collc.choose.rules import SIZES
from collc.choose.search import GAIN
from collc.choose.split import curve_of, end_together
from collc.choose.table import Table, choose
from collc.collectives.model import Collective
from collc.collectives.sizes import bytes_per_call
from collc.errors import UsageError
from collc.options import Target, TargetKind
from collc.packing.candidates.plans import MOST_CHANNELS, least_equal_parts
from collc.packing.model import Plan
from collc.packing.sets.classes import ClassPlan, ClassPlans, plan_classes
from collc.pipeline import Recorder, wanted_programs
from collc.simulator.params import Machine, with_cards
from collc.simulator.run import Simulator, Variant, own_channels, variants
from collc.topology.allocation import parse_gpus
from collc.topology.joint import parse_classes, with_network
from collc.topology.model import JOINT, PlanGraph, Topology

Status = Callable[[str], None]

# While a smaller weight of the slower classes saves time, it is multiplied by this factor again.
_LIGHTER = 0.85
# Weights of a call are hundredths.
_WHOLE = 100
OVER_CARDS = (
    "network cards carry a part of large calls inside the server with COLLC_NET=ucx, by RDMA; else these "
    "calls run over the other classes. No card has been tried (docs/classes.md)"
)
NO_CARDS = (
    "network cards carry nothing: they add nothing beside faster classes, or no call gains by them in the model; "
    "`collc plan --classes` says what each class adds"
)
# Smaller calls never pay for a second class.
_LEAST = 256 << 10


def check_request(request: LibraryRequest, target: Target) -> tuple[str, ...]:
    """The classes that a request asks for.

    Raises:
        UsageError: there are no such classes, or an option does not work with several classes yet.
    """
    assert request.classes is not None
    classes = parse_classes(request.classes)
    others = {
        "--links": request.links, "--allocations": request.allocations, "--survive": request.survive,
        "--plan": request.plans, "--ir": request.programs, "--relay": request.relay,
        "--tune-candidates": request.tune_candidates, "several kinds of servers": request.kinds,
    }  # fmt: skip
    for name, given in others.items():
        if given:
            raise UsageError(f"{name} and --classes do not go together yet", where="--classes", hint="omit one of them")
    return classes


def class_contents(
    request: LibraryRequest,
    target: Target,
    base: Callable[[PlanGraph, Sequence[Plan]], Chosen],
    *,
    recorder: Recorder,
    status: Status,
    packed: Callable[[], object],
) -> Contents:
    """The contents of a library for one set of GPUs over the classes of `request.classes`.

    Args:
        base: chooses the programs of the fastest class.
        packed: called when the input has been found good and packing is done.

    Raises:
        UsageError: fewer than two classes join the GPUs, or `check_request` refuses.
    """
    classes = check_request(request, target)
    topology = with_network(request.machine()) if "net" in classes else request.machine()
    gpus = None if request.gpus is None else parse_gpus(topology, request.gpus)
    made = _plans(request, topology, gpus, classes, recorder, status)
    graph = made[0].graph
    if graph.nservers > 1:
        raise UsageError(
            "classes join the GPUs of one server so far", where="--classes", hint="choose them with --gpus"
        )
    packed()
    alone = base(made[0].classes[0].graph or graph, [own_plan(one.classes[0]) for one in made])
    machine = request.parameters(graph.gpu_model)[0]
    if target.kind is TargetKind.CUDA:
        machine = with_cards(machine)

    def find(collective: Collective, most_chunk: int) -> list[Cut]:
        status(f"splitting {collective.value}")
        first = next(one for one in made if one.joint.collective is collective)
        return find_cuts(first, alone, target, machine, Fraction(1), most_chunk)

    library, most = JoinedLibrary(made, alone, target, recorder), target.chunk_bytes
    cuts = {collective: find(collective, most) for collective in dict.fromkeys(one.joint.collective for one in made)}
    library.cut(cuts)
    while (fitting := library.fitting_chunk()) < most and (large := _larger(cuts, fitting)):
        most = fitting
        cuts |= {collective: find(collective, most) for collective in large}
        library.cut(cuts)
    return library.contents(topology)


def fitting_contents(
    topology: Topology,
    made: Sequence[ClassPlans],
    alone: Chosen,
    collectives: Iterable[Collective],
    find: Callable[[Collective, int, bool], Sequence[Cut]],
    target: Target,
    recorder: Recorder,
) -> Contents | None:
    """Returns a library of several classes whose calls over one class keep their chunks.

    Where the memory for FIFOs does not allow that, collectives take narrower cuts, and are left uncut in the end: those
    with roots first, then those that gain least. None: all of them. Cuts whose own chunks do not fit are judged again
    with those that do.

    Args:
        collectives: those that may be cut.
        find: returns the cuts of a collective, given the largest chunk in bytes and whether the fastest class may be
            cut into parts that take turns.
    """
    library = JoinedLibrary(made, alone, target, recorder)
    kept: dict[Collective, Sequence[Cut]] = {one.joint.collective: [] for one in made}
    kept |= {collective: find(collective, target.chunk_bytes, True) for collective in collectives}
    narrowed: set[Collective] = set()
    while any(kept.values()):
        library.cut(kept)
        fitting = library.fitting_chunk()
        if fitting >= library.largest_uncut():
            large = _larger(kept, fitting)
            if not large:
                return library.contents(topology)
            kept |= {collective: find(collective, fitting, collective not in narrowed) for collective in large}
            continue
        loser = min((c for c in kept if kept[c]), key=lambda c: (not c.rooted, max(cut.gain for cut in kept[c])))
        kept[loser] = [] if loser in narrowed else find(loser, target.chunk_bytes, False)
        narrowed.add(loser)
    return None


def _larger(cuts: Mapping[Collective, Sequence[Cut]], most: int) -> list[Collective]:
    """The collectives that have cuts with larger chunks."""
    return [collective for collective in cuts if any(cut.chunk_bytes > most for cut in cuts[collective])]


def _plans(
    request: LibraryRequest,
    topology: Topology,
    gpus: Sequence[str] | None,
    classes: Sequence[str],
    recorder: Recorder,
    status: Status,
) -> list[ClassPlans]:
    """Returns the plans of every collective and root, with only the classes that have a plan."""
    nranks = len(gpus or topology.gpus)
    if nranks < 2:
        raise UsageError("calls of one GPU are not cut into classes", where="--classes")
    found = []
    for collective, root in wanted_programs(request.collectives, nranks, request.roots):
        status(f"packing {collective.value}")
        with recorder.timed("pack"):
            one = plan_classes(topology, gpus, classes, collective, root, recorder.store)
        found.append(of_several(one))
    firsts = {one.classes[0].name if one.classes else "" for one in found}
    if len(firsts) > 1 or any(len(one.classes) < 2 for one in found):
        joined = " and ".join(own.name for own in found[0].classes) or "no class"
        raise UsageError(
            f"{joined} alone joins these GPUs, and two classes or more share a call",
            where="--classes",
            hint="`collc plan --classes` says what each class adds; --links makes trees over several classes",
        )
    return found


def of_several(made: ClassPlans) -> ClassPlans:
    """Returns the plans with only the classes that have a plan."""
    return dataclasses.replace(made, classes=tuple(own for own in made.classes if own.plan is not None))


def said_of_cards(request: LibraryRequest, target: Target, contents: Contents) -> str | None:
    """When network cards carry something of a library that was asked for the class net; None for all others."""
    if target.kind is not TargetKind.CUDA or request.classes in (None, "auto"):
        return None
    if "net" not in parse_classes(request.classes or ""):
        return None
    weights = (entry.program.weights for entries in contents.entries for entry in entries)
    return OVER_CARDS if any(one and one[JOINT.index("net")] for one in weights) else NO_CARDS


def find_cuts(
    made: ClassPlans,
    alone: Chosen,
    target: Target,
    machine: Machine,
    trust: Fraction,
    most_chunk: int,
    turns: bool = True,
) -> list[Cut]:
    """From which size on calls are cut into classes, and how, by the model: as long as all larger calls gain too.

    Args:
        alone: the programs of the fastest class.
        trust: how much of the speed of their links slower classes are taken to have.
        most_chunk: bytes that the chunks of calls which are cut have at most.
        turns: the fastest class may be cut into parts that take turns in its channels, which need more memory.
    """
    sizes = [size for size in SIZES if size >= _LEAST]
    fast, *slow = made.classes
    simulators = {own.name: _simulator(own, made, machine, target) for own in made.classes}
    limits = dict.fromkeys((own.name for own in slow), SLOW_CHANNELS)
    limits[fast.name] = MOST_CHANNELS - SLOW_CHANNELS * len(slow)
    tables = {
        own.name: _simple(simulators[own.name], limits[own.name], turns=turns and own is fast, alike=own is not fast)
        for own in made.classes
    }
    curves = {name: curve_of(table, machine) for name, table in tables.items()}
    for own in slow:
        curves[own.name] = curves[own.name].slowed(trust)
    judge = Judge(slowed(made, trust), simulators, machine)
    among = [tuple(curves)]
    if target.kind is TargetKind.CUDA and "net" in curves and len(curves) > 2:  # cards that do not pay spoil no cut
        among.append(tuple(name for name in curves if name != "net"))
    found: list[Cut] = []
    for number in range(len(sizes) - 1, -1, -1):
        size = sizes[number]
        ways: list[tuple[float, Cut]] = []
        for sharing in among:
            _, shares = end_together({name: curves[name] for name in sharing}, size)
            weights = _hundredths(shares)
            if len(weights) < 2:
                continue
            chosen = {name: _choice(tables[name], shares[name] * size) for name in weights}
            channels = {name: variant.channels for name, variant in chosen.items()}
            cut = Cut(0, weights, channels, min(chosen[fast.name].chunk_bytes, most_chunk), "")
            took = _judged(judge, cut, size)
            if target.kind is not TargetKind.HOST:
                cut, took = lighter(judge, cut, took, size, shares, fast.name)
            ways.append((took, cut))
        if not ways:
            break
        time, tried = min(ways, key=lambda way: way[0])
        if target.kind is TargetKind.HOST:  # whose own programs are no matter for a model of GPUs
            before, _ = end_together({"": curves[fast.name]}, size)
        else:
            before = _alone_us(simulators[fast.name], alone, size, machine)
        if before / time - 1 <= GAIN:
            break
        least = round((size * sizes[number - 1]) ** 0.5) if number else _LEAST // 2
        shown = ", ".join(f"{name} {weight}%" for name, weight in tried.weights.items())
        why = f"{shown} of a call: {before / time - 1:+.0%} in the model"
        if trust < 1:
            why += f", with {float(trust):.0%} of the speed of {' and '.join(own.name for own in slow)}"
        found.insert(0, dataclasses.replace(tried, min_bytes=least, why=why, gain=before / time - 1))
    return found


def _judged(judge: Judge, cut: Cut, size: int) -> float:
    return judge.time_us(cut.weights, cut.channels, cut.chunk_bytes, size)


def _hundredths(shares: Mapping[str, float]) -> dict[str, int]:
    """Weights, of classes that have at least half of a hundredth."""
    return {name: round(share * _WHOLE) for name, share in shares.items() if round(share * _WHOLE)}


def lighter(
    judge: Judge, tried: Cut, time: float, size: int, shares: Mapping[str, float], fast: str
) -> tuple[Cut, float]:
    """The same with less for the slower classes, as long as that saves time, and how long it takes.

    The time curve of a class uses chunks of that class, but in a cut call all classes use the fastest one's chunks.
    """
    part = 1.0
    while True:
        part *= _LIGHTER
        less = {name: share * part for name, share in shares.items() if name != fast}
        weights = _hundredths({fast: 1 - sum(less.values()), **less})
        if set(weights) != set(tried.weights):
            return tried, time
        if weights == tried.weights:
            continue  # a step of less than a hundredth
        lighter = dataclasses.replace(tried, weights=weights)
        took = _judged(judge, lighter, size)
        if took >= time:
            return tried, time
        tried, time = lighter, took


def _simulator(own: ClassPlan, made: ClassPlans, machine: Machine, target: Target) -> Simulator:
    assert own.graph is not None
    found = Simulator(own.graph, made.joint.collective, made.joint.root, machine, slots=target.slots)
    found.plans["trees"] = own_plan(own)
    return found


def _simple(simulator: Simulator, most: int, turns: bool, alike: bool) -> Table:
    """The trees of a class over Simple, which is what a program of several classes runs over.

    Args:
        alike: trees of unequal weights are cut into parts of one weight, if there are no more than `most` of these.
        turns: also cut into parts that take turns in as many channels as there are; else no more parts than trees where
            these are more than `most`. Parts have FIFOs, which for PCIe are pinned memory of the host.
    """
    plan = simulator.plan("trees")
    least = own_channels(plan)
    parts = least_equal_parts(plan)
    if alike and least < parts <= most:
        chunks = sorted(
            {variant.chunk_bytes for variant in variants(simulator, ["trees"]) if variant.protocol == "Simple"}
        )
        return choose(simulator, SIZES, among=[Variant("trees", "Simple", chunk, parts) for chunk in chunks])

    def allowed(variant: Variant) -> bool:
        few = variant.channels <= max(most, least)
        return variant.protocol == "Simple" and (few or (turns and variant.channels > MOST_CHANNELS))

    return choose(simulator, SIZES, kinds=["trees"], only=allowed)


def _choice(table: Table, size: float) -> Variant:
    return next(choice.variant for choice in reversed(table.choices) if choice.min_bytes <= size)


def _alone_us(simulator: Simulator, alone: Chosen, size: int, machine: Machine) -> float:
    """The time of a call over the fastest class, with the program that it has for this size."""
    collective, root = simulator.collective, simulator.root
    least = bytes_per_call(collective, size, simulator.graph.nranks)
    entry = [
        entry
        for entry in alone.entries
        if (entry.program.collective, entry.program.root) == (collective, root) and (entry.when.min_bytes or 0) <= least
    ][-1]
    plan = alone.plans[entry.plan]
    variant = Variant(entry.kind(plan), entry.when.protocol, entry.program.chunk_bytes, entry.spread)
    return simulator.predict(variant, size).period_us(machine)
