"""The API beside the five collectives, and communicators that the real NCCL has to take."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import elf
from support.libraries import client, fake_nccl, library, run_client
from support.nccl_names import nccl_exports
from support.ranks import INVALID_USAGE, ranks

HERE = Path(__file__).parent


def exported(path: Path) -> dict[str, str]:
    return {s.name: s["st_info"]["bind"] for s in elf.symbols(path) if s["st_shndx"] != "SHN_UNDEF" and s.name}


def imported(path: Path) -> tuple[set[str], set[str]]:
    """The libraries and the symbols that a library needs."""
    return elf.needed(path), {s.name for s in elf.symbols(path) if s["st_shndx"] == "SHN_UNDEF" and s.name}


@pytest.mark.parametrize("ways", ["threads", "processes"])
@pytest.mark.parametrize(("machine", "ranks"), [("odd", 3), ("odd", 1), ("cores", 3), ("dgx1v", 8)])
def test_transfers_operators_splits_and_refusals(machine: str, ranks: int, ways: str) -> None:
    program = client(HERE / "api.c", machine)
    done = subprocess.run([program, ways, str(ranks)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) > 100_000


def test_every_name_of_nccl_is_there_and_nothing_else() -> None:
    symbols = exported(library("odd"))
    assert {name: bind for name, bind in symbols.items() if not name.startswith("collc_")} == nccl_exports()


def test_no_internal_call_goes_by_a_public_name() -> None:
    """Another NCCL that stands before the library in the search order would get a handle of ours."""
    assert elf.relocated(library("odd")) & set(exported(library("odd"))) == set()
    assert "memcpy" in elf.relocated(library("odd"))


def test_it_runs_on_an_older_glibc_than_it_was_linked_with() -> None:
    libraries, symbols = imported(library("odd"))
    assert {name.split(".so")[0].split("-")[0] for name in libraries} <= {
        "libc",
        "libgcc_s",
        "libm",
        "libdl",
        "libpthread",
        "ld",
    }
    # 2.35 and 2.36: copies of libgcc and of parts of the C++ library that nothing here calls would ask for them.
    assert not symbols & {"arc4random", "_dl_find_object"}
    assert "getrandom" in symbols


def test_the_real_nccl_takes_what_the_plan_does_not_serve() -> None:
    fake = fake_nccl(HERE / "fake_nccl.c")
    done = subprocess.run(
        [client(HERE / "forwarding.c", "odd"), "3"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "COLLC_NCCL": str(fake)},
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert done.stdout == "ours 3 theirs 7 count 2 state 0 window 0\n"
    notices = [line for line in done.stderr.splitlines() if line.startswith("collc: ")]
    assert notices == [
        f"collc: this library was compiled for 3 ranks, the communicator has 2: {fake} takes this communicator"
    ]


def test_without_a_real_nccl_the_refusal_says_so() -> None:
    done = subprocess.run(
        [client(HERE / "forwarding.c", "odd"), "3"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "COLLC_NCCL": "/nowhere/libnccl.so.2"},
    )
    assert done.returncode == 1
    assert "compiled for 3 ranks, the communicator has 2, and no NCCL was found to take it" in done.stdout


def test_collc_disable_leaves_everything_to_the_real_nccl() -> None:
    fake = fake_nccl(HERE / "fake_nccl.c")
    program = f"""
import ctypes
from pathlib import Path
from collc.bench.nccl import Nccl
nccl = Nccl(Path({str(library("odd"))!r}))
comm = nccl.comm(3, nccl.unique_id(), 0)
data = (ctypes.c_ubyte * 64)()
nccl.lib.ncclGroupStart()
assert nccl.lib.ncclAllReduce(data, data, 64, 1, 0, comm, None) == 0
nccl.lib.ncclGroupEnd()
assert set(data) == {{7}}
assert nccl.lib.ncclCommDestroy(comm) == 0
fake = ctypes.CDLL({str(fake)!r})
print(*(ctypes.c_int.in_dll(fake, "fake_" + name).value for name in ("made", "destroyed", "groups", "depth")))
"""
    environment = {**os.environ, "COLLC_NCCL": str(fake), "COLLC_DISABLE": "1"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1", "1", "1", "0"]


def test_a_forked_child_is_told_that_the_communicator_is_its_parents() -> None:
    program = f"""
