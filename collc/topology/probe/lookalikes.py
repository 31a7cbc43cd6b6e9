"""Refuses output that looks like a dump: of another vendor's tool, or the wrong table of a known tool."""

from __future__ import annotations

import re

from collc.errors import TopologyError
from collc.topology.probe.lines import Text

_LINK_LINES = "collc reads the links of NVIDIA and AMD GPUs; write the links of this machine as YAML: docs/topology.md"
# A pattern that matches a line of the output, the tool, and the hint.
_OTHERS = (
    (r"mx-smi|MetaXLink", "MetaX's mx-smi", _LINK_LINES),
    (r"npu-smi|\bHCCS\b|\s*NPU0\s+NPU1\b", "Huawei's npu-smi", _LINK_LINES),
    (r"xpu-smi|\s*GPU 0/0\s*\|", "Intel's xpu-smi", _LINK_LINES),
    (r"mthreads-gmi|\bMTLink\b", "Moore Threads' mthreads-gmi", _LINK_LINES),
    (r"cnmon|\s*MLU0\s+MLU1\b|MLU-Link", "Cambricon's cnmon", _LINK_LINES),
    (r"ixsmi|Iluvatar", "Iluvatar's ixsmi", _LINK_LINES),
    (r"hy-smi|\s*DCU\[?0\b", "Hygon's hy-smi", _LINK_LINES),
    (r"hl-smi|HABANA|Gaudi", "Intel's hl-smi", _LINK_LINES),
)


def refuse_lookalike(text: Text) -> None:
    """Does nothing unless the text is another tool's output.

    Raises:
        TopologyError: it is; the message names the tool.
    """
    for pattern, tool, hint in _OTHERS:
        for number, line in enumerate(text.lines, 1):
            if re.match(rf"(?:.*\b)?(?:{pattern})", line):
                raise TopologyError(f"this is the output of {tool}", where=text.at(number), hint=hint)
