"""Reads `nvidia-smi nvlink -s` (state and speed of every link) and `-R` (the device at the other end)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fractions import Fraction

from collc.errors import TopologyError
from collc.topology.probe.lines import Text
from collc.topology.probe.machine import Machine, bus_order
from collc.topology.probe.models import GpuModel, find_model
from collc.topology.probe.switches import set_islands

_GPU = re.compile(r"\s*GPU ([0-9]{1,3}): (.*?)(?: \(UUID: .*)?$")
_STATE = re.compile(r"\s*Link ([0-9]{1,2}): (?:([0-9]{1,4}(?:\.[0-9]{1,6})?) GB/s|<?inactive>?)\s*$", re.IGNORECASE)
_ANY_LINK = re.compile(r"\s*(Link [0-9]+:|<?Unable to retrieve NVLink|NVML: Unable)", re.IGNORECASE)
_REMOTE = re.compile(r"\s*Link ([0-9]{1,2}): Remote Device ([0-9A-Fa-f:.]{7,16}): Link ([0-9]{1,3})\s*$")


@dataclass
class Links:
    """The contents of one or both outputs, by GPU number."""

    names: dict[int, str] = field(default_factory=dict)
    speeds: dict[int, list[Fraction]] = field(default_factory=dict)
    remotes: dict[int, list[str]] = field(default_factory=dict)
    where: str = ""

    @property
    def model(self) -> GpuModel | None:
        """The model of all GPUs, if all their names give the same one; else None."""
        models = {find_model(name) for name in self.names.values()}
        return models.pop() if len(models) == 1 else None

    @property
    def may_have_bridges(self) -> bool:
        """Returns True if the NVLinks of a named card are bridges (H100 PCIe, H200 NVL)."""
        return any(re.search(r"PCIe|\bNVL\b", name, re.I) for name in self.names.values())

    def count(self, gpu: int) -> int:
        """Returns the number of active links of a GPU."""
        return len(self.speeds.get(gpu) or self.remotes.get(gpu) or [])


def looks_like_nvlink(text: Text) -> bool:
    """Returns True if a text has lines of `nvlink -s` or `-R`."""
    return any(_GPU.fullmatch(line) for line in text.lines) and any(map(_ANY_LINK.match, text.lines))


def read_nvlink(text: Text, into: Links) -> None:
    """Adds one output to `into`.

    Raises:
        TopologyError: a line is damaged; the message names it.
    """
    gpu: int | None = None
    into.where = into.where or text.where
    keys: set[tuple[int, str, str]] = set()
    for number, line in enumerate(text.lines, 1):
        if match := _GPU.fullmatch(line):
            gpu = int(match[1])
            if into.names.setdefault(gpu, match[2]) != match[2]:
                raise TopologyError(f"GPU {gpu} has two names", where=text.at(number), hint="are all of one machine?")
            continue
        if not re.match(r"\s*Link\b", line):
            continue
        state, remote = _STATE.fullmatch(line), _REMOTE.fullmatch(line)
        if gpu is None:
            raise TopologyError("a link before any GPU", where=text.at(number), hint="the output has been cut")
        found = state or remote
        if not found:
            raise TopologyError(f"no line of `nvlink -s` or `-R`: {line.strip()[:60]}", where=text.at(number))
        key = (gpu, "state" if state else "remote", found[1])
        if key in keys:
            raise TopologyError(f"link {found[1]} of GPU {gpu} is given twice", where=text.at(number))
        keys.add(key)
        if remote:
            into.remotes.setdefault(gpu, []).append(remote[2].lower())
        elif state and state[2] is not None:
            into.speeds.setdefault(gpu, []).append(Fraction(state[2]))


def apply_links(links: Links, machine: Machine) -> None:
    """Adds speeds to a machine that another dump describes, and checks that the counts agree.

    Raises:
        TopologyError: the outputs are of different machines.
    """
    lanes = dict(machine.switched)
    for (a, b), count in machine.direct.items():
        lanes[a] = lanes.get(a, 0) + count
        lanes[b] = lanes.get(b, 0) + count
    for gpu in links.names:
        if links.speeds or links.remotes:
            name, active = f"gpu{gpu}", links.count(gpu)
            total = lanes.get(name, 0)
            if machine.switched.get(name) == max(machine.switched.values(), default=0) < active:
                # `topo -m` prints the smaller number of two GPUs, so one GPU with more than all others does not show.
                machine.switched[name] = total = active
            if name not in machine.gpus or (active != total and (gpu in links.speeds or gpu in links.remotes)):
                what = f"GPU {gpu} has {active} active links here and {total} in the other dump"
                raise TopologyError(what, where=links.where, hint="are all of one machine, whole?")
    if links.names:
        machine.took(f"{links.where} nvidia-smi nvlink", "speeds and numbers of NVLinks")
    _speed(links, machine)


def machine_of_links(links: Links, name: str) -> Machine:
    """Returns the machine that only these outputs describe.

    Raises:
        TopologyError: the outputs do not show which GPUs have links to each other.
    """
    gpus = sorted(links.names)
    machine = Machine(name, gpus=[f"gpu{i}" for i in gpus])
    linked = [gpu for gpu in gpus if links.count(gpu)]
    if links.remotes:
        _by_remote(links, machine, [gpu for gpu in gpus if links.remotes.get(gpu)])
    elif linked and (most := max(map(links.count, linked))) > 12 and not links.may_have_bridges:
        machine.switched = {f"gpu{gpu}": links.count(gpu) for gpu in linked}
        machine.assume(f"{most} active links per GPU: taken as links into one NVSwitch")
    elif len(linked) == 2 and links.count(linked[0]) == links.count(linked[1]):
        machine.direct[f"gpu{linked[0]}", f"gpu{linked[1]}"] = links.count(linked[0])
        machine.assume("two GPUs with equally many active links: taken as joined to each other")
    elif linked:
        hint = "add --from a file with `nvidia-smi topo -m` or `nvidia-smi nvlink -R`"
        raise TopologyError("this output does not say which GPUs are joined", where=links.where, hint=hint)
    machine.took(f"{links.where} nvidia-smi nvlink", "NVLinks of each GPU")
    machine.cpus = ["cpu0"]
    machine.parent = dict.fromkeys(machine.gpus, "cpu0")
    machine.assume("PCIe is not in this output: all GPUs are placed directly at one CPU")
    _speed(links, machine)
    return machine


def _by_remote(links: Links, machine: Machine, linked: list[int]) -> None:
    """Adds the links by their remote bus ids.

    The ids are the GPUs, in the order of their numbers, if then the counts of both directions agree. Else they are
    switches.

    Raises:
        TopologyError: they can be neither.
    """
    ids = sorted({remote for gpu in linked for remote in links.remotes[gpu]}, key=bus_order)
    if len(ids) == len(linked):
        owner = dict(zip(ids, linked, strict=True))
        counts: dict[tuple[int, int], int] = {}
        for gpu in linked:
            for remote in links.remotes[gpu]:
                counts[gpu, owner[remote]] = counts.get((gpu, owner[remote]), 0) + 1
        if all(a != b and counts.get((b, a)) == count for (a, b), count in counts.items()):
            machine.direct = {(f"gpu{a}", f"gpu{b}"): count for (a, b), count in sorted(counts.items()) if a < b}
            return
    shared = {g: {r for other in linked if other != g for r in links.remotes[other]} for g in linked}
    if len(linked) > 1 and not all(shared[g] & set(links.remotes[g]) for g in linked):
        hint = "add --from a file with `nvidia-smi topo -m`"
        raise TopologyError(
            "the remote devices are neither these GPUs nor shared switches", where=links.where, hint=hint
        )
    machine.switched = {f"gpu{gpu}": len(links.remotes[gpu]) for gpu in linked}
    machine.assume("the remote devices of NVLinks are not these GPUs: taken as NVSwitches")
    set_islands(machine, {f"gpu{g}": links.remotes[g] for g in linked})


def _speed(links: Links, machine: Machine) -> None:
    """Sets the NVLink speed by the GPU model, else the printed raw rate, a few percent above the nominal speed."""
    model = links.model
    values = {speed for speeds in links.speeds.values() for speed in speeds}
    if model and model.gbps is not None:
        machine.link_gbps = model.gbps
        machine.assume(f"NVLink speed: {float(model.gbps):g} GB/s per link and direction, as {model.name} has")
    elif len(values) == 1:
        machine.link_gbps = values.pop()
        machine.assume(f"NVLink speed: {float(machine.link_gbps):g} GB/s per link and direction, as printed")
