"""gpu_check/check.py, which normally needs a GPU, on the mock driver."""

from __future__ import annotations

import ast
import importlib.util
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import zlib
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.cli import collc
from test_cuda_runtime import library, mock_driver, specialised
from test_direct_jobs import direct

from collc.build import cuda, nvcc
from collc.build.cache import cache_dir
from collc.build.nvrtc import nvrtc_path
from collc.build.runtime import include_dirs
from collc.build.toolchain import find_cxx
from collc.codegen.render import TEMPLATE, environment
from collc.resources import resource_dir
from collc.simulator.generations import MACHINES
from collc.simulator.params_file import read_params

FOLDER = Path(__file__).parent.parent.parent / "gpu_check"
# The modules that run on a machine with a GPU. The other files write their inputs, or need PyTorch.
MODULES = ("check", "table", "building", "sources", "gpu", "results", "measures", "processes", "constants")
LONG = ("hgx-h100-sets", "dgx1v", "8-slots")
LIBRARIES = ("hgx-h100", "hgx-h100-sets", "dgx1v", "chain", "fan", "chains", "2-slots", "8-slots")

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="gpu_check is in the checkout, not in the wheel")


def run(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FOLDER / "check.py"), *arguments]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", **settings}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=400)


def on_the_mock(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    given = ("--library", str(library()), "--tiny", *arguments)
    return run(*given, **{"LD_LIBRARY_PATH": str(mock_driver()), **settings})


def table_of(done: subprocess.CompletedProcess[str]) -> str:
    """Returns the last table of the output."""
    return done.stdout.split("\n\n", 1)[1]


@pytest.mark.slow
def test_it_checks_every_type_and_operation(tmp_path: Path) -> None:
    out = tmp_path / "not" / "there"
    done = on_the_mock("--stretch", "10", "--parts", "results", OUT=str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"results, protocols by the table +468 of 468 right", done.stdout)
    for protocol in ("Simple", "LL", "LL128"):
        assert re.search(rf"results, {protocol} +80 of 80 right", done.stdout)
    assert done.stdout.splitlines()[-1].strip().startswith("all checks passed in")
    assert (out / "gpu-check.txt").read_text() == table_of(done)


def test_it_checks_calls_in_place_transfers_streams_and_graphs() -> None:
    done = on_the_mock("--stretch", "10", "--parts", "in place,transfers,streams,graphs")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"results in place +24 of 24 right", done.stdout)
    for transfer in ("gather", "scatter", "all_to_all", "send and receive"):
        assert re.search(rf"results, {transfer} +3 of 3 right", done.stdout)
    for what in ("copy in, call, copy out", "calls take turns on two", "two communicators"):
        assert re.search(rf"streams: {what} +right", done.stdout)
    for what in ("all ranks on one stream", "streams joined by events", "calls take turns on two sets"):
        assert re.search(rf"graph: {what} +right, 3 replays", done.stdout)


@pytest.mark.slow
def test_processes_kernels_that_wait_and_ranks_that_die() -> None:
    """Each rank is a process: results over both transports, an abort, a time-out, deaths. Each row runs by itself."""
    done = on_the_mock("--stretch", "10", "--parts", "processes,abort,time-out,killed process")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"abort of a kernel that waits +ended \d+\.\d ms after ncclCommAbort; the next", done.stdout)
    told = r"told after (\d+\.\d\d) s of 1, ended \d+\.\d ms later: .*rank 0 waits for .*rank [12]"
    after = re.search(rf"time-out of a kernel that waits +{told}", done.stdout)
    assert after is not None, done.stdout
    assert float(after[1]) >= 0.9
    assert re.search(r"a rank killed while a kernel waits +told after \d+ ms, the kernel ended .*rank 2", done.stdout)
    assert re.search(r"a rank killed before a call +(told|refused).*rank 2", done.stdout)
    for way in ("GPU memory", "host slots"):
        assert re.search(rf"3 processes, {way} +27 of 27 right", done.stdout)
        assert re.search(rf"3 processes, {way}, all_reduce +\d+, \d+ us for 8, 1048576 bytes", done.stdout)
    for way in ("copy engines", "copy engines, host slots"):
        assert re.search(rf"3 processes, {way} +27 of 27 right", done.stdout)


@pytest.mark.slow
def test_processes_that_are_joined_otherwise_are_not_run() -> None:
    done = on_the_mock("--stretch", "10", "--parts", "processes", NCCL_P2P_DISABLE="1")
    assert done.returncode == 3, done.stdout + done.stderr
    assert re.search(
        r"3 processes, GPU memory +not run: they are not joined so, but: .*pinned host memory", done.stdout
    )
    assert re.search(r"3 processes, host slots +27 of 27 right", done.stdout)
    assert re.search(r"3 processes, copy engines, host slots +27 of 27 right", done.stdout)


