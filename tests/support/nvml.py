"""Machines for the mock of NVML: description files, and a sysfs tree to go with them."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from support.topo_text import DGX1P, DGX1V

from collc.topology.load import loads_topology
from collc.topology.model import Topology

MOCK = Path(__file__).with_name("nvml_mock.c")
GPU, NPU, SWITCH, UNKNOWN, SILENT = 0, 1, 2, 255, -1
HIDDEN = "FFFFFFFF:FFFF:FF.0"
_PROBE = """
import json, os, sys
from pathlib import Path
from collc.errors import CollcError
from collc.topology.dump import dumps_topology
from collc.topology.probe.live import probe_machine
try:
    topology = probe_machine(visible=os.environ.get("CUDA_VISIBLE_DEVICES"), sysfs=Path(sys.argv[1])).topology
    answer = {"yaml": dumps_topology(topology), "notes": topology.notes}
except CollcError as error:
    answer = {"error": str(error)}
print(json.dumps(answer))
"""


def compile_mock(folder: Path) -> Path:
    """libnvidia-ml.so.1 in `folder`, made from the C source beside this file."""
    library = folder / "libnvidia-ml.so.1"
    command = ["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC"]
    subprocess.run([*command, "-Wl,-soname,libnvidia-ml.so.1", "-o", library, MOCK], check=True)
    return library


def bus(i: int) -> str:
    return f"00000000:{i + 6:02X}:00.0"


@dataclass
class Box:
    """GPUs with their statements, in the mock's language."""

    lines: list[str] = field(default_factory=list)
    gpus: int = 0

    def gpu(self, name: str, *statements: str, uuid: str | None = None) -> Box:
        i = self.gpus
        self.gpus += 1
        self.lines += [f"gpu {bus(i)} {uuid or f'GPU-{i:x}{i:x}{i:x}{i:x}0000-1111-2222-3333-444444444444'} {name}"]
        self.lines += statements
        return self

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


def link(to: str, *, kind: int = GPU, version: int = 2, mbps: int = 25781, state: int = 1) -> str:
    return f"link {state} {version} {mbps} {kind} {to}"


def mesh(counts: dict[tuple[int, int], int], name: str, *, sm: str, version: int, mbps: int, kind: int = GPU) -> Box:
    """Eight GPUs joined directly."""
    ends: list[list[int]] = [[] for _ in range(8)]
    for (a, b), n in sorted(counts.items()):
        ends[a] += [b] * n
        ends[b] += [a] * n
    box = Box()
    for i in range(8):
        links = [link(bus(j), kind=kind, version=version, mbps=mbps) for j in ends[i]]
        box.gpu(name, f"sm {sm}", "pcie 3 16", *links)
    return box


def dgx1v(kind: int = GPU) -> Box:
    return mesh(DGX1V, "Tesla V100-SXM2-16GB", sm="7 0", version=2, mbps=25781, kind=kind)


def dgx1p() -> Box:
    return mesh(DGX1P, "Tesla P100-SXM2-16GB", sm="6 0", version=1, mbps=0)


def star(gpus: int, links: int, name: str, *, sm: str, version: int, mbps: int, hidden: bool = False) -> Box:
    """GPUs that all reach NVSwitches."""
    box = Box()
    for _ in range(gpus):
        ends = [HIDDEN if hidden else f"00000000:{0xC0 + k % 6:02X}:00.0" for k in range(links)]
        kind = UNKNOWN if hidden else SWITCH
        box.gpu(name, f"sm {sm}", "pcie 5 16", *(link(e, kind=kind, version=version, mbps=mbps) for e in ends))
    return box


def dgx2() -> Box:
    return star(16, 6, "Tesla V100-SXM3-32GB", sm="7 0", version=2, mbps=25781)


def h100(*, hidden: bool = False, gpus: int = 8) -> Box:
    return star(gpus, 18, "NVIDIA H100 80GB HBM3", sm="9 0", version=6, mbps=26562, hidden=hidden)


@dataclass
class Sysfs:
    """A sysfs with a PCIe tree: devices below chains of bridges."""

    root: Path

    def __post_init__(self) -> None:
        (self.root / "bus/pci/devices").mkdir(parents=True)

    def device(
        self,
        *way: str,
        numa: int = 0,
        speed: str = "8.0 GT/s PCIe",
        width: int = 16,
        slow: dict[str, int] | None = None,
    ) -> Path:
        """A device and all bridges on its way, the host bridge (``pci0000:00``) first; `slow` are narrower bridges."""
        path = self.root / "devices"
        for step in way:
            path /= step
            if not path.exists():
                path.mkdir(parents=True)
                if not step.startswith("pci"):
                    (path / "max_link_speed").write_text(speed + "\n")
                    (path / "max_link_width").write_text(f"{(slow or {}).get(step, width)}\n")
                    (path / "numa_node").write_text(f"{numa}\n")
        link_path = self.root / "bus/pci/devices" / way[-1]
        if not link_path.exists():
            link_path.symlink_to(path)
        return path

    def nic(self, name: str, *way: str, kind: str = "infiniband", mbps: int | None = None, numa: int = 0) -> None:
        """A network device below a PCI device."""
        path = self.device(*way, numa=numa)
        folder = self.root / "class" / kind / name
        folder.mkdir(parents=True)
        (folder / "device").symlink_to(path)
        if mbps is not None:
            (folder / "speed").write_text(f"{mbps}\n")


@dataclass(frozen=True)
class Answer:
    """The result of a live probe: a topology with notes, or the line of a refusal."""

    topology: Topology | None
    notes: tuple[str, ...]
    error: str

    @property
    def good(self) -> Topology:
        assert self.topology is not None, self.error
        return self.topology


def environment(library: Path, description: Path, visible: str | None) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if k not in ("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH")}
    env |= {"LD_LIBRARY_PATH": str(library.parent), "NVML_MOCK": str(description)}
    return env if visible is None else env | {"CUDA_VISIBLE_DEVICES": visible}


def probe(
    library: Path, folder: Path, box: Box | str, *, visible: str | None = None, sysfs: Path | None = None
) -> Answer:
    """Probes the mock's machine in a new process, because pynvml keeps its library loaded."""
    import json

    description = folder / "machine.txt"
    description.write_text(box if isinstance(box, str) else box.text())
    done = subprocess.run(
        [sys.executable, "-c", _PROBE, str(sysfs or folder / "no-sysfs")],
        env=environment(library, description, visible),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    if "error" in answer:
        return Answer(None, (), answer["error"])
    return Answer(loads_topology(answer["yaml"]), tuple(answer["notes"]), "")
