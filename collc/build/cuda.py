"""The device code of the CUDA target: one fatbin for every library, since the kernels know no topology."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from collc.build.cache import cached, content_key
from collc.build.nvcc import Nvcc, find_nvcc
from collc.build.toolchain import Compiler, run_tool
from collc.resources import resource_dir

# PTX is made twice, since the sources ask only whether there is sm_80's arithmetic, and most of the time goes there.
# From it comes SASS for the first chip of each generation, which later chips of its major version run too (8.0 runs on
# 8.6 to 8.9, 10.0 on 10.3). The PTX for 8.0 is in the fatbin for whatever is newer.
SASS = {"75": ("75",), "80": ("80", "90", "100", "120")}
PTX = "80"
PTX_FLAGS = ("-std=c++17", "-O3", "--Werror", "all-warnings", "-allow-unsupported-compiler")
SASS_FLAGS = ("-O3", "-Xptxas=-warn-spills,-warn-lmem-usage")


def device_source() -> Path:
    return resource_dir("templates") / "cuda" / "device.cu"


def build_fatbin() -> Path:
    """The fatbin of the kernels, from the cache if it was built before. The same inputs give the same bytes.

    Raises:
        BuildError: no nvcc, or it failed.
    """
    nvcc = find_nvcc()
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        ptx = dict(zip(SASS, pool.map(lambda a: make_ptx(nvcc, a), SASS), strict=True))
        wanted = [(virtual, real) for virtual in SASS for real in SASS[virtual] if real in nvcc.architectures]
        cubins = list(pool.map(lambda pair: make_cubin(nvcc, ptx[pair[0]], pair[1]), wanted))
    images = [(f"kind=elf,sm={real}", path) for (_, real), path in zip(wanted, cubins, strict=True)]
    images.append((f"kind=ptx,sm={PTX}", ptx[PTX]))

    def make(made: Path) -> None:
        # The names of files must not reach the fatbin: they are those of this machine's cache.
        arguments = []
        for number, (image, path) in enumerate(images):
            name = f"{number}{path.suffix}"
            (made.parent / name).symlink_to(path.resolve())
            arguments.append(f"--image3={image},file={name}")
        command = [_beside(nvcc, "fatbinary"), "-64", "--compress-all", "--compress-mode=size"]
        run_tool([*command, f"--create={made.name}", *arguments], cwd=str(made.parent))

    key = content_key([nvcc.version, *(text for image, path in images for text in (image, path.parent.name))])
    return cached(key, "collc.fatbin", make)


def _beside(nvcc: Nvcc, tool: str) -> str:
    """The tool of nvcc's own installation; where nvcc is a script somewhere else, the one on PATH."""
    path = Path(nvcc.path).resolve().with_name(tool)
    return str(path) if path.is_file() else tool


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

    return cached(key, "device.ptx", make)


def make_cubin(nvcc: Nvcc, ptx: Path, architecture: str) -> Path:
    """The machine code of a PTX file for sm_`architecture`."""
    text = ptx.read_bytes()

    def make(made: Path) -> None:
        made.with_name("device.ptx").write_bytes(text)
        command = [nvcc.path, *SASS_FLAGS, f"-arch=sm_{architecture}", "-cubin", "device.ptx", "-o", made.name]
        run_tool(command, cwd=str(made.parent))

    return cached(content_key([nvcc.version, architecture, *SASS_FLAGS, text]), "device.cubin", make)


def embed(fatbin: Path, compiler: Compiler) -> Path:
    """An object with the fatbin between the symbols collc_fatbin and collc_fatbin_end."""
    text = (
        ".section .rodata\n.balign 16\n.globl collc_fatbin\n.hidden collc_fatbin\n"
        ".globl collc_fatbin_end\n.hidden collc_fatbin_end\n"
        'collc_fatbin:\n.incbin "collc.fatbin"\ncollc_fatbin_end:\n'
        '.section .note.GNU-stack,"",%progbits\n'
    )
    data = fatbin.read_bytes()

    def make(made: Path) -> None:
        made.with_name("collc.fatbin").write_bytes(data)
        made.with_name("fatbin.s").write_text(text, encoding="ascii")
        run_tool([compiler.path, "-c", "fatbin.s", "-o", made.name], cwd=str(made.parent))

    return cached(content_key([compiler.version, text, data]), "fatbin.o", make)
