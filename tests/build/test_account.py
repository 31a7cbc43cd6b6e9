"""The account of a build: what was made, what was there, and that a rebuild makes everything anew, once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from collc.build.account import BUILT, CACHE, WHEEL, accounted, current, submit
from collc.build.cache import cached, content_key, keep, kept
from collc.build.cuda import build_device_code
from collc.build.nvcc import Nvcc
from collc.build.plans import SolutionCache

KEYS = [content_key([name]) for name in ("one", "two")]


class Maker:
    """Makes files that say how many were made before."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, path: Path) -> None:
        path.write_text(str(self.made))
        self.made += 1

    def get(self, key: str = KEYS[0]) -> str:
        return cached(key, "thing", self, label="a thing").read_text()


@pytest.fixture(autouse=True, params=["a cache", "no cache"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where entries lie: in the cache, or, since others may write to that, in a folder of this process."""
    (tmp_path / "cache").mkdir()
    if request.param == "no cache":
        (tmp_path / "cache").chmod(0o777)
        monkeypatch.setattr("collc.build.cache._process_folder", lambda: tmp_path)
    monkeypatch.setenv("COLLC_CACHE", str(tmp_path / "cache"))
    return str(request.param)


def test_what_was_made_and_what_was_there() -> None:
    make = Maker()
    with accounted() as account:
        assert [make.get(), make.get()] == ["0", "0"]
        cached(KEYS[1], "other", make, origin=WHEEL)
    parts = [(part.name, part.origin) for part in account.parts]
    assert parts == [("a thing", BUILT), ("a thing", CACHE), ("other", WHEEL)]
    assert account.parts[0].seconds > 0 == account.parts[1].seconds
    assert set(account.parts[0].row()) == {"part", "from", "seconds"}


def test_a_rebuild_makes_everything_anew_once() -> None:
    make = Maker()
    assert make.get() == make.get() == "0"
    with accounted(rebuild=True):
        for _ in range(3):
            with accounted() as inner:
                assert make.get() == "1"
        assert make.get(KEYS[1]) == "2"
    assert [part.origin for part in inner.parts] == [CACHE]
    assert make.get() == "1", "what was made anew takes the place of what was there"
    with accounted(rebuild=True):
        assert make.get() == "3"


def test_threads_work_for_the_account_that_submits() -> None:
    make = Maker()
    make.get()
    with ThreadPoolExecutor(1) as pool:
        with accounted(rebuild=True) as account:
            assert submit(pool, make.get).result() == "1"
            assert submit(pool, make.get, key=KEYS[1]).result() == "2"
        assert submit(pool, make.get).result() == "1"
        assert not submit(pool, current).result().rebuild
    assert [part.origin for part in account.parts] == [BUILT, BUILT]


def test_plans_are_solved_anew(place: str) -> None:
    keep(KEYS[0], "solution.json", b"old")
    there = SolutionCache().get(KEYS[0])
    assert there == ("old" if place == "a cache" else None)
    with accounted(rebuild=True):
        assert SolutionCache().get(KEYS[0]) is None
        assert kept(KEYS[0], "solution.json") is None
        SolutionCache().put(KEYS[0], "new")
        assert SolutionCache().get(KEYS[0]) == (there and "new")


def test_a_rebuild_runs_the_compilers_of_device_code_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though all that they make is there; and the account names compiler and chip."""
    nvcc = Nvcc("/opt/cuda/bin/nvcc", "13.0", "Build 1", ("75", "80", "90", "100", "120"))
    commands: list[str] = []

    def run(command: list[str], *, cwd: str) -> None:
        (name,) = [word.removeprefix("--create=") for word in command if word.startswith("--create=")] or command[-1:]
        (Path(cwd) / name).write_text(" ".join(command))
        commands.append(Path(command[0]).name)

    monkeypatch.setattr("collc.build.cuda.find_toolkits", lambda cuda: (nvcc, None))
    monkeypatch.setattr("collc.build.cuda.run_tool", run)
    monkeypatch.setattr("collc.build.fatbin.run_tool", run)
    made = {f"PTX for compute_{n} by nvcc 13.0" for n in ("75", "80")} | {"collc.fatbin"}
    made |= {f"code for sm_{n} by nvcc 13.0" for n in nvcc.architectures}
    for rebuild, origin, times in ((False, BUILT, 1), (False, CACHE, 1), (True, BUILT, 2)):
        with accounted(rebuild=rebuild) as account:
            build_device_code()
        assert {(part.name, part.origin) for part in account.parts} == {(name, origin) for name in made}
        assert commands.count("nvcc") == 7 * times
        assert commands.count("fatbinary") == times
