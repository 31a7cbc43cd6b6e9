"""The device verbs as the compiler writes them: opcode, order, scope, width, and the barriers around them.

The emulator replaces `device.h`, so no run of it notices a release that became relaxed or a flag that nobody looks at.
These tables say what each verb must become in PTX, whose memory model the protocols rely on (PTX ISA, chapter "Memory
consistency model"), and in the machine code of five architectures. Faults planted in the verbs must change them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from collc import resources
from collc.build import nvcc
from collc.build.nvrtc import Nvrtc, compile_kernels, find_nvrtc, nvrtc_path

pytestmark = [
    pytest.mark.nvcc,
    pytest.mark.skipif(nvcc.nvcc_path() is None, reason="no nvcc on PATH, in CUDA_HOME or a wheel"),
]
ARCHITECTURES = ("75", "80", "90", "100", "120")
KERNELS = Path(__file__).with_name("verbs.cu")

# Verb -> the memory accesses, barriers, votes and comparisons of its kernel, in order. Plain stores of a result of 4 or
# 8 bytes are the kernel's own and left out, except around the barrier.
PTX: dict[str, tuple[str, ...]] = {
    "flag_poll_": ("ld.relaxed.sys.global.u64",),
    # The poll, the acquire of the same counter, and only then data.
    "flag_acquire_": (
        "ld.relaxed.sys.global.u64",
        "ld.acquire.sys.global.u64",
        "ld.global.v4.u32",
        "st.global.v4.u32",
    ),
    "flag_store_": ("st.release.sys.global.u64",),
    "free_slot_": ("st.relaxed.sys.global.u64",),
    "tell_bytes_": ("st.relaxed.sys.global.u64",),
    "host_load_": ("ld.relaxed.sys.global.u32",),
    "host_store_": ("st.release.sys.global.u32",),
    "load_pack": ("ld.global.v4.u32",),
    "store_pack": ("st.global.v4.u32",),
    "load_duo": ("ld.global.v2.u32",),
    "store_duo": ("st.global.v2.u32",),
    # Both flags of each are compared, and each half is one access that nothing tears. No load waits for another one.
    "ll_load_": (*2 * ("ld.relaxed.sys.global.v2.u64",), *4 * ("setp",)),
    "ll_store_": ("st.relaxed.sys.global.v2.u64",),
    # All lanes come together before one instruction reads each line; the lanes of flags compare, all learn of it.
    "ll128_load_": (
        "bar.warp.sync",
        "ld.relaxed.sys.global.v2.u64",
        "ld.relaxed.sys.global.v2.u64",
        "setp",
        "setp",
        "setp",
        "vote.sync.all.pred",
    ),
    "ll128_store_": ("bar.warp.sync", "st.relaxed.sys.global.v2.u64", "st.relaxed.sys.global.v2.u64"),
    "warp_any_": ("vote.sync.any.pred",),
    "barrier_": ("st.global.u32", "bar.sync", "st.global.u32"),
    "barrier_or_": ("bar.red.or.pred",),
}
# The same in machine code, where acquire is a load and an invalidation of the first-level cache, release a fence before
# the store. Comparisons are left out: ptxas folds them.
SASS: dict[str, tuple[str, ...]] = {
    "flag_poll_": ("LDG.64.STRONG.SYS",),
    # One load, of the poll: ptxas drops the second load, whose value is unused, and keeps the invalidation.
    "flag_acquire_": ("LDG.64.STRONG.SYS", "CCTL.IVALL", "LDG.128", "STG.128"),
    "flag_store_": ("MEMBAR.ALL.SYS", "STG.64.STRONG.SYS"),
    "free_slot_": ("STG.64.STRONG.SYS",),
    "tell_bytes_": ("STG.64.STRONG.SYS",),
    "host_load_": ("LDG.STRONG.SYS",),
    "host_store_": ("MEMBAR.ALL.SYS", "STG.STRONG.SYS"),
    "load_pack": ("LDG.128",),
    "store_pack": ("STG.128",),
    "load_duo": ("LDG.64",),
    "store_duo": ("STG.64",),
    "ll_load_": 2 * ("LDG.128.STRONG.SYS",),
    "ll_store_": ("STG.128.STRONG.SYS",),
    "ll128_load_": ("LDG.128.STRONG.SYS", "LDG.128.STRONG.SYS", "VOTE.ALL"),
    "ll128_store_": ("STG.128.STRONG.SYS", "STG.128.STRONG.SYS"),
    "warp_any_": ("VOTE.ANY",),
    "barrier_": ("STG", "BAR.SYNC", "STG"),
    "barrier_or_": ("BAR.RED.OR",),
}
# Pascal's, which has neither acquire nor release: volatile flags, a system fence where the order is needed and nowhere
# else, all data read past the first-level cache; no LL128.
FENCE = "membar.sys"
PASCAL: dict[str, tuple[str, ...]] = {
    "flag_poll_": ("ld.volatile.global.u64",),
    "flag_acquire_": ("ld.volatile.global.u64", FENCE, "ld.volatile.global.v4.u32", "st.global.v4.u32"),
    "flag_store_": (FENCE, "st.volatile.global.u64"),
    "free_slot_": ("st.volatile.global.u64",),
    "tell_bytes_": ("st.volatile.global.u64",),
    "host_load_": ("ld.volatile.global.u32",),
    "host_store_": (FENCE, "st.volatile.global.u32"),
    "load_pack": ("ld.volatile.global.v4.u32",),
    "store_pack": ("st.global.v4.u32",),
    "load_duo": ("ld.volatile.global.u64",),
    "store_duo": ("st.global.v2.u32",),
    "ll_load_": (*2 * ("ld.volatile.global.v2.u64",), *4 * ("setp",)),
    "ll_store_": ("st.volatile.global.v2.u64",),
    "barrier_": PTX["barrier_"],
    "barrier_or_": PTX["barrier_or_"],
}
# A fault in a verb: what device.h says -> what it might come to say, and the verbs that it spoils.
LINES = {"ll_load_", "ll128_load_"}
FREED = {"free_slot_", "tell_bytes_"}  # the second is the first
LINE_LOAD, LINE_STORE = "ld.relaxed.sys.global.v2.u64", "st.relaxed.sys.global.v2.u64"
PACK = "reinterpret_cast<const uint4 *>(from)"
FAULTS: dict[str, tuple[str, str, set[str]]] = {
    "a relaxed acquire": ("ld.acquire.sys.global.u64", "ld.relaxed.sys.global.u64", {"flag_acquire_"}),
    "an acquire at GPU scope": ("ld.acquire.sys.global.u64", "ld.acquire.gpu.global.u64", {"flag_acquire_"}),
    "a poll that may be kept in a cache": (
        "ld.relaxed.sys.global.u64",
        "ld.global.u64",
        {"flag_poll_", "flag_acquire_"},
    ),
    "polls that each acquire": (
        "ld.relaxed.sys.global.u64",
        "ld.acquire.sys.global.u64",
        {"flag_poll_", "flag_acquire_"},
    ),
    "polls at GPU scope": ("ld.relaxed.sys.global.u64", "ld.relaxed.gpu.global.u64", {"flag_poll_", "flag_acquire_"}),
    "a slot freed at GPU scope": ("st.relaxed.sys.global.u64", "st.relaxed.gpu.global.u64", FREED),
    "a slot freed by a plain store": ("st.relaxed.sys.global.u64", "st.global.u64", FREED),
    "a slot freed behind a fence": ("st.relaxed.sys.global.u64", "st.release.sys.global.u64", FREED),
    "a relaxed release": ("st.release.sys.global.u64", "st.relaxed.sys.global.u64", {"flag_store_"}),
    "a release at GPU scope": ("st.release.sys.global.u64", "st.release.gpu.global.u64", {"flag_store_"}),
    "no release to the host": ("st.release.sys.global.u32", "st.relaxed.sys.global.u32", {"host_store_"}),
    "a word of the host kept in a cache": ("ld.relaxed.sys.global.u32", "ld.global.u32", {"host_load_"}),
    "lines at GPU scope": (LINE_LOAD, "ld.relaxed.gpu.global.v2.u64", LINES),
    "lines through the read-only cache": (LINE_LOAD, "ld.global.nc.v2.u64", LINES),
    "lines that may be kept back": (LINE_STORE, "st.global.v2.u64", {"ll_store_", "ll128_store_"}),
    "one flag of LL": (" && high[k] >> 32 == flag[k]", "", {"ll_load_"}),
    "the flag of one line of two": ("    there &= lane", "    if (k == 0) there &= lane", {"ll128_load_"}),
    "a lane's own view of LL128": ("__all_sync(0xffffffffu, there)", "there", {"ll128_load_"}),
    "any flag of LL128": ("__all_sync", "__any_sync", {"ll128_load_"}),
    "lanes that do not come together": ("  __syncwarp();\n", "", {"ll128_load_", "ll128_store_"}),
    "data through the read-only cache": (f"*{PACK}", f"__ldg({PACK})", {"load_pack", "flag_acquire_"}),
    "a barrier of a warp alone": ("__syncthreads();", "__syncwarp();", {"barrier_"}),
    "all instead of any": ("__syncthreads_or", "__syncthreads_and", {"barrier_or_"}),
}
_POLL = "ld.volatile.global.u64"
PASCAL_FAULTS: dict[str, tuple[str, str, set[str]]] = {
    "no fence behind the polls": (
        "flag_acquire(const uint64_t *) { __threadfence_system(); }",
        "flag_acquire(const uint64_t *) {}",
        {"flag_acquire_"},
    ),
    "a fence of the GPU behind the polls": (
        "flag_acquire(const uint64_t *) { __threadfence_system(); }",
        "flag_acquire(const uint64_t *) { __threadfence(); }",
        {"flag_acquire_"},
    ),
    "no fence before a flag": ("__threadfence_system();\n  free_slot", "free_slot", {"flag_store_"}),
    "a fence of the GPU before a flag": (
        "__threadfence_system();\n  free_slot",
        "__threadfence();\n  free_slot",
        {"flag_store_"},
    ),
    "no fence before a word to the host": (
        '__threadfence_system();\n  asm volatile("st',
        'asm volatile("st',
        {"host_store_"},
    ),
    "a poll from the cache": (_POLL, "ld.global.u64", {"flag_poll_", "flag_acquire_"}),
    "a freed slot kept back": ("st.volatile.global.u64", "st.global.u64", FREED | {"flag_store_"}),
    "data from the first-level cache": (
        "ld.volatile.global.v4.u32",
        "ld.global.v4.u32",
        {"load_pack", "flag_acquire_"},
    ),
    "two words from the first-level cache": (
        "const volatile uint64_t *>(from)",
        "const uint64_t *>(from)",
        {"load_duo"},
    ),
    "lines from the first-level cache": ("ld.volatile.global.v2.u64", "ld.global.v2.u64", {"ll_load_"}),
    "lines kept back": ("st.volatile.global.v2.u64", "st.global.v2.u64", {"ll_store_"}),
    "one flag of LL": (" && high[k] >> 32 == flag[k]", "", {"ll_load_"}),
    "a barrier of nobody": ("__syncthreads();", "", {"barrier_"}),
}
_OPS = re.compile(
    r"^\s+(?:@!?%p\d+ )?((?:ld|st)\.(?!param)[\w.]+|(?:bar|vote|fence|membar|redux)[.\w]+|setp)", re.MULTILINE
)
_MACHINE = re.compile(r"\b((?:LD|ST)G?\.[\w.]+|(?:BAR|MEMBAR|CCTL|VOTEU?|FENCE|WARPSYNC)[.\w]*)")


def headers() -> Path:
    return Path(str(resources.resource_dir("templates"))) / "include"


def compiled(*options: str, include: Path, output: Path) -> Path:
    tool = nvcc.find_nvcc().path
    command = [tool, "-std=c++17", "-O3", f"-I{include}", *options, str(KERNELS), "-o", str(output)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return output


def own_stores_left_out(verb: str, found: list[str], plain: str) -> tuple[str, ...]:
    """Without the kernel's stores of results, and without comparisons where they are not of flags."""
    wanted = [op for op in found if verb == "barrier_" or not re.fullmatch(plain, op)]
    return tuple(op for op in wanted if op != "setp" or verb in LINES)


