"""NVLink domains over several servers: trays of an NVL72 rack are joined, or an error names the option that tells."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import pytest
from support.cli import collc, refused

from collc.errors import TopologyError, UsageError
from collc.packing import Collective, plan
from collc.topology.cluster.merge import Described, merge
from collc.topology.cluster.model import Server
from collc.topology.cluster.write import dumps_cluster
from collc.topology.dump import dumps_topology
from collc.topology.graph import plan_graph
from collc.topology.load import loads_topology
from collc.topology.model import Topology
from collc.topology.probe.dumps import topology_from_dumps
from collc.topology.probe.live import assemble
from collc.topology.probe.nvml import Gpu, NvLink

RACK = "ab" * 16


def tray(domain: str | None = None, gpu_gbps: str = "900", extra: str = "") -> Topology:
    switch = "nvs0" if domain is None else f'{{name: nvs0, multicast: true, reduce: true, domain: "{domain}"}}'
    text = f"""format: collc-topology/1
name: tray
gpus: 2
gpu_model: GB200
cpus: [cpu0]
switches: [{switch}]
nics: [{{name: mlx5_0, gbps: 50}}]
speeds: {{c2c: 225, pcie: 50}}
links:
  - [gpu0, nvs0, nvswitch, 900]
  - [gpu1, nvs0, nvswitch, {gpu_gbps}]
  - [gpu0, cpu0, c2c]
  - [gpu1, cpu0, c2c]
  - [mlx5_0, cpu0, pcie]
{extra}"""
    return loads_topology(text)


def merged(trays: Sequence[Topology], *domains: str, slurm: str | None = None) -> Topology:
    servers = [Server(f"tray{i}", machine, f"tray{i}.yaml") for i, machine in enumerate(trays)]
    dumps = [("topology.conf", slurm)] if slurm is not None else []
    cluster = merge(servers, Described(domains=domains, dumps=dumps), "rack")
    return loads_topology(dumps_cluster(cluster))


def rate(topology: Topology) -> float:
    return float(plan(plan_graph(topology), Collective.ALL_REDUCE, None).rate or 0)


SAME, OTHER = f"{RACK}/1", f"{RACK}/2"
BLOCKS = "BlockName=b0 Nodes=tray[0-1]\nBlockName=b1 Nodes=tray[2-3]\nBlockSizes=2\n"


@pytest.mark.parametrize(
    ("domains", "options", "slurm", "gbps"),
    [
        ([SAME, SAME], [], None, 600),
        ([SAME, SAME, SAME], [], None, 540),
        ([SAME, OTHER], [], None, 50),
        ([SAME, SAME], ["each"], None, 50),
        ([None, None], ["all"], None, 600),
        ([None, None], ["tray0,tray1"], None, 600),
        ([None, None], ["each"], None, 50),
        ([None, None, None, None], ["tray0,tray1", "tray2,tray3"], None, 100),
        ([None, None, None, None], [], BLOCKS, 100),
        ([SAME, None], ["all"], None, 600),
    ],
)
def test_trays_of_one_domain_share_a_switch(
    domains: list[str | None], options: list[str], slurm: str | None, gbps: float
) -> None:
    topology = merged([tray(domain) for domain in domains], *options, slurm=slurm)
    assert rate(topology) == pytest.approx(gbps)
    outside = [v.name for v in topology.vertices if v.name.startswith("nvl")]
    assert len(outside) == (0 if gbps == 50 else 2 if gbps == 100 else 1)
    owned = {name for members in topology.servers.values() for name in members}
    assert not owned & set(outside)


def test_a_tray_that_differs_keeps_its_own_links() -> None:
    lost = "- {between: [gpu1, nvs0], kind: nvswitch, gbps: 900}"
    lone = loads_topology(dumps_topology(tray(SAME)).replace(lost, ""))
    topology = merged([tray(SAME), tray(SAME, "800"), lone])
    speeds = {(k.src, k.dst): float(k.gbps) for k in topology.links if k.kind.value == "nvswitch" and k.dst == "nvl0"}
    assert speeds == {
        **dict.fromkeys([(f"tray{i}.gpu0", "nvl0") for i in range(3)], 900),
        ("tray0.gpu1", "nvl0"): 900,
        ("tray1.gpu1", "nvl0"): 800,
    }  # fmt: skip


@pytest.mark.parametrize("domains", [[None, None], [SAME, None]])
def test_without_that_knowledge_the_error_names_the_option(domains: list[str | None]) -> None:
    with pytest.raises(TopologyError, match=r"whether their GPUs share an NVLink domain .*--domain all, --domain each"):
        merged([tray(domain) for domain in domains])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["all", "each"], "stand alone"),
        (["tray0,tray9"], "no server is called 'tray9'"),
        (["tray0,tray1", "tray1"], "tray1 is named twice"),
    ],
)
def test_options_that_make_no_sense(options: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        merged([tray(), tray()], *options)


def smi(states: Sequence[str]) -> str:
    """`nvidia-smi -q -x` with the state and clique of each GPU's fabric."""
    gpus = "".join(
        f'<gpu id="00000000:0{i}:00.0"><product_name>NVIDIA GB200</product_name><pci><pci_bus_id>00000000:0{i}:00.0'
        f"</pci_bus_id></pci><fabric><state>{state}</state><cliqueId>7</cliqueId><clusterUuid>{RACK[:8]}-{RACK[8:12]}-"
        f"{RACK[12:16]}-{RACK[16:20]}-{RACK[20:]}</clusterUuid></fabric></gpu>\n"
        for i, state in enumerate(states)
    )
    return f"<nvidia_smi_log>\n{gpus}</nvidia_smi_log>\n"