@pytest.mark.slow
def test_copy_engines_that_a_driver_lacks_are_not_run() -> None:
    done = on_the_mock("--stretch", "10", "--parts", "processes", MOCK_MEMORY_OPERATIONS="0")
    assert done.returncode == 3, done.stdout + done.stderr
    assert len(re.findall(r"3 processes, copy engines.* +not run: kernels do all calls: .*lacks", done.stdout)) == 2


@pytest.mark.slow
def test_buffers_that_peers_read_are_checked_in_one_process_and_in_several() -> None:
    """Uses a library of --direct. A driver whose kernels take all data from slots is found. If the processes share no
    GPU memory, the part reports it, and the status is not 0."""
    given = ("--library", str(direct()), "--tiny", "--stretch", "10", "--parts", "lending")
    done = run(*given, LD_LIBRARY_PATH=str(mock_driver()))
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"results, buffers read where they stand +80 of 80 right", done.stdout)
    assert re.search(r"3 processes that read each other's buffers +27 of 27 right", done.stdout)
    faulty = run(*given, LD_LIBRARY_PATH=str(mock_driver(fault="UNREAD_PLACE")))
    assert faulty.returncode == 1
    assert re.search(r"3 processes that read each other's buffers +\d+ of 27 right; wrong: ", faulty.stdout)
    for unable in {"NCCL_P2P_DISABLE": "1"}, {"MOCK_VMM": "0"}:
        refused = run(*given, LD_LIBRARY_PATH=str(mock_driver()), **unable)
        assert refused.returncode == 3, refused.stdout + refused.stderr
        assert re.search(r"3 processes that read each other's buffers +not run: ", refused.stdout)


def test_a_library_without_such_kernels_has_no_such_part() -> None:
    done = on_the_mock("--parts", "lending")
    assert "processes that read" not in done.stdout


def test_without_a_driver_it_fails_with_one_line() -> None:
    done = on_the_mock("--parts", "results", LD_LIBRARY_PATH="")
    assert done.returncode == 1
    assert "no NVIDIA driver here" in done.stdout
    assert re.search(r"results: LL128 +not run: there is no GPU to run it on", done.stdout)
    assert "Traceback" not in done.stdout + done.stderr


def test_a_folder_that_cannot_be_made_is_told_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = on_the_mock(OUT=str(tmp_path / "file" / "below"))
    assert done.returncode == 1
    assert re.fullmatch(r"cannot write to OUT: .*\n", done.stdout)
    assert done.stderr == ""


FAULTY = r"""
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <unistd.h>

static bool launched = false;
using Launch = int (*)(void *, int, int, int, int, int, int, int, void *, void **);

static bool forced(const char *protocol) {
  const char *value = std::getenv("COLLC_PROTO");
  return value != nullptr && std::strcmp(value, protocol) == 0;
}
extern "C" int cuLaunchCooperativeKernel(void *kernel, int gx, int gy, int gz, int bx, int by, int bz, int shared,
                                         void *stream, void **parameters) {
  launched = true;
  const auto next = reinterpret_cast<Launch>(dlsym(RTLD_NEXT, "cuLaunchCooperativeKernel"));
  return next(kernel, gx, gy, gz, bx, by, bz, shared, stream, parameters);
}
// A kernel that nothing stops: none of COLLC_TIMEOUT, an abort, a death ends it.
extern "C" int cuStreamQuery(void *stream) {
  if (std::getenv("FAULT_STUCK") != nullptr && launched) return 600;
  return reinterpret_cast<int (*)(void *)>(dlsym(RTLD_NEXT, "cuStreamQuery"))(stream);
}
extern "C" int cuLaunchKernel(void *kernel, int gx, int gy, int gz, int bx, int by, int bz, int shared, void *stream,
                              void **parameters, void **extra) {
  launched = true;
  // One that does not wait for anybody.
  if (std::getenv("FAULT_NO_WAIT") != nullptr) return 0;
  const auto next = reinterpret_cast<int (*)(void *, int, int, int, int, int, int, int, void *, void **, void **)>(
      dlsym(RTLD_NEXT, "cuLaunchKernel"));
  return next(kernel, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra);
}
extern "C" int cuCtxSynchronize() {
  while (launched && forced("LL")) pause();
  return reinterpret_cast<int (*)()>(dlsym(RTLD_NEXT, "cuCtxSynchronize"))();
}
extern "C" int cuMemcpyDtoH_v2(char *to, unsigned long long from, size_t bytes) {
  std::memcpy(to, reinterpret_cast<void *>(from), bytes);
  if (forced("LL128")) to[0] ^= 1;
  return 0;
}
"""


