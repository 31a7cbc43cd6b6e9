"""`collc probe`: dumps, this machine played by a mock of NVML and of CUDA, cores, measuring, and wrong usage."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import nvml
from support.cli import Result, collc, refused
from support.machines import fast_links
from support.topo_text import DGX1V, dgx1, render

from collc.topology.load import load_topology

DUMP = Path(__file__).parents[1] / "data" / "topology" / "dgx1v-topo-m.txt"
CUDA = Path(nvml.__file__).with_name("nvml_mock_cuda.c")


@pytest.fixture(scope="module")
def mocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with libnvidia-ml.so.1 and libcuda.so.1 of our own."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler for the mocks")
    folder = tmp_path_factory.mktemp("driver")
    nvml.compile_mock(folder)
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run(["cc", *flags, "-o", folder / "libcuda.so.1", CUDA], check=True)
    return folder


def live(mocks: Path, box: nvml.Box, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """`collc probe ARGS...` on a machine that the mocks play."""
    description = mocks / "machine.txt"
    description.write_text(box.text())
    everything = nvml.environment(mocks / "libnvidia-ml.so.1", description, env.pop("CUDA_VISIBLE_DEVICES", None)) | env
    command = [sys.executable, "-m", "collc", "probe", *args]
    return subprocess.run(command, env=everything, capture_output=True, text=True, timeout=120, check=False)


def test_a_dump_on_standard_output_and_into_a_file(tmp_path: Path) -> None:
    shown = collc("probe", "--from", DUMP)
    assert shown.code == 0
    assert shown.out.startswith("# NVLink speed: assumed 25 GB/s")
    lines = shown.err.splitlines()
    assert lines
    assert all(line.startswith("collc probe: ") for line in lines)
    assert [line.removeprefix("collc probe: ") for line in lines] == [
        line.removeprefix("# ") for line in shown.out.splitlines() if line.startswith("# ")
    ]
    out = tmp_path / "box.yaml"
    quiet = collc("probe", "--from", DUMP, "-o", out, "--gpu-model", "V100", "--name", "box")
    assert (quiet.code, quiet.out) == (0, "")
    assert load_topology(out).name == "box"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_files_of_windows_shells(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "dgx1v-topo-m.txt"
    path.write_bytes(DUMP.read_text(encoding="utf-8").replace("\n", "\r\n").encode(encoding))
    assert collc("probe", "--from", path).out == collc("probe", "--from", DUMP).out


def test_explain_says_what_was_taken_from_each_table(tmp_path: Path) -> None:
    folder = DUMP.parents[1] / "dumps"
    done = collc("probe", "--from", folder / "amdsmi-x2-no-access.txt", "--explain", "-o", tmp_path / "a.yaml")
    lines = [line for line in done.err.splitlines() if "amdsmi-x2-no-access.txt:" in line]
    assert [line.rpartition(".txt:")[2].split(":")[0] for line in lines] == [
        "13 link types",
        "17 bandwidth",
        "5 weights",
        "9 hops",
        "1 access",
        "21 cache coherancy",
        "25 bi-directional",
    ]
    assert lines[-1].endswith("not used")
    assert "use it with --from" in refused(collc("probe", "--explain"), code=2)


@pytest.mark.parametrize("name", ["topology/dgx1v-topo-m.txt", "dumps/hwloc.xml", "dumps/amdsmi-mi300x-x8.txt"])
def test_a_dump_in_place_of_a_file_points_at_probe(name: str) -> None:
    line = refused(collc("plan", DUMP.parents[1] / name))
    assert "`collc probe --from FILE -o machine.yaml` reads the dump of a tool" in line


def test_json(tmp_path: Path) -> None:
    path = tmp_path / "topo.txt"
    path.write_text(render(dgx1(DGX1V)))
    answer = json.loads(collc("probe", "--from", path, "--json").out)
    assert answer["name"] == "topo"
    assert sum(link["kind"] == "nvlink" for link in answer["links"]) == 32
    assert answer["measured"] == []
    assert answer["assumptions"]


def test_the_topology_is_called_as_its_file(tmp_path: Path) -> None:
    """So `collc compile box.yaml` writes libcollc-box.so."""
    out = tmp_path / "box.yaml"
    assert collc("probe", "--from", DUMP, "-o", out).code == 0
    assert "\nname: box\n" in out.read_text()
    assert collc("probe", "--from", DUMP, "-o", out, "--name", "lab").code == 0
    assert "\nname: lab\n" in out.read_text()
    assert collc("probe", "--from", DUMP, "-o", tmp_path / "7").code == 0
    assert "\nname: dgx1v-topo-m\n" in (tmp_path / "7").read_text()


def test_refusals(tmp_path: Path) -> None:
    assert "no GPU model is known as ``" in refused(collc("probe", "--from", DUMP, "--gpu-model", ""), code=2)
    assert "No such file" in refused(collc("probe", "--from", tmp_path / "none.txt"))
    assert "cannot write" in refused_last(collc("probe", "--from", DUMP, "-o", tmp_path / "no" / "box.yaml"))
    for extra in (["--cpu"], ["--measure"]):
        assert "a dump cannot be measured" in refused(collc("probe", "--from", DUMP, *extra), code=2)
    assert "cores have no GPU model" in refused(collc("probe", "--cpu", "--gpu-model", "V100"), code=2)
    assert "--name: the name `7`" in refused(collc("probe", "--cpu", "--name", "7"), code=2)
    assert "no GPU model is known" in refused(collc("probe", "--from", DUMP, "--gpu-model", "X"), code=2)


def refused_last(result: Result) -> str:
    """The last line of a refusal that comes after notes."""
    assert result.code == 1
    return result.err.strip().splitlines()[-1]


def test_cores_and_host_copies(tmp_path: Path) -> None:
    out = tmp_path / "host.yaml"
    args = ["probe", "--cpu", "-o", out, "--json"]
    enough = len(os.sched_getaffinity(0)) > 1 and shutil.which("g++")
    result = collc(*args, *(["--measure"] if enough else []))
    assert result.code == 0, result.err
    answer = json.loads(result.out)
    topology = load_topology(out)
    assert topology.name == "host"
    n = len(topology.gpus)
    if not enough or n < 2:
        pytest.skip("measuring takes two cores and g++")
    assert len(answer["measured"]) == min(n, 32) * (min(n, 32) - 1)
    assert all(0.01 < row["gbps"] < 1000 for row in answer["measured"])
    assert all(0.001 < row["latency_us"] < 100_000 for row in answer["measured"])
    assert sum(line.startswith("# measured core") for line in out.read_text().splitlines()) == len(answer["measured"])


def test_the_command_finds_nvml(mocks: Path, tmp_path: Path) -> None:
    out = tmp_path / "live.yaml"
    done = live(mocks, nvml.dgx1v(), "-o", str(out), CUDA_VISIBLE_DEVICES="0,3,4,7")
    assert done.returncode == 0, done.stderr
    topology = load_topology(out)
    assert fast_links(topology) == "nvlink 25x1 50x3"
    assert [v.name for v in topology.gpus] == ["gpu0", "gpu3", "gpu4", "gpu7"]


def test_measuring_gpus(mocks: Path) -> None:
    box = nvml.h100(gpus=3)
    for peer in ("1", "0"):
        done = live(mocks, box, "--measure", "--json", CUDA_MOCK_GPUS="3", CUDA_MOCK_PEER=peer)
        assert done.returncode == 0, done.stderr
        rows = json.loads(done.stdout)["measured"]
        pairs = [(f"gpu{a}", f"gpu{b}") for a in range(3) for b in range(3) if a != b]
        assert [(row["src"], row["dst"]) for row in rows] == pairs
        assert all(row["gbps"] > 0 and row["nominal_gbps"] == "450" for row in rows)


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"CUDA_MOCK_GPUS": "3", "CUDA_MOCK_FAIL": "cuInit"}, "cuInit: CUDA_ERROR_UNKNOWN"),
        ({"CUDA_MOCK_GPUS": "2"}, "0000:08:00.0: CUDA_ERROR_INVALID_DEVICE"),
        ({"CUDA_MOCK_GPUS": "3", "CUDA_MOCK_FAIL": "cuMemAlloc"}, "0000:06:00.0, memory: CUDA_ERROR_UNKNOWN"),
        ({"CUDA_MOCK_GPUS": "3", "CUDA_MOCK_FAIL": "cuMemcpyPeerAsync"}, "0000:06:00.0, copy: CUDA_ERROR_UNKNOWN"),
    ],
)
def test_measuring_fails_in_one_line(mocks: Path, env: dict[str, str], words: str) -> None:
    done = live(mocks, nvml.h100(gpus=3), "--measure", **env)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines() == [f"collc: probe --measure: {words}"]
