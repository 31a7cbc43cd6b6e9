"""`collc doctor`, on this machine and on machines that lack things."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.cli import collc, refused

from collc.build.toolchain import find_cxx


def findings(text: str) -> dict[str, dict[str, str]]:
    return {finding["name"]: finding for finding in json.loads(text)["findings"]}


def test_this_machine_can_build_for_the_host() -> None:
    done = collc("doctor", "--json")
    assert done.code == 0
    found = findings(done.out)
    assert found["C++ compiler"]["state"] == "ok"
    assert found["shared memory"]["state"] == "ok"
    assert {"nvcc", "CUDA driver", "NVML", "NCCL"} <= set(found)
    for finding in found.values():
        assert finding["state"] == "ok" or finding["hint"], finding


def test_the_table_names_what_is_missing_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLC_NCCL", "/nowhere/libnccl.so.2")
    done = collc("doctor")
    assert done.code == 0
    assert "NCCL: install NCCL, or set COLLC_NCCL" in done.out


def test_without_a_compiler_it_fails_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLC_CXX", "no-such-compiler")
    find_cxx.cache_clear()
    try:
        done = collc("doctor", "--json")
    finally:
        find_cxx.cache_clear()
    assert "cannot be built or run here: C++ compiler" in refused(done)
    assert findings(done.out)["C++ compiler"]["state"] == "missing"


def test_a_broken_nvcc_is_broken_not_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "nvcc"
    fake.write_text("#!/bin/sh\nexit 3\n", encoding="utf-8")
    fake.chmod(0o755)
    monkeypatch.setenv("COLLC_NVCC", str(fake))
    assert findings(collc("doctor", "--json").out)["nvcc"]["state"] == "broken"


def test_an_old_nvcc_says_which_driver_it_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "nvcc"
    fake.write_text(
        '#!/bin/sh\nif [ "$1" = --version ]; then echo "Cuda compilation tools, release 12.4, V12.4.1";\n'
        "else echo sm_50; echo sm_90; fi\n",
        encoding="utf-8",
    )
    fake.chmod(0o755)
    monkeypatch.setenv("COLLC_NVCC", str(fake))
    detail = findings(collc("doctor", "--json").out)["nvcc"]["detail"]
    assert "12.4" in detail
    assert "sm_50 to sm_90" in detail
    assert "525.60.13" in detail


@pytest.mark.parametrize("text", ["#!/bin/sh\nexit 3\n", "no program"])
def test_a_broken_compiler_is_broken_not_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    fake = tmp_path / "cxx"
    fake.write_text(text, encoding="utf-8")
    fake.chmod(0o755)
    monkeypatch.setenv("COLLC_CXX", str(fake))
    find_cxx.cache_clear()
    try:
        done = collc("doctor", "--json")
    finally:
        find_cxx.cache_clear()
    assert "C++ compiler" in refused(done)
    assert findings(done.out)["C++ compiler"]["state"] == "broken"


def test_an_nccl_that_does_not_load_is_broken_not_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "libnccl.so.2"
    fake.write_text("no library", encoding="utf-8")
    monkeypatch.setenv("COLLC_NCCL", str(fake))
    assert findings(collc("doctor", "--json").out)["NCCL"]["state"] == "broken"


def test_a_cache_that_cannot_be_written_is_no_obstacle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("COLLC_CACHE", str(tmp_path / "file"))
    done = collc("doctor", "--json")
    assert done.code == 0
    found = findings(done.out)["build cache"]
    assert found["state"] == "broken"
    assert str(tmp_path / "file") in found["detail"]