def ptx_table(text: str) -> dict[str, tuple[str, ...]]:
    parts = re.split(r"^\.visible \.entry (\w+)\(", text, flags=re.MULTILINE)
    return {
        verb: own_stores_left_out(verb, _OPS.findall(body), r"st\.global\.u(32|64)" if verb not in FREED else "-")
        for verb, body in zip(parts[1::2], parts[2::2], strict=True)
    }


def sass_table(text: str) -> dict[str, tuple[str, ...]]:
    found = {}
    parts = re.split(r"^\.text\.(\w+):$", text, flags=re.MULTILINE)
    for verb, body in zip(parts[1::2], parts[2::2], strict=True):
        ops = []
        for op in _MACHINE.findall(body):
            # Turing names the scope of weak accesses too, and later machines how a barrier waits.
            op = op.replace("STG.E", "STG").replace("LDG.E", "LDG").replace(".DEFER_BLOCKING", "")
            ops.append(op if "STRONG" in op or not op.startswith(("LDG", "STG")) else op.removesuffix(".SYS"))
        found[verb] = own_stores_left_out(verb, ops, r"STG(\.64)?") if not verb.startswith("store") else tuple(ops)
    return found


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_verb_is_what_the_memory_model_needs(architecture: str, tmp_path: Path) -> None:
    options = (f"-arch=compute_{architecture}", "-ptx")
    text = compiled(*options, include=headers(), output=tmp_path / "verbs.ptx").read_text()
    assert ptx_table(text) == PTX


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_machine_code_keeps_order_scope_and_width(architecture: str, tmp_path: Path) -> None:
    tool = shutil.which(nvcc.find_nvcc().tool("nvdisasm"))
    if tool is None:
        pytest.skip("no nvdisasm (pip: nvidia-cuda-nvdisasm)")
    cubin = compiled(f"-arch=sm_{architecture}", "-cubin", include=headers(), output=tmp_path / "verbs.cubin")
    text = subprocess.run([tool, "-c", str(cubin)], check=True, capture_output=True, text=True).stdout
    found = sass_table(text)
    if architecture == "75":
        # Turing has no vote for all: it asks whether any lane says no, of the lanes that are there.
        found["ll128_load_"] = tuple(op for op in found["ll128_load_"] if op != "VOTEU.ANY")
        assert found["ll128_load_"][-1] == "VOTE.ANY"
        found["ll128_load_"] = (*found["ll128_load_"][:-1], "VOTE.ALL")
    assert found == SASS


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_verb_is_found(fault: str, tmp_path: Path) -> None:
    right, wrong, spoilt = FAULTS[fault]
    shutil.copytree(headers(), tmp_path / "include")
    header = tmp_path / "include" / "collc" / "cuda" / "device.h"
    text = header.read_text(encoding="utf-8")
    assert right in text
    header.write_text(text.replace(right, wrong), encoding="utf-8")
    ptx = compiled("-arch=compute_90", "-ptx", include=tmp_path / "include", output=tmp_path / "verbs.ptx")
    found = ptx_table(ptx.read_text())
    assert {verb for verb in PTX if found[verb] != PTX[verb]} == spoilt


