"""Compiles one source with NVRTC in a separate process: NVRTC compiles one source at a time per process, and may crash.

This is a separate program that uses only the standard library::

    nvrtc_worker.py LIBRARY SOURCE HEADERS CUBIN PTX LOG OPTION...

HEADERS is a folder of headers that replace the headers of the C++ library, which NVRTC lacks. The program writes the
log to LOG. If the compilation fails, it also writes the log to stderr and ends with status 1.
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
        """Calls a function by name. If it fails, ends the program with one line on stderr."""
        result = self.call(function, *arguments)
        if result != 0:
            raise SystemExit(f"error: {function}: {self.library.nvrtcGetErrorString(result).decode()}")

    def output(self, what: str, program: ctypes.c_void_p) -> bytes:
        """Returns a result of a compilation.

        Args:
            what: CUBIN, PTX or ProgramLog.
        """
        size = ctypes.c_size_t()
        self.must(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        data = ctypes.create_string_buffer(size.value)
        self.must(f"nvrtcGet{what}", program, data)
        return data.raw


def strings(values: list[bytes]) -> ctypes.Array[ctypes.c_char_p]:
    """Returns an array of C strings."""
    return (ctypes.c_char_p * len(values))(*values)


def main(library: str, source: str, headers: str, cubin: str, ptx: str, log: str, *options: str) -> int:
    """Compiles `source`, writes the files `cubin`, `ptx` and `log`, and returns the exit status."""
    nvrtc = Nvrtc(library)
    program = ctypes.c_void_p()
    paths = sorted(Path(headers).iterdir())
    contents = strings([path.read_bytes() for path in paths])
    names = strings([path.name.encode() for path in paths])
    text = Path(source).read_bytes()
    name = Path(source).name.encode()
    nvrtc.must("nvrtcCreateProgram", ctypes.byref(program), text, name, len(paths), contents, names)
    status = nvrtc.call("nvrtcCompileProgram", program, len(options), strings([o.encode() for o in options]))
    log_text = nvrtc.output("ProgramLog", program).rstrip(b"\0").decode(errors="replace")
    Path(log).write_text(log_text, encoding="utf-8")
    if status:
        sys.stderr.write(f"{log_text}\n")
        return 1
    Path(cubin).write_bytes(nvrtc.output("CUBIN", program))
    Path(ptx).write_bytes(nvrtc.output("PTX", program).rstrip(b"\0"))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
