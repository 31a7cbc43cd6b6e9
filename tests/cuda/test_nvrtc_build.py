"""Device code by NVRTC 12: Pascal and Volta next to nvcc's architectures, and all architectures for older drivers."""

from __future__ import annotations

import io
import re
import struct
from functools import cache
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from support.cli import collc, refused
from test_nvcc_build import ONE_KERNEL, kernels_of

from collc import compiler
from collc.build import cuda, nvcc, nvrtc
from collc.build.cache import cache_dir
from collc.build.fatbin import Image, make_fatbin
from collc.build.nvcc import Nvcc
from collc.build.nvrtc import Nvrtc
from collc.collectives.model import Collective
from collc.compiler import CompileRequest, compile_topology
from collc.errors import BuildError
from collc.options import TargetKind
from collc.resources import resource_dir
from collc.topology.load import load_topology
from collc.topology.zoo import names

needs_nvrtc = pytest.mark.skipif(nvrtc.nvrtc_path() is None, reason="no NVRTC 12: pip install 'collc[cuda12]'")
needs_nvcc = pytest.mark.skipif(nvcc.nvcc_path() is None, reason="no nvcc on PATH, in CUDA_HOME or a wheel")
OLD = cuda.OLD
# All kernels take long to compile; by default those whose source is the most unlike what nvcc compiles.
SHOWN = [pytest.param(sm, marks=() if sm == "60" else pytest.mark.slow) for sm in OLD]
EM_CUDA = 190

# A DGX-1V and an HGX H100 as two servers of one library; each server is a set of GPUs.
TWO_MACHINES = """
format: collc-topology/1
name: two-machines
gpus: 16
switches: [nvs0]
servers:
  volta: [gpu0, gpu1, gpu2, gpu3, gpu4, gpu5, gpu6, gpu7]
  hopper: [gpu8, gpu9, gpu10, gpu11, gpu12, gpu13, gpu14, gpu15, nvs0]
speeds: {nvlink: 25, nvswitch: 450}
links:
"""


def two_machines() -> str:
    mesh = [link for link in load_topology("dgx1v").links if link.kind.value == "nvlink" and link.src < link.dst]
    lines = [f"  - [{link.src}, {link.dst}, nvlink x{link.gbps // 25}]" for link in mesh]
    return TWO_MACHINES + "\n".join([*lines, *(f"  - [gpu{g}, nvs0, nvswitch]" for g in range(8, 16))]) + "\n"


