"""`tune --machine`: thresholds follow from costs by rules, and a library obeys the file without changing a bit."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import astuple, fields, replace
from pathlib import Path
from typing import Any

import pytest
from support.libraries import client
from support.ranks import SUCCESS, Ranks
from support.tunable import tunable

from collc.build.manifest import PLACES
from collc.cli import main
from collc.process import run_captured
from collc.resources import resource_dir
from collc.tune.machine import (
    APART,
    DISTANCES,
    FAR_CHUNKS,
    MARGIN,
    PAST_ALL,
    SIZES,
    UNIT,
    Costs,
    Thresholds,
    cores_to_measure,
    earlier_costs,
    machine_text,
    settled_costs,
    thresholds,
    tune_machine,
)

RUNTIME = Path(__file__).parents[1] / "runtime"
NAMES = [field.name for field in fields(Thresholds)]
EVEN = Costs(*[10.0] * len(fields(Costs)))


def both(found: Thresholds) -> dict[str, Thresholds]:
    return dict.fromkeys(DISTANCES, found)


def crossing(at: int | None, **ways: float) -> dict[int, Costs]:
    """All ways cost the same, but from `at` bytes on these."""
    return {size: replace(EVEN, **ways) if at is not None and size >= at else EVEN for size in SIZES}


RULES = {
    "kernel_copies": {"both_kernel": 8.0},
    "kernel_copies_crowded": {"own_kernel": 8.0},
    "streamed_results": {"own_streamed": 8.0},
    "streamed_slots": {"both_streamed_slots": 8.0},
    "streamed_broadcast_slots": {"streamed_slots": 8.0},
    "pulled_broadcasts": {"kernel": 8.0},
}


def between(at: int) -> int:
    """Returns the size where a line from 1 at the size before to 0.8 at this size passes MARGIN."""
    if at == SIZES[0]:
        return at
    before = SIZES[SIZES.index(at) - 1]
    return UNIT * round((before + (at - before) * (1 - MARGIN) / (1 - 0.8)) / UNIT)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("at", [SIZES[0], SIZES[3], SIZES[-1], None])
def test_a_way_is_taken_from_where_it_stays_faster(name: str, at: int | None) -> None:
    found = thresholds(crossing(at, **RULES[name]))
    never = PAST_ALL if name == "streamed_results" else None
    assert getattr(found, name) == (never if at is None else between(at))
    related = {"pulled_broadcasts": "kernel_copied_chunks"}.get(name)
    # Where everything costs the same, one sum costs less than a sum of half the bytes and its result.
    others = [other for other in NAMES if not other.startswith("sums_everywhere")]
    assert [other for other in others if getattr(found, other) not in (None, PAST_ALL)] == (
        [] if at is None else [other for other in others if other in (name, related)]
    )
    if related is not None:
        assert getattr(found, related) == getattr(found, name)


def test_broadcasts_are_streamed_where_one_of_the_streamed_ways_is_best() -> None:
    assert thresholds(crossing(SIZES[4], slots_streamed=8.0)).streamed_broadcasts == 2 * between(SIZES[4])
    assert thresholds(crossing(SIZES[4], slots_streamed=8.0, streamed_slots=7.0)).streamed_broadcasts is None
    both = thresholds(crossing(SIZES[4], streamed_slots=9.9, all_streamed=8.0))
    assert both.streamed_broadcasts is not None
    assert both.streamed_broadcast_slots == between(SIZES[4])


@pytest.mark.parametrize(
    ("name", "way"),
    [("pulled_broadcasts", "kernel"), ("kernel_copies", "both_kernel"), ("kernel_sums", "both_summed_kernel")],
)
def test_the_kernel_copies_where_it_is_best_and_no_further(name: str, way: str) -> None:
    slower = {SIZES[5]: replace(EVEN, **{way: 12.0})}
    found = thresholds(crossing(SIZES[3], **{way: 8.0}) | slower)
    assert getattr(found, name) == between(SIZES[3])
    assert getattr(found, f"{name}_end") == (SIZES[4] + SIZES[5]) // 2  # from 8 to 12, of 10
    again = thresholds(crossing(SIZES[2], **{way: 8.0}) | {SIZES[3]: EVEN})
    assert (getattr(again, name), getattr(again, f"{name}_end")) == (between(SIZES[4]), None)


def linear(kernel: float, *others: float, written: float | None = None) -> dict[int, Costs]:
    """Costs in microseconds per MiB: a sum by the kernel, then a sum through slots, a move between the two, and a copy
    by the rank; `written` is the cost to move data that were just written."""
    summed, moved, own = others
    costs = {}
    for size in SIZES:
        mib = size / (1 << 20)
        ways = {"both_summed_slots": summed, "both_summed_streamed": summed, "both_summed_kernel": kernel, "own": own}
        ways |= dict.fromkeys(("both_slots", "both_slots_streamed", "both_kernel"), moved)
        ways |= dict.fromkeys(("slots", "kernel"), moved - own if written is None else written)
        costs[size] = replace(EVEN, **{name: us * mib for name, us in ways.items()})
    return costs


def test_all_is_summed_everywhere_where_that_is_faster_than_halves_and_their_results() -> None:
    """A half is summed by the better way, and its result goes the other way, without the copy beside it."""
    found = thresholds(linear(60.0, 100.0, 80.0, 10.0))  # 30 and 40 - 5
    assert (found.sums_everywhere, found.sums_everywhere_end) == (SIZES[1], None)
    assert thresholds(linear(79.0, 100.0, 80.0, 10.0)).sums_everywhere is None  # 39.5 and 35
    assert thresholds(linear(60.0, 100.0, 40.0, 10.0)).sums_everywhere is None  # 30 and 15
    found = thresholds(linear(79.0, 100.0, 80.0, 10.0, written=200.0))  # cores far apart
    assert (found.sums_everywhere, found.sums_everywhere_end) == (SIZES[1], None)
    slower = linear(50.0, 100.0, 80.0, 10.0)
    slower |= {
        size: replace(slower[size], both_summed_kernel=10 * slower[size].both_summed_kernel) for size in SIZES[4:]
    }
    found = thresholds(slower)
    assert found.sums_everywhere == SIZES[1]
    assert found.sums_everywhere_end is not None
    assert SIZES[3] < found.sums_everywhere_end < SIZES[4]
    assert thresholds(slower, far=True) == replace(thresholds(slower), kernel_copied_chunks=FAR_CHUNKS)
    assert thresholds(crossing(SIZES[0], kernel=-1.0), far=True).kernel_copied_chunks is None
    refused = {size: replace(costs, both_summed_kernel=-1.0) for size, costs in slower.items()}
    assert (thresholds(refused).sums_everywhere, thresholds(refused).kernel_sums) == (None, None)


def test_what_is_hardly_faster_in_between_neither_begins_nor_ends_a_range() -> None:
    hardly = {SIZES[4]: replace(EVEN, both_kernel=9.9)}
    found = thresholds(crossing(SIZES[2], both_kernel=8.0) | hardly)
    assert (found.kernel_copies, found.kernel_copies_end) == (between(SIZES[2]), None)
    slower = {SIZES[5]: replace(EVEN, both_kernel=12.0)}
    found = thresholds(crossing(SIZES[2], both_kernel=8.0) | hardly | slower)
    assert found.kernel_copies == between(SIZES[2])
    assert found.kernel_copies_end is not None
    assert SIZES[4] < found.kernel_copies_end < SIZES[5]
    alone = thresholds(crossing(None) | hardly)
    assert (alone.kernel_copies, alone.kernel_copies_end) == (None, None)


def test_a_threshold_between_two_sizes_is_where_straight_lines_meet() -> None:
    """A call of the kernel costs `start` microseconds, and its copies take 0.4 times as long as other copies."""
    for start in (0.5, 1.0, 3.0, 20.0):
        costs = {}
        for size in SIZES:
            us = 2e-5 * size
            costs[size] = replace(EVEN, both_slots=us, both_slots_streamed=us, both_kernel=start + 0.4 * us)
        meet = start / (MARGIN - 0.4) / 2e-5
        assert thresholds(costs).kernel_copies == pytest.approx(max(meet, SIZES[0]), abs=UNIT)


def test_a_way_that_is_hardly_faster_or_refused_is_not_taken() -> None:
    assert thresholds(crossing(SIZES[0], both_kernel=9.9)).kernel_copies is None
    assert thresholds(crossing(SIZES[0], both_kernel=-1.0)).kernel_copies is None
    assert thresholds(crossing(SIZES[0], own_kernel=-1.0)).kernel_copies_crowded is None
    faster_once = {**crossing(None), SIZES[2]: replace(EVEN, streamed_slots=1.0, both_streamed_slots=1.0)}
    assert (thresholds(faster_once).streamed_broadcast_slots, thresholds(faster_once).streamed_slots) == (None, None)


def test_the_largest_size_alone_does_not_decide_against_a_way_that_is_much_the_same_there() -> None:
    """Two of eight runs on one machine had ratios of 1.00 and 1.02 at this size, the others 0.81 to 0.98."""
    faster = crossing(SIZES[3], own_streamed=8.0, both_streamed_slots=8.0)
    last = SIZES[-1]
    for same in (10.0, 10.4):
        found = thresholds(faster | {last: replace(EVEN, own_streamed=same, both_streamed_slots=same)})
        assert found.streamed_results == found.streamed_slots == between(SIZES[3])
    slower = thresholds(faster | {last: replace(EVEN, own_streamed=10.6, both_streamed_slots=10.6)})
    assert (slower.streamed_results, slower.streamed_slots) == (PAST_ALL, None)
    refused = thresholds(crossing(SIZES[3], own_kernel=8.0) | {last: replace(EVEN, own_kernel=-1.0)})
    assert refused.kernel_copies_crowded is None
    within = thresholds(crossing(SIZES[2], own_streamed=8.0) | {SIZES[-2]: EVEN, last: EVEN})
    assert within.streamed_results == PAST_ALL


def test_measurements_during_which_the_cores_were_moved_do_not_count() -> None:
    near = replace(EVEN, line_load=0.04)
    far = replace(EVEN, line_load=0.15, slots=70.0)
    size, other = SIZES[:2]
    costs, moved = settled_costs([{size: near, other: near}, {size: far, other: near}, {size: near, other: near}])
    assert (costs, moved) == ({"near": {size: near, other: near}}, 1)
    costs, moved = settled_costs([{size: far, other: near}] * 3)
    assert moved == 3
    # A size without any other keeps what it has.
    assert costs in ({"near": {size: far, other: near}}, {"far": {size: far, other: near}})
    assert settled_costs([{size: near}, {size: replace(near, line_load=0.05)}])[1] == 0
    elsewhere = replace(near, line_load=0.08, slots=99.0)
    assert settled_costs([{size: near}, {size: near}, {size: elsewhere}]) == ({"near": {size: near}}, 1)


def test_each_distance_that_was_measured_whole_has_costs_of_its_own() -> None:
    near = replace(EVEN, line_load=0.04)
    far = replace(EVEN, line_load=0.15, slots=70.0)
    size, other = SIZES[:2]
    rounds = [{size: near, other: near}, {size: far, other: far}, {size: far, other: near}]
    assert settled_costs(rounds) == ({"near": {size: near, other: near}, "far": {size: far, other: far}}, 0)


def test_the_nearest_and_the_furthest_core_are_measured_where_one_is_near_and_one_far() -> None:
    assert cores_to_measure([0.0, 0.15, 0.04, 0.25, -1.0]) == [2, 3]
    assert cores_to_measure([0.0, 0.15, 0.14]) == [2]
    assert cores_to_measure([0.0, 0.04, 0.03]) == [2]
    assert cores_to_measure([0.0]) == [1]


def test_what_was_measured_at_the_other_distance_stays_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thresholds are computed again from the measurements in the file, unless it is incomplete or of another one."""
    near, far = replace(EVEN, line_load=0.04), replace(EVEN, line_load=0.15, both_kernel=8.0)
    now = {"machine": "2 x CPU", "seconds": 0.5, "rounds": [{str(size): astuple(near) for size in SIZES}] * 3}

    def answer(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 0, json.dumps(now), "")

    monkeypatch.setattr("collc.tune.machine.run_captured", answer)
    file = tmp_path / "machine.txt"
    wrong = both(Thresholds(*[7] * len(NAMES)))
    costs = {distance: dict.fromkeys(SIZES, far) for distance in DISTANCES}
    expected = {"near": thresholds(dict.fromkeys(SIZES, near)), "far": thresholds(costs["far"], far=True)}
    file.write_text(machine_text("2 x CPU", platform.release(), costs, wrong))
    found = tune_machine(tmp_path / "library.so", file)
    assert (found.kept, found.thresholds) == (["far"], expected)
    assert earlier_costs(file.read_text(), "2 x CPU", platform.release()) == found.costs
    for text in (
        machine_text("3 x CPU", platform.release(), costs, wrong),
        machine_text("2 x CPU", "another", costs, wrong),
        machine_text("2 x CPU", platform.release(), {}, wrong),
        file.read_text().replace(f"# far {SIZES[0]}:", "#"),
        file.read_text().replace(f"# far {SIZES[0]}: ", f"# far {SIZES[0]}: x"),
    ):
        file.write_text(text)
        found = tune_machine(tmp_path / "library.so", file)
        assert (found.kept, list(found.thresholds)) == ([], ["near"])
        assert "\nkernel_copies never embedded\n" in file.read_text()


