"""`collc plan`: text for people, JSON for programs, and one line for a refusal."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from support.cli import collc, refused
from support.machines import TWO_SERVERS

from collc.collectives.model import Collective
from collc.options import CUDA
from collc.packing import plan
from collc.packing.candidates.plans import KINDS
from collc.packing.document import from_json, verify_document
from collc.pipeline import lower_spread
from collc.topology import zoo
from collc.topology.allocation import parse_gpus
from collc.topology.dump import dumps_topology
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology


def plan_json(*argv: object) -> dict[str, Any]:
    result = collc("plan", *argv, "--json")
    assert (result.code, result.err) == (0, "")
    made: dict[str, Any] = json.loads(result.out)
    return made


def test_every_collective_by_default() -> None:
    made = plan_json("dgx1v")
    verify_document(from_json(made))
    rates = {p["collective"]: p["rate_gbps"] for p in made["plans"]}
    assert rates["all_reduce"] == "600/7"
    assert rates["all_gather"] == rates["reduce_scatter"] == "1200/7"
    assert rates["broadcast"] == rates["reduce"] == "150"
    assert len(rates) == 9
    assert all(p["optimal"] for p in made["plans"])


def test_the_order_of_gpus_is_the_order_of_ranks() -> None:
    made = plan_json("dgx1v", "--gpus", "7,0-2", "--collective", "broadcast", "--root", 2)
    assert [r["gpu"] for r in made["ranks"]] == ["gpu7", "gpu0", "gpu1", "gpu2"]
    assert made["plans"][0]["root"] == 2


def test_text_says_what_binds_and_what_one_more_link_brings() -> None:
    out = collc("plan", "dgx1v", "--gpus", "0,1,2", "--collective", "broadcast").out
    words = " ".join(out.split())
    assert "broadcast from rank 0: 50 GB/s, the best possible. The limit: 50 GB/s lead out of gpu0" in words
    assert "One more link gpu0 - gpu1 (25 GB/s each way) would bring 75 GB/s." in words
    assert "at most 50 GB/s (cut), because 50 GB/s lead out of {gpu0}" in out
    assert "+1 GB/s is worth 1 GB/s on gpu0>gpu1 gpu0>gpu2" in out
    assert "2 of depth 2; weights are multiples of rate/2" in out


# A pair whose directions stand apart, four links in one line, and a CPU and NICs that plans split by direction.
IN_DIRECTIONS = """format: collc-topology/1
name: odd-box
gpus: 4
switches: [net]
cpus: [cpu0, cpu1]
nics: [nic0, nic1]
servers: {a: [gpu0, gpu1, cpu0, nic0], b: [gpu2, gpu3, cpu1, nic1]}
speeds: {nvlink: 25, pcie: 12, net: 12}
links:
  - {from: gpu0, to: gpu1, kind: nvlink, gbps: 25}
  - {from: gpu1, to: gpu0, kind: nvlink, gbps: 20}
  - [gpu2, gpu3, nvlink x4]
  - [gpu0, cpu0, pcie]
  - [gpu1, cpu0, pcie]
  - [nic0, cpu0, pcie]
  - [gpu2, cpu1, pcie]
  - [gpu3, cpu1, pcie]
  - [nic1, cpu1, pcie]
  - [nic0, net, net]
  - [nic1, net, net]