@cache
def faulty_driver() -> Path:
    """Returns a mock driver whose LL kernels never end and whose LL128 kernels give wrong results."""
    folder = cache_dir() / "tests" / "faulty"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(mock_driver() / "libcuda.so.1", folder / "libmock.so")
    (folder / "faulty.cpp").write_text(FAULTY)
    command = [find_cxx().path, "-shared", "-fPIC", "-Wl,--no-as-needed", str(folder / "faulty.cpp")]
    command += [str(folder / "libmock.so"), "-ldl", "-o", str(folder / "libcuda.so.1")]
    subprocess.run(command, check=True, timeout=60)
    return folder


def on_the_faulty_driver(out: Path, change: str, *arguments: str, watchdog: float = 900) -> tuple[str, int]:
    """Returns the output and the status of the check, after the statement `change` on a library's `parts`."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import check\n"
        f"check.WATCHDOG = {watchdog}\n"
        "before = check.library_parts\n"
        "def changed(parts):\n"
        f"    {change}\n"
        "    return parts\n"
        "check.library_parts = lambda *given: {kind: changed(parts) for kind, parts in before(*given).items()}\n"
        "sys.argv[1:] = ['--library', *sys.argv[2:]]\n"
        "sys.exit(check.main())\n"
    )
    environment = {**os.environ, "LD_LIBRARY_PATH": str(faulty_driver()), "OUT": str(out), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", program, str(FOLDER), str(library()), "--tiny", "--types", "int8", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=1000)
    written = (out / "gpu-check.txt").read_text()
    assert written == table_of(done)
    return written, done.returncode


@pytest.mark.slow
def test_a_part_that_hangs_is_ended_and_the_others_have_their_rows(tmp_path: Path) -> None:
    """The others have all the time they may need on a slow machine."""
    change = "parts = [p._replace(seconds=2. if p.name == 'results: LL' else 30.) for p in parts]"
    written, status = on_the_faulty_driver(tmp_path, change, "--stretch", "10", "--parts", "results,in place")
    assert status == 1
    assert re.search(r"results, Simple +\d+ of \d+ right", written)
    assert re.search(r"results: LL +NOT ENDED: killed after 20 s, at its no. 2, all_reduce int8 sum 33", written)
    assert re.search(r"results, LL128 +0 of \d+ right.*; wrong: all_reduce int8 sum 33", written)
    assert re.search(r"results in place +24 of 24 right", written)
    assert written.splitlines()[-1].strip().startswith("NOT all checks passed in")


@pytest.mark.parametrize(
    ("fault", "stretch", "words"),
    [
        pytest.param("FAULT_STUCK", "10", r"the kernel has not ended in 50 s", marks=pytest.mark.slow),
        ("FAULT_NO_WAIT", "4", r"the kernel ended although a rank did not come|no error in|the next one is wrong"),
    ],
)
def test_kernels_that_nothing_ends_or_that_do_not_wait_are_found(fault: str, stretch: str, words: str) -> None:
    """Each of the parts fails by itself, and says why."""
    given = ("--library", str(library()), "--tiny", "--stretch", stretch, "--parts", "abort,time-out,killed process")
    done = run(*given, **{"LD_LIBRARY_PATH": str(faulty_driver()), fault: "1"})
    assert done.returncode == 1, done.stdout + done.stderr
    for part in ("abort", "time-out", "killed process"):
        assert re.search(rf"{part} +FAILED: .*({words})", done.stdout), done.stdout


@pytest.mark.slow
def test_the_watchdog_prints_what_there_is(tmp_path: Path) -> None:
    change = "parts = [p._replace(seconds=300.) for p in parts][-2:]"
    written, status = on_the_faulty_driver(tmp_path, change, "--parts", "results", watchdog=25)
    assert status == 1
    assert re.search(r"results: LL +not run to its end: the time of the whole check is over", written)
    assert re.search(r"results: LL128 +not run: the time of the whole check is over", written)
    ended = re.match(r"NOT all checks passed, ended by the watchdog after (\d+) s", written.splitlines()[-1].strip())
    assert ended is not None
    assert int(ended[1]) < 200


def loaded(name: str) -> ModuleType:
    """A module of the folder; its name stays free for others."""
    spec = importlib.util.spec_from_file_location(f"gpu_check_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_times_of_all_parts_add_up_to_less_than_the_watchdogs() -> None:
    program = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]); import check\n"
        "options = check.parse([]); check.SANITIZER = ('sh',)\n"
        "libraries = {name: Path(name) for name in check.NAMES}\n"
        "parts = [*check.first_parts(Path(), options), *check.later_parts(libraries, options)]\n"
        "names = {p.name.split(':')[0] for p in parts}\n"
        "assert names >= {'results', 'throughput', 'hops', 'block', 'sizes', 'graphs', 'sweeps', 'slots'}\n"
        "assert names >= {'shape', 'nccl'}\n"
        "assert names >= {'abort', 'time-out', 'killed process', 'processes', 'counters', 'constants'}\n"
        "print(sum(part.seconds for part in parts), check.WATCHDOG)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(FOLDER)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    together, watchdog = map(float, done.stdout.split())
    assert 200 < together < watchdog < 480


def test_it_imports_nothing_but_the_standard_library_and_numpy() -> None:
    for module in MODULES:
        tree = ast.parse((FOLDER / f"{module}.py").read_text(encoding="utf-8"), feature_version=(3, 9))
        names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert {name.split(".")[0] for name in names} - {"numpy", *MODULES} <= sys.stdlib_module_names
        # Python 3.9 has no zip(strict=...).
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        assert not [call for call in calls for keyword in call.keywords if keyword.arg == "strict"]


def test_drivers_before_cuda_13_get_code_by_nvrtc_12(tmp_path: Path) -> None:
    """Driver, chip and installed compilers decide which compiler makes the kernels. NVRTC takes the command."""
    compiler = tmp_path / "bin" / "nvcc"
    compiler.parent.mkdir()
    compiler.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n")
    compiler.chmod(0o755)
    (tmp_path / "device.cu").write_text('extern "C" __global__ void nothing() {}\n')
    program = (
        "import sys, time; sys.path.insert(0, sys.argv[1]); import building; from pathlib import Path\n"
        "building.DEVICE_SOURCE, code = Path(sys.argv[2]) / 'device.cu', Path(sys.argv[2]) / 'code'\n"
        "for sm, cuda in ((90, 13), (90, 12), (70, 13)):\n"
        "    job = building.device_job(sm, code, cuda)\n"
        "    print([Path(word).name for word in job if word.endswith(('nvcc', 'worker.py'))][0])\n"
        "if len(sys.argv) > 3: building.run_all([building.device_job(60, code)], time.monotonic() + 90)\n"
    )
    command = [sys.executable, "-c", program, str(FOLDER), str(tmp_path)]
    environment = {
        **os.environ,
        "PATH": f"{compiler.parent}:{os.environ['PATH']}",
        "COLLC_NVRTC": "/none/libnvrtc.so.12",
    }
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=60)
    assert done.stdout.split() == ["nvcc", "nvrtc_worker.py", "nvrtc_worker.py"], done.stderr
    if nvrtc_path() is None:
        return
    environment["COLLC_NVRTC"] = str(nvrtc_path())
    done = subprocess.run([*command, "run"], capture_output=True, text=True, check=False, env=environment, timeout=100)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "code").read_bytes()[:4] == b"\x7fELF"


def test_a_library_that_does_not_build_costs_the_others_nothing(tmp_path: Path) -> None:
    """One library does not compile, and the other one is still built."""
    compiler = tmp_path / "bin" / "g++"
    compiler.parent.mkdir()
    compiler.write_text(
        "#!/bin/sh\nfor one; do last=$one; case $one in *.cpp)\n"
        "grep -q nonsense $one && { echo error: nonsense >&2; exit 1; };; esac; done\necho > $last\n"
    )
    compiler.chmod(0o755)
    for name, text in (("good", "int x;\n"), ("bad", "nonsense\n")):
        (tmp_path / f"{name}.cpp").write_text(text)
    program = (
        "import sys, time; sys.path.insert(0, sys.argv[1]); import building; from pathlib import Path\n"
        "folder = Path(sys.argv[2])\n"
        "sources, code = [folder / 'good.cpp', folder / 'bad.cpp'], folder / 'code'\n"
        "built = building.build(sources, folder / 'made', 90, time.monotonic() + 50, fatbin=code)\n"
        "print([path.name for path in built.made], built.failed)\n"
    )
    environment = {**os.environ, "PATH": f"{compiler.parent}:{os.environ['PATH']}"}
    command = [sys.executable, "-c", program, str(FOLDER), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=60)
    assert done.stdout == "['libcollc-good.so'] {'bad': 'g++ ended with status 1: error: nonsense'}\n", done.stderr


@pytest.mark.parametrize("breaks", [False, True])
def test_other_kernels_are_built_beside_and_cost_nothing_else(breaks: bool, tmp_path: Path) -> None:
    """Kernels that count and kernels that read peers' buffers, with compilers that write nothing or cannot count."""
    tools = tmp_path / "bin"
    tools.mkdir()
    write = 'for one; do last=$one; done; echo > "$last"\n'
    counts = 'case "$*" in *COLLC_COUNTERS*) echo error: no counters >&2; exit 1;; esac\n' * breaks
    (tools / "g++").write_text(f"#!/bin/sh\n{write}")
    (tools / "nvcc").write_text(f'#!/bin/sh\n{counts}[ "$1" = --version ] && echo release 13.0, || {{ {write} }}\n')
    for name in ("g++", "nvcc"):
        (tools / name).chmod(0o755)
    (tmp_path / "one.cpp").write_text("int x;\n")
    program = (
        "import sys, time; sys.path.insert(0, sys.argv[1]); import building; from pathlib import Path\n"
        "folder = Path(sys.argv[2])\n"
        "end = time.monotonic() + 50\n"
        "built = building.build([folder / 'one.cpp'], folder / 'made', 90, end, counting='one', lending='one')\n"
        "print([path.name for path in built.made], built.failed)\n"
        "print('collc_counters' in (folder / 'made' / 'collc.s').read_text())\n"
    )
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    command = [sys.executable, "-c", program, str(FOLDER), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=60)
    failed = "{'counting': 'nvcc ended with status 1: error: no counters'}"
    made = f"['libcollc-one.so', 'libcollc-lending.so'] {failed}"
    if not breaks:
        made = "['libcollc-one.so', 'libcollc-counting.so', 'libcollc-lending.so'] {}"
    assert done.stdout == f"{made}\nFalse\n", done.stderr
    if not breaks:
        assert "collc_counters: .byte 1" in (tmp_path / "made" / "counting.s").read_text()
    assert "collc_direct: .byte 1" in (tmp_path / "made" / "lending.s").read_text()


