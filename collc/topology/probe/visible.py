"""Selects the GPUs of NVML's list by CUDA_VISIBLE_DEVICES: ordinals, UUID prefixes, MIG instances.

CUDA programming guide, "CUDA Environment Variables": a list of ordinals or of UUID prefixes; the list ends at the first
entry that names no device; the order of the list is the order of the devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from collc.errors import UsageError
from collc.topology.probe.nvml import Gpu

_WHERE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Visible:
    """One device that CUDA programs see: a GPU or one of its MIG instances."""

    gpu: Gpu
    mig: bool


def choose(gpus: Sequence[Gpu], variable: str | None) -> tuple[list[Visible], list[str]]:
    """Returns the devices that CUDA programs see, in CUDA's order, and notes about entries without effect.

    Args:
        variable: the value of CUDA_VISIBLE_DEVICES, None if it is not set.

    Raises:
        UsageError: no device is visible, an entry is ambiguous, or two entries name one GPU.
    """
    if variable is None:
        return [Visible(gpu, gpu.mig) for gpu in gpus], []
    notes: list[str] = []
    devices: list[Visible] = []
    entries = variable.split(",")
    for i, entry in enumerate(entries):
        device = _find(gpus, entry.strip())
        if device is None:
            others = f" and the {len(entries) - i - 1} after it" if i + 1 < len(entries) else ""
            notes.append(f"{_WHERE}: `{entry.strip()[:60]}` names no device: it{others} count for nothing")
            break
        if any(other.gpu is device.gpu for other in devices):
            hint = "CUDA gives a process one MIG instance of a GPU" if device.mig else "each GPU is one rank"
            raise UsageError(f"`{entry.strip()[:60]}` names a GPU for the second time", where=_WHERE, hint=hint)
        devices.append(device)
    if not devices:
        raise UsageError(f"`{variable[:60]}` leaves no GPU", where=_WHERE, hint="unset it to probe all GPUs")
    if len({device.gpu.name for device in devices}) > 1 and any(entry.strip().isdecimal() for entry in entries):
        notes.append(f"{_WHERE}: GPUs of different models are counted by bus id, as CUDA_DEVICE_ORDER=PCI_BUS_ID does")
    return devices, notes


def _find(gpus: Sequence[Gpu], entry: str) -> Visible | None:
    if entry.isascii() and entry.isdecimal():
        at = int(entry) if len(entry) < 6 else len(gpus)
        return Visible(gpus[at], gpus[at].mig) if at < len(gpus) else None
    lower = entry.lower()
    if lower.startswith("mig-gpu-"):
        # Before driver 470: MIG-GPU-<uuid of the GPU>/<instance>/<instance>.
        owner = lower.removeprefix("mig-").partition("/")[0]
        return _one([Visible(gpu, True) for gpu in gpus if gpu.uuid.lower() == owner and gpu.mig], entry)
    if lower.startswith("mig-"):
        hits = [Visible(gpu, True) for gpu in gpus for uuid in gpu.mig_uuids if uuid.lower().startswith(lower)]
        return _one(hits, entry)
    if lower.startswith("gpu-"):
        return _one([Visible(gpu, gpu.mig) for gpu in gpus if gpu.uuid.lower().startswith(lower)], entry)
    return None


def _one(hits: list[Visible], entry: str) -> Visible | None:
    if len(hits) > 1:
        what = f"`{entry[:60]}` is the beginning of {len(hits)} UUIDs"
        raise UsageError(what, where=_WHERE, hint="write more of the UUID")
    return hits[0] if hits else None
