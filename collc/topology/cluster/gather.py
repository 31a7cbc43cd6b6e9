"""Collects the servers of a job for `collc probe --cluster`.

A process may see only one GPU of its server (a GPU per task, device cgroups). So every process posts the GPUs that NVML
lists there, and the first process of each server builds the server's topology from these lists. Process 0 collects the
topologies.
"""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from collc import __version__
from collc.errors import CollcError, RunError
from collc.topology.cluster.meeting import Meeting
from collc.topology.cluster.model import Server
from collc.topology.dump import dumps_topology
from collc.topology.load import loads_topology
from collc.topology.model import Topology
from collc.topology.names import name_problem
from collc.topology.probe.live import assemble
from collc.topology.probe.models import model_by_name
from collc.topology.probe.nvml import Gpu, NvLink, read_driver, read_nvml
from collc.topology.probe.visible import choose

_GOODBYE_SECONDS = 5.0
# Process 0 may start this much later than a process that sees the end of an earlier run in the folder.
_LATE_START_SECONDS = 5.0


@dataclass(frozen=True)
class Gathered:
    """The servers of a job, in the order of their first processes.

    Attributes:
        lead: server -> rank of its first process.
        own: the topology of process 0's server; None if it could not be built.
        notes: lines about missing servers, about equal host names, and about versions that differ.
    """

    servers: tuple[Server, ...]
    lead: Mapping[str, int]
    own: Topology | None
    notes: tuple[str, ...]


