"""Ranks get the part of the plan whose links their GPUs have, whatever launchers call GPUs: on the mock driver."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from mock_jobs import job
from test_cuda_runtime import HERE, compile_for_mock, mock_driver

from collc.build.cache import cached, content_key
from collc.build.toolchain import find_cxx, run_tool
from collc.collectives.model import Collective
from collc.topology.load import load_topology
from collc.topology.model import LinkKind

NVLINK_GBPS = 25
EIGHT = list(range(8))
FIRST_BUS = 0x10  # of the mock's devices
# Two sets of GPUs of a DGX-1V with different links.
SOME = "0,3,4,7/0,1,2,3"


@cache
def mock_nvml() -> Path:
    """The folder of the mock libnvidia-ml.so.1."""
    source, compiler = HERE / "emulation" / "mock_nvml.cpp", find_cxx()
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden", "-shared", "-fPIC"]
    key: list[str | bytes] = [compiler.version, *flags, source.read_bytes()]
    return cached(
        content_key(key),
        "libnvidia-ml.so.1",
        lambda made: run_tool([compiler.path, *flags, str(source), "-o", str(made)]),
    ).parent


@cache
def made_for(topology: str, allocations: str) -> Path:
    """Returns a library of the named sets of GPUs, only for all_reduce."""
    name = f"{Path(topology).stem}-{content_key([topology, allocations])[:12]}"
    asked = {"allocations": allocations, "collectives": (Collective.ALL_REDUCE,)}
    return compile_for_mock(name, topology, chunk_bytes=4096, by_rule=True, **asked)


@cache
def nvlinks(topology: str) -> dict[tuple[int, int], int]:
    """How many NVLinks join two GPUs of a machine."""
    machine = load_topology(topology)
    number = {vertex.name: i for i, vertex in enumerate(machine.gpus)}
    return {
        (number[link.src], number[link.dst]): int(link.gbps / NVLINK_GBPS)
        for link in machine.links
        if link.kind is LinkKind.NVLINK and link.src in number and link.dst in number
    }


def links_of(numbering: Sequence[int], topology: str = "dgx1v") -> list[str]:
    """MOCK_LINKS of a machine whose GPU `numbering[i]` is what the topology calls GPU i."""
    return [
        f"{numbering[a]}-{numbering[b]}"
        for (a, b), count in sorted(nvlinks(topology).items())
        if a < b
        for _ in range(count)
    ]


def creations(made: Path, devices: Sequence[Sequence[int]], **settings: str) -> list[dict[str, Any]]:
    """Returns the report of mock_places.py on communicators on `devices`."""
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": f"{mock_driver()}:{mock_nvml()}",
        "COLLC_DEBUG": "INFO",
        "MOCK_GPUS": "8",
        # Small slots: the mock keeps 32 bytes about every byte of GPU memory.
        "COLLC_CHUNK": "256",
        **settings,
    }
    command = [sys.executable, str(HERE / "mock_places.py"), str(made), json.dumps(devices)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=300)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(devices), done.stdout
    return answers


def check_on_links(devices: Sequence[Sequence[int]], numbering: Sequence[int], answers: Sequence[Any]) -> None:
    """All FIFOs of the plans run where the machine has NVLinks; there is no rank without any."""
    here = {(numbering[a], numbering[b]) for a, b in nvlinks("dgx1v")}
    for gpus, answer in zip(devices, answers, strict=True):
        pairs = answer.get("pairs")
        assert pairs, (gpus, answer)
        assert {rank for pair in pairs for rank in pair} == set(range(len(gpus)))
        assert all((gpus[a], gpus[b]) in here for a, b in pairs), (gpus, pairs)


def four_of_eight(seed: int) -> list[list[int]]:
    """Every set of four GPUs that NVLinks join, in an order that chance has chosen."""
    chance = random.Random(seed)
    return [chance.sample(one, 4) for one in itertools.combinations(EIGHT, 4) if served(one)]


def served(gpus: Sequence[int]) -> bool:
    """Returns whether NVLinks join all GPUs."""
    reached, new = {gpus[0]}, [gpus[0]]
    while new:
        gpu = new.pop()
        more = [other for other in gpus if (gpu, other) in nvlinks("dgx1v") and other not in reached]
        reached.update(more)
        new += more
    return len(reached) == len(gpus)


def check_fours(made: Path, sets: Sequence[Sequence[int]], seed: int) -> None:
    """Checks ncclCommInitAll with lists in any order, on machines with different numberings of their GPUs."""
    numbering = random.Random(seed).sample(EIGHT, 8)
    devices = [[numbering[gpu] for gpu in gpus] for gpus in sets]
    settings = {"MOCK_LINKS": ",".join(links_of(numbering)), **({"MOCK_OLD_NVML": "1"} if seed % 2 else {})}
    check_on_links(devices, numbering, creations(made, devices, **settings))


def test_four_gpus_of_a_dgx1v_get_the_plan_of_their_links() -> None:
    check_fours(made_for("dgx1v", SOME), [[7, 0, 4, 3], [3, 1, 0, 2], [5, 4, 7, 6], [4, 3, 0, 7]], 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 6))
def test_every_four_gpus_of_a_dgx1v_get_the_plan_of_their_links(seed: int) -> None:
    check_fours(made_for("dgx1v", "4..4"), four_of_eight(seed), seed)


def knowing(folder: Path, numbering: Sequence[int]) -> Path:
    """A library for a DGX-1V whose GPU i is probed where the mock has its device `numbering[i]`."""
    lines = [f'  gpu{gpu}: {{pci: "0000:{FIRST_BUS + device:02x}:00.0"}}\n' for gpu, device in enumerate(numbering)]
    path = folder / "known.yaml"
    path.write_text("format: collc-topology/1\nname: known\nextends: dgx1v\ndevices:\n" + "".join(lines))
    return made_for(str(path), SOME)


def test_bus_ids_say_which_gpus_the_ranks_are_and_links_have_the_last_word(tmp_path: Path) -> None:
    numbering = random.Random(5).sample(EIGHT, 8)
    made = knowing(tmp_path, numbering)
    sets = [[7, 0, 4, 3], [4, 3, 0, 7], [3, 1, 0, 2]]
    devices = [[numbering[gpu] for gpu in gpus] for gpus in sets]
    # Nothing tells of links here.
    check_on_links(devices, numbering, creations(made, devices))
    # On a machine that is wired otherwise.
    elsewhere = random.Random(6).sample(EIGHT, 8)
    devices = [[elsewhere[gpu] for gpu in gpus] for gpus in sets]
    links = ",".join(links_of(elsewhere))
    check_on_links(devices, elsewhere, creations(made, devices, MOCK_LINKS=links))
    # A declaration of the user overrules the links.
    declared = creations(made, [devices[0], [0, 1, 2, 3]], COLLC_GPUS="0,1,2,3")
    assert sorted(declared[0]["pairs"]) == sorted(declared[1]["pairs"])


def places_of(links: str, gpus: int = 4, **settings: str) -> dict[str, Any]:
    return creations(made_for("dgx1v", SOME), [list(range(gpus))], MOCK_LINKS=links, **settings)[0]


def test_links_that_no_set_has_are_refused_with_what_was_found() -> None:
    error = places_of("0-1,0-1,1-2,3-s")["error"]
    assert "this library was compiled for no 4 GPUs with these NVLinks" in error
    assert "rank 0 (0000:10:00): 2 to rank 1; rank 1 (0000:11:00): 2 to rank 0, 1 to rank 2" in error
    assert "rank 3 (0000:13:00): 1 into switches" in error


def test_a_link_that_is_down_is_not_used() -> None:
    """GPUs 0 to 3 of a DGX-1V without one of the two links between 0 and 3 have the links of no set of four."""
    whole = [link for link in links_of(EIGHT) if set(link.split("-")) <= set("0123")]
    assert places_of(",".join(whole))["pairs"]
    assert "compiled for no 4 GPUs" in places_of(",".join(whole), MOCK_DOWN="0-3")["error"]


def test_what_the_user_declares_counts() -> None:
    assert places_of("0-1,0-1,1-2,3-s", COLLC_GPUS="0,1,2,3")["pairs"]


@pytest.mark.parametrize("ways", ["a list for all", "one for each", "one for each by UUID"])
def test_ranks_are_on_the_gpus_that_their_launcher_shows_them(ways: str) -> None:
    """GPUs 0, 3, 4 and 7 of a DGX-1V, whatever the processes call them."""
    gpus = [7, 0, 4, 3]
    names = [f"GPU-{gpu + 1:02x}000000" if ways.endswith("UUID") else str(gpu) for gpu in gpus]
    own = {
        rank: {"CUDA_VISIBLE_DEVICES": ",".join(names) if ways == "a list for all" else names[rank]}
        for rank in range(4)
    }
    answers = job(
        "collectives",
        4,
        made=made_for("dgx1v", SOME),
        given={"only": ["all_reduce"]},
        own=own,
        LD_LIBRARY_PATH=f"{mock_driver()}:{mock_nvml()}",
        MOCK_GPUS="8",
        MOCK_LINKS=",".join(links_of(EIGHT)),
        COLLC_PROTO="LL128",
    )
    assert answers == [[]] * 4


def test_parts_of_one_card_are_gpus_of_their_own() -> None:
    """MIG parts share a bus id. Each has a UUID, no links and no peer access."""
    own = {rank: {"CUDA_VISIBLE_DEVICES": f"MIG-{rank + 1:02x}000000"} for rank in range(3)}
    log: list[str] = []
    answers = job(
        "collectives",
        own=own,
        log=log,
        LD_LIBRARY_PATH=f"{mock_driver()}:{mock_nvml()}",
        MOCK_MIG="all",
        MOCK_NO_PEER="all",
        MOCK_LINKS="",
        MOCK_PATHS="",
        COLLC_DEBUG="INFO",
    )
    assert answers == [[], [], []]
    assert all("pinned host memory joins it with rank" in said for said in log)


def test_ll128_needs_links_between_gpus_that_processes_do_not_see() -> None:
    own = {rank: {"CUDA_VISIBLE_DEVICES": str(rank)} for rank in range(3)}
    odd = ["0-1"] * 10 + ["1-2"] * 5 + ["0-2"] * 6
    both = f"{mock_driver()}:{mock_nvml()}"
    assert job("collectives", own=own, COLLC_PROTO="LL128", LD_LIBRARY_PATH=both, MOCK_LINKS=",".join(odd)) == [[]] * 3
    for answer in job("collectives", own=own, COLLC_PROTO="LL128", LD_LIBRARY_PATH=both):
        assert "no NVLink joins ranks" in str(answer)


@pytest.mark.parametrize("end", ["s", "h"])
def test_links_into_switches_fit_every_order(end: str) -> None:
    """A virtual machine may hide the switches."""
    made = made_for("hgx-h100", "0,1,2,3")
    links = ",".join(f"{gpu}-{end}" for gpu in EIGHT for _ in range(18))
    for answer in creations(made, [[0, 1, 2, 3], [6, 1, 7, 4]], MOCK_LINKS=links):
        assert "error" not in answer, answer
    unequal = links.replace(f"2-{end},", "", 1)
    assert "compiled for no 4 GPUs" in creations(made, [[0, 1, 2, 3]], MOCK_LINKS=unequal)[0]["error"]


def paths_of(numbering: Sequence[int], topology: str) -> str:
    """MOCK_PATHS of a machine whose GPU `numbering[i]` is what the topology calls GPU i."""
    machine, steps = load_topology(topology), []
    at = {link.src: link.dst for link in machine.links if link.kind is LinkKind.PCIE and link.src.startswith("gpu")}
    cpu = {link.src: link.dst for link in machine.links if link.kind is LinkKind.PCIE and link.dst.startswith("cpu")}
    for a, b in itertools.combinations(range(len(machine.gpus)), 2):
        mine, theirs = at[f"gpu{a}"], at[f"gpu{b}"]
        step = 10 if mine == theirs else 40 if cpu[mine] == cpu[theirs] else 50
        steps.append(f"{numbering[a]}-{numbering[b]}:{step}")
    return ",".join(steps)


@pytest.mark.parametrize("seed", [1, 2])
def test_paths_tell_apart_what_nvlinks_do_not(seed: int) -> None:
    """Pairs of cards with bridges are all alike; which of them are on one socket only their PCIe paths say."""
    name = "a100-pcie-bridged"
    chance = random.Random(seed)
    numbering, order = chance.sample(EIGHT, 8), chance.sample(EIGHT, 8)
    made = made_for(name, "0,1,2,3,4,5,6,7")
    links = ",".join(links_of(numbering, name))
    devices = [[numbering[gpu] for gpu in order]]
    answer = creations(made, devices, MOCK_LINKS=links, MOCK_PATHS=paths_of(numbering, name))[0]
    assert sorted(answer["parts"]) == EIGHT, answer
    for a, b in itertools.combinations(EIGHT, 2):
        mine, plan = (order[a], order[b]), (answer["parts"][a], answer["parts"][b])
        assert (mine[0] // 2 == mine[1] // 2) == (plan[0] // 2 == plan[1] // 2)
        assert (mine[0] // 4 == mine[1] // 4) == (plan[0] // 4 == plan[1] // 4)
    # With links only, the library finds the pairs, but not the pairs that share a socket.
    blind = creations(made, devices, MOCK_LINKS=links)[0]["parts"]
    assert any(
        (order[a] // 4 == order[b] // 4) != (blind[a] // 4 == blind[b] // 4)
        for a, b in itertools.combinations(EIGHT, 2)
    )


def test_paths_that_fit_do_not_change_the_order_of_ranks() -> None:
    name = "a100-pcie-bridged"
    made = made_for(name, "0,1,2,3,4,5,6,7")
    settings = {"MOCK_LINKS": ",".join(links_of(EIGHT, name)), "MOCK_PATHS": paths_of(EIGHT, name)}
    assert creations(made, [EIGHT], **settings)[0]["parts"] == []
    # Pairs that no machine like this has: then they do not count.
    settings["MOCK_PATHS"] = "0-2:10,2-4:10,4-6:10"
    assert creations(made, [EIGHT], **settings)[0]["parts"] == []


def test_paths_of_a_machine_without_nvlinks() -> None:
    made, name = made_for("pcie-8xl40s", "0,1,2,3,4,5,6,7"), "pcie-8xl40s"
    numbering = random.Random(3).sample(EIGHT, 8)
    answer = creations(made, [EIGHT], MOCK_PATHS=paths_of(numbering, name))[0]
    gpu = {device: one for one, device in enumerate(numbering)}
    machine = load_topology(name)
    under = [link.dst for g in EIGHT for link in machine.links if link.src == f"gpu{g}" and link.kind is LinkKind.PCIE]
    for a, b in itertools.combinations(EIGHT, 2):
        same = under[gpu[a]] == under[gpu[b]]
        assert same == (under[answer["parts"][a]] == under[answer["parts"][b]])
