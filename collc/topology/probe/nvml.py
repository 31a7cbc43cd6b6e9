"""Reads NVML's description of the GPUs of this machine, as plain data.

NVML lists GPUs by PCI bus id and ignores CUDA_VISIBLE_DEVICES. If a driver or a GPU does not support a query, or one
field has an error, the result is empty ("no NVLink"). Any other error of NVML ends the probe and names the GPU, because
an incomplete machine would be a wrong machine.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import pynvml

from collc.errors import CollcError, TopologyError

# NVML field numbers (nvml.h); NVML_FI_DEV_NVLINK_GET_SPEED and the C2C fields take the link as scope.
_LINK_COUNT = 91
_LINK_SPEED = 164
_LINK_SPEEDS_OLD = (84, 85, 86, 87, 88, 89, 132, 133, 134, 135, 136, 137)
_C2C_COUNT, _C2C_STATUS, _C2C_SPEED = 170, 171, 172
_MOST_LINKS = 36
# GB/s per link and direction by the answer of nvmlDeviceGetNvLinkVersion: 1 is NVLink 1.0, 2 to 6 are 2.0 to 4.0, 7 is
# 5.0.
_BY_VERSION = {1: 20, 2: 25, 3: 25, 4: 25, 5: 25, 6: 25, 7: 50}
_NONE = (
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_INVALID_ARGUMENT,
    pynvml.NVML_ERROR_NOT_FOUND,
    pynvml.NVML_ERROR_NO_PERMISSION,
)
_FABRIC_COMPLETED = 3


@dataclass(frozen=True)
class NvLink:
    """One active NVLink.

    Attributes:
        number: the number of the link at its GPU.
        remote: the bus id of the device at the other end; "" if unknown or hidden by a virtual machine.
        to: gpu, switch, cpu, or "" if the driver does not report it.
        gbps: the raw rate in GB/s as the driver reports it, or None.
        version: the NVLink version in NVML's numbers, or None.
    """

    number: int
    remote: str
    to: str
    gbps: Fraction | None
    version: int | None


@dataclass
class Gpu:
    """One GPU as NVML describes it; `bus` is ``0000:3b:00.0`` in lower case."""

    index: int
    bus: str
    uuid: str
    name: str
    capability: tuple[int, int] = (0, 0)
    mig: bool = False
    mig_uuids: list[str] = field(default_factory=list)
    pcie: tuple[int, int] | None = None
    links: list[NvLink] = field(default_factory=list)
    down: list[int] = field(default_factory=list)
    c2c: Fraction | None = None
    fabric: tuple[str, int] | None = None


def read_nvml() -> list[Gpu]:
    """Returns all GPUs that NVML lists.

    Raises:
        CollcError: there is no driver, or NVML fails; names the GPU if the error is about one.
    """
    with _session():
        count = _ask("the number of GPUs", pynvml.nvmlDeviceGetCount)
        return [_gpu(i) for i in range(count)]


def read_driver() -> str:
    """Returns the version of the driver; "" if NVML does not report it.

    Raises:
        CollcError: there is no driver.
    """
    with _session():
        return str(_maybe("the driver's version", pynvml.nvmlSystemGetDriverVersion) or "")


@contextmanager
def _session() -> Iterator[None]:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        hint = "probe a dump with --from FILE, or this machine's cores with --cpu"
        missing = error.value in (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        what = "there is no NVIDIA driver on this machine" if missing else f"NVML does not start: {error}"
        raise CollcError(what, where="probe", hint=hint) from None
    try:
        yield
    finally:
        # The values are read already, so an error at the end does not matter.
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _ask(what: str, question: Callable[..., Any], *args: object) -> Any:
    try:
        return question(*args)
    except pynvml.NVMLError as error:
        hint = "does nvidia-smi work? a lost GPU needs a reset"
        raise TopologyError(f"NVML fails: {error}", where=f"probe: {what}", hint=hint) from None


def _maybe(what: str, question: Callable[..., Any], *args: object) -> Any:
    """Returns the result of a query; None if the driver or the GPU does not support it."""
    try:
        return question(*args)
    except pynvml.NVMLError as error:
        if error.value in _NONE:
            return None
        hint = "does nvidia-smi work? a lost GPU needs a reset"
        raise TopologyError(f"NVML fails: {error}", where=f"probe: {what}", hint=hint) from None


def bus_id(text: str | bytes) -> str:
    """Returns a bus id as sysfs writes it: ``0000:3b:00.0`` for ``00000000:3B:00.0``."""
    plain = text.decode("ascii", "replace") if isinstance(text, bytes) else text
    domain, _, rest = plain.strip().lower().partition(":")
    return f"{domain.lstrip('0'):0>4}:{rest}"


def _gpu(index: int) -> Gpu:
    who = f"GPU {index}"
    handle = _ask(who, pynvml.nvmlDeviceGetHandleByIndex, index)
    bus = bus_id(_ask(f"{who}, its bus id", pynvml.nvmlDeviceGetPciInfo, handle).busId)
    uuid = str(_maybe(f"{who}, its UUID", pynvml.nvmlDeviceGetUUID, handle) or "")
    gpu = Gpu(index, bus, uuid, str(_maybe(f"{who}, its name", pynvml.nvmlDeviceGetName, handle) or "GPU"))
    gpu.capability = _maybe(who, pynvml.nvmlDeviceGetCudaComputeCapability, handle) or (0, 0)
    generation = _maybe(who, pynvml.nvmlDeviceGetMaxPcieLinkGeneration, handle)
    width = _maybe(who, pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle)
    if generation and width:
        gpu.pcie = (generation, width)
    mode = _maybe(who, pynvml.nvmlDeviceGetMigMode, handle)
    gpu.mig = bool(mode and mode[0])
    if gpu.mig:
        gpu.mig_uuids = _mig(who, handle)
    _links(gpu, handle)
    _c2c(gpu, handle)
    _fabric(gpu, handle)
    return gpu


def _mig(who: str, handle: Any) -> list[str]:
    found = []
    for i in range(_maybe(who, pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        instance = _maybe(who, pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, i)
        if instance is not None:
            found.append(str(_ask(f"{who}, MIG instance {i}", pynvml.nvmlDeviceGetUUID, instance)))
    return found


def _field(handle: Any, number: int, scope: int = 0) -> int | None:
    """Returns a field value, or None. Drivers give an unsigned number of 32 or 64 bits."""
    try:
        value = pynvml.nvmlDeviceGetFieldValues(handle, [(number, scope)])[0]
    except pynvml.NVMLError as error:
        if error.value in _NONE:
            return None
        raise
    if value.nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    wide = value.valueType in (pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG, pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG)
    return int(value.value.ullVal if wide else value.value.uiVal)


def _links(gpu: Gpu, handle: Any) -> None:
    # Drivers without this field give 0 or no value. Then the loop queries links until one does not exist.
    count = _maybe(f"GPU {gpu.index}, the number of NVLinks", _field, handle, _LINK_COUNT) or None
    for link in range(_MOST_LINKS if count is None else min(count, _MOST_LINKS)):
        who = f"GPU {gpu.index}, NVLink {link}"
        state = _maybe(who, pynvml.nvmlDeviceGetNvLinkState, handle, link)
        if state is None:
            if count is None:
                break
            continue
        if state != pynvml.NVML_FEATURE_ENABLED:
            gpu.down.append(link)
            continue
        gpu.links.append(_link(who, handle, link))


def _link(who: str, handle: Any, link: int) -> NvLink:
    version = _maybe(who, pynvml.nvmlDeviceGetNvLinkVersion, handle, link)
    info = _maybe(who, pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
    kind = _maybe(who, pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
    remote = "" if info is None or hidden(info.busId) else bus_id(info.busId)
    types = {
        pynvml.NVML_NVLINK_DEVICE_TYPE_GPU: "gpu",
        pynvml.NVML_NVLINK_DEVICE_TYPE_IBMNPU: "cpu",
        pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH: "switch",
    }
    speed = _maybe(who, _field, handle, _LINK_SPEED, link)
    if not speed and link < len(_LINK_SPEEDS_OLD):
        speed = _maybe(who, _field, handle, _LINK_SPEEDS_OLD[link])
    gbps = Fraction(speed, 1000) if speed else None
    return NvLink(link, remote, types.get(kind, ""), gbps, version)


def hidden(bus: str | bytes) -> bool:
    """Returns True if a virtual machine hides the remote bus id behind a value such as ``fffffff:ffff:ff``."""
    text = bus.decode("ascii", "replace") if isinstance(bus, bytes) else bus
    return re.fullmatch(r"[f:.0]*", text.strip().lower()) is not None


def nominal_by_version(version: int | None) -> Fraction | None:
    """Returns the GB/s per link and direction of an NVLink version in NVML's numbers; None if it is unknown."""
    gbps = _BY_VERSION.get(version or 0)
    return None if gbps is None else Fraction(gbps)


