"""Builds the device code of the CUDA target: one fatbin for all libraries with the same options.

Only specialized kernels depend on a topology.
"""

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

# The chips that get SASS, by the architecture of the PTX that it is made from. PTX is compiled once per architecture,
# because this takes most of the time, and the sources only distinguish the memory model of sm_70 and the arithmetic of
# sm_80. Later chips of a major version run the SASS of the first one (6.0 runs on 6.1, 8.0 on 8.6 to 8.9, 10.0 on
# 10.3). Newer chips use the PTX for 8.0.
SASS = {"60": ("60",), "70": ("70",), "75": ("75",), "80": ("80", "90", "100", "120")}
PTX = "80"
PTX_FLAGS = ("-std=c++17", "-O3", "--Werror", "all-warnings", "-allow-unsupported-compiler")
SASS_FLAGS = ("-O3", "-Xptxas=-warn-spills,-warn-lmem-usage")
# nvcc 12 warns that a later release will drop the chips of `OLD`.
OLD_FLAGS = ("-Wno-deprecated-gpu-targets",)

# Makes kernels with counters of their time (templates/include/collc/cuda/tally.h).
COUNTERS_FLAGS = ("-DCOLLC_COUNTERS",)
# Adds the kernels of programs inside a switch (in_switch.h) on 9.0 and newer. These chips then have separate PTX.
IN_SWITCH_FLAGS = ("-DCOLLC_IN_SWITCH",)
# Adds Simple kernels that read the buffers of other ranks (direct.h).
DIRECT_FLAGS = ("-DCOLLC_DIRECT",)
SASS_IN_SWITCH = {**SASS, "80": ("80",), "90": ("90", "100", "120")}

# The architectures that the compilers of CUDA 13 have dropped.
OLD = ("60", "70")
# The driver of each CUDA release (release notes of CUDA, table of toolkits and drivers). The driver compiles PTX, so it
# must be as new as the compiler that wrote it.
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
# Chips that need a newer driver than the oldest one of CUDA 12, because release 12.8 added them.
YOUNG = {"100": RELEASE_DRIVER["12.8"], "120": RELEASE_DRIVER["12.8"]}


@dataclass(frozen=True)
class DeviceCode:
    """A fatbin and its contents.

    Attributes:
        images: machine code in the order of the chips, then PTX.
        counters: its kernels count their time.
        written: its specialized kernels.
        direct: it has kernels that read the buffers of other ranks.
        in_switch: it has kernels of programs inside a switch.
        origin: its `device_origin`.
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
        """The chips that it has code for, in groups, with the oldest driver of each group."""
        return needs(self.rows())

    def rows(self) -> list[dict[str, str]]:
        """Returns its rows in the manifest."""
        return [image.row() for image in self.images]


def needs(rows: Sequence[Mapping[str, str]]) -> str:
    """Returns the device code and its oldest drivers as text: "sm_80, sm_90 (driver 580.65.06 or newer)".

    Args:
        rows: the rows of device code in a manifest.
    """
    drivers = list(dict.fromkeys(row["driver"] for row in rows))
    groups = [(driver, ", ".join(row["code"] for row in rows if row["driver"] == driver)) for driver in drivers]
    return "; ".join(f"{names} (driver {driver} or newer)" for driver, names in groups)


def device_source() -> Path:
    """Returns the path of the source of all kernels."""
    return resource_dir("templates") / "cuda" / "device.cu"


def find_toolkits(cuda: int | None = None) -> tuple[Nvcc | None, Nvrtc | None]:
    """Returns the compilers of device code on this machine: nvcc and NVRTC, each None if it is not used.

    NVRTC is for chips that nvcc does not support, or for a machine without nvcc.

    Args:
        cuda: 12 takes only compilers of CUDA 12, whose code runs with older drivers. None takes any release.

    Raises:
        BuildError: there is no compiler of this release, nvcc does not run, or an NVRTC cannot be loaded that
            COLLC_NVRTC names or that has no nvcc beside it.
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
    """Returns the compiler of each chip of `SASS`: nvcc if it supports the chip, else NVRTC."""
    chips = [sm for reals in SASS.values() for sm in reals]
    compilers: dict[str, Nvcc | Nvrtc] = {}
    for sm in chips:
        for compiler in (nvcc, nvrtc):
            if compiler and sm in compiler.architectures:
                compilers.setdefault(sm, compiler)
    return compilers


def check_chip(chip: int, gpu_model: str, cuda: int | None = None) -> None:
    """Raises BuildError unless a compiler on this machine makes code that runs on GPUs of this chip.

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
    """Returns the manifest rows of the device code that `build_device_code` would build, without building it."""
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
    """Returns the kernels for every chip of `SASS` that the compilers support, built or from the cache.

    The same inputs give the same bytes.

    Args:
        cuda: as for `find_toolkits`.
        counters: kernels count their time.
        written: the specialized kernels of one library, in addition to the kernels of all libraries.
        in_switch: add kernels of programs inside a switch, on the chips with the instructions for it.
        direct: add kernels that read the buffers of other ranks.

    Raises:
        BuildError: there is no compiler, or one fails.
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
            nvcc_chips = [sm for sm, maker in by_chip.items() if maker is nvcc]
            for virtual, chips in entries.items():
                reals = [sm for sm in chips if sm in nvcc_chips]
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
    """Returns a name for the sources and tools of the fatbin that `build_device_code` makes from the same arguments.

    Fatbins with the same name are equal.

    Raises:
        BuildError: there is no compiler.
    """
    tools = [tool.version if tool else "" for tool in find_toolkits(cuda)]
    headers = sorted((resource_dir("templates") / "include").rglob("*.h"))
    contents = [path.read_bytes() for path in (*headers, *sorted(stand_ins().iterdir()))]
    flags = [*PTX_FLAGS, *SASS_FLAGS, *NVRTC_FLAGS, *_kernel_flags(counters, in_switch, direct)]
    return content_key([*tools, *flags, _source(written), *contents])


