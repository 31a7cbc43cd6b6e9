"""collc: a compiler for collective communication on GPUs.

    import collc

    planned = collc.plan("dgx1v", "all_reduce", gpus=[0, 1, 4, 6])     # exact rate, trees, proof
    lowered = collc.lower(planned)                                     # a verified program for each rank
    times = collc.simulate("dgx1v", "all_reduce", sizes=["1M", "64M"])
    built = collc.compile("dgx1v", "libcollc-dgx1v.so", target="host")
    with collc.Library(built.path) as library:                         # runs all ranks in this process
        sums = library.all_reduce([numpy.ones(1000)] * library.nranks)

`dir(collc)` is the whole API; docs/python.md describes it. Everything else in the package may change without notice.
Names are imported when they are first used: `import collc` itself loads no solver and no numpy.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # type checkers read it as True; importing typing takes longer than importing this module
if TYPE_CHECKING:
    from typing import Any

    from collc.api.building import Built, Compiled, compile
    from collc.api.forecasts import SimulatedCall, Simulation, simulate
    from collc.api.machines import load
    from collc.api.planning import Planned, plan
    from collc.api.programs import Lowered, lower
    from collc.api.running import Library
    from collc.collectives.model import Collective
    from collc.errors import CollcError
    from collc.topology.model import Topology

__version__ = "0.2.0"

__all__ = [
    "Built",
    "CollcError",
    "Collective",
    "Compiled",
    "Library",
    "Lowered",
    "Planned",
    "SimulatedCall",
    "Simulation",
    "Topology",
    "__version__",
    "compile",
    "load",
    "lower",
    "plan",
    "simulate",
]

# The module of each name. No module or folder of the package may have one of these names, because Python would replace
# the function by the module when the module is imported.
_HOMES = {
    "Built": "collc.api.building",
    "CollcError": "collc.errors",
    "Collective": "collc.collectives.model",
    "Compiled": "collc.api.building",
    "Library": "collc.api.running",
    "Lowered": "collc.api.programs",
    "Planned": "collc.api.planning",
    "SimulatedCall": "collc.api.forecasts",
    "Simulation": "collc.api.forecasts",
    "Topology": "collc.topology.model",
    "compile": "collc.api.building",
    "load": "collc.api.machines",
    "lower": "collc.api.programs",
    "plan": "collc.api.planning",
    "simulate": "collc.api.forecasts",
}


if not TYPE_CHECKING:  # else a type checker would accept any name

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return list(__all__)