def _c2c(gpu: Gpu, handle: Any) -> None:
    """Sets the GB/s per direction of all active chip-to-chip links to the CPU together; NVML gives MB/s per link."""
    who = f"GPU {gpu.index}, chip-to-chip links"
    total = 0
    for link in range(min(_maybe(who, _field, handle, _C2C_COUNT) or 0, _MOST_LINKS)):
        if _maybe(who, _field, handle, _C2C_STATUS, link):
            total += _maybe(who, _field, handle, _C2C_SPEED, link) or 0
    if total:
        gpu.c2c = Fraction(total, 1000)


def _fabric(gpu: Gpu, handle: Any) -> None:
    """Sets cluster and clique of a GPU that a fabric manager has joined to GPUs of other hosts (NVL72)."""
    if not hasattr(pynvml, "nvmlDeviceGetGpuFabricInfoV"):
        return  # nvidia-ml-py before 12.545
    info = pynvml.c_nvmlGpuFabricInfoV_t()
    result = _maybe(f"GPU {gpu.index}, fabric", pynvml.nvmlDeviceGetGpuFabricInfoV, handle, ctypes.byref(info))
    cluster = bytes(info.clusterUuid)
    if result is not None and info.state == _FABRIC_COMPLETED and any(cluster):
        gpu.fabric = (cluster.hex(), int(info.cliqueId))