def _source(written: Written | None) -> str:
    """Returns the source of all kernels, with the specialized ones."""
    return device_source().read_text(encoding="utf-8") + (written.source if written else "")


def _kernel_flags(counters: bool, in_switch: bool, direct: bool) -> tuple[str, ...]:
    flags = (COUNTERS_FLAGS if counters else ()) + (IN_SWITCH_FLAGS if in_switch else ())
    return flags + (DIRECT_FLAGS if direct else ())


def _nvcc_images(nvcc: Nvcc, virtual: str, reals: Sequence[str], source: str, extra: Sequence[str]) -> list[Image]:
    """Returns the images for some chips from PTX of one architecture; with the PTX if it is the PTX for newer chips."""
    flags = OLD_FLAGS if virtual in OLD else ()
    ptx = make_ptx(nvcc, virtual, source, extra=(*flags, *extra))
    with ThreadPoolExecutor(len(reals)) as pool:
        jobs = [submit(pool, make_cubin, nvcc, ptx, real, flags) for real in reals]
        cubins = [job.result() for job in jobs]
    images = [_image("elf", sm, nvcc, cubin) for sm, cubin in zip(reals, cubins, strict=True)]
    return images + [_image("ptx", PTX, nvcc, ptx)] * (virtual == PTX)


def _nvrtc_images(nvrtc: Nvrtc, sm: str, source: str, extra: Sequence[str]) -> list[Image]:
    """Returns the image for one chip; with its PTX if it is the PTX for newer chips."""
    result = compile_kernels(nvrtc, sm, source, extra)
    return [_image("elf", sm, nvrtc, result.cubin)] + [_image("ptx", PTX, nvrtc, result.ptx)] * (sm == PTX)


def _image(kind: str, sm: str, maker: Nvcc | Nvrtc, path: Path) -> Image:
    """Returns an image with the oldest driver that loads it."""
    driver = maker.driver
    if kind == "ptx":
        driver = RELEASE_DRIVER.get(maker.release, driver)
    elif maker.release.startswith("12."):
        driver = YOUNG.get(sm, driver)
    return Image(kind, sm, path, maker.label, driver)


def make_ptx(nvcc: Nvcc, architecture: str, source: str | None = None, extra: Sequence[str] = ()) -> Path:
    """Returns the PTX of a source for compute_`architecture`, built or from the cache.

    Args:
        source: the text of the source; default: the source of all kernels.
        extra: additional flags of nvcc.
    """
    text = device_source().read_text(encoding="utf-8") if source is None else source
    headers = [path.read_bytes() for path in sorted((resource_dir("templates") / "include").rglob("*.h"))]
    key = content_key([nvcc.version, architecture, *PTX_FLAGS, *extra, text, *headers])

    def make(output: Path) -> None:
        # The copy has a fixed name, because nvcc derives the names of symbols from the name of the source.
        unit = output.with_name("device.cu")
        unit.write_text(text, encoding="utf-8")
        include = f"-I{resource_dir('templates') / 'include'}"
        command = [nvcc.path, *PTX_FLAGS, *extra, include, f"-arch=compute_{architecture}", "-ptx"]
        run_tool([*command, unit.name, "-o", output.name], cwd=str(output.parent))

    return cached(key, "device.ptx", make, label=f"PTX for compute_{architecture} by {nvcc.label}")


def make_cubin(nvcc: Nvcc, ptx: Path, architecture: str, extra: Sequence[str] = ()) -> Path:
    """Returns the machine code of a PTX file for sm_`architecture`, built or from the cache."""
    text = ptx.read_bytes()

    def make(output: Path) -> None:
        output.with_name("device.ptx").write_bytes(text)
        arguments = [f"-arch=sm_{architecture}", "-cubin", "device.ptx", "-o", output.name]
        run_tool([nvcc.path, *SASS_FLAGS, *extra, *arguments], cwd=str(output.parent))

    key = content_key([nvcc.version, architecture, *SASS_FLAGS, *extra, text])
    return cached(key, "device.cubin", make, label=f"code for sm_{architecture} by {nvcc.label}")


def embed(code: DeviceCode, compiler: Compiler) -> Path:
    """Returns an object with the fatbin as collc_fatbin and its `text`, for messages, as collc_device_code.

    Further symbols tell the runtime about the kernels: collc_counters if they count their time, collc_direct if some
    read the buffers of other ranks, collc_in_switch if some are of programs inside a switch. The table collc_variants
    comes with specialized kernels.

    The fatbin is in the section that cuobjdump searches for device code.
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

    def make(output: Path) -> None:
        output.with_name("collc.fatbin").write_bytes(data)
        output.with_name("fatbin.s").write_text(text, encoding="ascii")
        run_tool([compiler.path, "-c", "fatbin.s", "-o", output.name], cwd=str(output.parent))

    return cached(content_key([compiler.version, text, data]), "fatbin.o", make)


def _variants(written: Written) -> list[str]:
    """Returns the assembler lines of the table of variants."""
    words = struct.unpack(f"<{len(written.table) // 4}I", written.table)
    head = [".section .rodata", ".balign 4", ".globl collc_variants", ".hidden collc_variants", "collc_variants:"]
    return [*head, *(f".long {word}" for word in words)]