"""


HEADERS: dict[str, list[str]] = {
    "dgx1v": ["--collective", "broadcast"],
    "hgx-h100": ["--collective", "broadcast"],
    "pcie-8xl40s": ["--collective", "broadcast"],
    "ac922": ["--gpus", "0"],
}


def test_the_header_counts_what_the_file_has(tmp_path: Path) -> None:
    path = tmp_path / "odd-box.yaml"
    path.write_text(IN_DIRECTIONS)
    told = {name: collc("plan", name, *more).out.splitlines()[0] for name, more in HEADERS.items()}
    assert told == {
        "dgx1v": "dgx1v: 8 GPUs; 16 linked pairs (nvlink), 32 counting each direction",
        "hgx-h100": "hgx-h100: 8 GPUs, 1 switch; 8 linked pairs (nvswitch), 16 counting each direction",
        "pcie-8xl40s": "pcie-8xl40s: 8 GPUs, 4 switches, 2 CPUs; 13 linked pairs (pcie), 26 counting each direction",
        "ac922": "ac922: 1 GPU; no links",
    }
    assert collc("plan", path, "--collective", "broadcast").out.splitlines()[0] == (
        "odd-box: 4 GPUs, 1 switch, 2 CPUs, 2 NICs; 10 linked pairs (nvlink, pcie, net), 20 counting each direction"
    )


def followed(said: str, source: str) -> tuple[str, str]:
    """(topology with the one more link of a sentence, rate that it promises)."""
    found = re.search(r"One more link (\S+) - (\S+) \((\S+) GB/s each way\) would bring (\S+) GB/s", said)
    assert found is not None, said
    topology = load_topology(source)
    more, pair = Fraction(found[3]), {found[1], found[2]}
    links = [replace(k, gbps=k.gbps + more) if {k.src, k.dst} == pair else k for k in topology.links]
    assert tuple(links) != topology.links
    return dumps_topology(replace(topology, links=tuple(links))), found[4]


@pytest.mark.parametrize(
    ("name", "gpus", "collective"),
    [
        ("dgx1v", "all", "all_reduce"),
        ("dgx1v", "0-4", "reduce_scatter"),
        ("ac922", "all", "broadcast"),
        ("hgx-h100", "0-2", "all_reduce"),
        ("a100-pcie-bridged", "all", "all_reduce"),
    ],
)
def test_one_more_link_brings_what_is_promised(name: str, gpus: str, collective: str, tmp_path: Path) -> None:
    path = tmp_path / "more.yaml"
    asked = ["--collective", collective] + ([] if gpus == "all" else ["--gpus", gpus])
    text, promised = followed(sentences(name, *asked)[collective], name)
    path.write_text(text)
    (made,) = plan_json(path, *asked)["plans"]
    assert f"{float(Fraction(made['rate_gbps'])):.5g}" == promised


def sentences(*argv: str) -> dict[str, str]:
    """Collective -> what the default text says of it."""
    paragraphs = collc("plan", *argv).out.split("\n\n")[1].replace("\n  ", " ").splitlines()
    return {line.partition(":")[0].split(" ")[0]: line.partition(": ")[2] for line in paragraphs}


def test_every_collective_is_put_in_words_without_being_asked() -> None:
    said = sentences("dgx1v")
    assert set(said) == {c.value for c in Collective}
    assert said["all_reduce"] == (
        "85.714 GB/s, the best possible. The limit: 1200 GB/s of links between the 8 GPUs, and all_reduce moves each "
        "byte 14 times over them (7 to a root, 7 back). One more link gpu0 - gpu1 (25 GB/s each way) would bring "
        "89.286 GB/s."
    )
    odd = sentences("dgx1v", "--gpus", "0,1,4,6")
    assert "25 GB/s lead into gpu6 (gpu4 > gpu6), and the data of 3 of 4 GPUs must take that way" in odd["all_gather"]
    assert "25 GB/s lead out of gpu6 (gpu6 > gpu4), and the whole sum must take that way" in odd["reduce"]
    assert "between {gpu0 and gpu4}, {gpu1}, {gpu6}" in odd["all_reduce"]
    assert "the link gpu4 > gpu6 of 25 GB/s is full" in odd["scatter"]


@pytest.mark.parametrize("name", sorted(set(zoo.names()) - {"gb200-nvl72", "mi250"}))
def test_the_limit_of_every_machine_is_in_words(name: str) -> None:
    said = sentences(name, "--gpus", "0-2")
    assert set(said) == {c.value for c in Collective}
    limit = re.compile("The limit( of the links)?: ")
    assert all(limit.search(words) and words.endswith(".") for words in said.values()), said


def test_servers_are_named_whole(tmp_path: Path) -> None:
    path = tmp_path / "pair.yaml"
    path.write_text(TWO_SERVERS)
    said = sentences(str(path))
    assert "25 GB/s lead out of server0 (server0.nic > net), and all data" in said["broadcast"]


def test_one_gpu_has_nothing_to_move() -> None:
    assert set(sentences("dgx1v", "--gpus", "3").values()) == {"nothing to move between GPUs."}


def test_a_proof_is_printed_whole() -> None:
    out = collc("plan", "dgx1v", "--gpus", "0,1,4,6", "--proof").out
    assert "  set 0: gpu0 gpu4\n  set 1: gpu1\n  set 2: gpu6\n  gpu0 > gpu1: 25 GB/s\n" in out
    assert "because one link has a price" in out
    assert "gpu4 > gpu6    25      4" in out


def test_the_trade_between_depth_rate_and_trees() -> None:
    made = plan_json("dgx1v", "--collective", "broadcast", "--trade")
    rows = [(r["depth"], r["rate_gbps"], r["trees"]) for r in made["rows"]]
    # Fewer levels than 4 cost rate; fewer trees than 6 cost depth.
    assert [r[:2] for r in rows] == [(2, "50"), (3, "125"), (4, "150"), (7, "150")]
    assert rows[2][2] == 6
    assert rows[3][2] == 4
    text = collc("plan", "dgx1p", "--gpus", "0-3", "--collective", "all_reduce", "--trade").out
    assert text.splitlines()[1].split() == ["depth", "GB/s", "trees"]


def test_solvers_say_what_they_prove() -> None:
    few = plan_json("dgx1v", "--collective", "broadcast", "--solver", "ilp")["plans"][0]
    assert (len(few["trees"]), few["rate_gbps"], few["optimal"]) == (4, "150", True)
    assert "4 trees: proven" in collc("plan", "dgx1v", "--collective", "broadcast", "--solver", "ilp").out
    near = plan_json("dgx1v", "--collective", "all_reduce", "--solver", "mwu")["plans"][0]
    assert Fraction(near["bound_gbps"]) * Fraction(98, 100) <= Fraction(near["rate_gbps"]) < Fraction(600, 7) + 1


def test_relays_are_forwarders_of_the_plan() -> None:
    made = plan_json("dgx1v", "--gpus", "0,1,2,3,6", "--relay", "idle", "--collective", "all_gather")
    verify_document(from_json(made))
    assert made["plans"][0]["rate_gbps"] == "375/2"
    assert {v["name"]: v["kind"] for v in made["switches"]} == {"gpu4": "gpu", "gpu5": "gpu", "gpu7": "gpu"}


def test_every_allocation_with_the_speedup_over_rings() -> None:
    made = plan_json("dgx1v", "--allocations", "connected", "--compare", "rings", "--collective", "all_reduce")
    assert made["format"] == "collc-allocations/1"
    assert len(made["allocations"]) == 46
    for entry in made["allocations"]:
        verify_document(from_json(entry["plan"]))
        assert Fraction(entry["speedup"]["all_reduce"]) >= 1
        assert entry["plan"]["topology"]["fingerprint"] == entry["fingerprint"]
    text = collc("plan", "dgx1v", "--allocations", "3..4", "--compare", "rings", "--collective", "all_reduce").out
    assert text.startswith("dgx1v: 28 distinct allocations, GB/s, number of NCCL's rings, and times their rates\n")
    assert "geometric mean over rings: all_reduce" in text


def test_one_set_against_rings() -> None:
    made = plan_json("dgx1v", "--gpus", "0,3,4", "--compare", "rings", "--collective", "broadcast")
    (entry,) = made["allocations"]
    # Both links are double, but a ring is one link wide, and none closes: PCIe at half a link.
    assert (entry["rings"], entry["link_gbps"], entry["speedup"]) == (0, "25", {"broadcast": "4"})


def test_machines_with_too_many_rings_show_none() -> None:
    made = plan_json("dgx2", "--allocations", "9..10", "--compare", "rings", "--collective", "all_gather")
    assert [a["rings"] for a in made["allocations"]] == [1, None]
    assert made["allocations"][1]["speedup"] == {}
    lines = collc("plan", "dgx2", "--allocations", "10..10", "--compare", "rings", "--collective", "reduce").out
    assert "geometric mean" not in lines


@pytest.mark.parametrize(
    ("argv", "what"),
    [
        (["--collective", "all_reduce", "--root", "1"], "has no root"),
        (["--collective", "broadcast", "--root", "8"], "no rank 8"),
        (["--gpus", "0,9"], "GPUs 0 to 7"),
        (["--allocations", "9..12"], "has 8 GPUs"),
        (["--allocations", "some"], "not a GPU of the topology"),
        (["--allocations", "all", "--gpus", "0,1"], "--allocations plans all sets"),
        (["--allocations", "all", "--relay", "idle"], "neither --relay nor --root"),
        (["--links", "nvlnk"], "nvlink"),
        (["--trade"], "--collective"),
        (["--trade", "--collective", "alltoall"], "no depth to trade"),
    ],
)
def test_what_cannot_be_is_one_line(argv: list[str], what: str) -> None:
    assert what in refused(collc("plan", "dgx1v", *argv), code=2)


@pytest.mark.parametrize("share", ["1", "-0.1", "x", "1/0"])
def test_a_tolerance_is_a_share(share: str) -> None:
    result = collc("plan", "dgx1v", "--solver", "ilp", "--tolerance", share)
    assert result.code == 2


LAB = """format: collc-topology/1
name: lab
gpus: 4
links:
  - [gpu0, gpu1, nvlink, 25]
  - [gpu2, gpu3, nvlink, 25]