Said = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def measurement(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Said]:
    """Returns the file, and the text that the measuring process printed."""
    file = tmp_path_factory.mktemp("machine") / "machine.txt"
    said: list[Said] = []

    def noted(command: Sequence[str], **options: Any) -> Said:
        said.append(run_captured(command, **options))
        return said[-1]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("collc.tune.machine.run_captured", noted)
        found = tune_machine(tunable(), file)
    assert list(found.costs) == list(found.thresholds)
    assert found.costs
    for distance, costs in found.costs.items():
        assert sorted(costs) == sorted(SIZES)
        assert all(value != 0 for ways in costs.values() for value in vars(ways).values())
        assert found.thresholds[distance] == thresholds(costs, far=distance == "far")
    return file, said[0]


@pytest.fixture
def measured(measurement: tuple[Path, Said]) -> Path:
    return measurement[0]


def hash_with(file: Path) -> tuple[bytes, str]:
    command = [str(client(RUNTIME / "bits.c", "cores")), "processes", "3"]
    environment = {**os.environ, "COLLC_MACHINE": str(file)}
    done = subprocess.run(command, capture_output=True, check=True, env=environment, timeout=60)
    return done.stdout, done.stderr.decode()


def test_a_library_takes_the_file_and_no_threshold_changes_a_bit(measured: Path, tmp_path: Path) -> None:
    machine = measured.read_text().splitlines()[1].removeprefix("machine ")
    expected, said = hash_with(measured)
    assert said == ""
    never = Thresholds(*[None] * len(NAMES))
    always = Thresholds(*[1] * len(NAMES))
    found = [never, always, *(replace(never, **{name: 1}) for name in NAMES)]
    found += [replace(always, **{name: None}) for name in NAMES]
    for one in found:
        file = tmp_path / "one.txt"
        file.write_text(machine_text(machine, platform.release(), {}, both(one)))
        assert hash_with(file) == (expected, ""), one


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text.replace("collc-machine/2", "collc-machine/9"), "does not begin with collc-machine/2"),
        (lambda text: text.replace("\nend", ""), "is not whole"),
        (lambda text: text.replace("\nkernel ", "\nkernel not "), "is for another machine or kernel"),
        (lambda text: text.replace("\nmachine ", "\nmachine not "), "is for another machine or kernel"),
        *(
            ((lambda text, name=name: text.replace(f"\n{name} ", f"\n{name} -")), f'has no line "{name}"')
            for name in NAMES
        ),
    ],
)
def test_any_other_file_is_refused_in_one_line(measured: Path, tmp_path: Path, change: object, said: str) -> None:
    assert callable(change)
    file = tmp_path / "odd.txt"
    file.write_text(change(measured.read_text()))
    assert file.read_text() != measured.read_text()
    stderr = hash_with(file)[1]
    assert stderr.startswith(f"collc: COLLC_MACHINE={file} {said}")
    assert stderr.endswith("the embedded thresholds stay in use\n")
    assert stderr.count("\n") == 1


