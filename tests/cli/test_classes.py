"""`--classes` of plan and simulate: text for people, verified JSON, and one line for a refusal."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path

import pytest
from support.cli import collc, refused


def test_what_each_class_adds_and_why_one_does_not() -> None:
    done = collc("plan", "hgx-h800", "--classes", "all", "--collective", "all_reduce")
    assert done.code == 0, done
    words = " ".join(done.out.split())
    assert "all_reduce: 142.86 GB/s over nvlink and pcie and net, the best possible" in words
    assert "net adds nothing: faster classes fill links that it shares with them (gpu0 > plx0" in words
    assert "all_reduce 800/7 = 114.29 200/7 = 28.571 0 1000/7 = 142.86 +25.0%" in words
    assert "host memory: taken as no limit" in words


def test_trees_that_change_class_are_told() -> None:
    words = " ".join(collc("plan", "a100-pcie-bridged", "--classes", "nvlink,pcie").out.split())
    assert "nvlink alone does not join these GPUs." in words
    assert "9.5238 GB/s of it take trees that change class on the way." in words
    assert "of it take flows that change class on the way." in words


def test_the_memory_that_limits_is_named(tmp_path: Path) -> None:
    file = tmp_path / "box.yaml"
    file.write_text(
        "format: collc-topology/1\nname: box\ngpus: 2\ncpus: [{name: cpu0, memory_gbps: 6}]\nlinks:\n"
        "  - [gpu0, gpu1, nvlink, 10]\n  - [gpu0, cpu0, pcie, 4]\n  - [gpu1, cpu0, pcie, 4]\n"
    )
    words = " ".join(collc("plan", file, "--classes", "pcie", "--collective", "alltoall").out.split())
    assert "host memory: cpu0 6 GB/s" in words
    assert "the memory of cpu0 of 3 GB/s is full" in words


@pytest.mark.parametrize(("machine", "gpus"), [("hgx-h800", "0-7"), ("dgx1v", "0,1,4"), ("a100-pcie-bridged", "0-7")])
def test_json_is_a_plan_that_is_verified(machine: str, gpus: str, tmp_path: Path) -> None:
    done = collc("plan", machine, "--gpus", gpus, "--classes", "nvlink,pcie", "--json")
    assert (done.code, done.err) == (0, "")
    file = tmp_path / "plan.json"
    file.write_text(done.out)
    assert collc("verify", file).code == 0
    for made in json.loads(done.out)["plans"]:
        own = sum(Fraction(c["rate_gbps"]) for c in made["classes"])
        assert own <= Fraction(made["rate_gbps"])
        if "trees" in made:
            by_class = {tree["class"] for tree in made["trees"]}
            assert by_class <= {"nvlink", "pcie", "nvlink+pcie"}
            assert ("nvlink+pcie" in by_class) == (own < Fraction(made["rate_gbps"]))


def test_a_call_is_split_by_size() -> None:
    argv = ("simulate", "hgx-h800", "--gpus", "0-1", "--classes", "nvlink,pcie", "-b", "1K", "-e", "64M", "-f", "256")
    rows = json.loads(collc(*argv, "--json").out)["rows"]
    assert [row["bytes"] for row in rows] == [1 << 10, 256 << 10, 64 << 20]
    assert all(sum(row["shares"].values()) == pytest.approx(1) for row in rows)
    assert all(row["time_us"] <= row["alone_us"] * (1 + 1e-9) for row in rows)
    assert rows[-1]["plan"] == "nvlink+pcie"
    text = collc(*argv).out
    assert "at most 250 GB/s, proved" in text
    assert "never compared with" in text


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        (("plan", "dgx1v", "--classes", "pcx"), 2, "no class of links is called `pcx`"),
        (("plan", "dgx1v", "--classes", "pci"), 2, "did you mean `pcie`?"),
        (("plan", "dgx1v", "--classes", "pcie,pcie"), 2, "a class is named twice"),
        (("plan", "dgx1v", "--classes", "pcie", "--links", "all"), 2, "--classes takes only"),
        (("plan", "dgx1v", "--classes", "pcie", "--solver", "mwu"), 2, "--classes takes only"),
        (("plan", "dgx1v", "--classes", "pcie", "--collective", "all_reduce", "--root", 1), 2, "has no root"),
        (("plan", "dgx1p", "--classes", "nvlink,net"), 1, "no network between its NICs is known"),
        (("plan", "pcie-8x4090", "--classes", "nvlink"), 1, "cannot be reached from gpu0 over nvlink"),
        (("simulate", "dgx1v", "--classes", "pcie", "--plan", "ring"), 2, "--classes lets the model choose"),
        (("simulate", "dgx1v", "--classes", "pcie", "--compare", "nccl"), 2, "--classes lets the model choose"),
        (("simulate", "dgx1v", "--classes", "pcie", "--links", "all"), 2, "--classes lets the model choose"),
        (("simulate", "dgx1v", "--classes", "pcie", "--model-file", "resnet50"), 2, "--classes is about single calls"),
    ],
)
def test_one_line_for_what_cannot_be(argv: tuple[object, ...], code: int, says: str) -> None:
    assert says in refused(collc(*argv), code=code)


def test_a_rack_is_planned_and_a_cluster_is_refused(tmp_path: Path) -> None:
    assert collc("plan", "gb200-nvl72", "--classes", "nvlink,pcie", "--collective", "all_gather").code == 0
    file = tmp_path / "many.yaml"
    file.write_text(
        "format: collc-topology/1\nname: many\nservers: 65\ntemplate:\n  gpus: 2\n  nics: [nic0]\n  links:\n"
        "    - [gpu0, gpu1, nvlink, 10]\n    - [gpu0, nic0, pcie, 4]\nswitches: [net]\nlinks:\n"
        "  - [each.nic0, net, net, 4]\n"
    )
    assert "130 GPUs are too many" in refused(collc("plan", file, "--classes", "all"), code=2)


def test_claims_about_classes_are_checked(tmp_path: Path) -> None:
    made = json.loads(collc("plan", "hgx-h800", "--classes", "nvlink,pcie", "--collective", "all_reduce", "--json").out)
    file = tmp_path / "plan.json"

    def verified(**changes: object) -> str:
        plan = made["plans"][0]
        file.write_text(json.dumps({**made, "plans": [{**plan, **changes}]}))
        return refused(collc("verify", file))

    classes, trees = made["plans"][0]["classes"], made["plans"][0]["trees"]
    more = [classes[0], {**classes[1], "rate_gbps": "201/7"}]
    assert "their rates add up to more than that of all together" in verified(classes=more)
    assert "each once" in verified(classes=[classes[0], classes[0]])
    assert "each once" in verified(classes=[{**classes[0], "class": "nvswitch"}])
    assert "plans[0].trees[0].class: its links are of nvlink, not 'pcie'" in verified(
        trees=[{**trees[0], "class": "pcie"}, *trees[1:]]
    )
    assert "class" in verified(trees=[{k: v for k, v in trees[0].items() if k != "class"}, *trees[1:]])


BOX = """
format: collc-topology/1
name: box
gpus: 2
cpus: [cpu0]
links:
  - [gpu0, gpu1, nvlink, 100]
  - [gpu0, cpu0, pcie, 40]
  - [gpu1, cpu0, pcie, 40]
