"""An option that was given is meant, empty or not: nothing is left out in silence."""

from __future__ import annotations

import pytest
from support.cli import collc, refused
from support.libraries import library

from collc import compiler
from collc.collectives.model import Collective
from collc.errors import BuildError
from collc.options import TargetKind
from collc.pipeline import wanted_programs


@pytest.mark.parametrize(
    "words",
    [
        ["compile", "hgx-h100", "--gpus"],
        ["compile", "hgx-h100", "--allocations"],
        ["compile", "hgx-h100", "--links"],
        ["compile", "hgx-h100", "--target"],
        ["compile", "hgx-h100", "--collective"],
        ["compile", "hgx-h100", "--root"],
        ["plan", "dgx1v", "--gpus"],
        ["plan", "dgx1v", "--allocations"],
        ["plan", "dgx1v", "--links"],
        ["plan", "dgx1v", "--root"],
        ["plan", "dgx1v", "--tolerance"],
        ["simulate", "dgx1v", "--gpus"],
        ["simulate", "dgx1v", "--links"],
        ["simulate", "dgx1v", "--chunk"],
        ["bench", "LIBRARY", "-d"],
        ["bench", "LIBRARY", "-o"],
        ["bench", "LIBRARY", "-r"],
        ["bench", "LIBRARY", "-b"],
        ["tune", "LIBRARY", "-b"],
        ["probe", "--cpu", "--name"],
    ],
    ids=" ".join,
)
def test_an_empty_option_is_a_usage_error(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    words = [str(library("pair")) if word == "LIBRARY" else word for word in words]
    monkeypatch.setattr(compiler, "Parts", None)  # what compiles would need it
    refused(collc(*words, ""), code=2)


def test_options_that_would_have_no_effect() -> None:
    assert "not a valid chunk size" in refused(collc("simulate", "dgx1v", "--chunk", "0"), code=2)
    assert "all_reduce has no root" in refused(collc("simulate", "dgx1v", "--root", "1"), code=2)
    host = ("compile", "dgx1v", "--target", "host")
    assert "--model describes GPUs" in refused(collc(*host, "--model", "v100"), code=2)
    assert "--model describes GPUs" in refused(collc(*host, "--model", "generic"), code=2)


def test_a_model_without_a_cuda_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(cuda: int | None = None) -> None:
        raise BuildError("no nvcc found")

    monkeypatch.setattr(compiler, "find_toolkits", none)
    kind, note = compiler.choose_target(None, model="v100")
    assert kind is TargetKind.HOST
    assert note == "target host, which runs on CPUs: no nvcc found; v100, which is for target cuda, is not used"
    assert compiler.choose_target(None)[1] == "target host, which runs on CPUs: no nvcc found"
    assert compiler.choose_target(TargetKind.CUDA, model="v100") == (TargetKind.CUDA, None)


def test_a_root_that_is_named_twice_is_one_root() -> None:
    assert wanted_programs([Collective.BROADCAST], 4, (2, 2, 0)) == [
        (Collective.BROADCAST, 2),
        (Collective.BROADCAST, 0),
    ]