import ctypes, os
from pathlib import Path
from collc.bench.nccl import Nccl
nccl = Nccl(Path({str(library("odd"))!r}))
comm = nccl.comm(1, nccl.unique_id(), 0)
data = (ctypes.c_ubyte * 64)()
child = os.fork()
result = nccl.lib.ncclAllReduce(data, data, 64, 1, 0, comm, None)
if child == 0:
    os._exit(result)
print(result, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["0", "5"], done.stderr


@pytest.mark.parametrize(("meanwhile", "children"), [("looks", 150), ("creates", 40)])
def test_children_forked_off_amid_calls_can_call(meanwhile: str, children: int) -> None:
    """None of them waits for a lock that another thread of its parent held."""
    run_client([client(HERE / "fork_calls.c", "pair"), meanwhile], f"{children} children\n")


@pytest.mark.parametrize(("machine", "ranks"), [("dgx1v", "8"), ("cores", "3")])
def test_the_results_are_the_same_bits_on_all_ranks_and_in_every_run(machine: str, ranks: str) -> None:
    program = client(HERE / "bits.c", machine)
    outputs = {
        subprocess.run([program, ways, ranks], capture_output=True, check=True, env={**os.environ, **direct}).stdout
        for ways in ("processes", "processes", "threads")
        for direct in ({}, {"COLLC_DIRECT": "0"})
    }
    assert len(outputs) == 1


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("COLLC_DIRECT", "2", "COLLC_DIRECT=2 is not a number from 0 to 1"),
        ("COLLC_DIRECT", "yes", "COLLC_DIRECT=yes is not a number from 0 to 1"),
        ("COLLC_CHUNK", "big", "COLLC_CHUNK=big is not a number"),
        ("COLLC_CHUNK", "15", "COLLC_CHUNK=15 is no multiple of 16 bytes"),
        *(("COLLC_CHANNELS", value, f"COLLC_CHANNELS={value} is not a ") for value in ("banana", "-3", "1025", "1.5")),
    ],
)
def test_a_mistyped_variable_is_heard_of(name: str, value: str, said: str) -> None:
    program = client(HERE / "bits.c", "cores")
    done = subprocess.run(
        [program, "threads", "3"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, name: value},
    )
    assert done.returncode == 1
    assert said in done.stderr


def test_smaller_chunks_give_the_same_bits() -> None:
    program = client(HERE / "bits.c", "odd")
    outputs = [
        subprocess.run([program, "processes", "3"], capture_output=True, check=True, env={**os.environ, **chunk}).stdout
        for chunk in ({}, {"COLLC_CHUNK": "4096"}, {"COLLC_CHUNK": "112"})
    ]
    assert len(set(outputs)) == 1


