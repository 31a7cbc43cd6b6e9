"""Several classes of links in one call on the CUDA target: PCIe through host memory beside NVLink."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import re
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from cuda_emulator import NOBODY, PackedTables, build_emulator, emulate
from emulated_calls import CHUNK_BYTES, differences, make_call, small_program
from mock_jobs import HERE, job
from support.cli import collc
from support.libraries import JOINT, fake_nccl
from support.programs import TREE_COLLECTIVES
from test_cuda_runtime import compile_for_mock, mock_driver, written
from test_gpu_places import mock_nvml

from collc.bench.data import TYPES, Case
from collc.bench.team import gpu_team_of
from collc.build.toolchain import find_cxx, run_tool
from collc.checker.library import check_library, read_manifest
from collc.choose import by_class
from collc.choose.joined import Cut
from collc.collectives.model import Collective
from collc.ir.join_classes import join_classes
from collc.ir.nodes import Program
from collc.ir.verify import verify
from collc.tune.candidates import read_offers
from collc.tune.meter import Call, Guard, TeamMeter
from collc.tune.run import GPU_WORKER

NRANKS = 4
FAKE = HERE.parent / "runtime" / "fake_nccl.c"
CUTS = [
    Cut(0, {"nvlink": 3, "pcie": 1}, {"nvlink": 3, "pcie": 2}, 1024, "for small calls"),
    Cut(4096, {"nvlink": 2, "pcie": 3}, {"nvlink": 3, "pcie": 2}, 512, "for large calls"),
]
KINDS = [(name, op) for name, op in zip(TYPES, itertools.cycle(("sum", "prod", "max", "min", "avg")), strict=False)]


def joined(collective: Collective, nranks: int, seed: int) -> Program:
    programs = {
        name: small_program(collective, nranks, seed + 7 * i * nranks) for i, name in enumerate(("nvlink", "pcie"))
    }
    program = join_classes(programs, {"nvlink": 3, "pcie": 1})
    verify(program)
    return program


@pytest.mark.parametrize("collective", TREE_COLLECTIVES, ids=lambda c: c.value)
@pytest.mark.parametrize("protocol", ["Simple", "LL"])
def test_kernels_move_every_weighting(collective: Collective, protocol: str) -> None:
    """Successive calls, each with other weights, some of them 0."""
    for seed in range(5):
        drawn = random.Random(seed)
        nranks = drawn.randint(2, 4)
        program = joined(collective, nranks, seed)
        root = program.root if program.root is not None else 0
        op = "sum" if collective.reduces else None
        made = []
        for count in (drawn.randint(1, 200), drawn.randint(200, 900), 1, drawn.randint(200, 900)):
            weights = drawn.choice([(1, 0, 0), (0, 1, 0), (drawn.randint(1, 255), drawn.randint(1, 255), 0)])
            call, wanted = make_call(Case(collective, nranks, root, count, TYPES["float"], op), in_place=seed % 2 == 0)
            made.append((dataclasses.replace(call, weights=weights), wanted))
        outcome = emulate(
            build_emulator(),
            PackedTables([program], CHUNK_BYTES),
            [call for call, _ in made],
            seed=seed,
            resident=drawn.choice([0, 1, 2]),
            report_races=seed % 3 == 0,
            protocol=protocol,
            pinned_pairs=drawn.choice([0, NOBODY, seed]),
        )
        assert (outcome.failure, differences(made)) == ("", []), seed


@cache
def library(to_cpus: str = "c2c") -> Path:
    """A CUDA library of NVLink and PCIe for four GPUs that cuts all calls."""
    name, machine = f"joint-{to_cpus}", JOINT.replace("c2c", to_cpus)
    with mock.patch.object(by_class, "find_cuts", return_value=CUTS):
        return compile_for_mock(
            f"{name}-mock", written(name, machine), chunk_bytes=1024, classes="nvlink,pcie", roots=[1]
        )


def weighted(
    scenario: str, weights: str | None, given: dict[str, object], settings: dict[str, str] | None = None
) -> list[object]:
    chosen = {"COLLC_WEIGHTS": weights} if weights else {}
    own = {rank: {**(settings or {}), **chosen} for rank in range(NRANKS)}
    return job(scenario, NRANKS, given=given, made=library(), own=own)


@pytest.mark.parametrize(
    ("weights", "settings"),
    [
        (None, {}),
        ("random:1", {}),
        pytest.param("random:7", {}, marks=pytest.mark.slow),
        pytest.param("random:2", {"COLLC_PROTO": "LL"}, marks=pytest.mark.slow),
        ("random:3", {"COLLC_PROTO": "LL128"}),
        pytest.param("pcie:1", {"MOCK_NO_PEER": "0-1,2-3"}, marks=pytest.mark.slow),
        ("random:4", {"MOCK_NO_PEER": "all", "COLLC_CHUNK": "176"}),
    ],
    ids=["own", "random", "all-types", "LL", "LL128", "some-peers", "no-peers"],
)
@pytest.mark.slow_for("own")
def test_every_collective_and_type_between_processes(weights: str | None, settings: dict[str, str]) -> None:
    kinds = KINDS if weights == "random:7" else KINDS[5:8]
    given = {"kinds": kinds, "counts": [1, 37, 777, 2500]}
    assert weighted("weighted_calls", weights, given, settings) == [[]] * NRANKS


@pytest.mark.parametrize("weights", ["random:5", pytest.param("random:6", marks=pytest.mark.slow)])
def test_a_graph_keeps_the_weights_of_its_capture(weights: str) -> None:
    """Plain calls between replays have other weights. A graph replays the weights of its capture."""
    assert weighted("weighted_graphs", weights, {"count": 999}) == [[]] * NRANKS


BALANCED = {"COLLC_BALANCE": "random:1", "COLLC_DEBUG": "INFO"}


def changes(log: list[str]) -> list[str]:
    """Returns rank 0's lines about changed weights."""
    assert not any(" bytes on:" in text for text in log[1:])
    return [line for line in log[0].splitlines() if " bytes on:" in line]


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)])
def test_ranks_agree_on_weights_while_calls_run(seed: int) -> None:
    """Other weights, proposed again and again; a rank that used them in another call would mix up the shares."""
    given = {"kinds": KINDS[5:8], "counts": [1, 37, 777, 2500]}
    log: list[str] = []
    settings = {**BALANCED, "COLLC_BALANCE": f"random:{seed}"}
    own = dict.fromkeys(range(NRANKS), settings)
    assert job("weighted_calls", NRANKS, given=given, made=library(), own=own, log=log) == [[]] * NRANKS
    assert len(changes(log)) > 10
    assert any("pcie 100%" in line or "nvlink 100%" in line for line in changes(log))


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_graphs_keep_agreed_weights(seed: int) -> None:
    """Captures answer and wait as calls do. A graph replays the weights of its capture while calls change theirs."""
    log: list[str] = []
    own = {rank: {**BALANCED, "COLLC_BALANCE": f"random:{seed}"} for rank in range(NRANKS)}
    assert job("weighted_graphs", NRANKS, given={"count": 999}, made=library(), own=own, log=log) == [[]] * NRANKS
    assert changes(log)