def host_identity() -> dict[str, str]:
    """Returns the short host name and an id of this machine.

    The id is the kernel's boot id, which containers share with their host; if it cannot be read, the full host name.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        boot = ""
    host = socket.gethostname()
    return {"host": host.partition(".")[0] or "server", "boot": boot or host}


def tell(meeting: Meeting) -> None:
    """Posts the GPUs that NVML lists for this process, or the error."""
    meeting.post(f"hello.{meeting.rank}", {**host_identity(), "nonce": meeting.nonce})
    # NVML may hang. The greeting comes first, so that process 0 can name this host.
    meeting.join()
    facts: dict[str, Any] = {**host_identity(), "version": __version__}
    try:
        every = read_nvml()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        chosen, _ = choose(every, visible)
        facts["driver"] = read_driver()
        facts["gpus"] = [_gpu_json(gpu) for gpu in every]
        facts["chosen"] = sorted(device.gpu.bus for device in chosen)
    except CollcError as error:
        facts["error"] = error.what
    meeting.post(f"facts.{meeting.rank}", facts)


def build_own(meeting: Meeting, gpu_model: str | None, sysfs: Path = Path("/sys")) -> Topology | None:
    """Builds and posts the topology of this server, in the process that process 0 chose as the server's first.

    Waits until process 0 has posted its choice.

    Returns:
        The topology; None in other processes, or if it cannot be built. The error is then posted.
    """
    answers = meeting.wait(["groups"], lambda: meeting.look("done") is not None)
    ranks = (answers.get("groups") or {}).get("ranks", {}).get(str(meeting.rank))
    if not ranks:
        return None
    facts = meeting.wait([f"facts.{rank}" for rank in ranks])
    try:
        topology = _assemble(list(facts.values()), gpu_model, sysfs)
        meeting.post(f"server.{meeting.rank}", {"yaml": dumps_topology(topology), "notes": list(topology.notes)})
    except CollcError as error:
        meeting.post(f"server.{meeting.rank}", {"error": error.what})
        return None
    return topology


def gather(meeting: Meeting, gpu_model: str | None, partial: bool, sysfs: Path = Path("/sys")) -> Gathered:
    """Returns the servers of the job. Only process 0 calls this.

    Args:
        partial: continue without servers that cannot be probed, and add a note for each.

    Raises:
        RunError: a process did not come or a server cannot be probed; the message names them.
    """
    ranks = range(meeting.size)
    facts = meeting.wait([f"facts.{rank}" for rank in ranks])
    by_rank = {rank: facts[f"facts.{rank}"] for rank in ranks if f"facts.{rank}" in facts}
    problems = _silent(meeting, by_rank)
    groups: dict[str, list[int]] = {}
    for rank, facts_of_rank in by_rank.items():
        groups.setdefault(str(facts_of_rank.get("boot")), []).append(rank)
    useful = {group[0]: [r for r in group if "gpus" in by_rank[r]] for group in groups.values()}
    for lead, group in list(useful.items()):
        if not group:
            problems.append(f"{by_rank[lead].get('host')}: {by_rank[lead].get('error')}")
            del useful[lead]
    meeting.post("groups", {"ranks": {str(lead): group for lead, group in useful.items()}})
    own = build_own(meeting, gpu_model, sysfs) if 0 in useful else None
    meeting.allow(meeting.seconds)
    answers = meeting.wait([f"server.{lead}" for lead in useful])
    servers, leads, notes = [], {}, _versions(by_rank)
    names: set[str] = set()
    for lead in useful:
        host = str(by_rank[lead].get("host"))
        answer = answers.get(f"server.{lead}")
        if answer is None or "error" in answer:
            why = "did not answer" if answer is None else str(answer["error"])
            problems.append(f"{host}: {why}")
            continue
        name = host if name_problem(host) is None and host != "each" else f"node-{host}"
        if name in names:
            number = next(n for n in range(2, meeting.size + 2) if f"{name}-{n}" not in names)
            notes.append(f"several servers call themselves {name}: the one of rank {lead} is {name}-{number} here")
            name = f"{name}-{number}"
        names.add(name)
        topology = loads_topology(str(answer.get("yaml")), f"rank {lead}")
        topology = dataclasses.replace(topology, notes=tuple(map(str, answer.get("notes", []))))
        servers.append(Server(name, topology, f"rank {lead}"))
        leads[name] = lead
    if problems and (not partial or not servers):
        first_problems = "; ".join(problems[:6]) + (f"; and {len(problems) - 6} more" if len(problems) > 6 else "")
        hint = "--partial writes the file without them" if servers else "no server could be probed"
        raise RunError(f"not all servers can be probed: {first_problems}", where="probe --cluster", hint=hint)
    return Gathered(tuple(servers), leads, own, (*(f"left out: {problem}" for problem in problems), *notes))


def finish(meeting: Meeting, ok: bool) -> None:
    """Ends the run in process 0: lets the others leave, waits up to 5 s for them, and removes the folder.

    Args:
        ok: the result that `leave` returns in the other processes.
    """
    hellos = {rank: meeting.look(f"hello.{rank}") for rank in range(1, meeting.size)}
    meeting.post("done", {"ok": ok, "heard": [hello.get("nonce") for hello in hellos.values() if hello is not None]})
    meeting.allow(_GOODBYE_SECONDS)
    meeting.wait([f"bye.{rank}" for rank in range(1, meeting.size) if meeting.look(f"hello.{rank}")])
    meeting.close()


def leave(meeting: Meeting) -> bool:
    """Waits for the end of the run, in processes 1, 2 ...

    Returns:
        True if process 0 has written the file.

    Raises:
        RunError: process 0 did not come.
    """
    done = meeting.wait(["done"]).get("done")
    # A run that ends without this process's nonce: the process came late, or the folder is left from an earlier run.
    while done is not None and meeting.nonce not in done.get("heard", ()) and meeting.is_replaced(_LATE_START_SECONDS):
        done = meeting.wait(["done"]).get("done")
    if done is None:
        raise RunError(
            "process 0 did not come, or its folder is not seen here",
            where=f"probe --cluster, rank {meeting.rank}",
            hint="-o must be on a file system that all servers share; else `srun collc probe` and --merge",
        )
    meeting.post(f"bye.{meeting.rank}", {})
    return bool(done.get("ok"))


def _silent(meeting: Meeting, by_rank: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Returns a line for each process that started but did not answer, and one for all that did not come."""
    missing = [rank for rank in range(meeting.size) if rank not in by_rank]
    if not missing:
        return []
    hello = {rank: meeting.look(f"hello.{rank}") for rank in missing}
    absent = [rank for rank in missing if hello[rank] is None]
    lines = [
        f"{greeting.get('host')} (rank {rank}) started and does not answer: does nvidia-smi hang there?"
        for rank, greeting in hello.items()
        if greeting is not None
    ]
    if absent:
        ranks = ", ".join(map(str, absent[:8])) + (" ..." if len(absent) > 8 else "")
        lines.append(f"rank{'s' * (len(absent) > 1)} {ranks} of {meeting.size} did not come")
    return lines


