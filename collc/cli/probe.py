"""`collc probe`: the links of this machine, or of a dump, as a topology file."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from collc.build.cache import cached, content_key
from collc.build.toolchain import find_cxx, run_tool
from collc.cli import report
from collc.cli.probe_cluster import (
    ClusterJob,
    check_cluster_output,
    describe,
    merge_files,
    probe_cluster,
    write_cluster,
)
from collc.cli.sections import SectionedCommand
from collc.errors import CollcError, UsageError
from collc.inputs import read_input
from collc.outputs import check_output
from collc.resources import resource_dir
from collc.topology.dump import dumps_links, dumps_topology
from collc.topology.model import Topology
from collc.topology.names import name_problem
from collc.topology.probe.cpu import probe_cpu
from collc.topology.probe.dumps import read_dumps
from collc.topology.probe.live import probe_machine
from collc.topology.probe.measure import Measured, cpu_numbers, measure, with_measured

# A dump is a few kilobytes; this bounds what a wrong file name can cost.
_MOST_BYTES = 16 << 20
_MEASURE_FLAGS = ("-std=c++17", "-O2", "-pthread")


@click.command(cls=SectionedCommand)
@click.option("--from", "sources", multiple=True, metavar="FILE", help="Read a dump; - is standard input. Repeatable.")
@click.option("--explain", is_flag=True, help="With --from: print what was taken from each table of a dump.")
@click.option("--cpu", is_flag=True, help="Describe this machine's cores and NUMA nodes, for the host target.")
@click.option("--ranks", type=int, metavar="N", help="With --cpu: N ranks on those cores [one per core].")
@click.option(
    "--measure",
    "timed",
    is_flag=True,
    help="Time copies between every pair; with --cluster TCP between servers. Results are comments.",
)
@click.option(
    "--merge", "merging", is_flag=True, help="Fold the files of single servers, FILES, into one of a cluster."
)
@click.option(
    "--cluster",
    is_flag=True,
    help="Under srun, mpirun or torchrun: every process probes its server, and the first writes the file -o of all.",
)
@click.option("--partial", is_flag=True, help="With --cluster: leave out servers that cannot be probed.")
@click.option(
    "--wait",
    type=click.IntRange(1, 86_400),
    default=120,
    show_default=True,
    metavar="SECONDS",
    help="With --cluster: how long processes wait for each other.",
)
@click.option(
    "--interfaces",
    metavar="LIST",
    help="With --cluster --measure: network interfaces to measure over, such as ib0,ib1 [those of the NICs].",
)
@click.option(
    "--rails", metavar="FILE", help="With --merge, --cluster: which NICs hang on which switch (docs/clusters.md)."
)
@click.option(
    "--fabric",
    multiple=True,
    metavar="PATH",
    help="With --merge, --cluster: a dump of the network, or a folder of them: ibnetdiscover, iblinkinfo, ibdiagnet, "
    "lldpctl, Slurm's topology.",
)
@click.option(
    "--domain",
    "domains",
    multiple=True,
    metavar="LIST",
    help="With --merge, --cluster: servers of one NVLink domain, such as tray1,tray2; or all, or each (none shared).",
)
@click.option("--gpu-model", metavar="M", help="GPU model, such as V100, for what a dump does not contain.")
@click.option("--name", metavar="NAME", help="Name of the topology [that of -o].")
@click.option(
    "--format",
    "form",
    type=click.Choice(["yaml", "links"]),
    default="yaml",
    show_default=True,
    help="links: what a library reads at run time (COLLC_TOPOLOGY).",
)
@click.option("-o", "--output", metavar="FILE", help="Write here instead of standard output.")
@report.json_option
@report.debug_option
@click.argument("files", nargs=-1)
def command(
    files: tuple[str, ...],
    merging: bool,
    cluster: bool,
    partial: bool,
    wait: int,
    interfaces: str | None,
    rails: str | None,
    fabric: tuple[str, ...],
    domains: tuple[str, ...],
    sources: tuple[str, ...],
    explain: bool,
    cpu: bool,
    ranks: int | None,
    timed: bool,
    gpu_model: str | None,
    name: str | None,
    form: str,
    output: str | None,
    as_json: bool,
) -> None:
    """Read the links of this machine, or of a dump, and write a topology file.

    Without --from: the GPUs that CUDA programs see here, by NVML and sysfs. A dump is recognized by its content:
    nvidia-smi (topo -m, nvlink -s and -R, -q -x, --query-gpu), NCCL's XML, rocm-smi --showtopo, amd-smi topology,
    hwloc's XML, ibstat; a file may have several. Whatever had to be assumed is a comment in the file and a line on
    standard error. With --merge: the files of single servers become one file.
    """
    if name is not None and (problem := name_problem(name)):
        raise UsageError(f"the name `{name[:60]}` {problem}", where="--name")
    if explain and not sources:
        raise UsageError("--explain is about dumps", where="--explain", hint="use it with --from")
    if ranks is not None and (not cpu or timed):
        raise UsageError("ranks are dealt out to cores, unmeasured", where="--ranks", hint="use it with --cpu alone")
    if cluster:
        if merging or files or sources or cpu:
            raise UsageError("--cluster probes the servers of this job", hint="omit the other sources")
        job = ClusterJob(gpu_model, name, output, partial, wait, timed, interfaces, as_json)
        probe_cluster(job, lambda: describe(rails, fabric, domains))
        return
    if interfaces is not None:
        raise UsageError("--interfaces is about servers of a job", hint="use it with --cluster --measure")
    if partial:
        raise UsageError("--partial is about servers of a job", where="--partial", hint="use it with --cluster")
    if merging:
        if sources or cpu or timed or gpu_model is not None:
            raise UsageError("--merge takes files of servers that were probed", hint="omit the other sources")
        check_cluster_output(output)
        write_cluster(merge_files(files, describe(rails, fabric, domains), name, output), output, as_json)
        return
    if files:
        raise UsageError(f"unexpected file {files[0][:80]!r}", where="probe", hint="--merge takes files of servers")
    if rails is not None or fabric or domains:
        what = "--rails, --fabric and --domain describe what joins several servers"
        raise UsageError(what, hint="use them with --merge or --cluster")
    if output is not None and output != "-":
        check_output(Path(output), replaced=False)
        stem = Path(output).stem
        name = stem if name is None and name_problem(stem) is None else name
    measured: Sequence[Measured] = ()
    if sources:
        if cpu or timed:
            raise UsageError("a dump cannot be measured or probed", where="--from", hint="omit --cpu and --measure")
        reading = read_dumps([_load(source) for source in sources], gpu_model=gpu_model, name=name)
        topology = reading.topology
        for table, what in reading.tables if explain else ():
            report.note(f"collc probe: {table}: {what}")
    elif cpu:
        if gpu_model is not None:
            raise UsageError("cores have no GPU model", where="--gpu-model", hint="omit it or --cpu")
        topology = probe_cpu(name=name or "host", ranks=ranks)
        measured = measure(_program(), topology, cpu_numbers(topology), kind="host") if timed else ()
    else:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        live = probe_machine(visible=visible, gpu_model=gpu_model, name=name or "probed")
        topology = live.topology
        measured = measure(_program(), topology, live.bus_ids, kind="cuda") if timed else ()
    _write(with_measured(topology, measured) if measured else topology, output, as_json, measured, form)


def _load(source: str) -> tuple[str, str]:
    if source == "-":
        data = sys.stdin.buffer.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise CollcError(f"is larger than {_MOST_BYTES >> 20} MiB", where="<stdin>", hint="is it a dump?")
        return "<stdin>", _decode(data)
    return source, _decode(read_input(Path(source), limit=_MOST_BYTES))


def _decode(data: bytes) -> str:
    """UTF-8, or UTF-16 with its mark, as PowerShell redirects output."""
    wide = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    return data.decode("utf-16" if wide else "utf-8", "replace")


def _program() -> Path:
    """The compiled templates/probe/measure.cpp, from the cache if it was built before."""
    compiler = find_cxx()
    source = resource_dir("templates") / "probe" / "measure.cpp"
    key = content_key([compiler.version, compiler.machine, *_MEASURE_FLAGS, source.read_bytes()])
    return cached(
        key,
        "measure",
        lambda made: run_tool([compiler.path, *_MEASURE_FLAGS, "-o", str(made), str(source), "-ldl"]),
    )


def _write(
    topology: Topology, output: str | None, as_json: bool, measured: Sequence[Measured], form: str = "yaml"
) -> None:
    text = dumps_links(topology) if form == "links" else dumps_topology(topology)
    for note in topology.notes:
        report.note(f"collc probe: {note}")
    if output is not None and output != "-":
        try:
            Path(output).write_text(text, encoding="utf-8")
        except OSError as error:
            raise CollcError(f"cannot write: {error.strerror}", where=output) from None
    if as_json:
        report.emit_json(_as_json(topology, output, measured))
    elif output in (None, "-"):
        report.text(text, nl=False)


def _as_json(topology: Topology, output: str | None, measured: Sequence[Measured]) -> dict[str, object]:
    return {
        "name": topology.name,
        "output": output,
        "vertices": [{"name": v.name, "kind": v.kind.value} for v in topology.vertices],
        "links": [{"src": k.src, "dst": k.dst, "kind": k.kind.value, "gbps": str(k.gbps)} for k in topology.links],
        "measured": [
            {
                "src": m.src,
                "dst": m.dst,
                "gbps": float(m.gbps),
                "latency_us": float(m.latency_us),
                "nominal_gbps": None if m.nominal_gbps is None else str(m.nominal_gbps),
            }
            for m in measured
        ],
        "assumptions": [note for note in topology.notes if not note.startswith("measured ")],
    }
