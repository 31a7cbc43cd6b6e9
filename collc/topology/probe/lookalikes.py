"""Refuses output that looks like a dump: of another vendor's tool, or the wrong table of a known tool."""

from __future__ import annotations

import re
from collections.abc import Sequence

from collc.errors import TopologyError
from collc.topology.probe.lines import Text

_LINK_LINES = "collc reads the links of NVIDIA and AMD GPUs; write the links of this machine as YAML: docs/topology.md"
_FABRIC = "it describes the network between servers: `collc probe --merge node*.yaml --fabric FILE`"
_TOPO = "it does not tell the links: run `nvidia-smi topo -m`"
_AMD = "it does not tell the links: run `amd-smi topology` or `rocm-smi --showtopo`"
# A pattern that matches a line of the output, the tool, and the hint. Other vendors' tables look like a dump.
_VENDORS = (
    (r"mx-smi|MetaXLink", "MetaX's mx-smi", _LINK_LINES),
    (r"npu-smi|\bHCCS\b|\s*NPU0\s+NPU1\b", "Huawei's npu-smi", _LINK_LINES),
    (r"xpu-smi|\s*GPU 0/0\s*\|", "Intel's xpu-smi", _LINK_LINES),
    (r"mthreads-gmi|\bMTLink\b", "Moore Threads' mthreads-gmi", _LINK_LINES),
    (r"cnmon|\s*MLU0\s+MLU1\b|MLU-Link", "Cambricon's cnmon", _LINK_LINES),
    (r"ixsmi|Iluvatar", "Iluvatar's ixsmi", _LINK_LINES),
    (r"hy-smi|\s*DCU\[?0\b", "Hygon's hy-smi", _LINK_LINES),
    (r"hl-smi|HABANA|Gaudi", "Intel's hl-smi", _LINK_LINES),
)
# Outputs without the links between GPUs.
_OTHERS = (
    (r'(?:Switch|Ca|Rt)\s+[0-9]+\s+"[SHR]-|(?:CA|SW)\s+[0-9]+\s+[0-9]+\s+0x', "ibnetdiscover", _FABRIC),
    (r"\{\s*(?:CA|SW)\S*\s+Ports:|START_NODES", "ibdiagnet", _FABRIC),
    (r"(?:CA|Switch): .*:$|\s+[0-9]+\s+[0-9]+\[\s*\] ==\(|\s+0x[0-9a-f]{16}\s.*==\(", "iblinkinfo", _FABRIC),
    (r"(?:SwitchName|BlockName)=", "Slurm's topology.conf", _FABRIC),
    (r"\s*- topology: \S+$", "Slurm's topology.yaml", _FABRIC),
    (r'lldp\.|\s*"lldp":', "lldpctl", _FABRIC),
    (
        r"\s*hca_id:|\s*Infiniband device '",
        "ibv_devinfo or ibstatus",
        "run `ibstat` and `nvidia-smi topo -m`",
    ),
    (r"\|?\s*NVIDIA-SMI\s+[0-9]|=+NVSMI LOG=+|\s*Driver Version\s+:\s", "nvidia-smi or nvidia-smi -q", _TOPO),
    (r"\s*Link [0-9]+, P2P is supported", "nvidia-smi nvlink -c", _TOPO),
    (r"[0-9]+, (?:NVIDIA|Tesla|GeForce|Quadro) .*", "nvidia-smi --query-gpu without its header", "omit noheader"),
    (r"[0-9a-f:]{5,12}\.[0-7] (?:VGA|3D) |\s*-\[[0-9a-f]{4}:[0-9a-f]{2}\]-", "lspci", _TOPO),
    (r"Architecture:\s|available: [0-9]+ nodes? \(", "lscpu or numactl", _TOPO),
    (r"\s*XGMI LINK STATUS|\s*LINK METRIC TABLE|\s*GPU: [0-9]+$|\| AMD-SMI ", "another command of amd-smi", _AMD),
    (r"=+ (?:Concise Info|ROCm System Management Interface) =+", "another command of rocm-smi", _AMD),
    (r"Machine \([0-9.]+[GM]B|Machine L#0", "lstopo as text", "write XML: `lstopo --of xml FILE`"),
)


def refuse_vendor(text: Text) -> None:
    """Does nothing unless the text is the table of a vendor whose links collc does not read.

    Raises:
        TopologyError: it is; the message names the tool.
    """
    _refuse(text, _VENDORS)


def refuse_lookalike(text: Text) -> None:
    """Does nothing unless the text is the output of a known tool that collc does not read here.

    Raises:
        TopologyError: it is; the message names the tool and a command that helps.
    """
    _refuse(text, (*_VENDORS, *_OTHERS))


def _refuse(text: Text, tools: Sequence[tuple[str, str, str]]) -> None:
    for pattern, tool, hint in tools:
        for number, line in enumerate(text.lines, 1):
            if re.match(rf"(?:.*\b)?(?:{pattern})", line):
                raise TopologyError(f"this is the output of {tool}", where=text.at(number), hint=hint)
