"""Dumps of InfiniBand and LLDP as the network between servers; damaged ones are refused in one line."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from support.fuzz import one_line

from collc.errors import CollcError, TopologyError
from collc.packing import Collective, plan
from collc.topology.cluster.merge import Described, merge
from collc.topology.cluster.model import Cluster, Server
from collc.topology.cluster.write import dumps_cluster
from collc.topology.graph import plan_graph
from collc.topology.load import loads_topology
from collc.topology.model import Topology

DATA = Path(__file__).parent.parent / "data" / "fabric"
BOX = """format: collc-topology/1
name: box
gpus: 2
cpus: [cpu0]
nics: [NICS]
speeds: {nvlink: 25, pcie: 50}
links: [[gpu0, gpu1, nvlink], [gpu0, NIC0, pcie], [gpu1, NIC1, pcie], [gpu0, cpu0, pcie]]
"""


def box(kind: str, server: int) -> Topology:
    if kind == "ib":
        nics = ", ".join(f'{{name: mlx5_{i}, gbps: 50, guid: "b8599f0300aa00{server}{i}"}}' for i in range(2))
        return loads_topology(BOX.replace("NICS", nics).replace("NIC0", "mlx5_0").replace("NIC1", "mlx5_1"))
    nics = ", ".join(f"{{name: roce{i}, gbps: 12.5, interface: eth{i}}}" for i in range(2))
    return loads_topology(BOX.replace("NICS", nics).replace("NIC0", "roce0").replace("NIC1", "roce1"))


def servers(kind: str, names: tuple[str, ...] = ("node0", "node1", "node2")) -> list[Server]:
    return [Server(name, box(kind, i), f"{name}.yaml") for i, name in enumerate(names)]


def joined(*files: str, kind: str = "ib", names: tuple[str, ...] = ("node0", "node1", "node2")) -> Cluster:
    dumps = [(str(DATA / name), (DATA / name).read_text()) for name in files]
    return merge(servers(kind, names), Described(dumps=dumps), "lab")


def cables(cluster: Cluster) -> dict[tuple[str, str], Fraction]:
    return {(c.a, c.b): c.gbps for c in cluster.network.cables}


INFINIBAND = ("ibnetdiscover.txt", "ibdiagnet2.lst", "ibdiagnet2.db_csv")
FABRIC = {
    ("node0.mlx5_0", "leaf0"): 50,
    ("node0.mlx5_1", "leaf1"): 50,
    ("node1.mlx5_0", "leaf0"): 50,
    ("node1.mlx5_1", "leaf1"): 25,  # trained at half its speed
    ("node2.mlx5_0", "leaf0"): 50,
    ("node2.mlx5_1", "leaf1"): 50,
    ("leaf0", "spine0"): 100,
    ("leaf1", "spine0"): 100,
}


@pytest.mark.parametrize("name", INFINIBAND)
def test_every_dump_of_infiniband_gives_the_same_network(name: str) -> None:
    cluster = joined(name)
    assert cables(cluster) == FABRIC  # and no storage host
    assert set(cluster.network.switches) == {"leaf0", "leaf1", "spine0"}
    assert plan(plan_graph(loads_topology(dumps_cluster(cluster))), Collective.ALL_GATHER).optimal


@pytest.mark.parametrize("name", INFINIBAND)
def test_without_guids_adapters_are_found_by_host_and_name(name: str) -> None:
    plain = [
        Server(
            s.name,
            loads_topology(BOX.replace("NICS", "mlx5_0, mlx5_1").replace("NIC0", "mlx5_0").replace("NIC1", "mlx5_1")),
            s.source,
        )
        for s in servers("ib")
    ]
    cluster = merge(plain, Described(dumps=[(name, (DATA / name).read_text())]), "lab")
    assert cables(cluster) == FABRIC


def test_guids_go_before_names() -> None:
    """Hosts that were renamed since the dump, or described wrongly."""
    found = cables(joined("ibnetdiscover.txt", names=("a", "node2", "c")))
    assert found["node2.mlx5_1", "leaf1"] == 25  # node1's GUID
    assert len(found) == len(FABRIC)


def test_lldp_of_each_server_names_switches_and_what_joins_them_is_assumed() -> None:
    cluster = joined("node0.json", "node1.txt", "node2.json", kind="roce")
    unnamed = next(s for s in cluster.network.switches if s not in ("tor0", "tor2", "spine"))
    half = Fraction(25, 2)
    assert cables(cluster) == {
        ("node0.roce0", "tor0"): half,
        ("node0.roce1", unnamed): half,
        ("node1.roce0", "tor0"): half,
        ("node1.roce1", unnamed): half,
    }
    assert any("no dump shows node2.roce1" in note for note in cluster.network.notes)


def test_a_switch_that_one_server_alone_hangs_on_is_kept_if_something_joins_it() -> None:
    texts = {
        "node0.json": (DATA / "node0.json").read_text(),
        "node2.json": (DATA / "node2.json").read_text(),
        "node3.txt": (DATA / "node1.txt").read_text().replace("tor0", "tor2").replace("00:01", "00:03"),
    }
    found = merge(servers("roce", ("node0", "node1", "node2", "node3")), Described(dumps=list(texts.items())), "lab")
    assert {c.a for c in found.network.cables if c.server} >= {"node2.roce0", "node3.roce0"}


def test_groups_of_servers_without_a_common_switch_get_a_spine() -> None:
    def lldp(switch: str) -> str:
        return f"lldp.eth0.via=LLDP\nlldp.eth0.chassis.mac={switch}\nlldp.eth0.chassis.name={switch}\n"

    names = ("node0", "node1", "node2", "node3")
    dumps = [(f"{name}.txt", lldp("torA" if i < 2 else "torB")) for i, name in enumerate(names)]
    cluster = merge(servers("roce", names), Described(dumps=dumps), "lab")
    assert {("torA", "spine"), ("torB", "spine")} <= set(cables(cluster))
    assert cables(cluster)["torA", "spine"] == 25
    assert any("assumed one switch above" in note for note in cluster.network.notes)


@pytest.mark.parametrize(
    ("name", "cut", "line"),
    [
        (
            "ibnetdiscover.txt",
            ("switchguid=0xfc6a1c0300bb00ff(fc6a1c0300bb00ff)\nSwitch\t65", "Swatch\t65"),
            "is no line of",
        ),
        ("ibnetdiscover.txt", ("[30]\t", "[30\t"), "is no line of ibnetdiscover"),
        ("ibdiagnet2.lst", ("PHY=4x", "PHY=4"), "no line of ibdiagnet's .lst"),
        ("ibdiagnet2.db_csv", ("END_LINKS", ""), "LINKS has no end"),
        ("ibdiagnet2.db_csv", ("NodeGuid1", "Guid1"), "a row of LINKS without its two ports"),
        ("ibdiagnet2.db_csv", ("0xb8599f0300aa0000,1\n", "0xb8599f0300aaffff,1\n"), "which NODES does not have"),
        ("ibdiagnet2.db_csv", (",65,2,", ",65,9,"), "a row of NODES"),
        ("node0.json", ("]", ""), "node0.json"),
        ("node0.json", ('"interface"', '"outerface"'), "lldpd saw no neighbor"),
        ("node1.txt", ("lldp.eth0.via=LLDP", "lldp.via"), "this is no line of `lldpctl -f keyvalue`"),
    ],
)
def test_damaged_dumps_are_one_line(name: str, cut: tuple[str, str], line: str) -> None:
    text = (DATA / name).read_text()
    assert cut[0] in text
    kind = "ib" if name.startswith("ib") else "roce"
    with pytest.raises(TopologyError) as error:
        merge(servers(kind), Described(dumps=[(name, text.replace(*cut))]), "lab")
    assert line in str(error.value)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("name", INFINIBAND)
def test_a_dump_that_is_cut_off_anywhere_is_refused_or_smaller(name: str) -> None:
    text = (DATA / name).read_text()
    for end in range(0, len(text), 97):
        try:
            found = merge(servers("ib"), Described(dumps=[(name, text[:end])]), "lab")
        except CollcError as error:
            one_line(error)
            continue
        assert set(found.network.switches) <= {"leaf0", "leaf1", "spine0", "spine"}


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("x", "", "does not recognize this dump"),
        ("x", "hello\n", "does not recognize this dump"),
        ("x.json", '{"lldp": {}}', "this name says of none"),
        ("node0.json", '{"lldp": []}', "saw no neighbor"),
        ("other.json", (DATA / "node0.json").read_text(), "this name says of none"),
    ],
)
def test_what_is_no_dump_is_refused(name: str, text: str, line: str) -> None:
    with pytest.raises(TopologyError) as error:
        merge(servers("roce"), Described(dumps=[(name, text)]), "lab")
    assert line in str(error.value)


def test_a_dump_of_another_fabric_is_refused() -> None:
    text = (DATA / "ibnetdiscover.txt").read_text().replace("b8599f0300aa", "b8599f0300cc").replace("node", "other")
    with pytest.raises(TopologyError, match="no dump shows a NIC of the servers node0, node1, node2"):
        merge(servers("ib"), Described(dumps=[("d", text)]), "lab")


# Two servers of two rails, as iblinkinfo prints them: by adapter, then by switch.
LINKINFO = (DATA / "iblinkinfo.txt").read_text()
TREE = (DATA / "topology.conf").read_text()
TREE_YAML = (DATA / "topology.yaml").read_text()


def described(text: str, names: tuple[str, ...] = ("node0", "node1", "node2")) -> Cluster:
    return merge(servers("ib", names), Described(dumps=[("fabric", text)]), "lab")


def test_iblinkinfo() -> None:
    found = cables(described(LINKINFO, ("node0", "node1")))
    assert found == {
        ("node0.mlx5_0", "leaf0"): 50,
        ("node0.mlx5_1", "leaf1"): 25,
        ("node1.mlx5_0", "leaf0"): 50,
        ("node1.mlx5_1", "leaf1"): 50,
        ("leaf0", "leaf1"): 50,
    }
    line = '  0x00000000000000{0}{0}   {0}   1[  ] ==( 4X   106.25 Gbps Active/  LinkUp)==>   1   {0}[  ] "leaf0" ( )\n'
    adapters = "".join(f"CA: node{i} mlx5_0:\n{line.format(i + 2)}" for i in range(2))
    assert cables(described(adapters, ("node0", "node1"))) == {(f"node{i}.mlx5_0", "leaf0"): 50 for i in range(2)}


@pytest.mark.parametrize("text", [TREE, TREE_YAML])
def test_a_tree_of_slurm(text: str) -> None:
    cluster = described(text)
    found = cables(cluster)
    assert {pair for pair, gbps in found.items() if gbps == 50} == {
        (f"node{i}.mlx5_{j}", f"leaf{i // 2}") for i in range(3) for j in range(2)
    }
    assert {pair: gbps for pair, gbps in found.items() if gbps != 50} == {("leaf0", "top"): 200, ("leaf1", "top"): 100}
    assert any("without cables and speeds; assumed" in note for note in cluster.network.notes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("SwitchName=a Nodes=n[1-\n", "fabric:1: `n\\[1-` is no list of hosts"),
        ("SwitchName=a Nodes=n[1-99999999]\n", "is no list of numbers"),
        ("SwitchName=a Nodes=n[1-60000][1-9]\n", "more than 65536 names"),
        ("SwitchName=a Nodes=x\nSwitchName=a Nodes=y\n", "fabric:2: switch a is given twice"),
        ("SwitchName=a Nodes=x\n", "no node of Slurm's topology is one of the servers"),
        (LINKINFO.replace("CA: node0 mlx5_0:", "", 1), "a port before any node"),
        (LINKINFO.replace("[  ] ==(", "] ==(", 1), "this is no line of iblinkinfo"),
    ],
)
def test_damaged_linkinfo_and_slurm(text: str, words: str) -> None:
    with pytest.raises(TopologyError, match=words):
        described(text)


def test_a_cycle_of_switches_ends() -> None:
    cluster = described("SwitchName=leaf0 Nodes=node0\nSwitchName=a Switches=b,leaf0\nSwitchName=b Switches=a\n")
    assert ("node0.mlx5_0", "leaf0") in cables(cluster)


# The form of treydock/infiniband_exporter's fixtures; the last two lines: ports without a cable.
PORTS = (DATA / "ibnetdiscover-p.txt").read_text()


def test_ibnetdiscover_by_ports() -> None:
    found = described(PORTS, ("node0", "node1"))
    assert cables(found) == {("node0.mlx5_0", "leaf0"): Fraction(25, 2), ("node1.mlx5_0", "leaf0"): Fraction(25, 4)}
    with pytest.raises(TopologyError, match="fabric:1: this is no line of ibnetdiscover -p"):
        described(PORTS.replace("SW  1719 10 0x", "SW  1719 0x", 1), ("node0", "node1"))


def test_trunks_of_slurm_without_a_root_get_a_spine() -> None:
    trunks = "SwitchName=a Switches=leaf0\nSwitchName=leaf0 Nodes=node0\nSwitchName=b Nodes=node[1-2]\n"
    cluster = described(trunks)
    assert any("groups of servers have no switch in common" in note for note in cluster.network.notes)
    plan_graph(loads_topology(dumps_cluster(cluster)))
