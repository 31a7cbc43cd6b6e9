"""Random calls and random faults of ranks on the mock driver. test_cuda_chaos.py runs this file as a process.

    mock_chaos.py LIBRARY KIND SEED...

All ranks are in this process, each on a separate GPU or all on one. KIND is "conformance" (groups of random calls on
a communicator and on one split from it) or "faults". Prints a JSON object: one line per seed with its outcome, and the
leftovers. About 10 seeds fill the memory of the mock.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import sys
import threading
import time
from pathlib import Path

from mock_program import Memory, prepare, synchronize

from collc.bench.data import OPS, TYPES, Case
from collc.bench.nccl import Nccl
from collc.collectives.model import Collective

NRANKS = 3
DEADLINE = 90.0
SUCCESS, INVALID_USAGE, REMOTE_ERROR = 0, 5, 6
COLLECTIVES = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter")
REDUCING = ("all_reduce", "reduce", "reduce_scatter")


def random_case(rng: random.Random, nranks: int = NRANKS) -> Case:
    name = rng.choice(COLLECTIVES)
    type_name = rng.choice(list(TYPES))
    op = rng.choice(list(OPS)) if name in REDUCING else None
    if type_name.startswith("float8") and op is not None:
        type_name = "half"
    count = rng.choice([1, 2, 3, 17, 777, rng.randrange(1, 3000)])
    return Case(Collective(name), nranks, rng.randrange(nranks), count, TYPES[type_name], op)


class Chaos:
    def __init__(self, library: Path) -> None:
        self.nccl = Nccl(library)
        self.lib = self.nccl.lib
        self.mock = ctypes.CDLL("libcuda.so.1")

    def create(self, devices: list[int]) -> list[ctypes.c_void_p]:
        made = (ctypes.c_void_p * NRANKS)()
        status = self.lib.ncclCommInitAll(made, NRANKS, (ctypes.c_int * NRANKS)(*devices))
        self.nccl.check(status, "ncclCommInitAll")
        return [ctypes.c_void_p(comm) for comm in made]

    def start(self, case: Case, comm: ctypes.c_void_p, send: int, recv: int) -> int:
        number, op = case.kind.number, OPS.get(case.op or "", 0)
        return self.nccl.call(case.collective, send, recv, case.count, number, op, case.root, comm)

    def error_of(self, comm: ctypes.c_void_p) -> int:
        state = ctypes.c_int(-1)
        self.nccl.check(self.lib.ncclCommGetAsyncError(comm, ctypes.byref(state)), "ncclCommGetAsyncError")
        return state.value

    def destroy(self, comms: list[ctypes.c_void_p]) -> None:
        for comm in comms:
            self.nccl.check(self.lib.ncclCommDestroy(comm), "ncclCommDestroy")

    def split(self, comms: list[ctypes.c_void_p], keys: list[int]) -> list[ctypes.c_void_p]:
        """The same ranks in the order of their keys."""
        made = [ctypes.c_void_p() for _ in comms]
        self.nccl.check(self.lib.ncclGroupStart(), "ncclGroupStart")
        for comm, key, place in zip(comms, keys, made, strict=True):
            self.nccl.check(self.lib.ncclCommSplit(comm, 0, key, ctypes.byref(place), None), "ncclCommSplit")
        self.nccl.check(self.lib.ncclGroupEnd(), "ncclGroupEnd")
        return [made[rank] for rank in sorted(range(NRANKS), key=lambda rank: keys[rank])]

    def conformance(self, seed: int) -> str:
        """Groups of calls on two communicators; "" or the first call whose result is wrong."""
        rng = random.Random(seed)
        os.environ["MOCK_SEED"] = str(seed)
        shared = os.environ.get("MOCK_GPUS", "1") == "1"
        first = self.create([0] * NRANKS if shared else rng.sample(range(NRANKS), NRANKS))
        second = self.split(first, rng.sample(range(10), NRANKS))
        wrong = ""
        for group in range(3):
            calls = []
            self.nccl.check(self.lib.ncclGroupStart(), "ncclGroupStart")
            for _ in range(rng.randrange(1, 4)):
                case, in_place = random_case(rng), rng.random() < 0.5
                comms = rng.choice([first, second])
                rows = prepare(self.nccl, case, in_place, comms)
                for comm, (send, recv, _, _) in zip(comms, rows, strict=True):
                    self.nccl.check(self.start(case, comm, send, recv), case.collective.value)
                calls.append((case, in_place, rows))
            self.nccl.check(self.lib.ncclGroupEnd(), "ncclGroupEnd")
            if synchronize(self.mock):
                return f"group {group} failed on the device"
            for case, in_place, rows in calls:
                bad = [rank for rank, row in enumerate(rows) if row[2].bytes() != row[3]]
                if bad and not wrong:
                    what = f"{case.collective.value} {case.kind.name} {case.op} {case.count} from {case.root}"
                    wrong = f"group {group}, {what}, in place {in_place}: ranks {bad}"
        self.destroy(rng.sample([*first, *second], 2 * NRANKS))
        return wrong

    def faults(self, seed: int) -> str:
        """One fault; what it came to, "OUT OF ORDER: ..." if that must not be."""
        rng = random.Random(seed)
        os.environ["MOCK_SEED"] = str(seed)  # of the scheduler
        fault = rng.choice(["none", "missing", "abort", "leaves", "differs"])
        # A limit where nobody else would end the wait.
        os.environ["COLLC_TIMEOUT"] = "0.3" if fault == "missing" else "0"
        comms = self.create(rng.sample(range(NRANKS), NRANKS))
        victim = rng.randrange(NRANKS)
        case = random_case(rng)
        if rng.random() < 0.6:
            case = Case(Collective.ALL_REDUCE, NRANKS, 0, case.count, TYPES["float"], "sum")
        needs_all = case.collective is Collective.ALL_REDUCE
        for _ in range(rng.randrange(3)):  # whole calls before, so that FIFOs stand anywhere
            before = random_case(rng)
            for comm, (send, recv, _, _) in zip(comms, prepare(self.nccl, before, False, comms), strict=True):
                self.nccl.check(self.start(before, comm, send, recv), "a call before the fault")
        synchronize(self.mock)
        rows = prepare(self.nccl, case, False, comms)
        for rank, (send, recv, _, _) in enumerate(rows):
            if rank == victim and fault in ("missing", "abort", "leaves"):
                continue
            mine = case
            if rank == victim and fault == "differs":
                mine = Case(case.collective, NRANKS, case.root, case.count + 1, case.kind, case.op)
                send, recv, _, _ = prepare(self.nccl, mine, False, comms)[rank]
            self.nccl.check(self.start(mine, comms[rank], send, recv), "a call")
        device = threading.Thread(target=synchronize, args=(self.mock,), daemon=True)
        start = time.monotonic()
        device.start()
        time.sleep(rng.choice([0, 0.02, 0.1]))
        if fault == "abort":
            self.nccl.check(self.lib.ncclCommAbort(comms[victim]), "ncclCommAbort")
        if fault == "leaves":
            self.nccl.check(self.lib.ncclCommDestroy(comms[victim]), "ncclCommDestroy")
        device.join(DEADLINE)
        if device.is_alive():
            return f"OUT OF ORDER: {fault}: the kernels still wait after {DEADLINE:.0f} s"
        gone = fault in ("abort", "leaves")
        left = [rank for rank in range(NRANKS) if not (gone and rank == victim)]
        # A rank that waits for nothing learns of the fault within the watcher's period.
        while fault != "none" and needs_all and time.monotonic() - start < DEADLINE:
            if all(self.error_of(comms[rank]) != SUCCESS for rank in left):
                break
            time.sleep(0.01)
        errors = {rank: self.error_of(comms[rank]) for rank in left}
        text = ""
        for rank in left:
            if errors[rank] != SUCCESS and self.start(case, comms[rank], *rows[rank][:2]) != SUCCESS:
                text = self.lib.ncclGetLastError(None).decode()
        problem = self.judge(fault, needs_all, list(errors.values()), text, victim)
        if fault == "none" and any(row[2].bytes() != row[3] for row in rows):
            problem = "wrong results"
        for rank in left:
            end = self.lib.ncclCommAbort if rng.random() < 0.5 else self.lib.ncclCommDestroy
            self.nccl.check(end(comms[rank]), "the end of a communicator")
        if (after := self.conformance(seed + 1_000_000)) != "":
            problem = f"the next communicator: {after}"
        said = f"{fault}, {case.collective.value} of {case.count}, rank {victim}: {sorted(errors.values())} {text}"
        return f"OUT OF ORDER: {problem}: {said}" if problem else said

    def judge(self, fault: str, needs_all: bool, errors: list[int], text: str, victim: int) -> str:
        """ "" or why this may not be."""
        if fault == "none":
            return "" if set(errors) == {SUCCESS} else "an error without a fault"
        if not set(errors) <= {SUCCESS, REMOTE_ERROR, INVALID_USAGE}:
            return "an error without a name"
        if needs_all and SUCCESS in errors:
            return "a rank that knows nothing of it"
        if fault == "differs" and REMOTE_ERROR in errors:
            return "a rank that takes it for another's failure"
        words = {
            "missing": "COLLC_TIMEOUT: after 0.3 s rank",
            "abort": "ncclCommAbort was called",
            "leaves": f"rank {victim} has destroyed its communicator",
            "differs": "calls differ: call",
        }[fault]
        return "" if set(errors) == {SUCCESS} or words in text else "another text"


def main() -> dict[str, object]:
    library, kind, seeds = Path(sys.argv[1]), sys.argv[2], list(map(int, sys.argv[3:]))
    chaos = Chaos(library)
    said = {seed: getattr(chaos, kind)(seed) for seed in seeds}
    deadline = time.monotonic() + 60
    while len(os.listdir("/proc/self/task")) > 4 and time.monotonic() < deadline:
        time.sleep(0.1)  # the listener ends when it has had nothing to do for a while
    names: list[str] = ["allocate", "release", "event_create", "event_destroy", "register_host", "unregister_host"]
    names += ["Simple", "LL", "LL128"]
    counted = {name: chaos.mock.mock_calls(name.encode()) for name in names}
    counted["allocate"] -= Memory.made
    threads = len(os.listdir("/proc/self/task"))
    return {"said": said, "calls": counted, "threads": threads, "descriptors": len(os.listdir("/proc/self/fd"))}


if __name__ == "__main__":
    try:
        print(json.dumps(main()))
    except Exception as error:
        print(json.dumps({"error": str(error)}))