def test_one_thread_with_all_ranks_answers_for_all() -> None:
    log: list[str] = []
    given = {"nranks": NRANKS, "count": 500, "calls": 30}
    own = {0: {**BALANCED, "MOCK_GPUS": str(NRANKS)}}
    assert job("one_thread", 1, given=given, made=library(), own=own, log=log, seconds=60) == [[]]
    assert changes(log)


def test_a_late_rank_keeps_the_weights_and_nobody_waits_for_ever() -> None:
    """The others put their calls on their streams after a second without its answer."""
    log: list[str] = []
    own = dict.fromkeys(range(NRANKS), BALANCED)
    took = job("late_rank", NRANKS, made=library(), own=own, log=log)
    assert all(isinstance(times, list) for times in took), took
    assert all(max(times) < 2 for times in took)
    assert max(took[0]) > 0.9
    silent = re.findall(
        r"keeps the weights of its classes: ranks? ([\d, ]+) ha(?:s|ve) not come within a second", "".join(log)
    )
    assert str(NRANKS - 1) in ", ".join(silent).split(", "), log  # on a busy machine others are late, too


@pytest.mark.slow
def test_the_balancer_follows_what_kernels_tell() -> None:
    """Calls of 1 MiB of a program that gives PCIe too much; on the mock both classes are memory."""
    log: list[str] = []
    own = {rank: {"COLLC_DEBUG": "INFO", "COLLC_CHUNK": "1024"} for rank in range(NRANKS)}
    given = {"count": 1 << 18, "calls": 12}
    assert job("same_call", NRANKS, given=given, made=library(), own=own, log=log) == [[]] * NRANKS
    moved = changes(log)
    assert moved
    assert all("all_gather from" in line for line in moved)


