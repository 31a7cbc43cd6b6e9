"""Parameter files for `--params`: measured or hypothetical values that replace the values of a generation.

JSON, as `collc.simulator.params` names things:

    {"format": "collc-params/1", "base": "h100", "launch_us": 7.1, "source": "who measured it, where",
     "protocols": {"Simple": {"hop_us": 3.1, "block_gbps": 120}},
     "classes": {"nvswitch": {"efficiency": 0.83}}, "nvls": {"efficiency": 0.7}}
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from collc.errors import CollcError, UsageError
from collc.inputs import read_input
from collc.simulator.generations import MACHINES
from collc.simulator.params import LinkClass, Machine, Nvls, OwnKernels, Protocol
from collc.topology.model import LinkKind

FORMAT = "collc-params/1"
_BEGIN = f'begin with {{"format": "{FORMAT}"}}'
_MOST_BYTES = 1 << 20
_PLAIN = ("launch_us", "step_us", "credit_us", "issue_us", "memory_gbps")
_PROTOCOL = ("hop_us", "efficiency", "block_gbps", "start_us")
_OWN = tuple(each.name for each in dataclasses.fields(OwnKernels))
_CLASS = ("efficiency", "hop_us")
_NVLS = ("efficiency", "hop_us", "loop_us", "tree_share")
_MOST = 1e9
# Of rates and shares: beside less than this the times of the model are no numbers that can be added.
_LEAST = 1e-3
_RANGES = f"times are from 0 to {_MOST:g}, rates from {_LEAST:g} to {_MOST:g}, shares from {_LEAST:g} to 1"


def read_params(path: Path, base: Machine) -> Machine:
    """The machine of a parameter file.

    Args:
        base: what the file changes, unless it names another `base`.

    Raises:
        CollcError: the file cannot be read.
        UsageError: something in it is unknown or no sensible number.
    """
    value = _load(path)
    where = str(path)
    _known(value, ("format", "base", "name", "source", *_PLAIN, "protocols", "classes", "nvls"), where, "")
    if value.get("format") != FORMAT:
        raise UsageError("this is not a parameter file", where=where, hint=_BEGIN)
    if "base" in value:
        if value["base"] not in MACHINES:
            hint = f"choose one of {', '.join(MACHINES)}"
            raise UsageError(f"no base {value['base'][:80]!r}", where=where, hint=hint)
        base = MACHINES[value["base"]]
    plain: dict[str, Any] = {key: _number(value[key], where, key) for key in _PLAIN if key in value}
    protocols = _tables(value, "protocols", [p.name for p in base.protocols], _PROTOCOL, where)
    made = tuple(_changed(p, protocols.get(p.name, {})) for p in base.protocols)
    classes = dict(base.classes)
    for name, changes in _tables(value, "classes", [kind.value for kind in LinkKind], _CLASS, where).items():
        classes[LinkKind(name)] = dataclasses.replace(classes.get(LinkKind(name), LinkClass()), **changes)
    nvls = base.nvls
    if "nvls" in value:
        changes = _numbers(value["nvls"], _NVLS, where, "nvls")
        nvls = dataclasses.replace(nvls or Nvls(1.0), **changes)
    return base.replace(**plain, protocols=made, classes=classes, nvls=nvls)


def _changed(protocol: Protocol, changes: Mapping[str, float]) -> Protocol:
    """The protocol with values that hold for NCCL's kernels and for collc's own."""
    values: dict[str, Any] = dict(changes)
    if protocol.own is not None:
        values["own"] = dataclasses.replace(protocol.own, **{k: v for k, v in values.items() if k in _OWN})
    return dataclasses.replace(protocol, **values)


def _load(path: Path) -> dict[str, Any]:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, item in items:
            if key in found:
                raise UsageError(f"the key {key[:80]!r} is given twice", where=str(path), hint="remove one of them")
            found[key] = item
        return found

    try:
        value = json.loads(read_input(path, limit=_MOST_BYTES), object_pairs_hook=pairs)
    except OSError as error:
        raise CollcError(
            f"cannot read: {error.strerror}", where=str(path), hint="check the path and its permissions"
        ) from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"not JSON: {error}", where=str(path), hint=_BEGIN) from None
    if not isinstance(value, dict):
        raise UsageError("a parameter file is one JSON object", where=str(path), hint=_BEGIN)
    for key in ("name", "source", "base"):
        if not isinstance(value.get(key, ""), str):
            raise UsageError(f"{key} is not a string", where=str(path), hint=f'write "{key}": "..."')
    return value


def _known(value: Mapping[str, Any], keys: Iterable[str], where: str, place: str) -> None:
    words = list(keys)
    for key in value:
        if key not in words:
            near = difflib.get_close_matches(key[:80], words, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(words)}"
            raise UsageError(f"unknown key {place}{key[:80]!r}", where=where, hint=hint)


def _tables(
    value: Mapping[str, Any], key: str, names: Iterable[str], fields: tuple[str, ...], where: str
) -> dict[str, dict[str, float]]:
    """`{"protocols": {"LL": {"hop_us": 1}}}`: the changes by name."""
    table = value.get(key, {})
    if not isinstance(table, dict):
        raise UsageError(f"{key} must be an object", where=where, hint=f'write "{key}": {{...}}')
    _known(table, names, where, f"{key}.")
    return {name: _numbers(changes, fields, where, f"{key}.{name}") for name, changes in table.items()}


def _numbers(value: object, fields: tuple[str, ...], where: str, place: str) -> dict[str, float]:
    if not isinstance(value, dict):
        raise UsageError(f"{place} must be an object", where=where, hint="write {...}")
    _known(value, fields, where, f"{place}.")
    return {key: _number(found, where, f"{place}.{key}") for key, found in value.items()}


def _number(value: object, where: str, place: str) -> float:
    """A number that the key can have: see `_RANGES`."""
    name = place.rpartition(".")[2]
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if good:
        assert isinstance(value, int | float)  # NaN and numbers beyond floats fail the comparisons
        share = name in ("efficiency", "tree_share")
        good = 0 <= value <= (1 if share else _MOST) and (value >= _LEAST or name.endswith("_us"))
    if not good:
        shown = json.dumps(value)[:40]
        raise UsageError(f"{place} cannot be {shown}", where=where, hint=_RANGES)
    assert isinstance(value, int | float)
    return float(value)
