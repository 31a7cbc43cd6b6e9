"""Makes the view of a simulated call: the steps of the program that the model chooses for a size, over time."""

from __future__ import annotations

from collc.choose.calls import default_calls
from collc.collectives.model import COMPILED, Collective
from collc.errors import UsageError
from collc.show.page import View
from collc.show.style import size_name
from collc.show.timeline import timeline_view
from collc.simulator.generations import machine_for
from collc.simulator.report import chrome_trace
from collc.simulator.run import Simulator
from collc.topology.model import PlanGraph


def simulated_view(graph: PlanGraph, collective: Collective, root: int | None, size: int) -> View:
    """Returns the view of one call of `size` bytes on the links of `graph`.

    Raises:
        UsageError: no program exists for the collective, there is one GPU, or the call has too many steps.
    """
    if collective not in COMPILED or graph.nranks < 2:
        hint = f"choose one of {', '.join(c.value for c in COMPILED)} with --collective, and two GPUs or more"
        raise UsageError(f"{collective.value} of {graph.nranks} GPUs has no program", where="--time", hint=hint)
    simulator = Simulator(graph, collective, root, machine_for(None, graph.gpu_model)[0])
    calls = default_calls(simulator)
    last = calls.predict(size, whole=True)
    program = calls.simulator.lowered(last.variant.plan, last.variant.channels)[1]
    name = f"{collective.value} of {size_name(size)} on {graph.name}"
    view = timeline_view(chrome_trace(last, program, graph), name)
    title = f"Time: {collective.value}, {size_name(size)}"
    return View(view.kind, title, {**view.data, "words": f"{name}, simulated: {last.variant.label()}, one call."})
