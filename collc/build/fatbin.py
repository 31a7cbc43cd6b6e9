"""Puts device code for several chips into one fatbin, from which a driver takes what fits its GPU."""

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

# Zstandard, which drivers read from 550 on, takes a third of the space of what all drivers read (rapids-cmake,
# rapids_cuda_enable_fatbin_compression, lists which driver reads which mode). Code of CUDA 13 needs 580 anyway.
SMALL, FOR_ALL_DRIVERS = "size", "speed"


@dataclass(frozen=True)
class Image:
    """Device code for one chip.

    Args:
        kind: "elf" for machine code, "ptx".
        sm: the number of the architecture: 90.
        path: in the cache, in a folder whose name identifies the content.
        compiler: what made it, with its release: "nvcc 13.0".
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
        """Its row in a manifest: code (sm_90, PTX 8.0), its compiler, the oldest driver that loads it."""
        return {"code": self.name, "compiler": self.compiler, "driver": self.driver}


def make_fatbin(images: Sequence[Image], nvcc: Nvcc | None, nvrtc: Nvrtc | None) -> Path:
    """One fatbin of all images, from the cache if it was built before: by nvcc's `fatbinary`, else by nvFatbin.

    Args:
        nvcc, nvrtc: the toolkits that the container's tool may be taken from, not both None.

    Raises:
        BuildError: the tool is missing or refuses an image.
    """
    mode = SMALL if all(image.compiler.startswith("nvcc 13") for image in images) else FOR_ALL_DRIVERS
    tool = nvcc.version if nvcc else nvrtc.version if nvrtc else ""
    named = [text for image in images for text in (image.kind, image.sm, image.path.parent.name)]

    def make(made: Path) -> None:
        if nvcc is not None:
            _by_tool(images, nvcc, mode, made)
        else:
            assert nvrtc is not None
            made.write_bytes(_by_library(images, nvfatbin_path(nvrtc)))

    return cached(content_key([tool, mode, *named]), "collc.fatbin", make)


def nvfatbin_path(nvrtc: Nvrtc) -> Path:
    """libnvfatbin.so.12 of the toolkit that NVRTC belongs to: beside it, or in the neighbouring wheel.

    Raises:
        BuildError: it is not there.
    """
    folder = Path(nvrtc.path).resolve().parent
    places = [folder / LIBRARY, folder.parent.parent / "nvfatbin" / "lib" / LIBRARY]
    found = next((path for path in places if path.is_file()), None)
    if found is None:
        raise BuildError(f"no {LIBRARY} belongs to {nvrtc.path}", hint=INSTALL_NVRTC)
    return found


def _by_tool(images: Sequence[Image], nvcc: Nvcc, mode: str, made: Path) -> None:
    # The names of files must not reach the fatbin: they are those of this machine's cache.
    arguments = []
    for number, image in enumerate(images):
        name = f"{number}{image.path.suffix}"
        (made.parent / name).symlink_to(image.path.resolve())
        arguments.append(f"--image3=kind={image.kind},sm={image.sm},file={name}")
    # Before 13 there was one compression, that which all drivers read.
    modes = [f"--compress-mode={mode}"] if nvcc.major >= 13 else []
    command = [nvcc.tool("fatbinary"), "-64", "--compress-all", *modes]
    run_tool([*command, f"--create={made.name}", *arguments], cwd=str(made.parent))


def _by_library(images: Sequence[Image], path: Path) -> bytes:
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise BuildError(f"cannot load nvFatbin: {error}", where=str(path), hint=INSTALL_NVRTC) from error
    library.nvFatbinGetErrorString.restype = ctypes.c_char_p

    def must(function: str, *arguments: object) -> None:
        result = getattr(library, function)(*arguments)
        if result != 0:
            raise BuildError(f"{function}: {library.nvFatbinGetErrorString(result).decode()}", where=str(path))

    # The compression that all drivers read is the default, and not all of CUDA 12 have the option.
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
            else:  # a text with its end
                length = ctypes.c_size_t(len(data) + 1)
                must("nvFatbinAddPTX", handle, data, length, image.sm.encode(), None, None)
        must("nvFatbinSize", handle, ctypes.byref(size))
        fatbin = ctypes.create_string_buffer(size.value)
        must("nvFatbinGet", handle, fatbin)
    finally:
        library.nvFatbinDestroy(ctypes.byref(handle))
    return fatbin.raw