def test_what_did_not_run_is_not_status_0(capsys: pytest.CaptureFixture[str]) -> None:
    table = loaded("table").Table(None)
    table.add("a", "results", "9 of 9 right")
    assert table.finish(" in") == 0
    table.add("", "all_reduce, NCCL", "not run: no NCCL here")
    assert table.finish(" in") == 3
    assert "all checks that ran passed, 1 did not run in" in capsys.readouterr().out
    table.add("a", "results", "8 of 9 right", good=False)
    assert table.finish(" in") == 1


def measured(statements: str, path: Path | None = None, **settings: str) -> str:
    """The rows that measurements make on the mock, whose times mean nothing; three ranks alone are served."""
    program = (
        "import sys, time; sys.path.insert(0, sys.argv[1]); import measures; from pathlib import Path\n"
        "sys.path[:] = sys.argv[1:2] + [p for p in sys.path if 'nvidia' not in p]\n"
        "path, until, found = Path(sys.argv[2]), time.monotonic() + 100, []\n"
        f"{statements}\n"
        "print('\\n'.join(f'{row[0]}: {row[1]}' for row in found if isinstance(row, tuple)))\n"
    )
    environment = {**os.environ, "LD_LIBRARY_PATH": str(mock_driver()), "COLLC_SHARE_GPU": "1", **settings}
    command = [sys.executable, "-c", program, str(FOLDER), str(path or library())]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_throughput_and_sizes_have_their_rows() -> None:
    said = measured(
        "found += measures.throughput(path, 'Simple', 0.001, {})\n"
        "rates = next(one for one in found if isinstance(one, dict))['rates']\n"
        "found += measures.throughput(path, 'LL128', 0.001, rates)\n"
        "measures.RANKS = (3, 2)\n"
        "found += measures.sizes(path, 'Simple', 0.001, False, until)\n"
        "found += measures.sizes(path, 'LL', 0.001, True, until)\n"
    )
    assert re.search(r"^device-to-device copy: \d+ GB/s written", said, re.M)
    assert re.search(r"^broadcast, 0\.001 MB, 3 ranks, Simple: \d+ GB/s copied into slots \(\d+% of", said, re.M)
    assert re.search(r"^all_reduce, 0\.001 MB, 3 ranks, LL128: .* \(\d+% of a copy, \d+% of Simple\)", said, re.M)
    assert re.search(r"^all_reduce, us: called one by one +8B +1K$", said, re.M)
    assert re.search(r"^all_reduce, us: in graphs +8B +1K$", said, re.M)
    assert re.search(r"^  3 ranks, Simple:( +\d+\.\d){2}$", said, re.M)
    assert re.search(r"^  3 ranks, LL:( +\d+\.\d){2}$", said, re.M)
    assert re.search(r"^  2 ranks, LL: not run: .* serves no 2 ranks", said, re.M)


