"""Facts about a GPU by its name: NVLink or xGMI speed per link, number of links, PCIe generation, compute capability.

Speeds are GB/s per link and direction. Sources: NVIDIA's architecture white papers (Pascal to Blackwell), its table of
compute capabilities (developer.nvidia.com/cuda-gpus), data sheets of the named cards; AMD's Instinct data sheets.
If some cards of a model have links and others have not (H100 PCIe, NVL), `links` is the maximum.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from collc.errors import UsageError

# Payload of PCIe 3.0 x16 in GB/s; every generation doubles it.
PCIE3_X16 = Fraction(25, 2)


@dataclass(frozen=True, slots=True)
class GpuModel:
    """The facts about GPUs whose names match `pattern`.

    Args:
        name: the name in messages.
        gbps: GB/s per link and direction; None without links.
        links: the maximum number of links of a card.
        pcie: the PCIe generation.
        sm: ten times the compute capability; None for GPUs that do not run CUDA.
    """

    name: str
    pattern: str
    gbps: Fraction | None
    links: int
    pcie: int
    sm: int | None = None


_NV3_SMALL = Fraction(225, 16)  # the 112.5 GB/s NVLink 3.0 bridge of GA102: 4 links, both directions together

# The first pattern that matches a part of the name decides.
MODELS = (
    GpuModel("P100", r"P100", Fraction(20), 4, 3, 60),
    GpuModel("V100", r"V100|TITAN V|GV100", Fraction(25), 6, 3, 70),
    GpuModel("A800", r"A800", Fraction(25), 8, 4, 80),
    GpuModel("A100", r"A100", Fraction(25), 12, 4, 80),
    GpuModel("A30", r"\bA30\b", Fraction(25), 4, 4, 80),
    GpuModel("A40/A6000", r"\bA40\b|\bA4500\b|\bA5000\b|\bA5500\b|\bA6000\b|3090", _NV3_SMALL, 4, 4, 86),
    GpuModel("H800", r"H800", Fraction(25), 8, 5, 90),
    GpuModel("H200", r"\bH200", Fraction(25), 18, 5, 90),
    GpuModel("H100", r"H100|H20\b|GH200", Fraction(25), 18, 5, 90),
    GpuModel("B300", r"B300", Fraction(50), 18, 5, 103),
    GpuModel("B200", r"B100|B200", Fraction(50), 18, 5, 100),
    GpuModel("Turing", r"2080|TITAN RTX|QUADRO RTX", Fraction(25), 2, 3, 75),
    GpuModel("Blackwell PCIe", r"RTX PRO|50[6-9]0", None, 0, 5, 120),
    GpuModel("RTX 4090", r"4090", None, 0, 4, 89),
    GpuModel("Ada", r"\bL4\b|\bL20\b|\bL40|40[5-9]0|ADA", None, 0, 4, 89),
    GpuModel("Ampere PCIe", r"\bA2\b|\bA10G?\b|\bA16\b|30[5-8]0", None, 0, 4, 86),
    GpuModel("Turing PCIe", r"\bT4\b|20[6-7]0", None, 0, 3, 75),
    GpuModel("Pascal PCIe", r"\bP40?\b|10[5-8]0", None, 0, 3, 61),
    GpuModel("Maxwell", r"\bM60\b|\bM40\b", None, 0, 3, 52),
    GpuModel("Kepler", r"\bK80\b", None, 0, 3, 37),
    GpuModel("MI300A", r"MI300A", Fraction(128), 3, 5),
    GpuModel("MI300X", r"MI300|MI308|MI325", Fraction(64), 7, 5),
    GpuModel("MI350X", r"MI35[05]", Fraction(384, 5), 7, 5),
    GpuModel("MI250X", r"MI250|MI210", Fraction(50), 8, 4),
    GpuModel("MI100", r"MI100", Fraction(46), 3, 4),
    GpuModel("MI50", r"MI50|MI60", Fraction(46), 2, 4),
)


def find_model(text: str) -> GpuModel | None:
    """Returns the model for a product name such as ``Tesla V100-SXM2-16GB``, or None."""
    return next((model for model in MODELS if re.search(model.pattern, text.upper())), None)


def model_by_name(text: str) -> GpuModel:
    """Returns the model for `--gpu-model`.

    Raises:
        UsageError: the name is unknown.
    """
    model = find_model(text)
    if model is None:
        known = ", ".join(m.name for m in MODELS)
        raise UsageError(f"no GPU model is known as `{text[:60]}`", where="--gpu-model", hint=f"known: {known}")
    return model


def pcie_gbps(generation: int, width: int = 16) -> Fraction:
    """Returns the payload of a PCIe link in GB/s: about 80% of the raw rate, as copies reach."""
    return PCIE3_X16 * Fraction(2) ** (generation - 3) * width / 16
