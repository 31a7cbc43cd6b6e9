"""Communicators that the real NCCL serves: every function of the table that takes one hands over NCCL's own handle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.libraries import library
from support.ranks import INVALID_USAGE
from test_api_table import DOCS, rows

from collc.build.toolchain import find_cxx, run_tool

pytestmark = pytest.mark.skipif(not DOCS.is_file(), reason="the docs are in the checkout, not in the wheel")

# Arguments of each function that takes a communicator: c its handle, p a pointer, m a place for a handle, t a team,
# n -1, a digit itself.
REDUCES, MOVES = "pp170c0", "pp17c0"
ROOTED = "pp171c0"
ARGUMENTS = {
    **dict.fromkeys(["CommFinalize", "CommResume"], "c"),
    **dict.fromkeys(["TeamWorld", "TeamLsa", "TeamRail", "TeamCftMultimem"], "c"),
    **dict.fromkeys(["CommRevoke", "CommSuspend", "TeamCft"], "c0"),
    **dict.fromkeys(["CommCount", "CommUserRank", "CommCuDevice", "CommGetAsyncError", "CommGetUniqueId"], "cp"),
    **dict.fromkeys(["CommDeregister", "CommWindowDeregister", "CommQueryProperties", "DevCommDestroy"], "cp"),
    **dict.fromkeys(["WinGetUserPtr", "DevCommCreate"], "cpp"),
    **dict.fromkeys(["TeamRankToWorld", "TeamRankToLsa"], "ct0"),
    **dict.fromkeys(["AlltoAll", "AllGather"], MOVES),
    **dict.fromkeys(["AlltoAllConfig", "AllGatherConfig"], MOVES + "p"),
    **dict.fromkeys(["AllReduce", "ReduceScatter"], REDUCES),
    **dict.fromkeys(["AllReduceConfig", "ReduceScatterConfig"], REDUCES + "p"),
    **dict.fromkeys(["Broadcast", "Gather", "Scatter"], ROOTED),
    **dict.fromkeys(["BroadcastConfig", "GatherConfig", "ScatterConfig"], ROOTED + "p"),
    **dict.fromkeys(["Send", "Recv"], "p170c0"),
    "Bcast": "p171c0",
    "Reduce": "pp1700c0",
    "ReduceConfig": "pp1700c0p",
    "CommSplit": "c00m0",
    "CommShrink": "cp1m00",
    "CommGrow": "c30nm0",
    "CommRegister": "cp1p",
    "CommWindowRegister": "cp1p0",
    "CommMemStats": "c0p",
    "RedOpCreatePreMulSum": "pp70c",
    "RedOpDestroy": "9c",
    "PutSignal": "p170p0000c0",
    "Signal": "0000c0",
    "WaitSignal": "1pc0",
    "GinBarrierCreateRequirement": "ct1pp",
}
# Queries that the library answers for such a communicator, and names that it forwards as another function.
KNOWN = {"CommCount", "CommUserRank", "CommCuDevice"}
AS = {"Bcast": "Broadcast"}
# Functions that end the communicator.
ENDS = ("CommAbort", "CommDestroy")
# Functions without a communicator, and with a window of the real NCCL: w the window, t a team, a digit itself.
PASSED_ON = {
    **dict.fromkeys([f"ParamGet{sign}{bits}" for sign in "IU" for bits in (8, 16, 32, 64)], "56"),
    **dict.fromkeys(["ParamBind", "ParamGetStr", "ParamGetAllParameterKeys", "LLA2ACalcSlots"], "56"),
    **dict.fromkeys(["ParamDumpAll", "ResetDebugInit", "ResetDebugInitInternal"], ""),
    **dict.fromkeys(["LLA2ACreateRequirement", "GinOutboxCreateRequirement", "ParamGet"], "5678"),
    **dict.fromkeys(["GetLsaDevicePointer", "GetPeerDevicePointer", "GetMultimemDevicePointer"], "w567"),
    "GetLsaMultimemDevicePointer": "w56",
    "GetMultimemDeviceLeInfo": "w567",
    "GetPeerDeviceLeInfo": "w5678",
    "GetCftDeviceLeInfo": "w56t78",
    "ParamGetParameter": "567",
    "LsaBarrierCreateRequirement": "t567",
    "GinInboxA2ACreateRequirement": "t5678",
}
WITHOUT = {
    *PASSED_ON,
    *("GetVersion", "GetUniqueId", "GetErrorString", "GetLastError", "MemAlloc", "MemFree", "GroupStart", "GroupEnd"),
    *("CommInitRank", "CommInitRankConfig", "CommInitAll", "CommInitRankScalable", "GroupSimulateEnd", "SetEncryption"),
}
FAKE = """
#include <stdio.h>
#include <string.h>
static char handles[8];
static int made = 0;
static char said[4096];
const char *heard(void) { return said; }
void forget(void) { said[0] = 0; }
static void note(const char *name, void *const *arguments) {
  for (int i = 0; i < 12; ++i)
    if ((char *)arguments[i] >= handles && (char *)arguments[i] < handles + made)
      snprintf(said + strlen(said), sizeof said - strlen(said), "%s ", name);
}
#define STUB(name)                                                                                                   \\
  long name(void *a, void *b, void *c, void *d, void *e, void *f, void *g, void *h, void *i, void *j, void *k,       \\
            void *l) {                                                                                               \\
    void *const all[] = {a, b, c, d, e, f, g, h, i, j, k, l};                                                        \\
    note(#name, all);                                                                                                \\
    return 0;                                                                                                        \\
  }
#define MAKER(name, at)                                                                                              \\
  long name(void *a, void *b, void *c, void *d, void *e, void *f) {                                                  \\
    void *const all[12] = {a, b, c, d, e, f};                                                                        \\
    note(#name, all);                                                                                                \\
    *(void **)all[at] = handles + made++;                                                                            \\
    return 0;                                                                                                        \\
  }
struct id { char bytes[128]; };
int ncclGetVersion(int *version) { *version = 23203; return 0; }
int ncclGetUniqueId(struct id *id) { memset(id, 0x5a, sizeof *id); return 0; }
int ncclCommInitRankConfig(void **comm, int nranks, struct id id, int rank, void *config) {
  *comm = handles + made++;
  return 0;
}
int ncclCommInitRank(void **comm, int nranks, struct id id, int rank) {
  return ncclCommInitRankConfig(comm, nranks, id, rank, 0);
}
const char *ncclGetErrorString(int error) { return "fake"; }
const char *ncclGetLastError(void *comm) { return ""; }
int ncclGroupStart(void) { return 0; }
int ncclGroupEnd(void) { return 0; }
struct texts { char before[32]; const char *network; char between[8]; const char *name; };
const char *named(const struct texts *config) {
  if (config != 0) snprintf(said, sizeof said, "%s over %s", config->name, config->network);
  return said;
}
MAKER(ncclCommSplitTo, 3)
long ncclCommSplit(void *a, void *b, void *c, void *d, void *e) {
  ncclCommSplitTo(a, b, c, d, e, 0);
  if (e != 0) named(e);
  note("ncclCommSplit", (void *[12]){a});
  return 0;
}
MAKER(ncclCommShrink, 3)
MAKER(ncclCommGrow, 4)
"""
PROGRAM = """
import ctypes, json, sys
class Team(ctypes.Structure):
    _fields_ = [("nranks", ctypes.c_int), ("rank", ctypes.c_int), ("stride", ctypes.c_int)]
lib, fake, spec = ctypes.CDLL(sys.argv[1]), ctypes.CDLL(sys.argv[2]), json.loads(sys.argv[3])
fake.heard.restype = lib.ncclGetLastError.restype = ctypes.c_char_p
comms, said = (ctypes.c_void_p * 2)(), {}
assert lib.ncclCommInitAll(comms, 2, None) == 0, lib.ncclGetLastError(None)
for name, arguments in spec.items():
    room = ctypes.create_string_buffer(4096)
    made = ctypes.c_void_p()
    kinds = {"c": ctypes.c_void_p(comms[1]), "p": room, "m": ctypes.byref(made), "t": Team(2, 1, 1), "n": -1}
    function = getattr(lib, "nccl" + name)
    if name.startswith("Team") and "Rank" not in name:
        function.restype = Team
    fake.forget()
    function(*[kinds[one] if one in kinds else ctypes.c_void_p(int(one)) for one in arguments])
    said[name] = fake.heard().decode().split()
print(json.dumps(said))
"""

RECORDER = """
#include <string.h>
static void *received[8];
static int calls;
int called(void **place) { memcpy(place, received, sizeof received); return calls; }
#define STUB(name)                                                                                                   \\
  long name(void *a, void *b, void *c, void *d, void *e, void *f, void *g, void *h) {                                \\
    void *const all[] = {a, b, c, d, e, f, g, h};                                                                    \\
    memcpy(received, all, sizeof received);                                                                          \\
    ++calls;                                                                                                         \\
    return 3;                                                                                                        \\
  }
int ncclGetVersion(int *version) { *version = 23203; return 0; }
"""
WITHOUT_COMMUNICATOR = """
import ctypes, json, sys
class Team(ctypes.Structure):
    _fields_ = [("nranks", ctypes.c_int), ("rank", ctypes.c_int), ("stride", ctypes.c_int)]
lib, spec, said = ctypes.CDLL(sys.argv[1]), json.loads(sys.argv[3]), {}
lib.ncclGetLastError.restype = ctypes.c_char_p
fake = ctypes.CDLL(sys.argv[2]) if sys.argv[2] else None
kinds = {"w": ctypes.c_void_p(0x7777), "t": Team(2, 1, 3)}
for name, arguments in spec.items():
    for prefix in ("nccl", "pnccl")[: 1 if name.endswith("Internal") else 2]:
        values = [kinds[one] if one in kinds else ctypes.c_void_p(int(one)) for one in arguments]
        code = getattr(lib, prefix + name)(*values)
        place = (ctypes.c_void_p * 8)()
        calls = 0 if fake is None else fake.called(place)
        said[prefix + name] = [code, calls, [one or 0 for one in place], lib.ncclGetLastError(None).decode()]
print(json.dumps(said))
"""

NAMED = """
import ctypes, sys
sys.path.insert(0, sys.argv[3])
from mock_habits import config
from collc.bench.nccl import UniqueId
lib, fake = ctypes.CDLL(sys.argv[1]), ctypes.CDLL(sys.argv[2])
fake.heard.restype = ctypes.c_char_p
settings, unique, comms, part = config(1), UniqueId(), [ctypes.c_void_p(), ctypes.c_void_p()], ctypes.c_void_p()
name, network = ctypes.create_string_buffer(b"all of them"), ctypes.create_string_buffer(b"socket")
settings.commName, settings.netName = (ctypes.cast(text, ctypes.c_char_p) for text in (name, network))
assert lib.ncclGetUniqueId(ctypes.byref(unique)) == 0
lib.ncclGroupStart()
for rank in (0, 1):
    assert lib.ncclCommInitRankConfig(ctypes.byref(comms[rank]), 2, unique, rank, ctypes.byref(settings)) == 0
assert lib.ncclGroupEnd() == 0
name.value = network.value = b"gone"
assert lib.ncclCommSplit(comms[1], 0, 0, ctypes.byref(part), None) == 0
print(fake.heard().decode())
"""


def fake_nccl(folder: Path) -> Path:
    explicit = {"CommSplit", "CommShrink", "CommGrow"}
    stubs = [f"STUB(nccl{name})" for name in (*ARGUMENTS, *ENDS) if name not in explicit]
    source, fake = folder / "fake.c", folder / "libnccl.so"
    source.write_text("\n".join([FAKE, *stubs, ""]), encoding="utf-8")
    run_tool([find_cxx().path, "-xc", "-w", "-shared", "-fPIC", str(source), "-o", str(fake)])
    return fake


def test_texts_of_a_configuration_outlive_the_callers(tmp_path: Path) -> None:
    """A split without a configuration inherits the communicator's configuration, whose strings may be gone."""
    fake = fake_nccl(tmp_path)
    command = [sys.executable, "-c", NAMED, str(library("odd")), str(fake), str(Path(__file__).parent)]
    environment = {**os.environ, "COLLC_NCCL": str(fake)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("all of them over socket")


def test_every_function_is_accounted_for() -> None:
    names = {row.name.removeprefix("nccl") for row in rows()}
    assert names == set(ARGUMENTS) | set(ENDS) | WITHOUT


def call_without_communicator(real: Path | None) -> dict[str, tuple[int, int, list[int], str]]:
    """Calls each function of PASSED_ON.

    Returns:
        Its result, the number of calls that `real` got until then, the arguments of its last call, and the last error.
    """
    command = [sys.executable, "-c", WITHOUT_COMMUNICATOR, str(library("odd")), str(real or ""), json.dumps(PASSED_ON)]
    environment = {**os.environ, "COLLC_NCCL": str(real or "/nowhere/libnccl.so.2")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_functions_without_a_communicator_are_passed_on(tmp_path: Path) -> None:
    source, recorder = tmp_path / "recorder.c", tmp_path / "librecorder.so"
    source.write_text("\n".join([RECORDER, *(f"STUB(nccl{name})" for name in PASSED_ON), ""]), encoding="utf-8")
    run_tool([find_cxx().path, "-xc", "-w", "-shared", "-fPIC", str(source), "-o", str(recorder)])
    registers = {**{str(number): [number] for number in range(5, 9)}, "w": [0x7777], "t": [2 | 1 << 32, 3]}
    for number, (name, (code, calls, received, _)) in enumerate(call_without_communicator(recorder).items()):
        arguments = PASSED_ON[name.removeprefix("p").removeprefix("nccl")]
        assert calls == number + 1, name
        assert code == 3 or not arguments, name
        sent = [value for one in arguments for value in registers[one]]
        # The upper 32 bits of a register are undefined for an int, and for the last number of a team.
        assert [value & 0xFFFFFFFF for value in received[: len(sent)]] == [value & 0xFFFFFFFF for value in sent], name
        assert "t" not in arguments or 1 << 32 | 2 in received, name


def test_functions_without_a_communicator_are_refused_by_name_without_nccl() -> None:
    for name, (code, _, _, text) in call_without_communicator(None).items():
        plain = name.removeprefix("p")
        if PASSED_ON[plain.removeprefix("nccl")] == "":
            continue  # has no result
        assert code == (0 if plain == "ncclLLA2ACalcSlots" else INVALID_USAGE), name
        assert text.startswith(f"{plain}: no NCCL was found to take it"), name


def test_every_function_that_takes_a_communicator_is_passed_on_with_nccls_handle(tmp_path: Path) -> None:
    fake = fake_nccl(tmp_path)
    for end in ENDS:
        spec = {**ARGUMENTS, end: "c"}
        command = [sys.executable, "-c", PROGRAM, str(library("odd")), str(fake), json.dumps(spec)]
        environment = {**os.environ, "COLLC_NCCL": str(fake)}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=60)
        assert done.returncode == 0, done.stderr
        heard = json.loads(done.stdout)
        assert {
            name: calls for name, calls in heard.items() if f"nccl{AS.get(name, name)}" not in calls
        }.keys() == KNOWN