def pascal_source(change: tuple[str, str] = ("", "")) -> str:
    """device.h, with a piece of text changed, and the kernels of its verbs, as one source for NVRTC."""
    text = (headers() / "collc" / "cuda" / "device.h").read_text(encoding="utf-8")
    right, wrong = change
    assert right in text
    text = text.replace(right, wrong) if right else text
    kernels = KERNELS.read_text(encoding="utf-8").replace('#include "collc/cuda/device.h"\n', "")
    return text.replace("#pragma once\n", "") + kernels


@pytest.fixture(scope="module")
def nvrtc() -> Nvrtc:
    if nvrtc_path() is None:
        pytest.skip("no NVRTC 12 (pip: nvidia-cuda-nvrtc-cu12)")
    return find_nvrtc()


def test_pascals_verbs_fence_where_order_is_needed(nvrtc: Nvrtc) -> None:
    made = compile_kernels(nvrtc, "60", pascal_source())
    assert ptx_table(made.ptx.read_text(encoding="utf-8")) == PASCAL


def test_voltas_verbs_are_those_of_later_machines(nvrtc: Nvrtc) -> None:
    made = compile_kernels(nvrtc, "70", pascal_source())
    assert ptx_table(made.ptx.read_text(encoding="utf-8")) == PTX


@pytest.mark.parametrize("fault", PASCAL_FAULTS)
def test_a_fault_in_a_verb_of_pascal_is_found(fault: str, nvrtc: Nvrtc) -> None:
    right, wrong, spoilt = PASCAL_FAULTS[fault]
    found = ptx_table(compile_kernels(nvrtc, "60", pascal_source((right, wrong))).ptx.read_text(encoding="utf-8"))
    assert {verb for verb in PASCAL if found[verb] != PASCAL[verb]} == spoilt


def test_every_verb_that_touches_memory_or_waits_has_its_row() -> None:
    """Verbs of device.h with accesses, barriers or votes: each is called by a kernel of the table."""
    text = (headers() / "collc" / "cuda" / "device.h").read_text(encoding="utf-8")
    kernels = KERNELS.read_text(encoding="utf-8")
    touching = set()
    for part in text.split("\nCOLLC_DEVICE ")[1:]:
        name = re.search(r"(\w+)\(", part)
        if name and re.search(r"\"(ld|st)\.|__sync|_sync\(|ll_access\(|uint[24] \*>", part.partition("\n}\n")[0]):
            touching.add(name[1])
    assert {"flag_poll", "flag_acquire", "free_slot", "flag_store", "ll_load", "ll128_store", "barrier"} <= touching
    assert {name for name in touching if not re.search(rf"\b{name}\(", kernels)} <= {"ll_access"}
