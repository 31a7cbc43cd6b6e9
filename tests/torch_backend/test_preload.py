"""PyTorch's CUDA build with a library of the cuda target preloaded, on a machine without a GPU.

COLLC_TEST_PYTHON names an interpreter with that build, where the one that runs the tests has PyTorch for CPUs.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.libraries import PAIR

from collc.build import nvcc
from collc.build.cache import cache_dir
from collc.compiler import CompileRequest, compile_topology
from collc.options import TargetKind

pytestmark = [
    pytest.mark.nvcc,
    pytest.mark.slow,
    pytest.mark.skipif(nvcc.nvcc_path() is None, reason="no nvcc on PATH, in CUDA_HOME or a wheel"),
]

PYTHON = os.environ.get("COLLC_TEST_PYTHON", sys.executable)
COLLC_ID = b"collcid".hex()  # how the ids of collc begin
ASK = """
import ctypes, json, pathlib, torch, nvidia.nccl
def version(library):
    found = ctypes.c_int()
    assert library.ncclGetVersion(ctypes.byref(found)) == 0
    return found.value
# The last folder: beside XGBoost, `collc run` puts one of its own before it.
real = ctypes.CDLL(str(pathlib.Path(list(nvidia.nccl.__path__)[-1]) / "lib" / "libnccl.so.2"))
own = (ctypes.c_byte * 128)()
assert real.ncclGetUniqueId(own) == 0
print(json.dumps({
    "torch": torch.__version__,
    "nccl": torch.distributed.is_nccl_available(),
    "process": version(ctypes.CDLL(None)),
    "id": torch.cuda.nccl.unique_id().hex(),
    "real id": bytes(own).hex(),
}))
"""


@dataclass(frozen=True)
class Session:
    """The report of a Python process with torch, and every binding of a symbol: from file, to file, name."""

    told: dict[str, Any]
    bindings: list[tuple[str, str, str]]


@pytest.fixture(scope="module")
def cuda_library() -> Path:
    build = subprocess.run(
        [PYTHON, "-W", "ignore", "-c", "import torch; print(torch.version.cuda)"],
        capture_output=True,
        text=True,
        check=False,
    )
    if build.returncode or build.stdout.strip() == "None":
        why = "is not there" if build.returncode else "is built for CPUs"
        pytest.skip(f"torch of {PYTHON} {why}; COLLC_TEST_PYTHON names another interpreter")
    folder = cache_dir() / "tests"
    folder.mkdir(parents=True, exist_ok=True)
    topology = folder / "preload.yaml"
    topology.write_text(PAIR, encoding="utf-8")
    out = folder / "libcollc-preload.so"
    compile_topology(CompileRequest(topology=str(topology), output=out, target=TargetKind.CUDA))
    return out


def session(library: Path, folder: Path, **settings: str) -> Session:
    """torch under `collc run`, as a user starts it."""
    folder.mkdir()
    trace = {"LD_DEBUG": "bindings", "LD_DEBUG_OUTPUT": str(folder / "trace")}
    command = [sys.executable, "-m", "collc", "run", "--lib", str(library), "--", PYTHON, "-W", "ignore", "-c", ASK]
    environment = {name: value for name, value in os.environ.items() if name not in ("COLLC_NCCL", "LD_PRELOAD")}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=500, env={**environment, **trace, **settings}
    )
    assert done.returncode == 0, done.stderr
    pattern = re.compile(r"binding file (\S+) \[0\] to (\S+) \[0\]: normal symbol `(p?nccl[A-Z]\w*)'")
    found = {
        match.groups() for file in folder.iterdir() for match in pattern.finditer(file.read_text(errors="replace"))
    }
    bindings = sorted((Path(a).name, Path(b).name, name) for a, b, name in found)
    return Session(json.loads(done.stdout.splitlines()[-1]), bindings)


@pytest.fixture(scope="module")
def preloaded(cuda_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Session:
    return session(cuda_library, tmp_path_factory.mktemp("preload") / "on")


def test_torch_takes_its_nccl_functions_from_the_library(preloaded: Session, cuda_library: Path) -> None:
    assert preloaded.told["nccl"] is True
    homes = {name: to for source, to, name in preloaded.bindings if source == "libtorch_cuda.so"}
    ours = {name for name, to in homes.items() if to == cuda_library.name}
    assert {"ncclAllReduce", "ncclCommInitRankConfig", "ncclGetUniqueId", "ncclGroupEnd", "ncclCommAbort"} <= ours
    assert len(ours) >= 38
    assert set(homes) == ours


def test_the_unique_id_is_ours(preloaded: Session) -> None:
    assert preloaded.told["id"].startswith(COLLC_ID)
    assert preloaded.told["process"] == 23007


def test_torchs_own_nccl_is_usable_beside(preloaded: Session, cuda_library: Path) -> None:
    assert not preloaded.told["real id"].startswith(COLLC_ID)
    strayed = [(name, to) for source, to, name in preloaded.bindings if source == "libnccl.so.2" and to != source]
    assert not strayed, "calls of NCCL to itself"


def test_switched_off_everything_is_the_real_nccls(cuda_library: Path, tmp_path: Path) -> None:
    told = session(cuda_library, tmp_path / "off", COLLC_DISABLE="1").told
    assert not told["id"].startswith(COLLC_ID)


def test_torch_loads_the_library_in_place_of_the_file_libnccl(cuda_library: Path, tmp_path: Path) -> None:
    """Uses a folder of links to PyTorch's packages, with the library as libnccl.so.2."""
    find = [PYTHON, "-c", "import importlib.util as u; print(u.find_spec('torch').origin)"]
    origin = subprocess.run(find, capture_output=True, text=True, check=True).stdout.strip()
    packages = Path(origin).parent.parent
    # The loader leaves a linked folder by its real parent, so the folders on the way to libnccl.so.2 are no links.
    folders = [packages / name for name in ("torch", "torch/lib", "nvidia", "nvidia/nccl", "nvidia/nccl/lib")]
    for folder in folders:
        (tmp_path / folder.relative_to(packages)).mkdir()
    for source in [path for folder in (packages, *folders[:-1]) for path in folder.iterdir() if path not in folders]:
        (tmp_path / source.relative_to(packages)).symlink_to(source)
    (tmp_path / "nvidia" / "nccl" / "lib" / "libnccl.so.2").symlink_to(cuda_library)
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    ask = "import torch; print(torch.__file__, torch.cuda.nccl.unique_id().hex())"
    done = subprocess.run(
        [PYTHON, "-W", "ignore", "-c", ask],
        capture_output=True,
        text=True,
        check=False,
        env={**environment, "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    file, unique = done.stdout.split()
    assert file.startswith(str(tmp_path))
    assert unique.startswith(COLLC_ID)
