"""The device code of the CUDA target: one fatbin for every library, since the kernels know no topology."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from collc.build.account import submit
from collc.build.cache import cached, content_key
from collc.build.fatbin import Image, make_fatbin
from collc.build.nvcc import Nvcc, find_nvcc, nvcc_path
from collc.build.nvrtc import FLAGS as NVRTC_FLAGS
from collc.build.nvrtc import INSTALL_NVRTC, Nvrtc, compile_kernels, find_nvrtc, nvrtc_path, stand_ins
from collc.build.toolchain import Compiler, run_tool
from collc.codegen.specialise import Written
from collc.errors import BuildError
from collc.resources import resource_dir

# PTX is made once per entry, since most of the time goes there and the sources ask only whether there is sm_70's memory
# model and sm_80's arithmetic. From it comes SASS for the first chip of each generation, which later chips of its major
# version run too (6.0 runs on 6.1, 8.0 on 8.6 to 8.9, 10.0 on 10.3). The PTX for 8.0 is there for whatever is newer.
SASS = {"60": ("60",), "70": ("70",), "75": ("75",), "80": ("80", "90", "100", "120")}
PTX = "80"
PTX_FLAGS = ("-std=c++17", "-O3", "--Werror", "all-warnings", "-allow-unsupported-compiler")
SASS_FLAGS = ("-O3", "-Xptxas=-warn-spills,-warn-lmem-usage")
# An nvcc 12 warns that these chips will go.
OLD_FLAGS = ("-Wno-deprecated-gpu-targets",)

# Makes the kernels count where their time goes (templates/include/collc/cuda/tally.h).
COUNTERS_FLAGS = ("-DCOLLC_COUNTERS",)
# Adds the kernels of programs inside a switch (in_switch.h) on 9.0 and newer, for which there is PTX of their own then.
IN_SWITCH_FLAGS = ("-DCOLLC_IN_SWITCH",)
# Adds Simple kernels whose ranks read each other's buffers (direct.h).
DIRECT_FLAGS = ("-DCOLLC_DIRECT",)
SASS_IN_SWITCH = {**SASS, "80": ("80",), "90": ("90", "100", "120")}

# What CUDA 13's compilers have dropped.
OLD = ("60", "70")
# The driver that each release came with (release notes of CUDA, table of toolkits and drivers). The driver compiles
# PTX, so it must be as new as the compiler that wrote it.
RELEASE_DRIVER = {
    "12.0": "525.60.13",
    "12.1": "530.30.02",
    "12.2": "535.54.03",
    "12.3": "545.23.06",
    "12.4": "550.54.14",
    "12.5": "555.42.02",
    "12.6": "560.28.03",
    "12.8": "570.26",
    "12.9": "575.51.03",
    "13.0": "580.65.06",
}
# Chips that the oldest driver of CUDA 12 does not know: 12.8 brought them.
YOUNG = {"100": RELEASE_DRIVER["12.8"], "120": RELEASE_DRIVER["12.8"]}


@dataclass(frozen=True)
class DeviceCode:
    """A fatbin and what it holds, machine code in the order of the chips, PTX last; whether its kernels count; the
    kernels in it whose steps are written out; whether there are some that read other ranks' buffers, and some of
    programs inside a switch; its `device_origin`.
    """

    fatbin: Path
    images: tuple[Image, ...]
    counters: bool = False
    written: Written | None = None
    direct: bool = False
    in_switch: bool = False
    origin: str = ""

    @property
    def text(self) -> str:
        """The chips that it has code for, and the oldest driver for each group of them."""
        return needs(self.rows())

    def rows(self) -> list[dict[str, str]]:
        """Its row in the manifest."""
        return [image.row() for image in self.images]


def needs(rows: Sequence[Mapping[str, str]]) -> str:
    """The device code of a manifest with the oldest drivers for it: "sm_80, sm_90 (driver 580.65.06 or newer)"."""
    drivers = list(dict.fromkeys(row["driver"] for row in rows))
    groups = [(driver, ", ".join(row["code"] for row in rows if row["driver"] == driver)) for driver in drivers]
    return "; ".join(f"{names} (driver {driver} or newer)" for driver, names in groups)


def device_source() -> Path:
    """The one source of all kernels."""
    return resource_dir("templates") / "cuda" / "device.cu"


def find_toolkits(cuda: int | None = None) -> tuple[Nvcc | None, Nvrtc | None]:
    """The compilers of device code on this machine: nvcc, and an NVRTC for what nvcc lacks or where there is none.

    Args:
        cuda: 12 takes only what CUDA 12 brings, whose code older drivers run; None: whatever is there.

    Raises:
        BuildError: neither is there, or nvcc does not run.
    """
    nvcc = find_nvcc() if nvcc_path() is not None else None
    if cuda is not None and nvcc is not None and nvcc.major != cuda:
        nvcc = None
    if nvcc is None and (cuda is not None or nvrtc_path() is None):
        # The error says what to install: NVRTC if CUDA 12 was asked for, else nvcc.
        return (None, find_nvrtc()) if cuda is not None else (find_nvcc(), None)
    try:
        return nvcc, find_nvrtc()
    except BuildError:
        if nvcc is None or os.environ.get("COLLC_NVRTC"):
            raise
        return nvcc, None


def makers(nvcc: Nvcc | None, nvrtc: Nvrtc | None) -> dict[str, Nvcc | Nvrtc]:
    """The compiler for each chip: nvcc if it supports the chip, else NVRTC."""
    chips = [sm for reals in SASS.values() for sm in reals]
    found: dict[str, Nvcc | Nvrtc] = {}
    for sm in chips:
        for compiler in (nvcc, nvrtc):
            if compiler and sm in compiler.architectures:
                found.setdefault(sm, compiler)
    return found


def check_chip(chip: int, gpu_model: str, cuda: int | None = None) -> None:
    """Raises BuildError unless a compiler here makes code that GPUs of this chip run.

    A GPU runs machine code for its own major version up to its own minor version, and PTX for every older chip (CUDA
    C++ Programming Guide, "Binary Compatibility" and "PTX Compatibility").

    Args:
        chip: ten times the GPU's compute capability.
        gpu_model: the GPU's name, for the error.
        cuda: as for `find_toolkits`.
    """
    by_chip = makers(*find_toolkits(cuda))
    if any(int(sm) // 10 == chip // 10 and int(sm) <= chip for sm in by_chip) or (PTX in by_chip and chip >= int(PTX)):
        return
    oldest = min(int(sm) for sms in SASS.values() for sm in sms)
    labels = " and ".join(dict.fromkeys(compiler.label for compiler in by_chip.values()))
    if chip < oldest:
        what, hint = f"collc has no kernels for GPUs older than sm_{oldest}", ""
    else:
        what, hint = f"no compiler here makes code for them: there is {labels}", f"{INSTALL_NVRTC}; or "
    raise BuildError(what, where=f"{gpu_model} (sm_{chip})", hint=f"{hint}--target host makes a library for CPUs")


def planned_code(cuda: int | None = None) -> list[dict[str, str]]:
    """The rows of what `build_device_code` would build, without building it."""
    by_chip = makers(*find_toolkits(cuda))
    images = [_image("elf", sm, maker, Path()) for sm, maker in by_chip.items()]
    if PTX in by_chip:
        images.append(_image("ptx", PTX, by_chip[PTX], Path()))
    return [image.row() for image in images]


def build_device_code(
    cuda: int | None = None,
    counters: bool = False,
    written: Written | None = None,
    in_switch: bool = False,
    direct: bool = False,
) -> DeviceCode:
    """The kernels for every chip that the compilers here know, from the cache if they were built before.

    The same inputs give the same bytes.

    Args:
        cuda: as for `find_toolkits`.
        counters: kernels that count where their time goes.
        written: kernels of one library whose steps are written out, beside those that all libraries have.
        in_switch: also those of programs inside a switch, on the chips that have their instructions.
        direct: also those whose ranks read each other's buffers.

    Raises:
        BuildError: no compiler, or one failed.
    """
    nvcc, nvrtc = find_toolkits(cuda)
    source, flags = _source(written), _kernel_flags(counters, in_switch, direct)
    by_chip = makers(nvcc, nvrtc)
    entries = SASS_IN_SWITCH if in_switch else SASS
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        jobs = [
            submit(pool, _nvrtc_images, maker, sm, source, flags)
            for sm, maker in by_chip.items()
            if isinstance(maker, Nvrtc)
        ]
        if nvcc is not None:
            wanted = [sm for sm, maker in by_chip.items() if maker is nvcc]
            for virtual, chips in entries.items():
                reals = [sm for sm in chips if sm in wanted]
                jobs += [submit(pool, _nvcc_images, nvcc, virtual, reals, source, flags)] if reals else []
        images = [image for job in jobs for image in job.result()]
    images.sort(key=lambda image: (image.kind == "ptx", int(image.sm)))
    origin = device_origin(cuda, counters, written, in_switch, direct)
    fatbin = make_fatbin(images, nvcc, nvrtc)
    return DeviceCode(fatbin, tuple(images), counters, written, direct, in_switch, origin)


def device_origin(
    cuda: int | None = None,
    counters: bool = False,
    written: Written | None = None,
    in_switch: bool = False,
    direct: bool = False,
) -> str:
    """Returns a name for the sources and tools of the fatbin that `build_device_code` makes of the same arguments.

    Fatbins with one name are equal. Raises BuildError if there is no compiler.
    """
    tools = [tool.version if tool else "" for tool in find_toolkits(cuda)]
    headers = sorted((resource_dir("templates") / "include").rglob("*.h"))
    fixed = [path.read_bytes() for path in (*headers, *sorted(stand_ins().iterdir()))]
    flags = [*PTX_FLAGS, *SASS_FLAGS, *NVRTC_FLAGS, *_kernel_flags(counters, in_switch, direct)]
    return content_key([*tools, *flags, _source(written), *fixed])


def _source(written: Written | None) -> str:
    return device_source().read_text(encoding="utf-8") + (written.source if written else "")


def _kernel_flags(counters: bool, in_switch: bool, direct: bool) -> tuple[str, ...]:
    flags = (COUNTERS_FLAGS if counters else ()) + (IN_SWITCH_FLAGS if in_switch else ())
    return flags + (DIRECT_FLAGS if direct else ())


def _nvcc_images(nvcc: Nvcc, virtual: str, reals: Sequence[str], source: str, extra: Sequence[str]) -> list[Image]:
    flags = OLD_FLAGS if virtual in OLD else ()
    ptx = make_ptx(nvcc, virtual, source, extra=(*flags, *extra))
    with ThreadPoolExecutor(len(reals)) as pool:
        jobs = [submit(pool, make_cubin, nvcc, ptx, real, flags) for real in reals]
        cubins = [job.result() for job in jobs]
    made = [_image("elf", sm, nvcc, cubin) for sm, cubin in zip(reals, cubins, strict=True)]
    return made + [_image("ptx", PTX, nvcc, ptx)] * (virtual == PTX)


def _nvrtc_images(nvrtc: Nvrtc, sm: str, source: str, extra: Sequence[str]) -> list[Image]:
    made = compile_kernels(nvrtc, sm, source, extra)
    return [_image("elf", sm, nvrtc, made.cubin)] + [_image("ptx", PTX, nvrtc, made.ptx)] * (sm == PTX)


def _image(kind: str, sm: str, maker: Nvcc | Nvrtc, path: Path) -> Image:
    driver = maker.driver
    if kind == "ptx":
        driver = RELEASE_DRIVER.get(maker.release, driver)
    elif maker.release.startswith("12."):
        driver = YOUNG.get(sm, driver)
    return Image(kind, sm, path, maker.label, driver)


def make_ptx(nvcc: Nvcc, architecture: str, source: str | None = None, extra: Sequence[str] = ()) -> Path:
    """The PTX of all kernels, or of a source of the caller's, for compute_`architecture`."""
    text = device_source().read_text(encoding="utf-8") if source is None else source
    fixed = [path.read_bytes() for path in sorted((resource_dir("templates") / "include").rglob("*.h"))]
    key = content_key([nvcc.version, architecture, *PTX_FLAGS, *extra, text, *fixed])

    def make(made: Path) -> None:
        # A copy under a fixed name: nvcc derives the names of symbols from that of the source.
        unit = made.with_name("device.cu")
        unit.write_text(text, encoding="utf-8")
        include = f"-I{resource_dir('templates') / 'include'}"
        command = [nvcc.path, *PTX_FLAGS, *extra, include, f"-arch=compute_{architecture}", "-ptx"]
        run_tool([*command, unit.name, "-o", made.name], cwd=str(made.parent))

    return cached(key, "device.ptx", make, label=f"PTX for compute_{architecture} by {nvcc.label}")