@pytest.mark.slow
def test_a_library_with_written_steps_is_measured_by_tables_too() -> None:
    path, code = specialised()
    said = measured(
        "measures.RANKS = (3,)\nfound += measures.sizes(path, 'chosen', 0.001, False, until)\n",
        path,
        LD_LIBRARY_PATH=str(mock_driver(code=code)),
    )
    assert re.search(r"^  3 ranks, chosen:( +\d+\.\d){2}\n  3 ranks, by tables:( +\d+\.\d){2}$", said, re.M)


@pytest.mark.slow
def test_sweeps_shapes_and_blocks_have_their_rows() -> None:
    said = measured(
        "measures.CHUNKS, measures.CHANNELS, measures.THREADS = (1024, 16), (1, 5000), (64, 96)\n"
        "found += measures.sweeps(path, 'Simple', 0.001, until)\n"
        "found += measures.slots([path, path.with_name('libcollc-none.so')], 'LL', 0.001, until)\n"
        "for name in measures.SHAPES: found += measures.shape(name, path, 'LL', 0.001, until)\n"
        "found += measures.block(path, 'LL128', 0.001)\n"
    )
    assert re.search(r"^all_reduce, 0\.001 MB, Simple, GB/s by chunk: 1K: \d+ +16B: \d+$", said, re.M)
    assert re.search(r"^all_reduce, 0\.001 MB, Simple, GB/s by channels: 1: \d+ +5000: not run \(", said, re.M)
    assert re.search(r"^all_reduce, 0\.001 MB, Simple, GB/s by threads: 64: \d+ +96: not run \(.*COLLC_THR", said, re.M)
    assert re.search(r"^all_reduce, 0\.001 MB, LL, GB/s by slots: .*: \d+, none: not built$", said, re.M)
    for what in ("forwarded down", "summed up", "fan-out", "fan-in", "fan-in, then fan-out", "two chains into one GPU"):
        assert re.search(rf"^0\.001 MB {what}, LL: \d+\.\d GB/s over 3 ranks$", said, re.M)
    assert re.search(r"^one block, 0\.001 MB, LL128: \d+\.\d GB/s read and written$", said, re.M)


