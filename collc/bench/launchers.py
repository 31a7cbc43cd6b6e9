"""Detects the launcher that started this process as one rank of several: torchrun, mpirun, mpiexec or srun."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from collc.errors import UsageError


@dataclass(frozen=True)
class Place:
    """The place of this process in a launcher's job.

    Attributes:
        here: the number of ranks on this machine; None if the launcher does not give it.
        job: a text that only the ranks of this job share; it may be empty if the job is on several machines.
    """

    launcher: str
    rank: int
    size: int
    here: int | None
    job: str

    @property
    def several_machines(self) -> bool:
        """True if the launcher says that ranks of the job are on other machines."""
        return self.here not in (None, self.size)


@dataclass(frozen=True)
class _Launcher:
    """The variables of a launcher: rank, size, all of `needs`, and the variables that name the job."""

    name: str
    rank: str
    size: str
    here: str
    needs: tuple[str, ...]
    job: tuple[str, ...]


# The order matters: mpirun within an srun has the variables of both, and its own count must be used.
_LAUNCHERS = (
    _Launcher(
        "torchrun",
        "RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        ("MASTER_ADDR", "MASTER_PORT"),
        ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"),
    ),
    _Launcher(
        "mpirun (Open MPI)",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        (),
        ("PMIX_NAMESPACE", "OMPI_MCA_orte_hnp_uri", "OMPI_MCA_ess_base_jobid"),
    ),
    # Hydra is the launcher of MPICH, Intel MPI and MVAPICH; srun --mpi=pmi2 sets these too.
    _Launcher("mpiexec (Hydra)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", (), ("PMI_JOBID", "PMI_PORT")),
    # Without a step, this process is the batch script, which is no rank.
    _Launcher(
        "srun",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
        "",
        ("SLURM_JOB_ID", "SLURM_STEP_ID"),
        ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    ),
)


def find_place(environment: Mapping[str, str], *, anywhere: bool = False) -> Place | None:
    """Returns the place of this process in a launcher's job; None without a launcher, or if the job is one process.

    COLLC_COMM_ID (any text) replaces the launcher's name of the job.

    Args:
        anywhere: use only names that all machines know, even if the job is on one machine.

    Raises:
        UsageError: the variables contradict each other.
    """
    for launcher in _LAUNCHERS:
        if all(name in environment for name in (launcher.rank, launcher.size, *launcher.needs)):
            return _place(launcher, environment, anywhere)
    return None


def _place(launcher: _Launcher, environment: Mapping[str, str], anywhere: bool) -> Place | None:
    rank, size = (_number(environment, name) for name in (launcher.rank, launcher.size))
    here = _ranks_here(launcher, environment, size)
    if size == 1:
        return None
    if rank >= size:
        raise UsageError(f"{launcher.rank}={rank} is not a rank of {launcher.size}={size}", where=launcher.name)
    if here == 0 or (here is not None and here > size):
        raise UsageError(f"{here} of {size} ranks are on this machine", where=launcher.name)
    several = anywhere or here not in (None, size)
    job = environment.get("COLLC_COMM_ID") or _job(launcher, environment, several)
    return Place(launcher.name, rank, size, here, job)


def _ranks_here(launcher: _Launcher, environment: Mapping[str, str], size: int) -> int | None:
    if launcher.name == "srun":
        nodes = environment.get("SLURM_STEP_NUM_NODES")
        if nodes is None:
            return None
        # Slurm has its own notation for tasks per node. Only the number of nodes (one or several) matters here.
        return size if nodes == "1" else size // max(1, _number(environment, "SLURM_STEP_NUM_NODES"))
    return _number(environment, launcher.here) if launcher.here in environment else None


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment[name]
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise UsageError(f"{name}={text!r} is not a number of ranks")
    return int(text)


def _job(launcher: _Launcher, environment: Mapping[str, str], several_machines: bool) -> str:
    named = [f"{name}={environment[name]}" for name in launcher.job if name in environment]
    if not named and several_machines:
        return ""
    # MPICH does not name the job. Instead, the process that started the ranks of this machine identifies it, found by
    # its socket, which wrapper scripts pass on.
    return " ".join([launcher.name, *(named or [f"process {_starter(environment.get('PMI_FD', ''))}"])])


def _starter(descriptor: str) -> int:
    """Returns the process at the other end of an inherited socket, or else the parent of this process."""
    try:
        with socket.socket(fileno=os.dup(int(descriptor))) as inherited:
            found = inherited.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            return int(struct.unpack("3i", found)[0]) or os.getppid()
    except (ValueError, OSError):
        return os.getppid()
