"""Reports the tools and libraries that this machine has or lacks for building and running libraries."""

from __future__ import annotations

import os
import re
import resource
import subprocess
from dataclasses import dataclass
from pathlib import Path

from collc.build import try_load
from collc.build.cache import CacheProblem, cache_dir, check_cache
from collc.build.cuda import needs, planned_code
from collc.build.fatbin import nvfatbin_path
from collc.build.nvcc import INSTALL_NVCC, find_nvcc, nvcc_path, site_packages
from collc.build.nvrtc import INSTALL_NVRTC, find_nvrtc, nvrtc_path
from collc.build.toolchain import find_cxx
from collc.errors import BuildError
from collc.process import find_program, python_script, run_captured, temporary_folder

OK, MISSING, BROKEN = "ok", "missing", "broken"

INSTALL_CXX = "install g++ 10 or newer, or set COLLC_CXX"


@dataclass(frozen=True)
class Finding:
    """The state of one tool or library.

    Args:
        name: the name of the tool or library.
        state: "ok", "missing" or "broken".
        detail: its version or place, or the problem.
        needed_for: the targets or commands that need it.
        hint: the remedy; empty if it is ok.
    """

    name: str
    state: str
    detail: str
    needed_for: str
    hint: str = ""


def examine() -> list[Finding]:
    """Returns the state of every tool and library; never raises."""
    return [
        _compiler(),
        _shared_memory(),
        _cache(),
        *_nvcc(),
        _nvrtc(),
        *_device_code(),
        _library(
            "CUDA driver", "libcuda.so.1", "running --target cuda", "install the NVIDIA driver on the GPU machine"
        ),
        _library("NVML", "libnvidia-ml.so.1", "a live collc probe", "it comes with the NVIDIA driver"),
        _real_nccl(),
    ]


def host_ready(findings: list[Finding]) -> bool:
    """Returns True if libraries of the host target can be built and run on this machine."""
    return all(finding.state == OK for finding in findings if "host" in finding.needed_for)


def _compiler() -> Finding:
    use = "--target host"
    chosen = os.environ.get("COLLC_CXX")
    if not any(find_program(name) for name in ([chosen] if chosen else ["g++", "clang++"])):
        reason = f"COLLC_CXX names {chosen!r}, which is not a command" if chosen else "no C++ compiler found"
        return Finding("C++ compiler", MISSING, reason, use, INSTALL_CXX)
    try:
        compiler = find_cxx()
        reason = _cannot_build(compiler.path)
    except BuildError as error:
        return Finding("C++ compiler", BROKEN, error.what, use, error.hint or INSTALL_CXX)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return Finding("C++ compiler", BROKEN, str(error), use, INSTALL_CXX)
    if reason:
        return Finding("C++ compiler", BROKEN, f"{compiler.path} cannot build C++17: {reason}", use, INSTALL_CXX)
    return Finding("C++ compiler", OK, compiler.version, use)