@pytest.mark.slow
def test_kernels_that_count_say_where_their_time_goes() -> None:
    statements = "found += measures.counters(path, 'Simple', 0.001, until)\n"
    said = measured(statements, library(counters=True), LD_LIBRARY_PATH=str(mock_driver(counters=True)))
    for collective, parts in (("broadcast", r"reducing 0%"), ("all_reduce", r"reducing [1-9]\d*%")):
        assert re.search(rf"^{collective}, 1K, Simple, blocks: waiting \d+%, copying \d+%, {parts}$", said, re.M)
    with pytest.raises(AssertionError, match="the kernels counted nothing"):
        measured(statements)


PROTOCOLS = ("Simple", "LL", "LL128")
MEASURED = {
    "copy": 1370.4,
    "hop Simple": [4.9, 2.77],
    "hop LL": [5.2, 0.6],
    "hop LL128": [5.9, 0.97],
    **{f"block {protocol}": 86.0 for protocol in PROTOCOLS},
}


def test_measured_constants_are_a_file_that_collc_reads(tmp_path: Path) -> None:
    constants = loaded("constants")
    what, text, good = constants.write({**MEASURED, "gpu": "NVIDIA H100", "sm": 90}, PROTOCOLS, tmp_path)
    assert (what, good) == ("measured constants", True)
    assert text == str(tmp_path / constants.NAME)
    machine = read_params(tmp_path / constants.NAME, MACHINES["h100"])
    assert (machine.memory_gbps, machine.launch_us) == (2740.8, 4.9)
    found = {p.name: (p.hop_us, p.start_us, p.block_gbps) for p in machine.protocols}
    assert found == {"Simple": (2.77, 0.0, 86.0), "LL": (0.6, 0.3, 86.0), "LL128": (0.97, 1.0, 86.0)}
    given = ("--params", tmp_path / constants.NAME)
    done = collc("simulate", "ac922", "-b", "1K", "-e", "1K", *given)
    assert done.code == 0, done.err
    assert str(tmp_path / constants.NAME) in done.out