def make_cubin(nvcc: Nvcc, ptx: Path, architecture: str, extra: Sequence[str] = ()) -> Path:
    """The machine code of a PTX file for sm_`architecture`."""
    text = ptx.read_bytes()

    def make(made: Path) -> None:
        made.with_name("device.ptx").write_bytes(text)
        command = [nvcc.path, *SASS_FLAGS, *extra, f"-arch=sm_{architecture}", "-cubin", "device.ptx", "-o", made.name]
        run_tool(command, cwd=str(made.parent))

    key = content_key([nvcc.version, architecture, *SASS_FLAGS, *extra, text])
    return cached(key, "device.cubin", make, label=f"code for sm_{architecture} by {nvcc.label}")


def embed(code: DeviceCode, compiler: Compiler) -> Path:
    """An object with the fatbin as collc_fatbin and what it holds, for messages, as collc_device_code.

    Kernels that count come with the symbol collc_counters, which the runtime looks for, those that read other ranks'
    buffers with collc_direct, those of programs inside a switch with collc_in_switch, and those whose steps are written
    out with the table collc_variants.

    The section is the one in which cuobjdump looks for device code.
    """
    lines = [
        *('.section .nv_fatbin,"a",%progbits', ".balign 16", ".globl collc_fatbin", ".hidden collc_fatbin"),
        *("collc_fatbin:", '.incbin "collc.fatbin"'),
        *('.section .rodata.str1.1,"aMS",%progbits,1', ".globl collc_device_code", ".hidden collc_device_code"),
        *("collc_device_code:", f'.asciz "{code.text}"'),
        *((".globl collc_counters", ".hidden collc_counters", "collc_counters: .byte 1") if code.counters else ()),
        *((".globl collc_direct", ".hidden collc_direct", "collc_direct: .byte 1") if code.direct else ()),
        *((".globl collc_in_switch", ".hidden collc_in_switch", "collc_in_switch: .byte 1") if code.in_switch else ()),
        *(_variants(code.written) if code.written else ()),
        '.section .note.GNU-stack,"",%progbits',
    ]
    text = "\n".join(lines) + "\n"
    data = code.fatbin.read_bytes()

    def make(made: Path) -> None:
        made.with_name("collc.fatbin").write_bytes(data)
        made.with_name("fatbin.s").write_text(text, encoding="ascii")
        run_tool([compiler.path, "-c", "fatbin.s", "-o", made.name], cwd=str(made.parent))

    return cached(content_key([compiler.version, text, data]), "fatbin.o", make)


def _variants(written: Written) -> list[str]:
    words = struct.unpack(f"<{len(written.table) // 4}I", written.table)
    head = [".section .rodata", ".balign 4", ".globl collc_variants", ".hidden collc_variants", "collc_variants:"]
    return [*head, *(f".long {word}" for word in words)]
