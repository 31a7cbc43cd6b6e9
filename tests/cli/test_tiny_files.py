"""Files of a few words at the documented maxima: every reader answers or refuses in little memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cli.test_unreadable_files import READERS, command

from collc.errors import CollcError
from collc.inputs import MAX_TEXT_BYTES
from collc.ir.nodes import MAX_CHUNK_BYTES, MAX_RANKS, MAX_SLOTS
from collc.limits import ENTRIES, check_entries
from collc.topology.draft import MAX_VERTICES

HEAD = "format: collc-topology/1\nname: x\n"
SERVERS = 4096
EACH = MAX_VERTICES // SERVERS - 1  # GPUs of a server, so that one vertex is left for a switch


def joined(link: str) -> str:
    """As many GPUs as a topology may have, each with a link; GPU stands for the name of one of a server's GPUs."""
    links = "".join(f"  - {{{link.replace('GPU', f'each.gpu{i}')}}}\n" for i in range(EACH))
    return f"{HEAD}servers: {SERVERS}\ntemplate: {{gpus: {EACH}}}\nswitches: [s]\nlinks:\n{links}"


# Files that stand for the most that their format allows.
TINY = {
    "4096 GPUs.yaml": f"{HEAD}gpus: 4096\nlinks: []\n",
    "most GPUs.yaml": f"{HEAD}gpus: {MAX_VERTICES}\nlinks: []\n",
    "one way.yaml": joined("from: GPU, to: s, kind: nvlink, gbps: 1"),
    "host links of one GPU.yaml": f"{HEAD}gpus: 2048\ncpus: [c]\nlinks: [[gpu0, c, pcie, 10]]\n",
    "most ranks.ir": f"collc-ir/1 all_gather ranks={MAX_RANKS} slots={MAX_SLOTS} chunk={MAX_CHUNK_BYTES}\n",
    "most blocks.ir": f"collc-ir/1 alltoall ranks={MAX_RANKS} slots=1 chunk=8\nshare 0: block 4095 [0, 1)\n",
    "long numbers.json": json.dumps({"format": "collc-plan/1", "links": [{"gbps": "9" * 4000 + "/" + "7" * 4000}]}),
    "many lists.json": '{"format": "collc-plan/1", "plans": [' + "[]," * 20_000 + "[]]}",
    "one line.csv": ",".join("0" for _ in range(20_000)) + "\n",
    "matrix.txt": "\t" + "\t".join(f"GPU{i}" for i in range(1000)) + "\nGPU0\t X " + "\tNV1" * 999 + "\n",
}
MOST_BYTES = 200 << 20
# Prints the status for every file, and the highest memory of the process until then.
RUN = """
import json, pathlib, re, resource, sys
from collc.cli import main
def peak():
    return int(re.search(r"VmHWM:\\s*(\\d+)", pathlib.Path("/proc/self/status").read_text())[1]) << 10
for file in sys.argv[2:]:
    used, (_, most) = resource.getrusage(resource.RUSAGE_SELF), resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + 60, most))
    try:
        code = main([file if word == "TINY" else word for word in json.loads(sys.argv[1])])
    except SystemExit as end:
        code = end.code
    print("answer", code or 0, peak(), file)
"""


def answers(argv: list[str], files: list[Path]) -> list[tuple[int, int, str]]:
    """(status, peak of memory in bytes, file) of a command for each file in turn, all in one process."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(argv), *map(str, files)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    rows = [line.split(" ", 3) for line in done.stdout.splitlines() if line.startswith("answer ")]
    assert len(rows) == len(files), done.stderr
    assert "Traceback" not in done.stderr
    return [(int(code), int(peak), file) for _, code, peak, file in rows]


def write(folder: Path, names: list[str]) -> list[Path]:
    paths = [folder / name for name in names]
    for path in paths:
        path.write_text(TINY[path.name])
    return paths


@pytest.mark.parametrize("name", ["plan", "compile", "simulate"])
def test_pairs_are_counted_before_they_are_listed(tmp_path: Path, name: str) -> None:
    """Machines that stand for more pairs of GPUs than fit into memory."""
    machines = [name for name in TINY if name.endswith(".yaml")]
    for code, peak, file in answers(command(name, "TINY"), write(tmp_path, machines)):
        assert code == 1, file
        assert peak < MOST_BYTES, f"{file}: {peak >> 20} MiB"


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_every_reader_takes_little_memory(tmp_path: Path, name: str) -> None:
    for code, peak, file in answers(command(name, "TINY"), write(tmp_path, list(TINY))):
        assert code in (0, 1, 2), file
        assert peak < MOST_BYTES, f"{file}: {peak >> 20} MiB"


# 200 MB: values, lines, and one long word.
LARGE = {
    "plan.json": (b'{"format": "collc-plan/1", "plans": [' + b"0," * 100_000_000)[: 200 * 10**6],
    "word.json": b'{"format": "' + b"x" * (200 * 10**6),
    "lines.ir": b"collc-ir/1 all_gather ranks=2 slots=1 chunk=8\n" + b"\n" * (200 * 10**6),
    "topology.yaml": HEAD.encode() + b"# comment\n" * (20 * 10**6),
}


@pytest.mark.parametrize("file", LARGE)
def test_large_files_are_refused_by_size(tmp_path: Path, file: str) -> None:
    """Before they are read: a text file may have 64 MiB, a topology 8 MiB."""
    (tmp_path / file).write_bytes(LARGE[file])
    argv = command("plan" if file.endswith("yaml") else "verify", "TINY")
    [(code, peak, _)] = answers(argv, [tmp_path / file])
    assert code == 1
    assert peak < MOST_BYTES


@pytest.mark.parametrize("text", [b"0,", b"[],", b"\n"])
def test_the_largest_text_that_is_read_takes_less_than_500_mb(tmp_path: Path, text: bytes) -> None:
    begin = b"collc-ir/1 all_gather ranks=2 slots=1 chunk=8\n" if text == b"\n" else b'{"format": ['
    data = begin + text * ((MAX_TEXT_BYTES - len(begin)) // len(text))
    (tmp_path / "large").write_bytes(data)
    [(code, peak, _)] = answers(command("verify", "TINY"), [tmp_path / "large"])
    assert code == 1
    assert peak < 500 * 10**6, f"{peak >> 20} MiB"


def test_the_budget_is_inclusive() -> None:
    check_entries(ENTRIES, "pairs", "x")
    with pytest.raises(CollcError, match="x: stands for more than 1,048,576 pairs"):
        check_entries(ENTRIES + 1, "pairs", "x")