def test_a_name_with_escapes_is_printed_without_them() -> None:
    assert hash_with(Path("/nowhere/\x1b[31m\u202e"))[1].startswith(
        "collc: COLLC_MACHINE=/nowhere/?[31m??? cannot be opened"
    )


def test_a_file_in_the_cache_that_does_not_count_is_told_at_info(measured: Path, tmp_path: Path) -> None:
    """An update of collc or of the kernel must not take the measured thresholds away without a word."""
    file = tmp_path / "machine.txt"
    file.write_text(measured.read_text().replace("collc-machine/2", "collc-machine/1"))
    command = [str(client(RUNTIME / "bits.c", "cores")), "processes", "3"]
    said = {}
    for level in ("WARN", "INFO"):
        environment = {**os.environ, "COLLC_CACHE": str(tmp_path), "COLLC_DEBUG": level}
        environment.pop("COLLC_MACHINE", None)
        done = subprocess.run(command, capture_output=True, check=True, env=environment, timeout=60)
        said[level] = [line for line in done.stderr.decode().splitlines() if str(file) in line]
    assert said["WARN"] == []
    assert said["INFO"]
    assert all("does not begin with collc-machine/2: `collc tune --machine` writes it" in line for line in said["INFO"])


def test_ranks_with_different_files_move_data_alike(measured: Path, tmp_path: Path) -> None:
    """The file of the first rank counts, on all of them."""
    machine = measured.read_text().splitlines()[1].removeprefix("machine ")
    own = {}
    for rank, bytes_from in enumerate([1, None, 1 << 16]):
        file = tmp_path / f"{rank}.txt"
        file.write_text(machine_text(machine, platform.release(), {}, both(Thresholds(*[bytes_from] * len(NAMES)))))
        own[rank] = {"COLLC_MACHINE": str(file)}
    team = Ranks(tunable(), 3, {}, own=own)
    try:
        assert [answer["result"] for answer in team.init()] == [SUCCESS] * 3
        for collective in ("all_reduce", "broadcast", "all_gather", "reduce_scatter"):
            for count in (1000, 70_001):
                answers = team.all(do="call", collective=collective, count=count, times=3)
                assert [answer["result"] for answer in answers] == [SUCCESS] * 3
    finally:
        team.close()