def lz4_block(data: bytes, size: int) -> bytes:
    """Decompresses an LZ4 block (lz4_Block_format.md of the LZ4 project)."""
    out, at = bytearray(), 0

    def length(start: int) -> int:
        nonlocal at
        total = start
        while start == 15:
            total += data[at]
            at += 1
            if data[at - 1] != 255:
                break
        return total

    while len(out) < size:
        token = data[at]
        at += 1
        literals = length(token >> 4)
        out += data[at : at + literals]
        at += literals
        if len(out) >= size:
            break
        distance = data[at] | data[at + 1] << 8
        at += 2
        wanted = length(token & 15) + 4
        start = len(out) - distance
        out += (out[start : start + wanted] * (wanted // distance + 1))[:wanted]
    assert len(out) == size
    return bytes(out)


def contents(fatbin: bytes) -> list[tuple[str, int, bytes]]:
    """Returns kind, architecture and contents of every image of a fatbin with LZ4 compression or none."""
    magic, _, header, size = struct.unpack_from("<IHHQ", fatbin)
    assert (magic, header + size) == (0xBA55ED50, len(fatbin))
    found, at = [], header
    while at < len(fatbin):
        kind, _, header, padded = struct.unpack_from("<HHIQ", fatbin, at)
        compressed, architecture = struct.unpack_from("<I", fatbin, at + 16)[0], fatbin[at + 28]
        flags, whole = struct.unpack_from("<Q8xQ", fatbin, at + 40)
        data = fatbin[at + header : at + header + padded]
        assert not flags & 0x8000, "Zstandard, which drivers before 550 cannot read"
        if flags & 0x2000:
            data = lz4_block(data[:compressed], whole)
        found.append(({1: "ptx", 2: "elf"}[kind], architecture, data))
        at += header + padded
    return found


def architecture_of(cubin: bytes) -> int:
    """The sm number in a cubin's ELF header; CUDA 13's ABI has it one byte higher."""
    header = ELFFile(io.BytesIO(cubin)).header
    assert header["e_machine"] in (EM_CUDA, "EM_CUDA")
    flags: int = header["e_flags"]
    return flags >> 8 & 0xFF if cubin[8] >= 8 else flags & 0xFF


@cache
def compiled(architecture: str, source: str = "") -> nvrtc.Compiled:
    """Compiles all kernels, or the kernels of `source`."""
    text = source or cuda.device_source().read_text(encoding="utf-8")
    return nvrtc.compile_kernels(nvrtc.find_nvrtc(), architecture, text)


@needs_nvcc
@needs_nvrtc
@pytest.mark.nvcc
@pytest.mark.slow
def test_one_library_serves_a_dgx1v_and_an_hgx_h100(tmp_path: Path) -> None:
    topology, out = tmp_path / "two.yaml", tmp_path / "two.so"
    topology.write_text(two_machines(), encoding="utf-8")
    request = CompileRequest(
        topology=str(topology),
        output=out,
        target=TargetKind.CUDA,
        allocations="volta:0-7/hopper:0-7",
        collectives=(Collective.ALL_REDUCE,),
    )
    result = compile_topology(request)
    assert result.note is None
    assert len(result.documents) == 2
    with out.open("rb") as file:
        section = ELFFile(file).get_section_by_name(".nv_fatbin")
        assert section is not None
        images = contents(section.data())
    machine_code = {architecture: data for kind, architecture, data in images if kind == "elf"}
    assert {60, 70, 75, 80, 90} <= set(machine_code)
    for architecture, cubin in machine_code.items():
        assert architecture_of(cubin) == architecture
    assert [(kind, architecture) for kind, architecture, _ in images if kind == "ptx"] == [("ptx", 80)]
    assert b".target sm_80" in next(data for kind, _, data in images if kind == "ptx")
    shown = collc("inspect", str(out)).out
    assert "sm_60, sm_70 (driver 525.60.13 or newer); sm_75, sm_80, sm_90" in shown
    assert "NVRTC 12." in shown


@needs_nvrtc
@pytest.mark.parametrize("architecture", SHOWN)
@pytest.mark.slow_for("60")
def test_no_kernel_spills_or_uses_local_memory(architecture: str) -> None:
    made = compiled(architecture)
    log = made.log.read_text(encoding="utf-8")
    kernels = re.findall(r"Compiling entry function '(collc_\w+)'", log)
    assert len(kernels) == len(set(kernels)) == (19 if architecture == "60" else 28)
    frames = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    assert len(frames) >= len(kernels)
    assert set(frames) == {("0", "0", "0")}
    assert "bytes lmem" not in log
    assert ".local" not in made.ptx.read_text(encoding="ascii")
    registers = [int(n) for n in re.findall(r"Used (\d+) registers", log)]
    assert len(registers) == len(kernels)
    # 512 threads of 128 registers fill a multiprocessor.
    assert max(registers) <= 128


@needs_nvrtc
@pytest.mark.parametrize("architecture", SHOWN)
@pytest.mark.slow_for("60")
def test_each_has_the_instructions_of_its_chip(architecture: str) -> None:
    text = compiled(architecture).ptx.read_text(encoding="ascii")
    for name, body in kernels_of(text, r"^\s*\.visible \.entry (collc_\w+)\(").items():
        ordered = re.findall(r"ld\.acquire\.sys\.global\.u64|st\.release\.sys\.global\.u64", body)
        if architecture == "60":
            assert not re.search(r"\.acquire|\.release|\.relaxed|nanosleep|vote\.sync|shfl", body), name
            # Fences where order is needed, and nowhere else: behind the polls of chunks, before the store that
            # announces one, before words to the host. Slots are freed without a fence, and LL needs only the last kind.
            carries = re.match(r"collc_(ll|ll128)_", name) is not None
            words = len(re.findall(r"\bst\.volatile\.global\.u32 ", body))
            assert words >= 2, name
            if not carries:
                assert body.count("membar.sys") == words + 2, name
            between = r"(?:(?!\b(?:ld|st|bra|bar|membar)\b).)*"
            announced = re.findall(rf"\bmembar\.sys{between}\bst\.volatile\.global\.u64 ", body, re.DOTALL)
            assert len(announced) == (0 if carries else 1), name
            # Chunks are announced, slots freed.
            if not re.search(r"ll|64", name.removeprefix("collc_")):
                assert len(re.findall(r"\bst\.volatile\.global\.u64 ", body)) == 2, name
            # Nothing of a slot may come from the first-level cache. Tables do, before the first step, and how many
            # lanes and slots transfers have.
            _, barrier, rest = body.partition("bar.sync")
            assert barrier, name
            assert len(re.findall(r"ld\.global\.v4", rest)) == (name == "collc_exchange"), name
        else:
            carries = re.match(r"collc_(ll|ll128)_", name) is not None
            assert sorted(ordered) == ([] if carries else ["ld.acquire.sys.global.u64", "st.release.sys.global.u64"]), (
                name
            )
            assert "membar.sys" not in body, name


@needs_nvrtc
@pytest.mark.parametrize("architecture", SHOWN)
@pytest.mark.slow_for("60")
def test_loops_move_sixteen_bytes_at_a_time(architecture: str) -> None:
    text = compiled(architecture).ptx.read_text(encoding="ascii")
    simple = r"^\s*\.visible \.entry (collc_simple_\w+)\("
    kernels = kernels_of(text, simple)
    assert len(kernels) == 9
    load = r"ld\.volatile\.global\.v4\.u32" if architecture == "60" else r"ld\.global\.v4\.u32"
    for name, body in kernels.items():
        wide = re.findall(rf"{load}|st\.global\.v4\.u32|(?:ld|st)\.[\w.]+", body)
        runs = re.findall(
            r"L{4,}|S{4,}", "".join({"ld": "L", "st": "S"}[a[:2]] if "v4.u32" in a else "." for a in wide)
        )
        assert sum(run.startswith("LLLLLLLL") for run in runs) >= 1, name
        assert sum(run.startswith("LLLL") for run in runs) >= 2, name


@needs_nvrtc
def test_without_nvcc_the_container_is_nvfatbins() -> None:
    images = [Image("elf", sm, compiled(sm, ONE_KERNEL).cubin, "NVRTC 12.9", "525.60.13") for sm in OLD]
    images.append(Image("ptx", "70", compiled("70", ONE_KERNEL).ptx, "NVRTC 12.9", "575.51.03"))
    found = contents(make_fatbin(images, None, nvrtc.find_nvrtc()).read_bytes())
    assert [(kind, sm) for kind, sm, _ in found] == [("elf", 60), ("elf", 70), ("ptx", 70)]
    for (_, _, data), image in zip(found[:2], images[:2], strict=True):
        assert data == image.path.read_bytes()
    # Comments are left out of the comparison.
    code = [re.sub(rb"//.*|\s+", b"", text) for text in (found[2][2].rstrip(b"\0"), images[2].path.read_bytes())]
    assert code[0] == code[1] != b""


@needs_nvcc
@needs_nvrtc
@pytest.mark.nvcc
def test_the_tool_and_the_library_make_the_same_images() -> None:
    images = [Image("elf", sm, compiled(sm, ONE_KERNEL).cubin, "NVRTC 12.9", "525.60.13") for sm in OLD]
    by_tool = make_fatbin(images, nvcc.find_nvcc(), None).read_bytes()
    assert contents(by_tool) == contents(make_fatbin(images, None, nvrtc.find_nvrtc()).read_bytes())


@needs_nvrtc
@pytest.mark.slow
def test_cuda_12_alone_builds_for_every_chip() -> None:
    code = cuda.build_device_code(12)
    found = contents(code.fatbin.read_bytes())
    assert [sm for kind, sm, _ in found if kind == "elf"] == [60, 70, 75, 80, 90, 100, 120]
    assert [row["driver"] for row in code.rows()][:5] == ["525.60.13"] * 5
    assert all(architecture_of(data) == sm for kind, sm, data in found if kind == "elf")


@needs_nvrtc
def test_the_same_source_gives_the_same_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = []
    for folder in ("one", "a-longer-name/two"):
        monkeypatch.setenv("COLLC_CACHE", str(tmp_path / folder))
        result = nvrtc.compile_kernels(nvrtc.find_nvrtc(), "60", ONE_KERNEL)
        assert cache_dir() in result.cubin.parents
        made.append((result.cubin.read_bytes(), result.ptx.read_bytes()))
    assert made[0] == made[1]
    for word in (tmp_path, resource_dir("templates")):
        assert str(word).encode() not in b"".join(made[0])


@needs_nvrtc
def test_an_error_in_the_source_shows_nvrtcs_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLLC_CACHE", str(tmp_path))
    with pytest.raises(BuildError, match=r"device\.cu\(1\): error.*nonsense"):
        nvrtc.compile_kernels(nvrtc.find_nvrtc(), "70", "nonsense x;\n")


NEW = Nvcc("/nowhere/nvcc", "13.0", "V13.0.88", ("75", "80", "90", "100", "120"))
OLDER = Nvcc("/nowhere/nvcc", "12.6", "V12.6.1", ("60", "70", "75", "80", "90"))
RUNTIME = Nvrtc("/nowhere/libnvrtc.so.12", "12.9", "NVRTC 12.9", ("60", "70", "75", "80", "90", "100", "120"))


def machine(monkeypatch: pytest.MonkeyPatch, compiler: Nvcc | None, runtime: Nvrtc | None) -> None:
    """A machine with these compilers."""

    def missing_nvcc() -> Nvcc:
        raise BuildError("no nvcc found")

    def missing_nvrtc() -> Nvrtc:
        raise BuildError("no NVRTC 12 found")

    monkeypatch.delenv("COLLC_NVRTC", raising=False)
    monkeypatch.setattr(cuda, "nvcc_path", lambda: compiler and Path(compiler.path))
    monkeypatch.setattr(cuda, "nvrtc_path", lambda: runtime and Path(runtime.path))
    monkeypatch.setattr(cuda, "find_nvcc", (lambda: compiler) if compiler else missing_nvcc)
    monkeypatch.setattr(cuda, "find_nvrtc", (lambda: runtime) if runtime else missing_nvrtc)


@pytest.mark.parametrize(
    ("compiler", "runtime", "only", "text"),
    [
        (NEW, None, None, "sm_75, sm_80, sm_90, sm_100, sm_120, PTX 8.0 (driver 580.65.06 or newer)"),
        (
            NEW,
            RUNTIME,
            None,
            "sm_60, sm_70 (driver 525.60.13 or newer); "
            "sm_75, sm_80, sm_90, sm_100, sm_120, PTX 8.0 (driver 580.65.06 or newer)",
        ),
        (
            NEW,
            RUNTIME,
            12,
            "sm_60, sm_70, sm_75, sm_80, sm_90 (driver 525.60.13 or newer); "
            "sm_100, sm_120 (driver 570.26 or newer); PTX 8.0 (driver 575.51.03 or newer)",
        ),
        (
            OLDER,
            None,
            None,
            "sm_60, sm_70, sm_75, sm_80, sm_90 (driver 525.60.13 or newer); PTX 8.0 (driver 560.28.03 or newer)",
        ),
        (None, RUNTIME, None, "sm_60, sm_70, sm_75, sm_80, sm_90 (driver 525.60.13 or newer); sm_100, sm_120 (driver"),
    ],
)
def test_each_chip_has_its_compiler_and_driver(
    monkeypatch: pytest.MonkeyPatch, compiler: Nvcc | None, runtime: Nvrtc | None, only: int | None, text: str
) -> None:
    machine(monkeypatch, compiler, runtime)
    assert cuda.needs(cuda.planned_code(only)).startswith(text)


@pytest.mark.parametrize(
    ("compiler", "only", "words"), [(None, None, "no nvcc"), (NEW, 12, "no NVRTC 12"), (None, 12, "no NVRTC 12")]
)
def test_what_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, compiler: Nvcc | None, only: int | None, words: str
) -> None:
    machine(monkeypatch, compiler, None)
    with pytest.raises(BuildError, match=words):
        cuda.planned_code(only)


def test_cuda_12_is_for_the_cuda_target_alone() -> None:
    assert "--cuda chooses the compilers of --target cuda" in refused(
        collc("compile", "dgx1v", "--target", "host", "--cuda", "12"), code=2
    )


def test_doctor_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collc.doctor.nvrtc_path", lambda: None)
    monkeypatch.setattr("collc.build.cuda.nvrtc_path", lambda: None)
    shown = collc("doctor").out
    assert "NVRTC 12: pip install 'collc[cuda12]'" in shown


# The chip of each machine that comes with collc, by NVIDIA's table of compute capabilities; None: GPUs by AMD.
ZOO_SM = {
    **dict.fromkeys(("dgx1p",), 60),
    **dict.fromkeys(("ac922", "aws-p3-16xlarge", "azure-ndv2", "dgx1v", "dgx2"), 70),
    **dict.fromkeys(("a100-pcie-bridged", "a100x4-nv4", "aws-p4d-24xlarge", "azure-ndv4", "dgx-a100", "hgx-a800"), 80),
    **dict.fromkeys(("pcie-4xl40s", "pcie-8x4090", "pcie-8xl40s"), 89),
    **dict.fromkeys(("aws-p5-48xlarge", "azure-ndv5", "hgx-h100", "hgx-h20", "hgx-h200", "hgx-h800"), 90),
    **dict.fromkeys(("gb200-nvl72", "hgx-b200"), 100),
    "gb300-nvl72": 103,
    **dict.fromkeys(("mi250", "mi250x", "mi300x"), None),
}


def zoo_request(name: str, folder: Path) -> CompileRequest:
    """A request for a library of one collective of GPUs 0 and 1."""
    first = load_topology(name).gpus[:2]
    return CompileRequest(name, gpus=",".join(gpu.name for gpu in first), output=folder / "lib.so")


class ReachedPacking(Exception):
    """Raised where compile would begin to pack trees."""


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("runtime", [None, RUNTIME], ids=["nvcc 13", "nvcc 13 and NVRTC 12"])
def test_compile_packs_only_for_gpus_that_its_compilers_know(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, runtime: Nvrtc | None
) -> None:
    """Each machine of the zoo: an error before any packing, or device code for its chip is planned."""
    machine(monkeypatch, NEW, runtime)

    def contents(*_: object, **__: object) -> None:
        raise ReachedPacking

    monkeypatch.setattr(compiler, "library_contents", contents)
    sm = ZOO_SM[name]
    if sm is not None and sm < 75 and runtime is None:
        with pytest.raises(BuildError, match=r"no compiler here makes code .* nvcc 13\.0 .*collc\[cuda12\]") as raised:
            compile_topology(zoo_request(name, tmp_path))
        assert f"(sm_{sm})" in str(raised.value)
        return
    with pytest.raises(ReachedPacking):
        compile_topology(zoo_request(name, tmp_path))
    codes = {row["code"] for row in cuda.planned_code()}
    assert sm is None or f"sm_{sm}" in codes or f"sm_{sm // 10 * 10}" in codes


def test_compile_without_code_for_volta_exits_1_and_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine(monkeypatch, NEW, None)
    line = refused(collc("compile", "dgx1v", "--gpus", "0,1", "-o", tmp_path / "lib.so"))
    assert "V100 (sm_70): no compiler here makes code for them: there is nvcc 13.0 (pip install 'collc[cuda12]'" in line
    assert not list(tmp_path.iterdir())


def test_chips_older_than_the_kernels_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """No compiler helps a Kepler GPU, so the hint names none."""
    machine(monkeypatch, NEW, RUNTIME)
    with pytest.raises(BuildError, match=r"Tesla K80 \(sm_37\): collc has no kernels .* \(--target host"):
        cuda.check_chip(37, "Tesla K80")


def test_one_server_of_two_has_gpus_without_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The servers of a cluster differ; no folder is made for the one that could be built."""
    machine(monkeypatch, NEW, None)
    cluster = tmp_path / "two.yaml"
    cluster.write_text(
        "format: collc-topology/1\nname: two\ntemplates: {h100: hgx-h100, v100: dgx1v}\n"
        "servers: {h100: [new], v100: [old]}\nlinks: []\n"
    )
    line = refused(collc("compile", cluster, "-o", tmp_path / "out"))
    assert "V100 (sm_70)" in line
    assert not (tmp_path / "out").exists()
