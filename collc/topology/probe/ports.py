"""Reads `ibstat`: state, rate and GUID of the InfiniBand and RoCE adapters of one server."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fractions import Fraction

from collc.errors import TopologyError
from collc.topology.model import Port
from collc.topology.probe.lines import Text
from collc.topology.probe.machine import Machine

_ADAPTER = re.compile(r"CA '([A-Za-z][\w.-]{0,63})'")
_FACT = re.compile(r"\s*(Node GUID|State|Rate|Port [0-9]{1,3}):\s*(.*)")
_HINT = "add --from a file with the GPUs: `nvidia-smi topo -m`"


@dataclass
class _Adapter:
    guid: str | None = None
    rates: list[tuple[Fraction, bool]] = field(default_factory=list)


def looks_like_ibstat(text: Text) -> bool:
    """Returns True if a text is the output of `ibstat`."""
    return any(_ADAPTER.fullmatch(line.strip()) for line in text.lines)


def refuse_ibstat_alone(text: Text) -> None:
    """Raises the error that this output has no GPUs.

    Raises:
        TopologyError: always.
    """
    raise TopologyError("`ibstat` shows adapters, but no GPUs", where=text.at(1), hint=_HINT)


def apply_ibstat(text: Text, machine: Machine) -> None:
    """Adds speed, state and GUID to the NICs of a machine, by their names. Notes name adapters without a NIC.

    Raises:
        TopologyError: a rate is no number.
    """
    adapters = _read(text)
    for name, adapter in adapters.items():
        if name not in machine.nics:
            continue
        up = [rate for rate, is_up in adapter.rates if is_up]
        gbps = sum(up, Fraction(0)) or max((rate for rate, _ in adapter.rates), default=Fraction(0))
        known = machine.ports.get(name, Port())
        machine.ports[name] = Port(gbps or None, adapter.guid, known.interface, bool(up), known.pci)
        if not up:
            machine.assume(f"NIC {name} is down")
    unknown = [name for name in adapters if name not in machine.nics]
    if unknown:
        machine.assume(f"adapters of ibstat that the other dump does not have are not used: {', '.join(unknown[:8])}")
    machine.took(f"{text.at(1)} ibstat", f"speed and state of {len(adapters) - len(unknown)} NICs")


def _read(text: Text) -> dict[str, _Adapter]:
    adapters: dict[str, _Adapter] = {}
    now: _Adapter | None = None
    is_up = False
    for number, line in enumerate(text.lines, 1):
        if match := _ADAPTER.fullmatch(line.strip()):
            now = adapters.setdefault(match[1], _Adapter())
            continue
        fact = _FACT.fullmatch(line)
        if fact is None or now is None:
            continue
        key, value = fact[1], fact[2].strip()
        if key == "Node GUID" and re.fullmatch("0x[0-9a-f]{16}", value) and value.strip("0x"):
            now.guid = value[2:]
        elif key == "State":
            is_up = value == "Active"
        elif key == "Rate":
            if not re.fullmatch(r"[0-9]{1,4}(?:\.[0-9]{1,2})?", value):
                raise TopologyError(f"`{value[:20]}` is no rate in Gb/s", where=text.at(number))
            now.rates.append((Fraction(value) / 8, is_up))
    return adapters
