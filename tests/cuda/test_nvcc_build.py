"""The kernels as nvcc builds them: architectures, registers, width of accesses, the same bytes every time."""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
from functools import cache
from pathlib import Path

import pytest
from support.cli import collc
from support.libraries import PAIR
from support.sass import in_flight

from collc import compiler
from collc.build import cuda, nvcc, nvrtc
from collc.build.cache import cached, content_key
from collc.build.fatbin import Image
from collc.build.toolchain import find_cxx
from collc.errors import BuildError
from collc.options import TargetKind

needs_nvcc = pytest.mark.skipif(nvcc.nvcc_path() is None, reason="no nvcc on PATH, in CUDA_HOME or a wheel")
KERNELS = 28  # Simple, LL and LL128 for integers of 3 widths and 6 types of floats, and transfers
ONE_KERNEL = (
    '#include "collc/cuda/executor.h"\nusing namespace collc::cuda;\n'
    "COLLC_KERNEL(kMaxThreads) collc_simple_f32(COLLC_KERNEL_ARGUMENT(Launch) launch) "
    "{ run_block<float, Simple<float>>(launch); }\n"
)
# Every (virtual, real) architecture that nvcc 13 compiles; one of them, Hopper, by default.
PAIRS = [
    pytest.param(virtual, real, marks=() if real == "90" else pytest.mark.slow)
    for virtual, reals in cuda.SASS.items()
    for real in reals
    if virtual not in cuda.OLD
]


def images(fatbin: bytes) -> list[tuple[str, int]]:
    """Returns kind and architecture of each image in a fatbin (magic, version, header size, size of all images)."""
    magic, _, header, size = struct.unpack_from("<IHHQ", fatbin)
    assert (magic, header + size) == (0xBA55ED50, len(fatbin))
    found, at = [], header
    while at < len(fatbin):
        kind, _, header, size = struct.unpack_from("<HHIQ", fatbin, at)
        (architecture,) = struct.unpack_from("<I", fatbin, at + 28)
        found.append(({1: "ptx", 2: "sass"}[kind], architecture))
        at += header + size
    return found