def _versions(by_rank: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Returns a line for collc, and one for the driver, if their versions differ between servers."""
    notes = []
    for key, what in (("version", "collc"), ("driver", "the driver")):
        hosts: dict[str, list[str]] = {}
        for facts in by_rank.values():
            if facts.get(key):
                hosts.setdefault(str(facts[key]), []).append(str(facts.get("host")))
        if len(hosts) > 1:
            usual = max(hosts, key=lambda version: len(hosts[version]))
            others = [
                f"{version} on {', '.join(dict.fromkeys(names[:6]))}{' ...' if len(names) > 6 else ''}"
                for version, names in hosts.items()
                if version != usual
            ]
            notes.append(f"different versions of {what}: {usual}, but {'; '.join(others)}")
    return notes


def _assemble(facts: Sequence[Mapping[str, Any]], gpu_model: str | None, sysfs: Path) -> Topology:
    """Returns the topology of this server from the facts that its processes posted."""
    gpus: dict[str, Gpu] = {}
    visible: set[str] = set()
    try:
        for process in facts:
            for value in process["gpus"]:
                gpu = _gpu(value)
                gpus.setdefault(gpu.bus, gpu)
            visible |= set(process["chosen"])
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"a process told nonsense: {str(error)[:60]}", where="probe --cluster") from None
    all_gpus = sorted(gpus.values(), key=lambda gpu: gpu.bus)
    # If every process sees only one GPU, each process gives it index 0.
    if len({gpu.index for gpu in all_gpus}) < len(all_gpus):
        for index, gpu in enumerate(all_gpus):
            gpu.index = index
    all_gpus.sort(key=lambda gpu: gpu.index)
    uuids = [gpu.uuid for gpu in all_gpus if gpu.bus in visible]
    has_all = len(uuids) == len(all_gpus) or not all(uuids) or any(gpu.mig for gpu in all_gpus)
    model = model_by_name(gpu_model) if gpu_model is not None else None
    return assemble(all_gpus, None if has_all else ",".join(uuids), model, "probed", sysfs).topology


def _gpu_json(gpu: Gpu) -> dict[str, Any]:
    value = dataclasses.asdict(gpu)
    value["c2c"] = None if gpu.c2c is None else str(gpu.c2c)
    for link in value["links"]:
        link["gbps"] = None if link["gbps"] is None else str(link["gbps"])
    return value


def _gpu(value: Mapping[str, Any]) -> Gpu:
    links = [
        NvLink(int(k["number"]), str(k["remote"]), str(k["to"]), _rate(k["gbps"]), k["version"]) for k in value["links"]
    ]
    fields = {**value, "links": links, "c2c": _rate(value["c2c"]), "capability": tuple(value["capability"])}
    fields["pcie"] = None if value["pcie"] is None else tuple(value["pcie"])
    fields["fabric"] = None if value["fabric"] is None else tuple(value["fabric"])
    return Gpu(**fields)


def _rate(value: object) -> Fraction | None:
    return None if value is None else Fraction(str(value))
