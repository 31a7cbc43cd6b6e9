"""The verbs of multicast addresses as the compiler writes them: operation, precision, order, scope and width.

The emulator replaces them, so these tables say what each must become in PTX and in the machine code of the
architectures that have them. Faults planted in the verbs must change them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from test_verbs import headers

from collc.build import nvcc
from collc.build.cuda import build_device_code

pytestmark = [
    pytest.mark.nvcc,
    pytest.mark.skipif(nvcc.nvcc_path() is None, reason="no nvcc on PATH, in CUDA_HOME or a wheel"),
]
ARCHITECTURES = ("90", "100", "120")
KERNELS = Path(__file__).with_name("multimem.cu")
LOAD = "multimem.ld_reduce.relaxed.sys.global."

# Verb -> its accesses of multicast addresses and its fences, in order.
PTX: dict[str, tuple[str, ...]] = {
    "sum_f16": (f"{LOAD}add.acc::f32.v4.f16x2",),
    "max_f16": (f"{LOAD}max.v4.f16x2",),
    "min_f16": (f"{LOAD}min.v4.f16x2",),
    "sum_bf16": (f"{LOAD}add.acc::f32.v4.bf16x2",),
    "max_bf16": (f"{LOAD}max.v4.bf16x2",),
    "min_bf16": (f"{LOAD}min.v4.bf16x2",),
    "sum_f32": (f"{LOAD}add.v4.f32",),
    "sum_f64": (f"{LOAD}add.f64",) * 2,
    "sum_u32": (f"{LOAD}add.u32",) * 4,
    "sum_u64": (f"{LOAD}add.u64",) * 2,
    "max_u32": (f"{LOAD}max.u32",) * 4,
    "max_i32": (f"{LOAD}max.s32",) * 4,
    "min_u32": (f"{LOAD}min.u32",) * 4,
    "min_i32": (f"{LOAD}min.s32",) * 4,
    "max_u64": (f"{LOAD}max.u64",) * 2,
    "max_i64": (f"{LOAD}max.s64",) * 2,
    "min_u64": (f"{LOAD}min.u64",) * 2,
    "min_i64": (f"{LOAD}min.s64",) * 2,
    "switch_store_": ("multimem.st.relaxed.sys.global.v4.f32",),
    "alias_fence_": ("bar.sync", "fence.proxy.alias", "st.release.sys.global.u64"),
}
# In machine code a sum is one load of the switch: LDGMC. Of sums of 16 bits, Hopper says that they are added up in f32,
# Blackwell that it is in high precision.
WIDE = {"90": "F32ADD", "100": "HPADD", "120": "HPADD"}


def sass(architecture: str) -> dict[str, tuple[str, ...]]:
    def load(kind: str, count: int = 1) -> tuple[str, ...]:
        return (f"LDGMC.E.{kind}.STRONG.SYS",) * count

    wide = WIDE[architecture]
    return {
        "sum_f16": load(f"{wide}.F16x8.RN"),
        "max_f16": load("MAX.F16x8.RN"),
        "min_f16": load("MIN.F16x8.RN"),
        "sum_bf16": load(f"{wide}.BF16x8.RN"),
        "max_bf16": load("MAX.BF16x8.RN"),
        "min_bf16": load("MIN.BF16x8.RN"),
        "sum_f32": load("ADD.F32x4.RN"),
        "sum_f64": load("ADD.F64.RN", 2),
        "sum_u32": load("ADD.32", 4),
        "sum_u64": load("ADD.64", 2),
        "max_u32": load("MAX.32", 4),
        "max_i32": load("MAX.S32", 4),
        "min_u32": load("MIN.32", 4),
        "min_i32": load("MIN.S32", 4),
        "max_u64": load("MAX.64", 2),
        "max_i64": load("MAX.S64", 2),
        "min_u64": load("MIN.64", 2),
        "min_i64": load("MIN.S64", 2),
        "switch_store_": ("STG.E.128.STRONG.SYS",),
    }


# A fault in a verb: what multimem.h says -> what it might come to say, and the verbs that it spoils.
HALVES = {"sum_f16", "sum_bf16"}
SUMS = {verb for verb in PTX if not verb.endswith("_")}
FAULTS: dict[str, tuple[str, str, set[str]]] = {
    "sums at GPU scope": ("ld_reduce.relaxed.sys", "ld_reduce.relaxed.gpu", SUMS),
    "weak sums": ("ld_reduce.relaxed.sys", "ld_reduce.weak", SUMS),
    "halves added up as halves": ("add.acc::f32.v4.", "add.v4.", HALVES),
    "a store at GPU scope": ("multimem.st.relaxed.sys", "multimem.st.relaxed.gpu", {"switch_store_"}),
    "a store to one memory": ("multimem.st.relaxed.sys.global.v4.f32", "st.global.v4.b32", {"switch_store_"}),
    "no fence between the addresses": ("fence.proxy.alias;", "", {"alias_fence_"}),
    "a fence of plain order": ("fence.proxy.alias;", "fence.acq_rel.sys;", {"alias_fence_"}),
    "signed for unsigned": (
        "flip >> 31 & 1) != 0) != smallest",
        "flip >> 31 & 1) != 0) == smallest",
        {"max_u32", "max_i32", "min_u32", "min_i32"},
    ),
    "integers of 64 bits without a sign": (
        "is_signed = ((flip >> 63) != 0)",
        "is_signed = ((flip & 1) != 0)",
        {"max_i64", "min_i64"},
    ),
}


def compiled(*options: str, include: Path, output: Path) -> Path:
    command = [nvcc.find_nvcc().path, "-std=c++17", "-O3", f"-I{include}", *options, str(KERNELS), "-o", str(output)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return output


def ptx_table(text: str) -> dict[str, tuple[str, ...]]:
    parts = re.split(r"^\.visible \.entry (\w+)\(", text, flags=re.MULTILINE)
    ops = re.compile(r"^\s+(?:@!?%p\d+ )?(multimem[\w.:]+|fence[\w.:]+|bar\.sync|st\.release[\w.]+)", re.MULTILINE)
    return {verb: tuple(ops.findall(body)) for verb, body in zip(parts[1::2], parts[2::2], strict=True)}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_verb_is_what_the_memory_model_needs(architecture: str, tmp_path: Path) -> None:
    options = (f"-arch=compute_{architecture}", "-ptx")
    text = compiled(*options, include=headers(), output=tmp_path / "multimem.ptx").read_text()
    assert ptx_table(text) == PTX


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_machine_code_keeps_them(architecture: str, tmp_path: Path) -> None:
    tool = shutil.which(nvcc.find_nvcc().tool("nvdisasm"))
    if tool is None:
        pytest.skip("no nvdisasm (pip: nvidia-cuda-nvdisasm)")
    cubin = compiled(f"-arch=sm_{architecture}", "-cubin", include=headers(), output=tmp_path / "multimem.cubin")
    text = subprocess.run([tool, "-c", str(cubin)], check=True, capture_output=True, text=True).stdout
    parts = re.split(r"^\.text\.(\w+):$", text, flags=re.MULTILINE)
    wanted = sass(architecture)
    for verb, body in zip(parts[1::2], parts[2::2], strict=True):
        if verb in wanted:
            what = r"\b(STG[\w.]+STRONG[\w.]*)" if verb == "switch_store_" else r"\b(LDGMC[\w.]+)"
            assert tuple(re.findall(what, body)) == wanted.pop(verb), verb
    assert wanted == {}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_verb_is_found(fault: str, tmp_path: Path) -> None:
    right, wrong, spoilt = FAULTS[fault]
    shutil.copytree(headers(), tmp_path / "include")
    header = tmp_path / "include" / "collc" / "cuda" / "multimem.h"
    text = header.read_text(encoding="utf-8")
    assert right in text
    header.write_text(text.replace(right, wrong), encoding="utf-8")
    ptx = compiled("-arch=compute_90", "-ptx", include=tmp_path / "include", output=tmp_path / "multimem.ptx")
    found = ptx_table(ptx.read_text())
    assert {verb for verb in PTX if found[verb] != PTX[verb]} == spoilt


@pytest.mark.parametrize("architecture", ["75", "80"])
def test_older_machines_have_none_of_them(architecture: str, tmp_path: Path) -> None:
    """Kernels that use them are built only for sm_90 and newer. For other architectures the verbs are not declared."""
    with pytest.raises(subprocess.CalledProcessError) as said:
        compiled(f"-arch=compute_{architecture}", "-ptx", include=headers(), output=tmp_path / "multimem.ptx")
    assert "switch_store" in said.value.stderr


@pytest.mark.slow
def test_libraries_have_the_kernels_for_the_gpus_that_run_them() -> None:
    images = build_device_code(in_switch=True).images
    assert {"90", "100", "120"} <= {image.sm for image in images}
    for image in images:
        has = b"collc_in_switch_f32" in image.path.read_bytes()
        assert has == (image.kind == "elf" and int(image.sm) >= 90), image.name
