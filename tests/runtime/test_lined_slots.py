"""Chunks of LL between servers by themselves: lines in any order, flags that come again, pieces, and planted faults."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

import pytest
from support.libraries import runtime_program

from collc.build.cache import cached, content_key
from collc.build.runtime import include_dirs, runtime_dir
from collc.build.toolchain import find_cxx

SOURCE = Path(__file__).parent / "lined_slots.cpp"
CHUNKS = "4000"
# Planted faults: the text in lined_slots.cpp, and its replacement.
FAULTS = {
    "half of a line is taken without a look at its flag": ("low >> 32 != flag || ", ""),
    "bytes of an earlier chunk count": ("return word >> 32 == static_cast<uint32_t>(number + 1);", "return word != 0;"),
    "no slot is written whole": ("if (!last || (number", "if (last || !last || (number"),
    "the end of a chunk is not shown": ("= lines_of(range.end)", "= range.end / kLineData"),
}


def run(program: Path, seed: int, patience: int = 20) -> subprocess.CompletedProcess[str]:
    command = [str(program), str(seed), CHUNKS, str(patience)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@cache
def faulty(fault: str) -> Path:
    sound, broken = FAULTS[fault]
    whole = runtime_dir() / "wire" / "lined_slots.cpp"
    text = whole.read_text()
    assert text.count(sound) == 1
    compiler = find_cxx()
    includes = [f"-I{folder}" for folder in include_dirs()]
    source = text.replace(sound, broken)

    def make(made: Path) -> None:
        copy = made.with_suffix(".cpp")
        copy.write_text(source)
        command = [compiler.path, "-std=c++17", "-O1", "-pthread", *includes, str(SOURCE), str(copy), "-o", str(made)]
        subprocess.run(command, check=True)

    headers = [path.read_bytes() for path in sorted(runtime_dir().glob("*/*.h"))]
    return cached(content_key([compiler.version, SOURCE.read_bytes(), source, *headers]), "lined-slots-faulty", make)


@pytest.mark.parametrize("seed", range(8))
def test_every_byte_arrives(seed: int) -> None:
    done = run(runtime_program(SOURCE, frozenset({"wire_lined_slots"})), seed)
    assert (done.returncode, done.stdout.strip()) == (0, f"{CHUNKS} chunks"), done.stderr


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_noticed(fault: str) -> None:
    assert any(run(faulty(fault), seed, patience=4).returncode for seed in range(4))