def test_constants_that_make_no_sense_are_left_out(tmp_path: Path) -> None:
    constants = loaded("constants")
    odd = {"copy": float("nan"), "hop LL": [4.0, -0.1], "hop Simple": [5.0, 2.0], "block LL": 0.0}
    assert constants.parameters(odd, PROTOCOLS) == {
        "launch_us": 5.0,
        "protocols": {"Simple": {"hop_us": 2.0, "start_us": 0.0}},
    }
    assert constants.write(odd, PROTOCOLS, tmp_path)[1].endswith(", not all of them")
    assert constants.write({}, PROTOCOLS, tmp_path) == ("measured constants", "not run: nothing was measured", False)


@pytest.mark.slow
def test_hops_are_measured_in_calls_and_in_graphs() -> None:
    said = measured("measures.RANKS = (3, 3)\nfound += measures.hops(path, 'LL')\n")
    for how in ("called", "in a graph"):
        assert re.search(rf"^8 bytes down a chain, LL, {how}: -?\d+\.\d\d us per hop", said, re.M)


NCCL = "measures.RANKS = (3, 2)\nfound += measures.nccl({way!r}, 0.001, {oldest}, until)"


def test_nccl_has_the_same_rows_where_it_runs() -> None:
    """A library for the mock, which supports only three ranks, stands for NCCL."""
    said = measured(NCCL.format(way="Simple", oldest=0), NCCL_LIB=str(library()))
    assert re.search(r"^all_reduce, NCCL 2\.\d+\.\d+, us: called one by one +8B +1K$", said, re.M)
    assert re.search(r"^  NCCL 2\.\d+\.\d+, 3 ranks, Simple:( +\d+\.\d){2}$", said, re.M)
    assert re.search(r"2 ranks, Simple: not run: ncclCommInitAll: ", said)


def test_an_nccl_that_allows_one_rank_per_gpu_is_not_run() -> None:
    said = measured(NCCL.format(way="chosen", oldest=99999), NCCL_LIB=str(library()))  # newer than ours
    assert re.fullmatch(r"all_reduce, NCCL 2\.\d+\.\d+: not run: before 2\.30\.3 it allows one rank per GPU\n", said)


def test_what_is_no_nccl_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "libnccl.so.2").write_text("nothing")
    said = measured(NCCL.format(way="LL", oldest=0), NCCL_LIB=str(tmp_path / "libnccl.so.2"))
    assert "all_reduce, NCCL: not run: " in said


def plan_in(values: dict[str, Any]) -> bytes:
    """The plan, unpacked: zlib's bytes may differ."""
    return zlib.decompress(bytes(int(byte) for row in values["plan_rows"] for byte in row.split(",")))


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in LONG)) for n in LIBRARIES])
@pytest.mark.slow_for("2-slots", "chain", "hgx-h100")
def test_its_tables_are_what_collc_writes_today(name: str) -> None:
    """`make gpu-check-tables` writes them again. The manifest tells the state of the runtime's sources too.

    The model takes most of a minute for three of them: those are slow ones, which `make sweeps` runs. The others have
    all collectives, sets of GPUs and slots of their own as well.
    """
    kept = json.loads(lzma.decompress((FOLDER / f"{name}.tables.xz").read_bytes()))
    writer = loaded("write_tables")
    fresh = json.loads(lzma.decompress(writer.compact(writer.context(name))))
    assert plan_in(kept) == plan_in(fresh)
    changing = ("plan_rows", "plan_size", "manifest_rows", "manifest_size")
    assert {k: v for k, v in kept.items() if k not in changing} == {k: v for k, v in fresh.items() if k not in changing}


SOURCES = """\
import sys; sys.path.insert(0, sys.argv[1])
import sources, gpu
print(end=sources.render(open(sys.argv[2]).read(), sources.values_of(sources.Path(sys.argv[3]))))
"""


