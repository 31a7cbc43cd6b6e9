"""`collc probe --cluster`: every process tells what it sees, one per server puts that together, process 0 folds it.

A process may see one GPU of its server alone (a GPU per task, device cgroups). So processes tell what NVML said, and
the first process of a server builds its topology from what all of its server's processes saw.
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
_LEFT_SECONDS = 5.0  # that process 0 may come later than another one which finds what an earlier run left


@dataclass(frozen=True)
class Gathered:
    """The servers of a job, in the order of their first processes, and what to say about those that are missing.

    `lead` is the rank of each server's first process, `own` the server of process 0.
    """

    servers: tuple[Server, ...]
    lead: Mapping[str, int]
    own: Topology | None
    notes: tuple[str, ...]


def here() -> dict[str, str]:
    """What tells this machine from others: the kernel's boot id, which containers share; and its short host name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        boot = ""
    host = socket.gethostname()
    return {"host": host.partition(".")[0] or "server", "boot": boot or host}


def tell(meeting: Meeting) -> None:
    """Posts what NVML tells this process, or why it does not."""
    meeting.post(f"hello.{meeting.rank}", {**here(), "nonce": meeting.nonce})
    # NVML may hang, and process 0 is to know of whom.
    meeting.join()
    facts: dict[str, Any] = {**here(), "version": __version__}
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
    """The first process of each server posts its topology, once process 0 has said who that is; None elsewhere."""
    found = meeting.wait(["groups"], lambda: meeting.look("done") is not None)
    ranks = (found.get("groups") or {}).get("ranks", {}).get(str(meeting.rank))
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
    """Process 0: the servers of the job.

    Args:
        partial: go on without servers that cannot be probed, which become notes.

    Raises:
        RunError: a process did not come or a server cannot be probed; names them.
    """
    ranks = range(meeting.size)
    facts = meeting.wait([f"facts.{rank}" for rank in ranks])
    by_rank = {rank: facts[f"facts.{rank}"] for rank in ranks if f"facts.{rank}" in facts}
    problems = _silent(meeting, by_rank)
    groups: dict[str, list[int]] = {}
    for rank, told in by_rank.items():
        groups.setdefault(str(told.get("boot")), []).append(rank)
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
    taken: set[str] = set()
    for lead in useful:
        host = str(by_rank[lead].get("host"))
        answer = answers.get(f"server.{lead}")
        if answer is None or "error" in answer:
            why = "did not answer" if answer is None else str(answer["error"])
            problems.append(f"{host}: {why}")
            continue
        name = host if name_problem(host) is None and host != "each" else f"node-{host}"
        if name in taken:
            number = next(n for n in range(2, meeting.size + 2) if f"{name}-{n}" not in taken)
            notes.append(f"several servers call themselves {name}: the one of rank {lead} is {name}-{number} here")
            name = f"{name}-{number}"
        taken.add(name)
        topology = loads_topology(str(answer.get("yaml")), f"rank {lead}")
        topology = dataclasses.replace(topology, notes=tuple(map(str, answer.get("notes", []))))
        servers.append(Server(name, topology, f"rank {lead}"))
        leads[name] = lead
    if problems and (not partial or not servers):
        shown = "; ".join(problems[:6]) + (f"; and {len(problems) - 6} more" if len(problems) > 6 else "")
        hint = "--partial writes the file without them" if servers else "no server could be probed"
        raise RunError(f"not all servers can be probed: {shown}", where="probe --cluster", hint=hint)
    return Gathered(tuple(servers), leads, own, (*(f"left out: {problem}" for problem in problems), *notes))


def finish(meeting: Meeting, ok: bool) -> None:
    """Process 0 lets the others go and removes the folder when they have gone."""
    hellos = {rank: meeting.look(f"hello.{rank}") for rank in range(1, meeting.size)}
    meeting.post("done", {"ok": ok, "heard": [hello.get("nonce") for hello in hellos.values() if hello is not None]})
    meeting.allow(_GOODBYE_SECONDS)
    meeting.wait([f"bye.{rank}" for rank in range(1, meeting.size) if meeting.look(f"hello.{rank}")])
    meeting.close()


def leave(meeting: Meeting) -> bool:
    """Processes 1, 2 ...: waits for the end; whether process 0 has written the file.

    Raises:
        RunError: process 0 did not come.
    """
    done = meeting.wait(["done"]).get("done")
    # The end of a run that has not heard of this process: it came late, or an earlier run has left the folder.
    while done is not None and meeting.nonce not in done.get("heard", ()) and meeting.is_replaced(_LEFT_SECONDS):
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
    """Who has not answered: by host where the process has at least started."""
    missing = [rank for rank in range(meeting.size) if rank not in by_rank]
    if not missing:
        return []
    hello = {rank: meeting.look(f"hello.{rank}") for rank in missing}
    absent = [rank for rank in missing if hello[rank] is None]
    found = [
        f"{told.get('host')} (rank {rank}) started and does not answer: does nvidia-smi hang there?"
        for rank, told in hello.items()
        if told is not None
    ]
    if absent:
        ranks = ", ".join(map(str, absent[:8])) + (" ..." if len(absent) > 8 else "")
        found.append(f"rank{'s' * (len(absent) > 1)} {ranks} of {meeting.size} did not come")
    return found


def _versions(by_rank: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Servers with another collc, or another driver, than most have."""
    notes = []
    for key, what in (("version", "collc"), ("driver", "the driver")):
        hosts: dict[str, list[str]] = {}
        for told in by_rank.values():
            if told.get(key):
                hosts.setdefault(str(told[key]), []).append(str(told.get("host")))
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
    """The topology of this server from what its processes saw."""
    seen: dict[str, Gpu] = {}
    chosen: set[str] = set()
    try:
        for told in facts:
            for value in told["gpus"]:
                gpu = _gpu(value)
                seen.setdefault(gpu.bus, gpu)
            chosen |= set(told["chosen"])
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"a process told nonsense: {str(error)[:60]}", where="probe --cluster") from None
    every = sorted(seen.values(), key=lambda gpu: gpu.bus)
    # Where every process sees its own GPU alone, each calls it 0.
    if len({gpu.index for gpu in every}) < len(every):
        for index, gpu in enumerate(every):
            gpu.index = index
    every.sort(key=lambda gpu: gpu.index)
    kept = [gpu.uuid for gpu in every if gpu.bus in chosen]
    whole = len(kept) == len(every) or not all(kept) or any(gpu.mig for gpu in every)
    model = model_by_name(gpu_model) if gpu_model is not None else None
    return assemble(every, None if whole else ",".join(kept), model, "probed", sysfs).topology


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
