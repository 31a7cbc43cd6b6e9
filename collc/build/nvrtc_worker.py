"""Runs NVRTC in a process of its own: it compiles one source at a time per process, and may crash.

A program by itself, of the standard library alone:

    nvrtc_worker.py LIBRARY SOURCE HEADERS CUBIN PTX LOG OPTION...

HEADERS is a folder of headers that stand in for the C++ library's, which NVRTC lacks. The log goes to LOG, and to
stderr with status 1 if the compilation fails.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path


class Nvrtc:
    """The functions of nvrtc.h that a compilation needs."""

    def __init__(self, library: str) -> None:
        self.library = ctypes.CDLL(library)
        self.library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def call(self, function: str, *arguments: object) -> int:
        """Calls a function by name and returns its status."""
        return int(getattr(self.library, function)(*arguments))

    def must(self, function: str, *arguments: object) -> None:
        """Calls a function that has to succeed; ends the program with one line otherwise."""
        result = self.call(function, *arguments)
        if result != 0:
            raise SystemExit(f"error: {function}: {self.library.nvrtcGetErrorString(result).decode()}")

    def output(self, what: str, program: ctypes.c_void_p) -> bytes:
        """A result by its name: CUBIN, PTX or ProgramLog."""
        size = ctypes.c_size_t()
        self.must(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        data = ctypes.create_string_buffer(size.value)
        self.must(f"nvrtcGet{what}", program, data)
        return data.raw


def strings(values: list[bytes]) -> ctypes.Array[ctypes.c_char_p]:
    """The words as an array of C strings."""
    return (ctypes.c_char_p * len(values))(*values)


def main(library: str, source: str, headers: str, cubin: str, ptx: str, log: str, *options: str) -> int:
    """Compiles `source` and writes cubin, PTX and log; the exit status."""
    nvrtc = Nvrtc(library)
    program = ctypes.c_void_p()
    found = sorted(Path(headers).iterdir())
    contents = strings([path.read_bytes() for path in found])
    names = strings([path.name.encode() for path in found])
    text = Path(source).read_bytes()
    name = Path(source).name.encode()
    nvrtc.must("nvrtcCreateProgram", ctypes.byref(program), text, name, len(found), contents, names)
    failed = nvrtc.call("nvrtcCompileProgram", program, len(options), strings([o.encode() for o in options]))
    said = nvrtc.output("ProgramLog", program).rstrip(b"\0").decode(errors="replace")
    Path(log).write_text(said, encoding="utf-8")
    if failed:
        sys.stderr.write(f"{said}\n")
        return 1
    Path(cubin).write_bytes(nvrtc.output("CUBIN", program))
    Path(ptx).write_bytes(nvrtc.output("PTX", program).rstrip(b"\0"))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