def kernels_of(text: str, start: str) -> dict[str, str]:
    """The text of each kernel; `start` is a pattern for its first line with the name as group 1."""
    parts = re.split(start, text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@needs_nvcc
@pytest.mark.nvcc
def test_the_fatbin_holds_every_generation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The source has one kernel, because all kernels take two minutes of CPU time."""
    (tmp_path / "device.cu").write_text(ONE_KERNEL)
    monkeypatch.setattr(cuda, "device_source", lambda: tmp_path / "device.cu")
    monkeypatch.setattr(cuda, "nvrtc_path", lambda: None)
    monkeypatch.setattr(nvrtc, "nvrtc_path", lambda: None)
    monkeypatch.delenv("COLLC_NVRTC", raising=False)
    code = cuda.build_device_code()
    made = images(code.fatbin.read_bytes())
    assert [("ptx" if i.kind == "ptx" else "sass", int(i.sm)) for i in code.images] == made
    assert made == [("sass", 75), ("sass", 80), ("sass", 90), ("sass", 100), ("sass", 120), ("ptx", 80)]


@cache
def built(virtual: str, real: str) -> tuple[Path, str]:
    """Returns the machine code of all kernels, compiled with the flags of libraries, and the report of ptxas."""
    compiler = nvcc.find_nvcc()
    ptx = cuda.make_ptx(compiler, virtual).read_bytes()
    flags = [*cuda.SASS_FLAGS, "-Xptxas=-v", f"-arch=sm_{real}"]

    def make(made: Path) -> None:
        made.with_name("device.ptx").write_bytes(ptx)
        command = [compiler.path, *flags, "-cubin", "device.ptx", "-o", made.name]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300, cwd=made.parent)
        made.with_name("ptxas.log").write_text(done.stderr)

    cubin = cached(content_key([compiler.version, *flags, ptx]), "device.cubin", make, beside=("ptxas.log",))
    return cubin, cubin.with_name("ptxas.log").read_text()


@needs_nvcc
@pytest.mark.nvcc
@pytest.mark.parametrize(("virtual", "real"), PAIRS)
def test_no_kernel_spills_or_uses_local_memory(virtual: str, real: str) -> None:
    _, log = built(virtual, real)
    frames = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    assert len(frames) >= KERNELS
    assert set(frames) == {("0", "0", "0")}
    registers = [int(n) for n in re.findall(r"Used (\d+) registers", log)]
    assert len(registers) == KERNELS
    # 512 threads of 128 registers fill a multiprocessor.
    assert max(registers) <= 128
    assert "bytes lmem" not in log


@needs_nvcc
@pytest.mark.nvcc
@pytest.mark.parametrize(
    "virtual",
    [pytest.param(v, marks=() if v == cuda.PTX else pytest.mark.slow) for v in cuda.SASS if v not in cuda.OLD],
)
def test_loops_move_sixteen_bytes_at_a_time(virtual: str) -> None:
    text = cuda.make_ptx(nvcc.find_nvcc(), virtual).read_text()
    kernels = kernels_of(text, r"^\s*\.visible \.entry (\w+)\(")
    assert len(kernels) == KERNELS
    for name, body in kernels.items():
        accesses = re.findall(r"(?:ld|st)\.global\.v4\.u32|(?:ld|st)\.[\w.]+", body)
        assert ".local" not in body, name
        if name.startswith(("collc_ll_", "collc_ll128_")):
            # Data with their flags; LL128 keeps two stripes of each source and destination in flight. For floats of 8
            # bits only steps with at most two operands do: partial results of two stripes take too many registers.
            lines = re.findall(r"\b(ld|st)\.relaxed\.sys\.global\.v2\.u64", body)
            most = 6 if name.startswith("collc_ll128_") else 1
            assert min(lines.count("ld"), lines.count("st")) >= most, name
            continue
        runs = re.findall(
            r"L{4,}|S{4,}", "".join({"ld": "L", "st": "S"}[a[:2]] if "v4" in a else "." for a in accesses)
        )
        # The copy keeps 8 loads in flight, the reduction of each operation 4 of each source.
        assert sum(run.startswith("LLLLLLLL") for run in runs) >= 1, name
        if name == "collc_exchange":
            continue
        operations = 4 if re.search(r"_(b?f|e)\d", name) else 3  # of integers, min is max
        assert sum(run.startswith("LLLL") for run in runs) >= 1 + 2 * operations, name
        assert sum(run.startswith("SSSS") for run in runs) >= 1 + operations, name


@needs_nvcc
@pytest.mark.nvcc
@pytest.mark.parametrize(("virtual", "real"), PAIRS)
def test_the_machine_code_keeps_the_width(virtual: str, real: str) -> None:
    tool = shutil.which(nvcc.find_nvcc().tool("nvdisasm"))
    if tool is None:
        pytest.skip("no nvdisasm (pip: nvidia-cuda-nvdisasm)")
    cubin, _ = built(virtual, real)
    text = subprocess.run([tool, "-c", str(cubin)], capture_output=True, text=True, check=True, timeout=300).stdout
    kernels = kernels_of(text, r"^\s*\.section\s+\.text\.(collc_\w+),")
    assert len(kernels) == KERNELS
    for name, body in kernels.items():
        least = (
            9
            if name == "collc_exchange"
            else 12
            if not name.startswith("collc_ll")
            else 6
            if name.startswith("collc_ll128_")
            else 1
        )
        assert len(re.findall(r"\bLDG\.E\.128", body)) >= least, name
        assert len(re.findall(r"\bSTG\.E\.128", body)) >= least, name
        assert not re.search(r"\b(LDL|STL)\b", body), name
        if name.startswith("collc_ll_"):
            # Loads that are issued before one is needed: of one source, of up to four, of up to eight. Where registers
            # are short, the last of eight may come behind the first use.
            assert set(in_flight(body)) in ({1, 4, 8}, {1, 4, 7}), name
        if name.startswith("collc_ll128_"):
            # Loads of one stripe and of two, of the first source and of a later one.
            loads = in_flight(body)
            assert set(loads) == {2, 4}, name
            assert loads.count(4) >= 2, name


@needs_nvcc
@pytest.mark.nvcc
def test_the_same_source_gives_the_same_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = []
    for folder in ("one", "a-longer-name/two"):
        monkeypatch.setenv("COLLC_CACHE", str(tmp_path / folder))
        ptx = cuda.make_ptx(nvcc.find_nvcc(), "80", ONE_KERNEL)
        cubin = cuda.make_cubin(nvcc.find_nvcc(), ptx, "90")
        code = cuda.DeviceCode(cubin, (Image("elf", "90", cubin, "nvcc", "1"),))
        made.append((ptx.read_bytes(), cubin.read_bytes(), cuda.embed(code, find_cxx()).read_bytes()))
    assert made[0] == made[1]
    assert str(tmp_path).encode() not in b"".join(made[0])


@needs_nvcc
@pytest.mark.nvcc
def test_only_kernels_that_count_read_the_clock() -> None:
    plain = cuda.make_ptx(nvcc.find_nvcc(), "80", ONE_KERNEL)
    counting = cuda.make_ptx(nvcc.find_nvcc(), "80", ONE_KERNEL, cuda.COUNTERS_FLAGS)
    assert plain != counting  # entries of the cache
    assert "%clock64" not in plain.read_text()
    assert counting.read_text().count("%clock64") >= 3


@needs_nvcc
@pytest.mark.nvcc
@pytest.mark.slow
@pytest.mark.parametrize(("virtual", "real"), [("75", "75"), *(("80", real) for real in cuda.SASS["80"])])
def test_kernels_that_count_do_not_spill_either(virtual: str, real: str, tmp_path: Path) -> None:
    ptx = cuda.make_ptx(nvcc.find_nvcc(), virtual, extra=cuda.COUNTERS_FLAGS)
    command = [nvcc.find_nvcc().path, f"-arch=sm_{real}", "-O3", "-Xptxas", "-v", "-cubin", str(ptx)]
    done = subprocess.run(
        [*command, "-o", str(tmp_path / "x.cubin")], capture_output=True, text=True, check=True, timeout=300
    )
    frames = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", done.stderr)
    assert set(frames) == {("0", "0", "0")}
    registers = [int(n) for n in re.findall(r"Used (\d+) registers", done.stderr)]
    assert len(registers) == KERNELS
    assert max(registers) <= 128


@needs_nvcc
@pytest.mark.nvcc
@pytest.mark.slow
def test_the_whole_fatbin_is_reproducible(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = cuda.build_device_code().fatbin.read_bytes()
    monkeypatch.setenv("COLLC_CACHE", str(tmp_path))
    assert cuda.build_device_code().fatbin.read_bytes() == first


@needs_nvcc
@pytest.mark.nvcc
def test_an_error_in_the_source_shows_nvccs_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLLC_CACHE", str(tmp_path))
    with pytest.raises(BuildError, match=r"error.*nonsense"):
        cuda.make_ptx(nvcc.find_nvcc(), "80", "nonsense x;\n")


def test_without_nvcc_one_line_says_so_and_the_host_target_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvcc, "nvcc_path", lambda: None)
    with pytest.raises(BuildError, match=r"no nvcc found.*pip install 'collc\[cuda\]'"):
        nvcc.find_nvcc()
    kind, note = compiler.choose_target(None)
    assert kind is TargetKind.HOST
    assert note is not None
    assert "no nvcc found" in note


def test_the_wheels_are_looked_in_last(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = tmp_path / "site" / "nvidia" / "cu13" / "bin" / "nvcc"
    tool.parent.mkdir(parents=True)
    tool.write_text('#!/bin/sh\necho "release 13.0, V13.0.88"; echo sm_90; echo sm_75\n', encoding="ascii")
    tool.chmod(0o755)
    monkeypatch.setattr(nvcc, "site_packages", lambda: [tmp_path / "site"])
    for name in ("COLLC_NVCC", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "absent"))
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    monkeypatch.setattr(nvcc, "SYSTEM_CUDA", tmp_path / "absent")
    found = nvcc.find_nvcc()
    assert (found.path, found.release, found.architectures) == (str(tool), "13.0", ("75", "90"))
    assert found.driver.startswith("580")
    home = tmp_path / "home" / "bin" / "nvcc"
    home.parent.mkdir(parents=True)
    shutil.copy(tool, home)
    monkeypatch.setenv("CUDA_HOME", str(home.parent.parent))
    assert nvcc.find_nvcc().path == str(home)


def test_an_nvcc_that_does_not_run_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLC_NVCC", "/nonexistent/nvcc")
    with pytest.raises(BuildError, match=r"/nonexistent/nvcc: cannot run nvcc"):
        nvcc.find_nvcc()


@needs_nvcc
@pytest.mark.nvcc
@pytest.mark.slow
def test_a_rebuild_shows_nvcc_at_work(tmp_path: Path) -> None:
    """Nothing is taken that was there: plans, device code, the runtime."""
    (tmp_path / "pair.yaml").write_text(PAIR)
    command = ["compile", tmp_path / "pair.yaml", "--target", "cuda", "-o", tmp_path / "lib.so", "--rebuild"]
    text = collc(*command)
    assert text.code == 0, text.err
    last = text.out.splitlines()[-1]
    assert re.fullmatch(r"(\d+) parts: \1 built, 0 from the build cache, 0 from the wheel of collc", last)
    made = re.findall(r"^(PTX|code) for (\w+) by nvcc 13\.\d+ +built +\d", text.out, re.MULTILINE)
    assert {("PTX", "compute_75"), ("PTX", "compute_80"), ("code", "sm_75"), ("code", "sm_120")} <= set(made)
    parts = json.loads(collc(*command[:-1], "--json").out)["parts"]
    assert {part["from"] for part in parts} == {"cache"}
