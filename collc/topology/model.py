"""The model of a machine: vertices, directed links and servers; and of the graph that one plan uses.

`gbps` is in GB/s, 1e9 bytes per second in one direction, as an exact `Fraction`. `latency_us` is in microseconds.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction


class VertexKind(enum.Enum):
    """The kind of a vertex. Only GPUs have data of a collective; all other vertices forward."""

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


# The classes from the fastest to the slowest. The class of a route is the slowest class that it crosses.
CLASSES = (LinkKind.NVSWITCH, LinkKind.NVLINK, LinkKind.XGMI, LinkKind.C2C, LinkKind.PCIE, LinkKind.NET)

# The classes of a multi-path call (`collc.topology.joint`), from the fastest to the slowest. They are filled in this
# order.
JOINT = ("nvlink", "pcie", "net")


def joint_class(paths: Iterable[Iterable[LinkKind]]) -> str:
    """Returns the class of a tree, such as ``nvlink``, or ``nvlink+pcie`` if it has hops of both classes.

    Args:
        paths: the kinds of the links that each hop crosses. The class of a hop is the slowest class among them.
    """
    slow = {LinkKind.PCIE: 1, LinkKind.C2C: 1, LinkKind.NET: 2}
    hop_classes = {max((slow.get(kind, 0) for kind in kinds), default=0) for kinds in paths}
    return "+".join(JOINT[i] for i in sorted(hop_classes))


class LossKind(enum.Enum):
    """The kind of a lost part.

    A rail is a switch of the network, or, in a network without switches, the links that join NICs. A plane is one
    of several NVSwitches of a server, or of those that one vertex stands for.
    """

    LINK = "link"
    NIC = "nic"
    RAIL = "rail"
    PLANE = "plane"
    GPU = "gpu"


@dataclass(frozen=True, slots=True)
class Port:
    """The connection of a NIC to the network.

    Attributes:
        gbps: the speed in GB/s, if known.
        guid: the InfiniBand node GUID, 16 hex digits. Fabric dumps identify NICs by it.
        interface: the operating system's name of the network interface.
        up: True if the port is up.
        pci: the PCI bus id in the form of `Device.pci`, which identifies a place in a server.
    """

    gbps: Fraction | None = None
    guid: str | None = None
    interface: str | None = None
    up: bool = True
    pci: str | None = None

    def anonymous(self) -> Port:
        """Returns the port with only its speed and state, which equal NICs of different servers share."""
        return Port(self.gbps, up=self.up)


@dataclass(frozen=True, slots=True)
class Device:
    """Identifies a vertex's GPU by its PCI bus id (``0000:3b:00.0``, lower case) and its UUID, as far as known.

    A bus id identifies a place in a server, a UUID one card in the world. No plan depends on either.
    """

    pci: str | None = None
    uuid: str | None = None


@dataclass(frozen=True, slots=True)
class Vertex:
    """A GPU, switch, CPU socket or NIC.

    Attributes:
        multicast, reduce: of a switch: it can copy one store to several GPUs; it can add the values of several GPUs.
        memory_gbps: of a CPU: transfers through it are staged in its memory, which moves this many GB/s in total. Every
            byte counts twice, once written and once read. None: transfers pass only through the root complex. Packing
            ignores this limit in single-path graphs, but the simulator applies it (staging.py).
        port: of a NIC: its connection to the network as a probe describes it. Plans use only links of kind net.
        device: of a GPU: its identity as a probe describes it. Libraries use it to map ranks to GPUs.
        domain: of an NVSwitch: its NVLink domain, CLUSTER-UUID/CLIQUE, if the domain may span servers. Plans do not use
            it; `collc probe --merge` joins the servers of one domain.
    """

    name: str
    kind: VertexKind
    multicast: bool = False
    reduce: bool = False
    memory_gbps: Fraction | None = field(default=None, compare=False)
    port: Port | None = field(default=None, compare=False)
    device: Device | None = field(default=None, compare=False)
    domain: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Link:
    """One directed link between two named vertices.

    Attributes:
        gbps: the speed of all lanes together.
        lanes: the `count` of the file, or 1. A single lane may be lost. Rates do not depend on it.
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

    Attributes:
        vertices: GPUs first, in rank order, then switches, CPUs and NICs; each kind in the order of the file.
        links: one for each directed pair of vertices and kind.
        servers: server -> names of its vertices.
        notes: assumptions, which become comments of a file.
        gpu_model: the GPUs' name by their maker, such as H100. The simulator finds its parameters by it.
        models: server -> GPU model, for servers that come from a template with a model. Servers may differ.
        assumes: the kinds of links whose speed, number or wiring a probe assumed.
    """

    name: str
    vertices: tuple[Vertex, ...]
    links: tuple[Link, ...]
    servers: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...] = field(default=(), compare=False)
    gpu_model: str | None = None
    models: Mapping[str, str] = field(default_factory=dict, compare=False)
    assumes: tuple[LinkKind, ...] = field(default=(), compare=False)

    @property
    def gpus(self) -> tuple[Vertex, ...]:
        """The GPUs in rank order."""
        return tuple(v for v in self.vertices if v.kind is VertexKind.GPU)


@dataclass(frozen=True, slots=True)
class GraphLink:
    """A directed link of a `PlanGraph`. `src` and `dst` are vertex numbers; `id` is its index in `PlanGraph.links`."""

    id: int
    src: int
    dst: int
    kind: LinkKind
    gbps: Fraction
    latency_us: Fraction = Fraction(0)


@dataclass(frozen=True)
class PlanGraph:
    """Exactly the graph that a plan uses: rank i is vertex i, and the vertices that only forward follow.

    Bounds and certificates refer only to this graph.

    Attributes:
        servers: the name of each vertex's server.
        gpu_model: the GPUs' name by their maker, for the simulator; it is no part of the graph.
        assumes: the kinds among its links that the topology assumes; not part of the graph.
    """

    name: str
    nranks: int
    vertices: tuple[Vertex, ...]
    servers: tuple[str, ...]
    links: tuple[GraphLink, ...]
    gpu_model: str | None = field(default=None, compare=False)
    assumes: tuple[LinkKind, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        assert len(self.vertices) == len(self.servers)
        assert all(v.kind is VertexKind.GPU for v in self.vertices[: self.nranks])
        assert all(link.id == i for i, link in enumerate(self.links))

    @property
    def ranks(self) -> range:
        """The vertices of the ranks: rank i is vertex i."""
        return range(self.nranks)

    @property
    def rank_servers(self) -> tuple[str, ...]:
        """The server of each rank."""
        return self.servers[: self.nranks]

    @property
    def nservers(self) -> int:
        """The number of servers that have ranks."""
        return len(set(self.rank_servers))

    @property
    def forwarders(self) -> range:
        """The vertices that are no rank: switches, CPUs, NICs and, if idle GPUs may relay, these GPUs."""
        return range(self.nranks, len(self.vertices))