"""


def test_gpus_that_nothing_joins_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "lab.yaml").write_text(LAB)
    assert "gpu2 cannot be reached from gpu0" in refused(collc("plan", tmp_path / "lab.yaml"))
    made = json.loads(collc("plan", tmp_path / "lab.yaml", "--allocations", "all", "--json").out)
    assert [a["gpus"] for a in made["allocations"]] == [["gpu0", "gpu1"]]


def test_links_of_one_direction_that_close_no_circle_are_one_line(tmp_path: Path) -> None:
    one_way = LAB.replace("[gpu2, gpu3, nvlink, 25]", "{from: gpu1, to: gpu2, kind: nvlink, gbps: 25}")
    (tmp_path / "lab.yaml").write_text(one_way)
    assert "cannot" in refused(collc("plan", tmp_path / "lab.yaml", "--gpus", "0,1,2"))


def test_a_single_gpu_has_nothing_to_move() -> None:
    assert "nothing to move" in collc("plan", "dgx1v", "--gpus", "3").out


def test_orbits_are_written_on_request_and_expanded() -> None:
    """Few GPUs have their trees listed; with --orbits one of each kind, which --expand writes out again."""
    plain = plan_json("dgx2", "--collective", "all_gather")
    assert "orbits" not in plain["plans"][0]
    folded = plan_json("dgx2", "--collective", "all_gather", "--orbits")
    verify_document(from_json(folded))
    orbits = folded["plans"][0]["orbits"]
    assert folded["plans"][0]["trees"] == []
    assert sum(t["count"] for t in orbits["trees"]) == len(plain["plans"][0]["trees"]) == 16
    for argv in (["--orbits", "--expand"], ["--expand"], ["--json", "--expand"]):
        result = collc("plan", "dgx2", "--collective", "all_gather", *argv)
        assert (result.code, result.err) == (0, "")
        whole = json.loads(result.out)
        verify_document(from_json(whole))
        assert "orbits" not in whole["plans"][0]
        assert len(whole["plans"][0]["trees"]) == 16
    one = json.loads(collc("plan", "dgx2", "--orbits", "--expand", 5).out)
    assert (one["format"], one["root"]) == ("collc-trees/1", 5)
    assert {p["collective"]: {t["root"] for t in p.get("trees", [])} for p in one["plans"]}["all_gather"] == {5}
    text = collc("plan", "dgx2", "--collective", "all_gather", "--orbits").out
    assert "15 images of it" in text
    assert "16 of depth 1" in text


@pytest.mark.parametrize("rank", ["16", "gpu3", "1e3", "9" * 400])
def test_a_rank_to_expand_must_be_one(rank: str) -> None:
    line = refused(collc("plan", "dgx2", "--collective", "all_gather", f"--expand={rank}"), code=2)
    assert "--expand: " in line
    assert len(line) < 200


def test_expand_is_about_one_plan() -> None:
    assert "one plan" in refused(collc("plan", "dgx2", "--allocations", "2..3", "--expand"), code=2)


STAR = """format: collc-topology/1
name: star
gpus: 5
switches: [nvs0]
speeds: {nvswitch: 25}
links:
  - [gpu0, nvs0, nvswitch]
  - [gpu1, nvs0, nvswitch]
  - [gpu2, nvs0, nvswitch]
  - [gpu3, nvs0, nvswitch]
  - [gpu4, nvs0, nvswitch]