"""


@pytest.fixture
def box(tmp_path: Path) -> Path:
    """NVLink of 100 GB/s, and PCIe of 40 beside it."""
    path = tmp_path / "box.yaml"
    path.write_text(BOX)
    return path


def test_a_library_of_two_classes(box: Path, tmp_path: Path) -> None:
    """`inspect` and `verify` find the same as `compile` reports, and the library runs."""
    library = tmp_path / "libcollc-box.so"
    argv = ("compile", box, "--classes", "nvlink,pcie", "--target", "host", "--collective", "all_gather", "-o", library)
    done = collc(*argv)
    assert done.code == 0, done
    words = " ".join(done.out.split())
    assert "all_gather 280.00 GB/s (280, optimal): 4 trees, depth 1" in words
    cut = re.findall(r"from (\d+) bytes: trees/Simple/128Kx4 nvlink (\d+)%, pcie (\d+)% of a call: \+\d+%", words)
    assert cut, words
    assert all(int(fast) + int(slow) == 100 for _, fast, slow in cut)
    slow = [int(part) for _, _, part in cut]
    assert 24 <= slow[-1] <= 32, "2/7 of the largest calls"
    assert all(0 < part < 50 for part in slow), "of smaller ones what the model says, but the smaller part"
    assert collc("verify", library).code == 0
    rows = json.loads(collc("inspect", library, "--json").out)["allocations"][0]["programs"]
    told = [(str(row["min_bytes"]), *(str(row["weights"][name]) for name in ("nvlink", "pcie"))) for row in rows[1:]]
    assert told == cut
    assert "weights" not in rows[0], "small calls run over NVLink alone"
    bench = collc(
        "bench", library, "--collective", "all_gather", "-b", "64K", "-e", "4M", "-f", "8", "-n", "2", "--json"
    )
    assert bench.code == 0, bench
    assert [row["wrong"] for row in json.loads(bench.out)["rows"]] == [0] * 6


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--classes", "nvlnk"), "no class of links is called `nvlnk`"),
        (("--classes", "pcie"), "pcie alone joins these GPUs"),
        (("--classes", "nvlink,pcie", "--links", "all"), "--links and --classes do not go together yet"),
        (("--classes", "nvlink,pcie", "--survive", "1"), "--survive and --classes do not go together yet"),
        (("--classes", "nvlink,pcie", "--gpus", "0"), "calls of one GPU are not cut into classes"),
        (("--classes", "all"), "no network between its NICs is known"),
    ],
)
def test_what_libraries_of_classes_refuse(box: Path, tmp_path: Path, argv: tuple[str, ...], said: str) -> None:
    out = tmp_path / "libcollc-box.so"
    done = collc("compile", box, "--target", "host", "-o", out, *argv)
    assert said in refused(done, code=done.code)
    assert done.code in (1, 2)
    assert not out.exists()
