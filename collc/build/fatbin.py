"""Puts device code for several chips into one fatbin. A driver takes the code that fits its GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from collc.build.cache import cached, content_key
from collc.build.nvcc import Nvcc
from collc.build.nvrtc import INSTALL_NVRTC, Nvrtc
from collc.build.toolchain import run_tool
from collc.errors import BuildError

LIBRARY = "libnvfatbin.so.12"

# Modes of compression. Drivers from 550 on read Zstandard, which takes a third of the space of the mode for all drivers
# (rapids-cmake, rapids_cuda_enable_fatbin_compression, lists the modes of each driver). Code of CUDA 13 needs driver
# 580 in any case.
SMALL, FOR_ALL_DRIVERS = "size", "speed"


@dataclass(frozen=True)
class Image:
    """Device code for one chip.

    Args:
        kind: "elf" for machine code, or "ptx".
        sm: the number of the architecture, such as 90.
        path: its file in the cache, in a folder whose name identifies the content.
        compiler: its compiler and release: "nvcc 13.0".
        driver: the oldest driver that loads it.
    """

    kind: str
    sm: str
    path: Path
    compiler: str
    driver: str

    @property
    def name(self) -> str:
        """The chip, such as sm_90, or PTX and its version."""
        return f"sm_{self.sm}" if self.kind == "elf" else f"PTX {self.sm[:-1]}.{self.sm[-1]}"

    def row(self) -> dict[str, str]:
        """Returns its row in a manifest: code (sm_90, PTX 8.0), its compiler, the oldest driver that loads it."""
        return {"code": self.name, "compiler": self.compiler, "driver": self.driver}


def make_fatbin(images: Sequence[Image], nvcc: Nvcc | None, nvrtc: Nvrtc | None) -> Path:
    """Returns one fatbin of all images, built or from the cache.

    Args:
        nvcc: the toolkit whose `fatbinary` makes the fatbin.
        nvrtc: without nvcc, the toolkit whose nvFatbin makes the fatbin. One of both is not None.

    Raises:
        BuildError: the tool is missing or refuses an image.
    """
    mode = SMALL if all(image.compiler.startswith("nvcc 13") for image in images) else FOR_ALL_DRIVERS
    tool = nvcc.version if nvcc else nvrtc.version if nvrtc else ""
    names = [text for image in images for text in (image.kind, image.sm, image.path.parent.name)]

    def make(output: Path) -> None:
        if nvcc is not None:
            _by_tool(images, nvcc, mode, output)
        else:
            assert nvrtc is not None
            output.write_bytes(_by_library(images, nvfatbin_path(nvrtc)))

    return cached(content_key([tool, mode, *names]), "collc.fatbin", make)


def nvfatbin_path(nvrtc: Nvrtc) -> Path:
    """Returns the path of libnvfatbin.so.12 of the toolkit of NVRTC: next to NVRTC, or in the wheel of nvFatbin.

    Raises:
        BuildError: the library is in neither place.
    """
    folder = Path(nvrtc.path).resolve().parent
    paths = [folder / LIBRARY, folder.parent.parent / "nvfatbin" / "lib" / LIBRARY]
    library = next((path for path in paths if path.is_file()), None)
    if library is None:
        raise BuildError(f"no {LIBRARY} belongs to {nvrtc.path}", hint=INSTALL_NVRTC)
    return library


def _by_tool(images: Sequence[Image], nvcc: Nvcc, mode: str, output: Path) -> None:
    """Makes the fatbin with the tool of nvcc."""
    # The paths in this machine's cache must not reach the fatbin, so the tool reads links with fixed names.
    arguments = []
    for number, image in enumerate(images):
        name = f"{number}{image.path.suffix}"
        (output.parent / name).symlink_to(image.path.resolve())
        arguments.append(f"--image3=kind={image.kind},sm={image.sm},file={name}")
    # Before CUDA 13 the only compression was the one for all drivers.
    modes = [f"--compress-mode={mode}"] if nvcc.major >= 13 else []
    command = [nvcc.tool("fatbinary"), "-64", "--compress-all", *modes]
    run_tool([*command, f"--create={output.name}", *arguments], cwd=str(output.parent))


def _by_library(images: Sequence[Image], path: Path) -> bytes:
    """Returns the fatbin that the nvFatbin library at `path` makes."""
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise BuildError(f"cannot load nvFatbin: {error}", where=str(path), hint=INSTALL_NVRTC) from error
    library.nvFatbinGetErrorString.restype = ctypes.c_char_p

    def must(function: str, *arguments: object) -> None:
        result = getattr(library, function)(*arguments)
        if result != 0:
            raise BuildError(f"{function}: {library.nvFatbinGetErrorString(result).decode()}", where=str(path))

    # The compression for all drivers is the default; not all releases of CUDA 12 have the option for it.
    options = [b"-64", b"-compress-all"]
    handle, size = ctypes.c_void_p(), ctypes.c_size_t()
    must(
        "nvFatbinCreate",
        ctypes.byref(handle),
        (ctypes.c_char_p * len(options))(*options),
        ctypes.c_size_t(len(options)),
    )
    try:
        for image in images:
            data = image.path.read_bytes()
            if image.kind == "elf":
                must("nvFatbinAddCubin", handle, data, ctypes.c_size_t(len(data)), image.sm.encode(), None)
            else:  # PTX is a text, whose length includes the final zero byte
                length = ctypes.c_size_t(len(data) + 1)
                must("nvFatbinAddPTX", handle, data, length, image.sm.encode(), None, None)
        must("nvFatbinSize", handle, ctypes.byref(size))
        fatbin = ctypes.create_string_buffer(size.value)
        must("nvFatbinGet", handle, fatbin)
    finally:
        library.nvFatbinDestroy(ctypes.byref(handle))
    return fatbin.raw
