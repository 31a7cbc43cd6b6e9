"""Gives the link between two CPUs by their generation, in GB/s per direction of copies between GPUs of two sockets.

Generations: Intel's and AMD's family and model numbers as in NCCL's topology XML (extended family and model added to
the base, so that AMD's Milan is family 175) and in /proc/cpuinfo (Milan is family 25). Links of each: Intel's
product pages (QPI up to Broadwell, UPI of 10.4 GT/s up to Cascade Lake, of 11.2 GT/s and more and with a third and
fourth link since Ice Lake), AMD's EPYC 7002 overview (Infinity Fabric of 16 GT/s over 3 or 4 links), IBM's Redpaper
REDP-5494 (X bus, 64 GB/s per direction). Between two Grace CPUs of one tray 150 GB/s are assumed, as in gb200-nvl72.
"""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

QPI = (Fraction(16), "2 QPI of the PCIe 3.0 years")
UPI = (Fraction(75), "UPI or Infinity Fabric of the PCIe 4.0 and 5.0 years")
_OLD_UPI = (Fraction(16), "UPI of Skylake and Cascade Lake")
_NEW_UPI = (Fraction(75), "UPI since Ice Lake")
_FABRIC = (Fraction(75), "Infinity Fabric of EPYC since Rome")
X_BUS = (Fraction(64), "the X bus of POWER9")
GRACE = (Fraction(150), "NVLink between Grace CPUs")
_MAX_CPUINFO = 1 << 16


def socket_link(vendor: str, family: int, model: int) -> tuple[Fraction, str] | None:
    """Returns the GB/s per direction and the name of the link; None for an unknown CPU.

    Args:
        vendor: ``GenuineIntel``, ``AuthenticAMD``, as cpuid and NCCL's XML spell it.
        family, model: as in NCCL's XML or /proc/cpuinfo.
    """
    if vendor == "GenuineIntel" and family == 6:
        if model in (45, 62, 63, 79, 86):  # Sandy Bridge to Broadwell
            return QPI
        if model == 85:
            return _OLD_UPI
        if model >= 106:
            return _NEW_UPI
    if vendor == "AuthenticAMD":
        # Naples and Rome are one family; 17h in cpuid, base 15 and extended 8 in NCCL's XML.
        naples = family in (23, 143) and model < 16
        if family in (23, 25, 26, 143, 175, 191) and not naples:
            return _FABRIC
    return None


def socket_link_here(cpuinfo: Path = Path("/proc/cpuinfo")) -> tuple[Fraction, str] | None:
    """Returns `socket_link` of this machine's first CPU; None if the system does not report the CPU."""
    try:
        with cpuinfo.open(encoding="utf-8", errors="replace") as file:
            text = file.read(_MAX_CPUINFO)
    except OSError:
        return None
    if re.search(r"^cpu\s*:\s*POWER9", text, re.MULTILINE):
        return X_BUS
    fields = {
        key: match[1].strip()
        for key in ("vendor_id", "cpu family", "model")
        if (match := re.search(rf"^{key}\s*:(.*)$", text, re.MULTILINE))
    }
    family, model = fields.get("cpu family", ""), fields.get("model", "")
    if not (family.isdecimal() and model.isdecimal()):
        return None
    return socket_link(fields.get("vendor_id", ""), int(family), int(model))