TABLE = (
    "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    "GPU0\t X \tNV18\t0-71\t0\t\t2\nGPU1\tNV18\t X \t0-71\t0\t\t10\n"
)


def test_a_dump_carries_the_domain() -> None:
    topology = topology_from_dumps([("topo", TABLE), ("smi", smi(["Completed", "Completed"]))])
    switch = next(v for v in topology.vertices if v.name == "nvs0")
    assert switch.domain == f"{RACK}/7"
    again = loads_topology(dumps_topology(topology))
    assert next(v for v in again.vertices if v.name == "nvs0").domain == switch.domain
    alone = topology_from_dumps([("topo", TABLE)])
    assert any("the same NVLink domain is not in this dump" in note for note in alone.notes)


def test_the_driver_reports_the_domain() -> None:
    links = [NvLink(k, "", "switch", None, 7) for k in range(18)]
    gpus = [
        Gpu(
            i, f"000{i}:01:00.0", "", "NVIDIA GB200", (10, 0), links=links, c2c=Fraction(225), fabric=(RACK, 1 + i // 3)
        )
        for i in range(4)
    ]
    topology = assemble(gpus, None, None, "tray", Path("/nonexistent")).topology
    assert {v.name: v.domain for v in topology.vertices if v.domain} == {"nvs0": f"{RACK}/1", "nvs1": f"{RACK}/2"}
    assert loads_topology(dumps_topology(topology)) == topology
    # Two such trays share the clique of three GPUs; the fourth GPU of each keeps its own switch.
    rack = merged([topology, topology])
    assert sum(k.dst == "nvl0" for k in rack.links) == 6
    assert {k.dst for k in rack.links if k.src.endswith(".gpu3") and k.kind.value == "nvswitch"} == {
        "tray0.nvs1",
        "tray1.nvs1",
    }


def test_a_gpu_outside_the_clique_is_placed_alone() -> None:
    topology = topology_from_dumps([("topo", TABLE), ("smi", smi(["Completed", "In Progress"]))])
    assert {k.dst for k in topology.links if k.kind.value == "nvswitch" and k.src.startswith("gpu")} == {"nvs0", "nvs1"}
    assert any("gpu1: in no clique of the NVLink domain" in note for note in topology.notes)
    plan_graph(topology)


def test_a_domain_of_another_form_is_refused() -> None:
    with pytest.raises(TopologyError, match="`domain` cannot be"):
        tray("a b")


def test_the_command(tmp_path: Path) -> None:
    for i in range(2):
        (tmp_path / f"tray{i}.yaml").write_text(dumps_topology(tray()))
    files = [str(tmp_path / f"tray{i}.yaml") for i in range(2)]
    assert "--domain all" in refused(collc("probe", "--merge", *files))
    done = collc("probe", "--merge", *files, "--domain", "all", "-o", str(tmp_path / "rack.yaml"))
    assert "NVLink domain nvl0: tray0, tray1, 4 GPUs" in done.err
    words = refused(collc("probe", "--domain", "all", "--from", files[0]), code=2)
    assert "use them with --merge or --cluster" in words
