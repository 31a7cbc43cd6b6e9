"""The build cache: what somebody else can have put there is not loaded, and whatever is wrong with it, work goes on."""

from __future__ import annotations

import logging
import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.users import NOBODY, as_nobody, open_folder

from collc.build import cache
from collc.build.cache import CacheProblem, cached, check_cache, content_key

KEY = content_key(["entry"])
superuser = pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser can make files of another user")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and nothing said yet."""
    monkeypatch.setenv("COLLC_CACHE", str(tmp_path / "cache"))
    cache._WARNINGS.clear()
    cache._process_folder.cache_clear()
    return tmp_path / "cache"


class Maker:
    """Makes the entry and counts how often."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, made: Path) -> None:
        self.times += 1
        made.write_text("ours")
        made.with_name("log").write_text("ours too")

    def get(self) -> Path:
        path = cached(KEY, "thing.so", self, beside=("log",))
        assert path.read_text() == "ours"
        assert path.with_name("log").read_text() == "ours too"
        return path


def entry_of(root: Path) -> Path:
    return root / KEY[:2] / KEY


def test_an_entry_is_made_once(root: Path) -> None:
    make = Maker()
    assert make.get() == make.get() == entry_of(root) / "thing.so"
    assert make.times == 1
    assert sorted(p.name for p in entry_of(root).iterdir()) == ["log", "thing.so"]


def test_who_needs_an_entry_that_another_builds_waits_for_it(root: Path) -> None:
    """Threads stand for processes: the lock belongs to an open file."""
    started, release, built_twice = (threading.Event() for _ in range(3))

    def make_slowly(output: Path) -> None:
        started.set()
        assert release.wait(60)
        output.write_text("first")

    def make_again(output: Path) -> None:
        built_twice.set()
        output.write_text("second")

    with ThreadPoolExecutor() as pool:
        first = pool.submit(cached, "abcd", "file", make_slowly)
        assert started.wait(60)
        second = pool.submit(cached, "abcd", "file", make_again)
        assert not built_twice.wait(0.2)
        assert Maker().get() == entry_of(root) / "thing.so"  # another entry
        release.set()
        assert first.result() == second.result()
    assert second.result().read_text() == "first"
    assert not built_twice.is_set()


def test_a_lock_that_is_not_released_ends_no_build(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_MAX_WAIT_SECONDS", 0.1)
    entry_of(root).mkdir(parents=True)
    with cache._locked(entry_of(root)):
        Maker().get()


@pytest.mark.parametrize("mask", [0o000, 0o002, 0o022, 0o077])
def test_whatever_the_umask_its_entries_are_used_again(root: Path, mask: int, caplog: pytest.LogCaptureFixture) -> None:
    before = os.umask(mask)
    try:
        make = Maker()
        make.get()
        make.get()
    finally:
        os.umask(before)
    assert make.times == 1
    assert not caplog.records
    for path in [root, *root.rglob("*")]:
        assert not path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH), path


# Faults of a cache entry, as paths below the folder of the cache.
PLACES = {
    "root": (),
    "half": (KEY[:2],),
    "entry": (KEY[:2], KEY),
    "file": (KEY[:2], KEY, "thing.so"),
    "log": (KEY[:2], KEY, "log"),
}


def spoil_mode(path: Path, bits: int) -> None:
    path.chmod(path.stat().st_mode | bits)


SPOILS = {
    "writable by the group": lambda path: spoil_mode(path, stat.S_IWGRP),
    "writable by all": lambda path: spoil_mode(path, stat.S_IWOTH),
    "of another user": lambda path: os.chown(path, NOBODY, NOBODY),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("spoil", SPOILS)
def test_what_others_can_have_written_is_not_loaded(
    root: Path, place: str, spoil: str, caplog: pytest.LogCaptureFixture
) -> None:
    if spoil == "of another user" and os.geteuid():
        pytest.skip("only the superuser can make files of another user")
    make = Maker()
    planted = make.get()
    planted.write_text("planted")
    SPOILS[spoil](root.joinpath(*PLACES[place]))
    got = make.get()  # asserts that it is ours
    assert make.times == 2
    assert [r for r in caplog.records if r.levelno == logging.WARNING], "nothing was said"
    assert (root in got.parents) == (place != "root")
    make.get()
    assert make.times == 2, "built anew, and then again"


@pytest.mark.parametrize("place", ["half", "entry", "file"])
def test_a_planted_link_is_not_followed(root: Path, place: str, tmp_path: Path) -> None:
    make = Maker()
    make.get()
    path = root.joinpath(*PLACES[place])
    elsewhere = tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    inside = elsewhere if place == "file" else next(elsewhere.rglob("thing.so"))
    inside.write_text("planted")
    make.get()
    assert inside.read_text() == "planted", "written through the link"


@superuser
def test_a_root_that_is_the_link_of_another_user(root: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    root.symlink_to(tmp_path / "real")
    make = Maker()
    assert tmp_path / "real" in make.get().parents  # our own link is
    os.chown(root, NOBODY, NOBODY, follow_symlinks=False)
    assert tmp_path / "real" not in make.get().parents


def test_a_folder_above_that_everybody_may_write_to(root: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(CacheProblem, match="everybody may write"):
        check_cache()
    tmp_path.chmod(0o1777)  # as /tmp
    check_cache()


@superuser
def test_a_cache_that_may_only_be_read(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with open_folder() as folder:
        monkeypatch.setenv("COLLC_CACHE", str(folder / "cache"))
        cache._WARNINGS.clear()
        cache._process_folder.cache_clear()
        make = Maker()
        with as_nobody():
            assert folder not in make.get().parents
            make.get()
        assert make.times == 1
        assert len(caplog.records) == 1
        assert "Permission denied" in caplog.text
        make.get()  # the superuser's own
        assert make.times == 2
        with as_nobody():
            assert folder in make.get().parents  # read from there
        assert make.times == 2


def test_a_cache_that_is_a_file_or_full(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    root.write_text("")
    assert root not in Maker().get().parents
    assert "cannot be used" in caplog.text or "not a folder" in caplog.text
    monkeypatch.setenv("COLLC_CACHE", "/proc/self/collc")
    assert Maker().get().is_file()


def test_the_folder_of_this_process_ends_with_it(root: Path, tmp_path: Path) -> None:
    import subprocess
    import sys

    root.mkdir()
    root.chmod(0o777)
    code = (
        "from collc.build.cache import cached\n"
        "print(cached('k' * 64, 'x', lambda made: made.write_text('y') and None).parent.parent)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "others may write" in done.stderr
    assert not Path(done.stdout.strip()).exists()