"""


def test_the_steps_of_a_ring_are_nccls(tmp_path: Path) -> None:
    """2k - 1 steps on k GPUs, as descriptions of NCCL list them."""
    (tmp_path / "star.yaml").write_text(STAR)
    result = collc("plan", tmp_path / "star.yaml", "--collective", "all_reduce", "--steps", "ring")
    assert result.code == 0, result.err
    rows = [line.split() for line in result.out.splitlines()]
    names = ["send", *["recvReduceSend"] * 3, "recvReduceCopySend", *["recvCopySend"] * 3, "recv"]
    table = [row for row in rows if row and row[0].isdigit()]
    assert [row[:2] for row in table] == [[str(i), name] for i, name in enumerate(names)]
    assert table[0][2:] == [">", "1", ">", "2", ">", "3", ">", "4", ">", "0"]
    assert table[1][2:5] == ["4", ">", "1"]
    assert table[-1][2:] == ["4", ">", "0", ">", "1", ">", "2", ">", "3", ">"]


def test_steps_are_those_of_the_verified_program() -> None:
    made = plan_json("dgx1v", "--gpus", "0-3", "--collective", "all_reduce", "--steps")
    assert (made["format"], made["kind"]) == ("collc-steps/1", "trees")
    graph = plan_graph(load_topology("dgx1v"), parse_gpus(load_topology("dgx1v"), "0-3"))
    (packed,) = [plan(graph, Collective.ALL_REDUCE)]
    program = lower_spread(packed, 0, graph, CUDA)[1]
    (shown,) = made["programs"]
    assert len(shown["channels"]) == len(program.channels)
    for told, channel in zip(shown["channels"], program.channels, strict=True):
        for ours, steps in zip(told, channel.steps, strict=True):
            assert [step["primitive"] for step in ours] == [step.name for step in steps]
            assert [step["lag"] for step in ours] == [step.lag for step in steps]
            for step, real in zip(ours, steps, strict=True):
                assert step["from"] == [program.fifos[f].src for f in real.recv]
                assert step["to"] == [dst for f in real.send for dst in program.fifos[f].dsts]


def test_the_steps_of_every_kind_and_collective() -> None:
    """A collective that a kind does not serve is left out; if none is left, one line says why."""
    served: dict[str, set[str]] = {}
    for kind in ("trees", *KINDS):
        result = collc("plan", "dgx1v", "--gpus", "0-3", "--steps", kind, "--json")
        if result.code:
            assert refused(result)
            served[kind] = set()
        else:
            served[kind] = {program["collective"] for program in json.loads(result.out)["programs"]}
            assert collc("plan", "dgx1v", "--gpus", "0-3", "--steps", kind).out.count("channel 0") == len(served[kind])
    tree_collectives = {c.value for c in Collective if c.uses_trees}
    assert served["trees"] == served["ring"] == tree_collectives
    assert served["chain"] == {"all_reduce", "broadcast", "reduce"}
    assert served["three-phase"] == served["hierarchical-rings"] == set()


def test_steps_inside_a_switch() -> None:
    made = plan_json("hgx-h100", "--gpus", "0-3", "--steps", "in-switch")
    assert {p["collective"] for p in made["programs"]} == {c.value for c in Collective if c.uses_trees}
    (loops,) = made["programs"][0]["channels"]
    for steps in loops:
        assert [s["primitive"] for s in steps].count("send") == [s["primitive"] for s in steps].count("recv") == 4
        (head,) = (s for s in steps if "switch" in s)
        assert (head["primitive"], head["switch"]) == ("recvSend", ["sum", "copy"])
        assert head["from"] == head["to"] == [0, 1, 2, 3]
        assert sorted(s["to"] for s in steps if s["primitive"] == "send") == [[0], [1], [2], [3]]


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["dgx1v", "--steps", "star"], 2, "'star' is no kind of plan"),
        (["dgx1v", "--steps", "in-switch"], 1, "no switch that joins all GPUs can do"),
        (["dgx1v", "--collective", "alltoall", "--steps"], 2, "alltoall has no steps"),
        (["dgx1v", "--gpus", "0-4", "--collective", "all_reduce", "--steps", "ring"], 1, "no ring closes"),
        (["dgx1v", "--steps", "ring", "--trade"], 2, "--steps is about one plan"),
        (["dgx1v", "--survive", "1", "--steps"], 2, "--steps is about one plan"),
    ],
)
def test_steps_that_cannot_be(argv: list[str], code: int, words: str) -> None:
    assert words in refused(collc("plan", *argv), code=code)


def test_many_ranks_with_the_same_primitives_are_cut() -> None:
    result = collc("plan", "gb200-nvl72", "--gpus", "0-11", "--collective", "all_reduce", "--steps", "ring")
    assert "(and 4 more ranks with these primitives: --json)" in result.out


LONELY = """format: collc-topology/1
name: lonely
gpus: 4
cpus: [cpu0]
speeds: {nvlink: 25, pcie: 12}
links: [[gpu0, gpu1, nvlink], [gpu1, gpu2, nvlink], [gpu0, cpu0, pcie], [gpu1, cpu0, pcie]]
"""


@pytest.mark.parametrize(
    ("gpus", "more", "hint"),
    [
        ("0,2", ["--links", "nvlink"], "(try --relay idle)"),
        ("0,2", [], "(try --relay idle)"),
        ("0,3", [], "(no links of this topology join them; choose other GPUs)"),
        ("0,3", ["--links", "all"], "(no links of this topology join them; choose other GPUs)"),
        ("0,1", ["--links", "pcie,c2c"], None),
    ],
)
def test_the_way_out_is_one_that_works(gpus: str, more: list[str], hint: str | None, tmp_path: Path) -> None:
    path = tmp_path / "lonely.yaml"
    path.write_text(LONELY)
    argv = [str(path), "--gpus", gpus, *more]
    if hint is None:
        assert collc("plan", *argv).code == 0
        return
    assert refused(collc("plan", *argv), code=1).endswith(hint)
    if "--relay" in hint:
        assert collc("plan", *argv, "--relay", "idle").code == 0


def test_other_links_are_a_way_out() -> None:
    told = refused(collc("plan", "dgx1v", "--gpus", "0,7", "--links", "nvlink"), code=1)
    assert told.endswith("(try --relay idle or no --links or --links all)")


def test_a_plan_that_rests_on_an_assumption_is_read_again(tmp_path: Path) -> None:
    machine = tmp_path / "machine.yaml"
    machine.write_text(
        "format: collc-topology/1\nname: guessed\nassumes: [nvlink]\ngpus: 2\nlinks: [[gpu0, gpu1, nvlink, 25]]\n"
    )
    plan = tmp_path / "plan.json"
    plan.write_text(collc("plan", machine, "--json").out)
    value = json.loads(plan.read_text())
    assert all(len(one["assumes"]) == 1 for one in value["plans"])
    assert collc("verify", plan).code == 0
    value["plans"][0]["assumes"] = "the links"
    plan.write_text(json.dumps(value))
    assert "plans[0].assumes: expected a list" in refused(collc("verify", plan))


@pytest.mark.parametrize(("option", "stopped"), [("--budget", None), ("--time-limit", "time")])
def test_a_search_that_stops_says_how_far_the_optimum_is_at_most(
    option: str, stopped: str | None, tmp_path: Path
) -> None:
    few = ("plan", "dgx1v", "--collective", "all_reduce", option, "0.000001")
    text = " ".join(collc(*few).out.split())
    said = re.search(r"all_reduce: ([\d.]+) GB/s, at most ([\d.]+)% below the optimum( when the time was up)?", text)
    assert said is not None
    assert (said[3] is None) == (stopped is None)
    made = json.loads(collc(*few, "--json").out)
    (found,) = made["plans"]
    assert not found["optimal"]
    assert found.get("stopped") == stopped
    rate, bound = Fraction(found["rate_gbps"]), Fraction(found["bound_gbps"])
    assert float(said[2]) == pytest.approx(100 * (1 - rate / bound), abs=0.006)
    best = json.loads(collc("plan", "dgx1v", "--collective", "all_reduce", "--json").out)["plans"][0]
    assert best["optimal"]
    assert rate < Fraction(best["rate_gbps"]) <= bound
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(made))
    assert collc("verify", file).code == 0
    for lie in ({"stopped": "work"}, {"bound_gbps": str(rate), "optimal": True}, {"bound_gbps": str(rate * 101 / 100)}):
        file.write_text(json.dumps({**made, "plans": [found | lie]}))
        assert collc("verify", file).code == 1
