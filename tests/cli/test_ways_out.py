"""If a command cannot serve a machine or its GPUs, it names an alternative, and the alternative works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.cli import Result, collc, refused

from collc.compiler import not_by_nvidia
from collc.topology import zoo
from collc.topology.load import load_topology

DOCS = Path(__file__).parents[2] / "docs"
CHAIN = """format: collc-topology/1
name: chain
gpus: 3
cpus: [cpu0]
speeds: {nvlink: 25, pcie: 12}
links: [[gpu0, gpu1, nvlink], [gpu1, gpu2, nvlink], [gpu0, cpu0, pcie], [gpu2, cpu0, pcie]]
"""
BY_AMD = """format: collc-topology/1
name: pair-by-amd
gpus: 2
links: [[gpu0, gpu1, xgmi x1, 50]]
"""


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    path = tmp_path / "chain.yaml"
    path.write_text(CHAIN)
    return path


def compiled(topology: Path, *more: str) -> Result:
    return collc("compile", topology, "-o", topology.with_suffix(".so"), *more)


def test_compile_lets_idle_gpus_forward(chain: Path) -> None:
    asked = ["--gpus", "0,2", "--links", "nvlink", "--target", "host", "--collective", "broadcast", "--root", "0"]
    assert refused(compiled(chain, *asked), code=1).endswith("(try --relay idle or no --links or --links all)")
    assert compiled(chain, *asked, "--relay", "idle").code == 0
    assert collc("verify", chain.with_suffix(".so")).code == 0
    bench = collc("bench", chain.with_suffix(".so"), "-b", "64K", "-e", "64K", "-n", "1", "-w", "0")
    assert bench.code == 0, bench.err
    assert "# Out of bounds values : 0 OK" in bench.out


def test_no_gpu_forwards_for_a_library_for_gpus(chain: Path) -> None:
    asked = ["--gpus", "0,2", "--links", "nvlink", "--target", "cuda"]
    assert "--target host" in refused(compiled(chain, *asked, "--relay", "idle"), code=2)
    told = refused(compiled(chain, *asked), code=1)
    assert "--relay" not in told
    assert told.endswith("(try no --links or --links all)")


@pytest.mark.parametrize("more", [["--allocations", "2..3"], ["--survive", "1"]])
def test_relays_are_for_one_set(chain: Path, more: list[str]) -> None:
    assert "one set of GPUs" in refused(compiled(chain, "--target", "host", "--relay", "idle", *more), code=2)


def test_which_machines_have_gpus_by_amd() -> None:
    found = {name for name in zoo.names() if not_by_nvidia(load_topology(name))}
    assert found == {"mi250", "mi250x", "mi300x"}


@pytest.mark.parametrize(
    "asked",
    [
        ["--target", "cuda"],
        ["--cuda", "12"],
        ["--counters"],
        ["--specialise"],
        ["--in-switch"],
        ["--direct"],
        ["--model", "h100"],
        ["--target", "cuda", "--counters"],
    ],
)
def test_no_kernels_for_gpus_by_amd(asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collc.compiler.find_toolkits", lambda cuda=None: (None, None))
    path = tmp_path / "pair.yaml"
    path.write_text(BY_AMD)
    told = refused(compiled(path, *asked), code=2)
    assert asked[0] in told or asked[-1] in told
    assert "--target host" in told
    assert not path.with_suffix(".so").exists()


def test_gpus_by_amd_get_a_library_for_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collc.compiler.find_toolkits", lambda cuda=None: (None, None))
    path = tmp_path / "pair.yaml"
    path.write_text(BY_AMD)
    done = compiled(path, "--collective", "all_gather")
    assert done.code == 0, done.err
    assert "target host, which runs on CPUs: there are no kernels for GPUs by AMD (xgmi links)" in done.err


def test_topologies_of_the_docs_plan(tmp_path: Path) -> None:
    """Whatever the docs show as a whole topology file, from the first of docs/topology.md on."""
    found = 0
    for page in sorted([*DOCS.rglob("*.md"), DOCS.parent / "README.md"]):
        for text in re.findall(r"^```yaml\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S):
            if "format: collc-topology/1" not in text or "gpus:" not in text or "extends" in text:
                continue
            path = tmp_path / f"{page.stem}-{found}.yaml"
            path.write_text(text)
            done = collc("plan", path)
            assert done.code == 0, f"{page.name}: {done.err}"
            found += 1
    assert found >= 2