def test_the_command_writes_the_file_that_libraries_look_for(
    measurement: tuple[Path, Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    library = tunable()
    monkeypatch.setattr("collc.tune.machine.run_captured", lambda *_, **__: measurement[1])
    monkeypatch.setenv("COLLC_CACHE", str(tmp_path / "cache"))
    with pytest.raises(SystemExit) as ended:
        main(["tune", str(library), "--machine"])
    assert not ended.value.code
    file = tmp_path / "cache" / "machine.txt"
    assert f"wrote {file}" in capsys.readouterr().out
    wrong = file.read_text().replace("\nkernel_copies ", "\nkernel_copies 1")
    file.write_text(wrong)
    with pytest.raises(SystemExit):
        main(["tune", str(library), "--machine"])
    assert file.read_text() != wrong


@pytest.mark.parametrize(
    "option", ["--collective all_reduce", "--ranks 2", "--launcher none", "-b 1K", "-f 2", "--fresh"]
)
def test_options_about_calls_are_refused_beside_it(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["tune", "libcollc-box.so", "--machine", *option.split()])
    assert stop.value.code == 2
    assert "--machine measures copies, no calls" in capsys.readouterr().err


def test_what_the_runtime_has_too_is_the_same() -> None:
    base = resource_dir("templates") / "runtime" / "base"
    two_ranks, line_load = ((base / name).read_text(encoding="utf-8") for name in ("two_ranks.h", "line_load.h"))
    assert f"constexpr uint32_t kPlaces = {PLACES};" in two_ranks
    assert f"constexpr double kFarLoad = {1000 * APART:g}," in line_load