@pytest.mark.parametrize(("name", "least"), [("COLLC_CHUNK", 4096), ("COLLC_CHANNELS", 1)])
def test_ranks_with_different_overrides_are_told_so(name: str, least: int) -> None:
    with ranks(library("odd"), 3) as team:
        unique = team.ask(0, do="id")["id"]
        for rank in range(3):
            team.ask(rank, do="environment", name=name, value=str(least * (1 + rank // 2)))
        for rank in range(3):
            team.tell(rank, do="init", nranks=3, id=unique, rank=rank)
        answers = [team.hear(rank) for rank in range(3)]
    assert {answer["result"] for answer in answers} == {INVALID_USAGE}
    said = f"ranks 0 and 2 disagree: {name}={least} on the one, {name}={2 * least} on the other"
    assert all(said in answer["text"] for answer in answers)


def test_calls_when_a_thread_or_the_process_ends() -> None:
    assert run_client([client(HERE / "at_exit.c", "cores")], "destroyed\n").stdout == "destroyed\n" * 2


def test_fp8_is_rounded_to_nearest() -> None:
    """One rank: what comes out is the type's own rounding of input times scale, against a table of the format."""
    from collc.bench.nccl import Nccl

    nccl = Nccl(library("odd"))
    comm = nccl.comm(1, nccl.unique_id(), 0)
    lib = nccl.lib
    one_and_half = {10: 0x3C, 11: 0x3E}  # e4m3, e5m2
    for kind, scale in one_and_half.items():
        data = (ctypes.c_ubyte * 256)(*range(256))
        op, factor = ctypes.c_int(), ctypes.c_ubyte(scale)
        assert lib.ncclRedOpCreatePreMulSum(ctypes.byref(op), ctypes.byref(factor), kind, 1, comm) == 0
        assert lib.ncclAllReduce(data, data, 256, kind, op.value, comm, None) == 0
        values = [fp8(kind, bits) for bits in range(256)]
        finite = sorted({v for v in values if v == v and abs(v) != float("inf")})
        for bits in range(256):
            exact = values[bits] * 1.5
            if exact != exact or abs(exact) == float("inf"):
                continue
            got = fp8(kind, data[bits])
            wanted = min(abs(v - exact) for v in finite)
            assert abs(got - exact) == wanted, (kind, bits)
    assert lib.ncclCommDestroy(comm) == 0


def fp8(kind: int, bits: int) -> float:
    """OCP 8-bit floating point: e4m3 (10) and e5m2 (11)."""
    mantissa_bits, bias = (3, 7) if kind == 10 else (2, 15)
    sign = -1.0 if bits & 0x80 else 1.0
    exponent, mantissa = (bits & 0x7F) >> mantissa_bits, bits & ((1 << mantissa_bits) - 1)
    if kind == 10 and bits & 0x7F == 0x7F:
        return float("nan")
    if kind == 11 and exponent == 31:
        return sign * float("inf") if mantissa == 0 else float("nan")
    if exponent == 0:
        return sign * mantissa * 2.0 ** (1 - bias - mantissa_bits)
    return sign * (1 + mantissa / (1 << mantissa_bits)) * 2.0 ** (exponent - bias)


def test_a_window_without_memory_is_warned_of_once() -> None:
    program = f"""
import ctypes
from pathlib import Path
from collc.bench.nccl import Nccl
nccl = Nccl(Path({str(library("odd"))!r}))
comm = nccl.comm(1, nccl.unique_id(), 0)
data, window = (ctypes.c_ubyte * 64)(), ctypes.c_void_p(1)
for _ in range(2):
    assert nccl.lib.ncclCommWindowRegister(comm, data, ctypes.c_size_t(64), ctypes.byref(window), 0) == 0
    assert window.value is None
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "COLLC_DEBUG": "WARN"},
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "WARN" in line]
    assert "ncclCommWindowRegister gives NULL for a window" in line


def test_abort_ends_a_stuck_creation() -> None:
    """A creation that does not block, whose other ranks never come: state at once, and an abort that ends it."""
    program = f"""
import ctypes, struct, time
from pathlib import Path
from collc.bench.nccl import Nccl, UniqueId
nccl = Nccl(Path({str(library("odd"))!r}))
lib = nccl.lib
unset = -1 << 31
config = ctypes.create_string_buffer(struct.pack("QIIiiiii", 40, 0xCAFEBEEF, 22809, 0, unset, unset, unset, 0), 40)
comm, state = ctypes.c_void_p(), ctypes.c_int()
unique = UniqueId.from_buffer_copy(nccl.unique_id())
results = [lib.ncclCommInitRankConfig(ctypes.byref(comm), 3, unique, 0, config)]
start = time.monotonic()
for _ in range(100):
    results.append(lib.ncclCommGetAsyncError(comm, ctypes.byref(state)))
    results.append(state.value)
asked = time.monotonic() - start
results.append(lib.ncclAllReduce(None, None, 0, 7, 0, comm, None))
start = time.monotonic()
results.append(lib.ncclCommAbort(comm))
print(*sorted(set(results)), results[0], results[-2], results[-1], asked < 10, time.monotonic() - start < 10)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    # 7 is ncclInProgress, 5 ncclInvalidUsage: a call on a communicator that is not there yet.
    assert done.stdout.split() == ["0", "5", "7", "7", "5", "0", "True", "True"], (done.stdout, done.stderr)
