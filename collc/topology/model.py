"""The model of a machine: vertices, directed links, servers; and the graph that one plan uses.

Units: `gbps` is GB/s = 1e9 bytes per second and direction, an exact `Fraction`; `latency_us` is microseconds.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction


class VertexKind(enum.Enum):
    """The kind of a vertex. Only GPUs hold data; everything else forwards."""

    GPU = "gpu"
    SWITCH = "switch"
    CPU = "cpu"
    NIC = "nic"


class LinkKind(enum.Enum):
    """The class of a link."""

    NVLINK = "nvlink"
    NVSWITCH = "nvswitch"
    PCIE = "pcie"
    XGMI = "xgmi"
    C2C = "c2c"
    NET = "net"


# Classes from the fastest to the slowest: a route is of the slowest class that it crosses.
CLASSES = (LinkKind.NVSWITCH, LinkKind.NVLINK, LinkKind.XGMI, LinkKind.C2C, LinkKind.PCIE, LinkKind.NET)

# Classes of one call (`collc.topology.joint`), from the fastest to the slowest, in which order they are filled.
JOINT = ("nvlink", "pcie", "net")


def joint_class(paths: Iterable[Iterable[LinkKind]]) -> str:
    """The class of a tree whose hops cross links of these kinds: ``nvlink``, or ``nvlink+pcie`` with hops of both.

    A hop is of the slowest class that it crosses.
    """
    slow = {LinkKind.PCIE: 1, LinkKind.C2C: 1, LinkKind.NET: 2}
    found = {max((slow.get(kind, 0) for kind in kinds), default=0) for kinds in paths}
    return "+".join(JOINT[i] for i in sorted(found))


class LossKind(enum.Enum):
    """What is lost. A rail is a switch of the network, or where there are none the links that join NICs; a plane is one
    of the NVSwitches that all GPUs of a server are wired to."""

    LINK = "link"
    NIC = "nic"
    RAIL = "rail"
    PLANE = "plane"
    GPU = "gpu"


@dataclass(frozen=True, slots=True)
class Port:
    """How a NIC reaches the network: its speed in GB/s, whether it is up, and what fabric dumps know it by.

    `guid` is the InfiniBand node GUID, 16 hex digits; `interface` the operating system's name for it; `pci` its PCI bus
    id as `Device` has it, a place in a server.
    """

    gbps: Fraction | None = None
    guid: str | None = None
    interface: str | None = None
    up: bool = True
    pci: str | None = None

    def anonymous(self) -> Port:
        """The port without what may tell one server's NIC from another's."""
        return Port(self.gbps, up=self.up)


@dataclass(frozen=True, slots=True)
class Device:
    """Which GPU of a machine a vertex is: its PCI bus id (``0000:3b:00.0``, lower case) and its UUID, as far as known.

    A bus id is a place in a server, a UUID belongs to one card in the world. No plan depends on either.
    """

    pci: str | None = None
    uuid: str | None = None


@dataclass(frozen=True, slots=True)
class Vertex:
    """A GPU, switch, CPU socket or NIC. `multicast` and `reduce` say what a switch can do beside forwarding.

    `memory_gbps` of a CPU says that transfers through it are staged in its memory, which moves so much: every byte
    crosses it twice, written and read. None: they pass the root complex alone. Trees are packed without it, the
    simulator counts it (staging.py).
    `port` of a NIC is what a probe knows of its network; plans use the links of kind net alone.
    `device` of a GPU says where a probe has found it; libraries use it to tell which ranks run on which GPUs.
    """

    name: str
    kind: VertexKind
    multicast: bool = False
    reduce: bool = False
    memory_gbps: Fraction | None = field(default=None, compare=False)
    port: Port | None = field(default=None, compare=False)
    device: Device | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Link:
    """One directed link between two named vertices: all its lanes together (`gbps` is the sum over a `count`).

    `lanes` is that count, 1 where nobody gave one: what may be lost alone. Rates do not depend on it.
    """

    src: str
    dst: str
    kind: LinkKind
    gbps: Fraction
    latency_us: Fraction = Fraction(0)
    lanes: int = field(default=1, compare=False)


@dataclass(frozen=True)
class Topology:
    """A machine as a topology file describes it.

    `vertices` keeps the order of the file (GPUs first, in rank order), `links` is one per directed pair and kind,
    `servers` maps a server's name to the names of its vertices. `notes` are assumptions worth a comment in the file.
    `gpu_model` names the GPUs as their maker does (H100); what the simulator knows of them is found by it.
    `models` has the GPUs of each server that comes from a template with a model, where servers may differ.
    """

    name: str
    vertices: tuple[Vertex, ...]
    links: tuple[Link, ...]
    servers: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...] = field(default=(), compare=False)
    gpu_model: str | None = None
    models: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def gpus(self) -> tuple[Vertex, ...]:
        """The GPUs in rank order."""
        return tuple(v for v in self.vertices if v.kind is VertexKind.GPU)


@dataclass(frozen=True, slots=True)
class GraphLink:
    """A directed link of a `PlanGraph`. `src` and `dst` are vertex numbers; `id` is its place in `PlanGraph.links`."""

    id: int
    src: int
    dst: int
    kind: LinkKind
    gbps: Fraction
    latency_us: Fraction = Fraction(0)


@dataclass(frozen=True)
class PlanGraph:
    """Exactly the graph that a plan uses: rank i is vertex i, then every vertex that only forwards.

    `servers[v]` is the name of the server of vertex v. Bounds and certificates are about this graph alone; `gpu_model`,
    which the simulator looks at, is no part of it.
    """

    name: str
    nranks: int
    vertices: tuple[Vertex, ...]
    servers: tuple[str, ...]
    links: tuple[GraphLink, ...]
    gpu_model: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        assert len(self.vertices) == len(self.servers)
        assert all(v.kind is VertexKind.GPU for v in self.vertices[: self.nranks])
        assert all(link.id == i for i, link in enumerate(self.links))

    @property
    def ranks(self) -> range:
        """The vertices that hold data: rank i is vertex i."""
        return range(self.nranks)

    @property
    def rank_servers(self) -> tuple[str, ...]:
        """The server of each rank."""
        return self.servers[: self.nranks]

    @property
    def nservers(self) -> int:
        """How many servers the ranks are on."""
        return len(set(self.rank_servers))

    @property
    def forwarders(self) -> range:
        """Vertices that are no rank: switches, CPUs, NICs and, with relays allowed, idle GPUs."""
        return range(self.nranks, len(self.vertices))