def _cannot_build(compiler: str) -> str:
    """The first line of why it cannot build a C++17 program with threads; "" if it can."""
    with temporary_folder() as folder:
        source = folder / "probe.cpp"
        source.write_text("#include <atomic>\nint main() { if constexpr (true) return 0; }\n", encoding="utf-8")
        command = [compiler, "-std=c++17", "-pthread", str(source), "-o", str(source.with_suffix(""))]
        done = run_captured(command, cwd=folder, seconds=60)
    if done.returncode == 0:
        return ""
    return (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[0]


def _shared_memory() -> Finding:
    use = "running --target host"
    try:
        handle = os.memfd_create("collc-doctor", os.MFD_CLOEXEC)
    except (OSError, AttributeError) as error:
        return Finding("shared memory", BROKEN, f"memfd_create failed: {error}", use, "needs Linux 3.17 or newer")
    limits = _limits()
    try:
        os.posix_fallocate(handle, 0, 1 << 20)
    except OSError as error:
        return Finding(
            "shared memory",
            BROKEN,
            f"cannot reserve 1 MiB: {error.strerror}{limits}",
            use,
            "free some memory, or raise the limit",
        )
    finally:
        os.close(handle)
    return Finding("shared memory", OK, f"memfd, {_available_memory()} available{limits}", use)


def _available_memory() -> str:
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return "unknown amount"
    found = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    return f"{int(found[1]) / 1e6:.1f} GB" if found else "unknown amount"


def _limits() -> str:
    """Returns the limits of this process that apply to a shared segment; "" if there are none."""
    named = {"ulimit -f": resource.RLIMIT_FSIZE, "ulimit -v": resource.RLIMIT_AS}
    set_here = {name: resource.getrlimit(which)[0] for name, which in named.items()}
    return "".join(
        f", {name} is {limit // 1024} KiB" for name, limit in set_here.items() if limit != resource.RLIM_INFINITY
    )


def _cache() -> Finding:
    use = "building each part but once"
    try:
        check_cache()
    except CacheProblem as problem:
        hint = "set COLLC_CACHE to a folder that this user alone can write to; until then every run rebuilds everything"
        return Finding("build cache", BROKEN, str(problem), use, hint)
    return Finding("build cache", OK, str(cache_dir()), use)


def _nvcc() -> list[Finding]:
    use = "--target cuda"
    if nvcc_path() is None:
        return [Finding("nvcc", MISSING, "not on PATH, in CUDA_HOME or a wheel", use, INSTALL_NVCC)]
    try:
        nvcc = find_nvcc()
    except BuildError as error:
        return [Finding("nvcc", BROKEN, f"{error.where}: {error.what}", use, INSTALL_NVCC)]
    sms = f"sm_{nvcc.architectures[0]} to sm_{nvcc.architectures[-1]}"
    detail = f"{nvcc.release} ({nvcc.path}): {sms}, needs driver {nvcc.driver} or newer"
    return [Finding("nvcc", OK, detail, use)]


def _nvrtc() -> Finding:
    name, use = "NVRTC 12", "--target cuda for Pascal and Volta, --cuda 12"
    if nvrtc_path() is None:
        return Finding(name, MISSING, "not in a wheel or in /usr/local", use, INSTALL_NVRTC)
    try:
        nvrtc = find_nvrtc()
        nvfatbin_path(nvrtc)
    except BuildError as error:
        return Finding(name, BROKEN, f"{error.where or nvrtc_path()}: {error.what}", use, INSTALL_NVRTC)
    sms = f"sm_{nvrtc.architectures[0]} to sm_{nvrtc.architectures[-1]}"
    return Finding(name, OK, f"{nvrtc.release} ({nvrtc.path}): {sms}, needs driver {nvrtc.driver} or newer", use)


def _device_code() -> list[Finding]:
    """Returns the GPUs that a library compiled on this machine can run on, and the oldest driver for each."""
    nvcc, nvrtc = nvcc_path(), nvrtc_path()
    if nvcc is None and nvrtc is None:
        return []
    try:
        text = needs(planned_code())
    except BuildError:
        return []
    return [Finding("device code", OK, f"would be {text}", "--target cuda")]


def _library(name: str, soname: str, use: str, hint: str) -> Finding:
    reason = _cannot_load(soname)
    return Finding(name, _state(soname, reason), reason or soname, use, hint if reason else "")


def _real_nccl() -> Finding:
    use = "communicators that a library does not serve"
    wheels = [root / "nvidia" / "nccl" / "lib" / "libnccl.so.2" for root in site_packages()]
    chosen = os.environ.get("COLLC_NCCL")
    candidates = [chosen] if chosen else ["libnccl.so.2", *(str(path) for path in wheels if path.is_file())]
    reasons = {candidate: _cannot_load(candidate) for candidate in candidates}
    hint = "install NCCL, or set COLLC_NCCL to its libnccl.so.2"
    for state in (OK, BROKEN):
        for candidate, reason in reasons.items():
            if _state(candidate, reason) == state:
                return Finding("NCCL", state, reason or candidate, use, hint if reason else "")
    return Finding("NCCL", MISSING, f"no {chosen or 'libnccl.so.2'}", use, hint)


def _state(library: str, reason: str) -> str:
    """Returns the state for a `reason` of `_cannot_load`.

    BROKEN means that the library exists but cannot be used: a dependency is missing, or loading it hangs.
    """
    if not reason:
        return OK
    absent = reason.startswith(f"{library}: cannot open shared object file: No such file")
    return MISSING if absent else BROKEN


def _cannot_load(library: str) -> str:
    """Returns why the loader cannot open a library; "" if it can.

    Another process tries it, because a driver may start threads.
    """
    command = python_script(try_load.__file__, library)
    try:
        done = run_captured(command, seconds=60)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    if done.returncode == 0:
        return ""
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"loading it ended with status {done.returncode}"