def printed(template: Path, tables: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-c", SOURCES, str(FOLDER), str(template), str(tables)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)


@pytest.mark.parametrize("name", LIBRARIES)
def test_it_prints_what_jinja_prints(name: str) -> None:
    tables = FOLDER / f"{name}.tables.xz"
    values = json.loads(lzma.decompress(tables.read_bytes()))
    for table in values["tables"]:
        table["rows"] = [{"cells": cells, "comment": ""} for cells in table["rows"]]
    done = printed(resource_dir("templates") / TEMPLATE, tables)
    assert done.stdout.splitlines() == environment().get_template(TEMPLATE).render(values).splitlines()


@pytest.mark.parametrize(
    "template", ["{{ version | upper }}\n", "{% if version %}\n", "{{ missing }}\n", "{% endfor %}\nmore\n"]
)
def test_a_tag_that_it_does_not_know_is_an_error(template: str, tmp_path: Path) -> None:
    (tmp_path / "t.j2").write_text(template)
    done = printed(tmp_path / "t.j2", FOLDER / "chain.tables.xz")
    assert done.returncode != 0
    assert "CheckError: the template " in done.stderr


@pytest.mark.skipif(nvcc.nvcc_path() is None, reason="no nvcc on PATH, in CUDA_HOME or a wheel")
@pytest.mark.nvcc
@pytest.mark.slow
def test_what_is_built_loads_without_a_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One of the sources with the real tools, and an empty kernel in place of all, which nothing launches here."""
    (tmp_path / "device.cu").write_text('extern "C" __global__ void nothing() {}\n')
    monkeypatch.setattr(cuda, "device_source", lambda: tmp_path / "device.cu")
    fatbin = cuda.build_device_code().fatbin
    program = (
        "import sys, time; sys.path.insert(0, sys.argv[1]); import building, measures; from pathlib import Path\n"
        "folder, code = map(Path, sys.argv[2:])\n"
        "sources = building.write_sources(('chain',), folder)\n"
        "print(*building.build(sources, folder, 90, time.monotonic() + 200, optimize='-O0', fatbin=code).made)\n"
    )
    command = [sys.executable, "-c", program, *map(str, (FOLDER, tmp_path / "made", fatbin))]
    environment = {**os.environ, "PATH": f"{Path(find_cxx().path).parent}:{os.environ['PATH']}"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=250, env=environment)
    assert done.returncode == 0, done.stderr
    check = (
        "import ctypes, sys\n"
        "lib = ctypes.CDLL(sys.argv[1]); lib.ncclGetLastError.restype = ctypes.c_char_p\n"
        "assert ctypes.c_uint64.in_dll(lib, 'collc_manifest_size').value > 1000\n"
        "status = lib.ncclCommInitAll((ctypes.c_void_p * 2)(), 2, (ctypes.c_int * 2)())\n"
        "print(status, lib.ncclGetLastError(None).decode())\n"
    )
    made = done.stdout.strip()
    assert Path(made).name == "libcollc-chain.so"
    environment = {**os.environ, "LD_LIBRARY_PATH": ""}
    asked = subprocess.run(
        [sys.executable, "-c", check, made], capture_output=True, text=True, env=environment, check=False
    )
    assert re.match(r"[1-9]\d* .*libcuda\.so\.1", asked.stdout), asked.stdout + asked.stderr


@pytest.mark.skipif(nvcc.nvcc_path() is None, reason="no nvcc on PATH, in CUDA_HOME or a wheel")
@pytest.mark.nvcc
def test_its_command_for_the_kernels_is_one_that_nvcc_takes(tmp_path: Path) -> None:
    """The source has one empty kernel, because all kernels take a minute."""
    (tmp_path / "device.cu").write_text('extern "C" __global__ void nothing() {}\n')
    program = (
        "import sys, time; sys.path.insert(0, sys.argv[1]); import building; from pathlib import Path\n"
        "building.DEVICE_SOURCE = Path(sys.argv[2])\n"
        "for sm in (75, 90):\n"
        "    made = Path(sys.argv[2]).with_suffix(f'.{sm}')\n"
        "    building.run_all([building.device_job(sm, made)], time.monotonic() + 60)\n"
        "    print(len(made.read_bytes()))\n"
    )
    folder = str(Path(nvcc.find_nvcc().path).parent)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    command = [sys.executable, "-c", program, str(FOLDER), str(tmp_path / "device.cu")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=150, env=environment)
    assert done.returncode == 0, done.stderr
    assert all(int(size) > 500 for size in done.stdout.split())


@pytest.mark.parametrize("name", LIBRARIES)
def test_its_sources_fit_the_headers(name: str, tmp_path: Path) -> None:
    done = printed(resource_dir("templates") / TEMPLATE, FOLDER / f"{name}.tables.xz")
    (tmp_path / f"{name}.cpp").write_text(done.stdout)
    include = [f"-I{folder}" for folder in include_dirs()]
    command = [find_cxx().path, "-std=c++17", "-fsyntax-only", *include, str(tmp_path / f"{name}.cpp")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, f"make gpu-check-tables writes it again: {done.stderr[:500]}"
