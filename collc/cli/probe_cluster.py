"""`collc probe --merge`: the files of single servers become the file of their cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from collc.bench.launchers import find_place
from collc.cli import report
from collc.errors import CollcError, RunError, UsageError
from collc.inputs import read_text
from collc.outputs import check_output
from collc.topology.cluster.fabric import MAX_BYTES
from collc.topology.cluster.gather import build_own, finish, gather, leave, tell
from collc.topology.cluster.meeting import Meeting
from collc.topology.cluster.merge import Described, lines_for_people, merge, server_of
from collc.topology.cluster.model import Cluster, Server
from collc.topology.cluster.rounds import Transfer, attend, measure_cluster
from collc.topology.cluster.write import dumps_cluster
from collc.topology.load import load_topology, loads_topology
from collc.topology.names import name_problem
from collc.topology.yamltree import MAX_BYTES as MOST_YAML


def merge_files(files: Sequence[str], described: Described, name: str | None, output: str | None) -> Cluster:
    """The cluster of the servers in some files.

    Raises:
        UsageError: there are none, or one describes no single server.
        TopologyError: a file is wrong.
    """
    if not files:
        raise UsageError("no files to merge", where="--merge", hint="write `collc probe --merge node*.yaml`")
    return merge([_read(Path(file)) for file in files], described, title(name, output))


@dataclass(frozen=True)
class ClusterJob:
    """The options of `collc probe --cluster`, as they are written."""

    gpu_model: str | None
    name: str | None
    output: str | None
    partial: bool
    wait: int
    timed: bool
    interfaces: str | None
    as_json: bool

    @property
    def wanted(self) -> list[str]:
        """The interfaces that are named."""
        return [] if self.interfaces is None else self.interfaces.split(",")


def probe_cluster(job: ClusterJob, described: Callable[[], Described]) -> None:
    """One process of `collc probe --cluster`: process 0 writes the file, the others are silent.

    Raises:
        UsageError: no output file is named; the processes meet through it.
        CollcError: servers cannot be probed, or processes do not come.
    """
    place = find_place(os.environ, anywhere=True)
    output = job.output
    if job.interfaces is not None and not job.timed:
        raise UsageError("--interfaces is about measuring", where="--interfaces", hint="add --measure")
    if job.interfaces is not None and not all(job.wanted):
        raise UsageError(f"an empty name in {job.interfaces[:60]!r}", where="--interfaces", hint="write it as e0,e1")
    if output in (None, "-"):
        hint = "name a file on a file system that all servers share with -o"
        raise UsageError("processes meet in the folder of the file that they write", where="--cluster", hint=hint)
    rank, size, word = (place.rank, place.size, place.job) if place else (0, 1, "")
    if rank > 0:
        meeting = Meeting(Path(str(output)), rank, size, word, job.wait)
        tell(meeting)
        own = build_own(meeting, job.gpu_model)
        if job.timed:
            attend(meeting, own, job.wanted)
        if not leave(meeting):
            raise RunError("process 0 has not written the file: it says why", where=f"probe --cluster, rank {rank}")
        return
    if place is None:
        report.note("collc probe: no launcher has started several processes, so this is a cluster of one server")
    check_cluster_output(output)
    network = described()
    meeting = Meeting(Path(str(output)), 0, size, word, job.wait)
    ok = False
    try:
        tell(meeting)
        found = gather(meeting, job.gpu_model, job.partial)
        cluster = merge(found.servers, network, title(job.name, output))
        transfers, slow = (
            measure_cluster(meeting, found, job.wanted, report.progress("collc probe")) if job.timed else ([], [])
        )
        cluster = replace(cluster, notes=(*slow, *found.notes, *cluster.notes))
        write_cluster(cluster, output, job.as_json, transfers)
        ok = True
    finally:
        finish(meeting, ok)


def _read(path: Path) -> Server:
    if path.is_dir():
        raise UsageError("is a folder", where=str(path), hint=f"name the files in it, such as {path}/*.yaml")
    _check_there(str(path))
    text = read_text(path, limit=MOST_YAML)
    notes = [line[1:].strip() for line in text.split("format:", 1)[0].splitlines() if line.startswith("#")]
    machine = load_topology(path)
    # Assumptions of the probe are comments at the top of its file; measured speeds are not about the cluster.
    kept = tuple(note for note in notes if note and not note.startswith("measured "))
    return server_of(path, replace(machine, notes=kept))


def describe(rails: str | None, fabric: Sequence[str], domains: Sequence[str] = ()) -> Described:
    """Reads what is given about the network.

    Raises:
        UsageError: both are given, or a file is missing.
        CollcError: a file is too large or no text.
    """
    if rails is not None and fabric:
        raise UsageError("--rails and --fabric both describe the network", hint="omit one of them")
    if rails is not None:
        _check_there(rails)
        return Described(rails=(rails, read_text(Path(rails), limit=MOST_YAML)), domains=domains)
    files: list[Path] = []
    for name in fabric:
        if not name:
            raise UsageError("the name is empty", where="--fabric", hint="name a dump, or a folder of them")
        path = Path(name)
        if path.is_dir():
            inside = sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
            if not inside:
                raise UsageError("the folder is empty", where=name, hint="put the dumps into it")
            files += inside
        else:
            _check_there(name)
            files.append(path)
    dumps = [(str(path), read_text(path, limit=MAX_BYTES)) for path in files]
    return Described(dumps=dumps, domains=domains)


def _check_there(name: str) -> None:
    if not Path(name).exists():
        raise UsageError("there is no such file", where=name, hint="check the path")


def title(name: str | None, output: str | None) -> str:
    """Returns the name of the topology: the given name, else the name of the output file, else `cluster`."""
    if name is not None:
        return name
    stem = Path(output).stem if output not in (None, "-") else ""
    return stem if stem and name_problem(stem) is None else "cluster"


def write_cluster(cluster: Cluster, output: str | None, as_json: bool, measured: Sequence[Transfer] = ()) -> None:
    """Writes the file and reports odd servers and assumptions."""
    text = dumps_cluster(cluster)
    # Checks that the file can be read again: a cluster may be too large, or a name of a dump not allowed.
    loads_topology(text, output or "the cluster")
    for line in lines_for_people(cluster):
        report.note(f"collc probe: {line}")
    if output not in (None, "-"):
        try:
            Path(str(output)).write_text(text, encoding="utf-8")
        except OSError as error:
            raise CollcError(f"cannot write: {error.strerror}", where=output) from None
    if as_json:
        rows = [asdict(transfer) for transfer in measured]
        report.emit_json({**_as_json(cluster, output), **({"measured_network": rows} if rows else {})})
    elif output in (None, "-"):
        report.text(text, nl=False)
    else:
        count = sum(len(kind.servers) for kind in cluster.kinds)
        odd = sum(len(kind.odd) for kind in cluster.kinds)
        kinds = f"{len(cluster.kinds)} kind{'s' * (len(cluster.kinds) != 1)}"
        differ = f", {odd} of them differ from their template" if odd else ""
        report.line(f"wrote {output}: {count} server{'s' * (count != 1)} of {kinds}{differ}")


def check_cluster_output(output: str | None) -> None:
    """Asks before the work whether the file can be written."""
    if output not in (None, "-"):
        check_output(Path(str(output)), replaced=False)


def _as_json(cluster: Cluster, output: str | None) -> dict[str, object]:
    return {
        "name": cluster.name,
        "output": output,
        "kinds": [
            {
                "name": kind.name,
                "gpu_model": kind.template.gpu_model,
                "gpus": len(kind.template.gpus),
                "servers": [server.name for server in kind.servers],
            }
            for kind in cluster.kinds
        ],
        "odd": {server: list(odd.words) for kind in cluster.kinds for server, odd in kind.odd.items()},
        "switches": list(cluster.network.switches),
        "cables": [{"a": c.a, "b": c.b, "gbps": str(c.gbps)} for c in cluster.network.cables],
        "assumptions": [*cluster.network.notes, *cluster.notes],
    }