@pytest.mark.parametrize(
    ("settings", "calls"),
    [
        ({"COLLC_BALANCE": "0"}, 6),
        pytest.param({"COLLC_CHANNELS": "1", "COLLC_CHUNK": "1024"}, 12, marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow_for("settings0-6")
def test_weights_do_not_move(settings: dict[str, str], calls: int) -> None:
    """Weights are fixed if the user sets them, or if channels serve several classes, whose times then mix."""
    log: list[str] = []
    own = {rank: {**settings, "COLLC_DEBUG": "INFO"} for rank in range(NRANKS)}
    given = {"count": 1 << 18, "calls": calls}
    assert job("same_call", NRANKS, given=given, made=library(), own=own, log=log) == [[]] * NRANKS
    assert changes(log) == []


@pytest.fixture
def on_the_mock(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"LD_LIBRARY_PATH": str(mock_driver()), "OPENBLAS_NUM_THREADS": "1", "MOCK_GPUS": str(NRANKS)}
    for name, value in {**given, "COLLC_CHUNK": "1024"}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("on_the_mock")
@pytest.mark.slow
def test_kernels_tell_tune_how_long_each_class_took() -> None:
    (offer,) = read_offers(read_manifest(library()))
    call = Call(Collective.ALL_GATHER, -1, 1 << 14)
    program = [one for one in offer.candidates if one.collective is Collective.ALL_GATHER][-1]
    assert program.weights == (2, 3, 0)
    guard = Guard(batch_seconds=0.0, repeats=3, rounds=2, most_iters=1)
    with gpu_team_of(library(), NRANKS, GPU_WORKER) as team:
        meter = TeamMeter(team, guard, offer.first_program)
        times = {w: meter.class_times(call, program.number, w) for w in ((250, 0, 0), (0, 250, 0), (25, 225, 0))}
        compared = meter.compare(call, program.number, [(250, 0, 0), (25, 225, 0)])
    assert all(one is not None for one in times.values())
    shown = {weights: [time > 0 for time in one or ()] for weights, one in times.items()}
    assert shown == {
        (250, 0, 0): [True, False, False],
        (0, 250, 0): [False, True, False],
        (25, 225, 0): [True, True, False],
    }
    several = times[25, 225, 0]
    assert several is not None
    assert several[1] > several[0]  # nine times as much, over memory as well
    assert min(compared.seconds) > 0


@pytest.mark.usefixtures("on_the_mock")
@pytest.mark.slow
def test_tune_writes_a_file_for_gpus(tmp_path: Path) -> None:
    out = tmp_path / "joint.tuning"
    command = ["tune", str(library()), "-o", str(out), "--json", "--launcher", "none", "--collective", "all_gather"]
    done = collc(*command, "-b", "64K", "-e", "64K")
    assert done.code == 0, done.err
    (found,) = json.loads(done.out)["collectives"]
    assert found["table"][0]["min_bytes"] == 0
    assert found["points"][0]["after_us"] <= found["points"][0]["before_us"]
    assert out.read_text().startswith("collc-tuning/1")


def test_communicators_begin_with_the_weights_of_their_file(tmp_path: Path) -> None:
    manifest = read_manifest(library())
    programs = [p["collective"] for p in manifest["allocations"][0]["programs"]]
    first = programs.index("all_gather")
    cpuinfo = job("machine_name", 1, made=library())[0]
    file = tmp_path / "joint.tuning"
    rows = ["table 0 all_gather -", f"0 {first} nvlink:10,pcie:240", f"1024 {first + 1} nvlink:10,pcie:240", "end 2"]
    head = ["collc-tuning/1", f"library {manifest['build_id']}", f"machine {cpuinfo}"]
    file.write_text("\n".join([*head, *rows, ""]))
    log: list[str] = []
    given = {"count": 1 << 10, "calls": 80}
    own = {rank: {**BALANCED, "COLLC_TUNING": str(file)} for rank in range(NRANKS)}
    assert job("same_call", NRANKS, given=given, made=library(), own=own, log=log) == [[]] * NRANKS
    drawn = next(line for line in changes(log) if "all_gather from" in line)
    assert "before nvlink 4%, pcie 96%: drawn" in drawn


@pytest.mark.parametrize(
    ("name", "given", "why"),
    [
        ("pcie", {}, "reported by collc_lose_class"),
        # One to a GPU that has no rank goes down, too.
        ("nvlink", {"down": "0-1,0-4", "at": 0}, "15 of the 16 NVLinks of its GPU are up"),
    ],
)
def test_a_class_lost_between_calls_is_left_out_and_graphs_that_hold_it_say_so(
    name: str, given: dict[str, object], why: str
) -> None:
    log: list[str] = []
    links = {}
    if given:
        wires = ["0-1"] * 10 + ["1-2"] * 5 + ["0-2"] * 6 + ["2-3"] * 10 + ["0-4"]  # as many as the speeds say
        links = {"MOCK_LINKS": ",".join(wires), "LD_LIBRARY_PATH": f"{mock_driver()}:{mock_nvml()}"}
        links |= {"COLLC_WATCH_LINKS": "1"}
    own = {rank: {"COLLC_DEBUG": "WARN", **links} for rank in range(NRANKS)}
    assert job("lost_class", NRANKS, given=given, made=library(), own=own, log=log) == [[]] * NRANKS
    assert "".join(log).count(f"{name} has failed, {why}: calls from call ") == 1
    for rank, text in enumerate(log):
        stale = f"rank {rank}: graphs that it has captured hold {name}, which has failed: capture them again"
        assert text.count(stale) == 1, text


# The number of links that gives the speeds of the library's machine.
WATCHED = {"MOCK_LINKS": ",".join(["0-1"] * 10 + ["1-2"] * 5 + ["0-2"] * 6 + ["2-3"] * 10), "COLLC_WATCH_LINKS": "1"}


def watched(**more: str) -> dict[int, dict[str, str]]:
    folders = {"LD_LIBRARY_PATH": f"{mock_driver()}:{mock_nvml()}"}
    return {rank: {"COLLC_DEBUG": "WARN", **WATCHED, **folders, **more} for rank in range(NRANKS)}


def test_nvml_that_stands_still_delays_no_abort() -> None:
    """A separate thread watches the links, so the thread that ends calls goes on."""
    texts = job("missing_rank", NRANKS, given={"stands": True}, made=library(), own=watched(COLLC_TIMEOUT="0.5"))
    assert texts[0] == ""
    assert all("COLLC_TIMEOUT: after 0.5 s rank" in text for text in texts[1:]), texts


def test_nvml_that_stands_still_for_one_gpu_blinds_no_other() -> None:
    """A separate thread watches each GPU of a process."""
    log: list[str] = []
    own = {0: {**watched()[0], "MOCK_GPUS": str(NRANKS)}}
    given = {"nranks": NRANKS, "down": "1-2"}
    assert job("one_gpu_stands", 1, given=given, made=library(), own=own, log=log) == [[]]
    assert re.search(
        r"rank [12]: nvlink has failed, (14 of the 15|20 of the 21) NVLinks of its GPU are up", "".join(log)
    ), log


@pytest.mark.slow
def test_a_gpu_that_has_lost_lanes_of_pcie_leaves_the_class_out() -> None:
    log: list[str] = []
    own, given = watched(MOCK_LANES="0:16"), {"at": 2, "calls": 20}
    assert job("fewer_lanes", NRANKS, given=given, made=library("pcie"), own=own, log=log) == [[]] * NRANKS
    said = "rank 2: pcie has failed, its GPU's link of PCIe has 8 of its 16 lanes: calls from call "
    assert "".join(log).count(said) == 1, log


@pytest.mark.parametrize("weights", [None, "pcie:1", "random:5"])
@pytest.mark.parametrize("scenario", ["weighted_calls", "weighted_graphs"])
def test_ranks_do_without_pcie_where_its_host_memory_is_refused(scenario: str, weights: str | None) -> None:
    """One GPU cannot pin any: all go on over NVLink, whatever is asked of PCIe, and keep none of that memory."""
    log: list[str] = []
    own = {rank: {"COLLC_DEBUG": "WARN", **({"COLLC_WEIGHTS": weights} if weights else {})} for rank in range(NRANKS)}
    own[2]["MOCK_NO_REGISTER"] = "1"
    given = {"kinds": KINDS[7:8], "counts": [1, 777, 2500], "count": 999}
    assert job(scenario, NRANKS, given=given, made=library(), own=own, log=log) == [[]] * NRANKS
    assert "".join(log).count("pcie has failed, its host memory is refused (rank 2: ") == 1, log
    assert job("pinned_memory", NRANKS, made=library(), own=own) == [0] * NRANKS


@pytest.mark.parametrize("weights", [None, "pcie:1"])
def test_what_was_refused_is_nothing_to_fall_back_on(weights: str | None) -> None:
    """NVLink fails as well: calls use it all the same, and not memory that is not there."""
    own = {rank: {"COLLC_WEIGHTS": weights} if weights else {} for rank in range(NRANKS)}
    own[0]["MOCK_NO_REGISTER"] = "1"
    assert job("nvlink_lost", NRANKS, made=library(), own=own) == [[]] * NRANKS


def test_a_pair_that_needs_host_memory_gets_it_or_an_error() -> None:
    """Where two GPUs do not reach each other, NVLink's part of a call needs it as well."""
    settings = {"MOCK_NO_PEER": "0-3", "COLLC_NCCL": "/nowhere/libnccl.so.2"}
    own = {rank: {**settings, "MOCK_NO_REGISTER": "1" if rank == 0 else "0"} for rank in range(NRANKS)}
    answers = job("pinned_memory", NRANKS, made=library(), own=own)
    assert all("GPUs that do not reach each other need pinned host memory" in str(answer) for answer in answers), (
        answers
    )


def system_faults(folder: Path) -> Path:
    """Returns the library that makes system calls fail when it is preloaded."""
    shim = folder / "system_faults.so"
    run_tool([find_cxx().path, "-xc", "-shared", "-fPIC", str(HERE / "system_faults.c"), "-o", str(shim), "-ldl"])
    return shim


def all_end_alike(answers: list[Any]) -> None:
    """All ranks come to the same end of each creation of `failing_system_calls`."""
    assert all(isinstance(said, list) for said in answers), answers
    for one in zip(*answers, strict=True):
        assert len({end if end in ("ours", "theirs") else "an error" for _, end in one}) == 1, one


@pytest.mark.parametrize("planted", [0, 1])
def test_every_call_of_the_system_for_host_memory_fails_once(planted: int, tmp_path: Path) -> None:
    """All ranks come to the same end: without PCIe where that memory alone is refused."""
    log: list[str] = []
    answers = job(
        "failing_system_calls",
        NRANKS,
        given={"planted": planted, "calls": ["memfd_create", "posix_fallocate"] if planted == 0 else ["mmap"]},
        made=library(),
        log=log,
        COLLC_NCCL=str(fake_nccl(FAKE)),
        COLLC_BOOTSTRAP_TIMEOUT="10",
        COLLC_DEBUG="WARN",
        LD_PRELOAD=str(system_faults(tmp_path)),
    )
    all_end_alike(answers)
    assert f"its host memory is refused (rank {planted}: " in "".join(log), (answers, log)


def test_links_of_which_nvml_does_not_tell_are_no_loss() -> None:
    log: list[str] = []
    assert job("unknown_links", NRANKS, made=library(), own=watched(), log=log) == [[]] * NRANKS
    assert "has failed" not in "".join(log)


@pytest.mark.parametrize("name", ["nvlink", "pcie"])
@pytest.mark.parametrize(
    "settings",
    [{}, {"COLLC_CHANNELS": "1"}, pytest.param({"COLLC_PROTO": "LL"}, marks=pytest.mark.slow)],
    ids=lambda settings: "".join(settings),
)
def test_an_error_names_the_class_that_stands_still(settings: dict[str, str], name: str) -> None:
    """One channel may serve both classes."""
    own = {rank: {"COLLC_WEIGHTS": f"{name}:1", "COLLC_TIMEOUT": "0.5", **settings} for rank in range(NRANKS)}
    texts = job("missing_rank", NRANKS, made=library(), own=own)
    assert texts[0] == ""
    assert all("COLLC_TIMEOUT: after 0.5 s rank" in text for text in texts[1:]), texts
    assert all(f" over {name} (channel" in text for text in texts[1:]), texts


@pytest.mark.slow
def test_an_error_of_one_class_says_where_data_pass_through_host_memory() -> None:
    own = {rank: {"MOCK_NO_PEER": "all", "COLLC_TIMEOUT": "0.5"} for rank in range(3)}
    texts = job("missing_rank", 3, own=own)
    assert texts[0] == ""
    said = r"waits for .* rank \d through pinned host memory \(channel"
    assert all(re.search(said, text) for text in texts[1:]), texts


def test_the_library_proves_itself_and_tells_what_it_pins() -> None:
    held = check_library(library())
    assert {program.weights for program in held.tables.allocations[0].programs} == {(3, 1, 0), (2, 3, 0)}
    allocation = read_manifest(library())["allocations"][0]
    assert allocation["host_pairs"] == ["0-3", "1-3"]
    pinned = job("pinned_memory", NRANKS, made=library(), MOCK_NO_PEER="0-3,1-3")
    assert sum(pinned) == 2 * allocation["host_bytes"] > 0
    assert f" {allocation['host_bytes'] / 1e6:.1f} MB in all" in collc("inspect", library()).out
