"""The five ways to choose the programs of a library."""

from __future__ import annotations

import enum

from collc.options import Target, TargetKind
from collc.packing.candidates.servers import MOST_RANKS
from collc.topology.model import LinkKind, PlanGraph, VertexKind

# An allocation takes the model seconds to minutes, so libraries with more of them would take hours.
MODELED_ALLOCATIONS = 64


class Strategy(enum.Enum):
    """How the programs of an allocation are chosen.

    - PACKED: the packed trees for every size. The host target gets this: its ranks share one memory, whose speeds the
      model does not know, and `collc tune` measures them.
    - MEMORY: the host target on a topology of one memory (`collc probe --cpu`): one hop, because every rank can read
      data that another rank has written once. In small all_reduces every rank reduces.
    - MODEL: `collc.choose.table` asks the model; the table of one root serves all roots.
    - SERVERS: one set of GPUs over several servers. The network is far slower than the links inside a server, so the
      model (`collc.simulator.couriers`) chooses among the packed trees and the plans by servers, which exist for up to
      `MOST_RANKS`.
    - RULE: the packed trees, chunks by the time of a pipeline in closed form, parts that take turns in large
      all_reduces, and one hop of all inputs for small ones where all GPUs are joined: microseconds per plan,
      for libraries with more than `MODELED_ALLOCATIONS` allocations, several allocations over servers, and one of more
      than `MOST_RANKS` GPUs over servers. A tree has one block: behind a switch large calls take several times as long
      as by the model's choice.
    """

    PACKED = "packed"
    MEMORY = "memory"
    MODEL = "model"
    SERVERS = "servers"
    RULE = "rule"


def strategy_for(target: Target, graph: PlanGraph, nallocations: int) -> Strategy:
    """The default of a target for one of `nallocations` allocations."""
    if target.kind is TargetKind.HOST and graph.nranks > 1 and _is_one_memory(graph):
        return Strategy.MEMORY
    if nallocations == 1 and _over_servers(graph):
        return Strategy.SERVERS
    if target.kind is TargetKind.HOST or graph.nranks == 1:
        return Strategy.PACKED
    if nallocations > (1 if graph.nservers > 1 else MODELED_ALLOCATIONS):
        return Strategy.RULE
    return Strategy.MODEL if graph.nservers == 1 else Strategy.RULE


def _over_servers(graph: PlanGraph) -> bool:
    return graph.nservers > 1 and graph.nranks <= MOST_RANKS


def _is_one_memory(graph: PlanGraph) -> bool:
    """Returns True if ranks are cores: they have only coherent links, to the memory of their socket."""
    out = [link for link in graph.links if link.src < graph.nranks]
    cpus = all(graph.vertices[v].kind is VertexKind.CPU for v in graph.forwarders)
    return cpus and all(link.kind is LinkKind.C2C and link.dst >= graph.nranks for link in out)
