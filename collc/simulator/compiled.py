"""The engine in C++, built once by the host compiler and kept in the build cache."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from collc.build.cache import cached, content_key
from collc.build.toolchain import find_cxx, run_tool
from collc.errors import BuildError, IRError
from collc.simulator import engine
from collc.simulator.engine import Execution, Outcome
from collc.simulator.model import Case

_SOURCE = Path(__file__).with_name("engine.cpp")
_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra", "-static-libstdc++", "-static-libgcc")

_I32, _I64, _F64 = (ctypes.POINTER(t) for t in (ctypes.c_int32, ctypes.c_int64, ctypes.c_double))


class _Case(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("nloops", "nfifos", "nlinks", "slots")),
        *((name, ctypes.c_double) for name in ("launch", "step", "credit")),
        ("capacity", _F64),
        *((name, _I32) for name in ("loop_first_step", "step_share", "step_lag")),
        *((name, _F64) for name in ("step_rate", "step_launch")),
        *((name, _I32) for name in ("step_first_recv", "step_first_send", "recvs", "sends")),
        *((name, _I32) for name in ("fifo_writer", "fifo_reader")),
        ("fifo_delay", _F64),
        *((name, _I32) for name in ("fifo_first_link", "fifo_links", "fifo_weights", "fifo_copies")),
        ("fifo_credit", _F64),
        *((name, _I32) for name in ("fifo_behind", "fifo_queue", "share_chunks")),
        *((name, _F64) for name in ("share_each", "share_last")),
    )


class _Outcome(ctypes.Structure):
    _fields_ = (
        ("time", ctypes.c_double),
        ("executed", ctypes.c_int64),
        ("link_bytes", _F64),
        *((name, _I32) for name in ("loop", "step", "chunk", "why")),
        ("cause", _I64),
        *((name, _F64) for name in ("begin", "end")),
    )


@cache
def _library() -> Any:
    """The built engine.

    Raises:
        BuildError: there is no compiler, or it fails.
    """
    compiler = find_cxx()
    source = _SOURCE.read_bytes()

    def make(made: Path) -> None:
        run_tool([compiler.path, *_FLAGS, str(_SOURCE), "-o", str(made)])

    path = cached(content_key([compiler.version, *_FLAGS, source]), "simulate.so", make)
    library = ctypes.CDLL(str(path))
    library.collc_simulate.argtypes = (ctypes.POINTER(_Case), ctypes.POINTER(_Outcome))
    library.collc_simulate.restype = None
    return library


def available() -> bool:
    """Returns whether the engine can be built here; COLLC_SIMULATE=python turns it off."""
    if os.environ.get("COLLC_SIMULATE") == "python":
        return False
    try:
        _library()
    except (BuildError, OSError):
        return False
    return True


def run(case: Case) -> Outcome:
    """Runs a case in C++; the same outcome as `engine.run`."""
    given, keep = _marshal(case)
    n = max(1, case.executions)
    ints = {name: np.zeros(n, np.int32) for name in ("loop", "step", "chunk", "why")}
    cause = np.zeros(n, np.int64)
    times = {name: np.zeros(n, np.float64) for name in ("begin", "end")}
    link_bytes = np.zeros(max(1, len(case.capacity)), np.float64)
    made = _Outcome(link_bytes=_pointer(link_bytes, _F64), cause=_pointer(cause, _I64))
    for name, array in ints.items():
        setattr(made, name, _pointer(array, _I32))
    for name, column in times.items():
        setattr(made, name, _pointer(column, _F64))
    _library().collc_simulate(ctypes.byref(given), ctypes.byref(made))
    del keep
    left = case.executions - made.executed
    if left:
        raise IRError(f"the simulated program stops with {left} steps left to run")
    columns = (ints["loop"], ints["step"], ints["chunk"], times["begin"], times["end"], cause, ints["why"])
    rows = Executions([column[: case.executions] for column in columns])
    return Outcome(made.time, tuple(link_bytes[: len(case.capacity)].tolist()), rows)


class Executions(Sequence[Execution]):
    """The executed steps as columns; rows are made only where somebody looks."""

    def __init__(self, columns: list[npt.NDArray[Any]]) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        return Execution(*(column[at].item() for column in self.columns))


def _marshal(case: Case) -> tuple[_Case, list[Any]]:
    """The C view of a case and the arrays that it points into; what does not depend on the size is kept."""
    kept = _KEPT.get(id(case.loops))
    if kept is None or kept[0] is not case.loops or kept[1] is not case.fifos:
        if len(_KEPT) > 64:
            _KEPT.clear()
        kept = (case.loops, case.fifos, _fixed(case))
        _KEPT[id(case.loops)] = kept
    fields, arrays = kept[2]
    keep = list(arrays)

    def pointer(values: Iterable[float], dtype: Any, kind: Any) -> Any:
        keep.append(np.fromiter(values, dtype))
        return _pointer(keep[-1], kind)

    given = _Case(
        slots=case.slots,
        launch=case.launch,
        step=case.step,
        credit=case.credit,
        capacity=pointer(case.capacity, np.float64, _F64),
        share_chunks=pointer((number for number, _, _ in case.chunks), np.int32, _I32),
        share_each=pointer((float(each) for _, each, _ in case.chunks), np.float64, _F64),
        share_last=pointer((float(last) for _, _, last in case.chunks), np.float64, _F64),
        **fields,
    )
    return given, keep


# id of loops -> the loops, the FIFOs, (fields, arrays that they point into). Holding the loops keeps the id theirs.
_KEPT: dict[int, tuple[Any, Any, tuple[dict[str, Any], list[Any]]]] = {}


def _fixed(case: Case) -> tuple[dict[str, Any], list[Any]]:
    """Returns the fields that depend only on loops and FIFOs."""
    steps = [step for loop in case.loops for step in loop.steps]
    keep: list[Any] = []

    def ints(values: Iterable[int]) -> Any:
        keep.append(np.fromiter(values, np.int32))
        return _pointer(keep[-1], _I32)

    def floats(values: Iterable[float]) -> Any:
        keep.append(np.fromiter(values, np.float64))
        return _pointer(keep[-1], _F64)

    def firsts(lengths: Iterable[int]) -> Any:
        return ints(accumulate(lengths, initial=0))

    fields = {
        "nloops": len(case.loops),
        "nfifos": len(case.fifos),
        "nlinks": len(case.capacity),
        "loop_first_step": firsts(len(loop.steps) for loop in case.loops),
        "step_share": ints(step.share for step in steps),
        "step_lag": ints(step.lag for step in steps),
        "step_rate": floats(step.rate for step in steps),
        "step_launch": floats(step.launch for step in steps),
        "step_first_recv": firsts(len(step.recv) for step in steps),
        "step_first_send": firsts(len(step.send) for step in steps),
        "recvs": ints(f for step in steps for f in step.recv),
        "sends": ints(f for step in steps for f in step.send),
        "fifo_writer": ints(fifo.writer for fifo in case.fifos),
        "fifo_reader": ints(fifo.reader for fifo in case.fifos),
        "fifo_delay": floats(fifo.delay for fifo in case.fifos),
        "fifo_first_link": firsts(len(fifo.links) for fifo in case.fifos),
        "fifo_links": ints(link for fifo in case.fifos for link in fifo.links),
        "fifo_weights": ints(w for fifo in case.fifos for w in fifo.weights or (1,) * len(fifo.links)),
        "fifo_copies": ints(fifo.copies for fifo in case.fifos),
        "fifo_credit": floats(fifo.credit for fifo in case.fifos),
        "fifo_behind": ints(fifo.behind for fifo in case.fifos),
        "fifo_queue": ints(fifo.queue for fifo in case.fifos),
    }
    return fields, keep


def _pointer(array: npt.NDArray[Any], kind: Any) -> Any:
    return array.ctypes.data_as(kind)


def run_fastest(case: Case) -> Outcome:
    """In C++ where there is a compiler, else in Python."""
    return run(case) if available() else engine.run(case)
