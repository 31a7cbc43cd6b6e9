"""`collc status --openmetrics`: the text is OpenMetrics, and says what the table says."""

from __future__ import annotations

import re

import pytest
from support.cli import collc, refused
from support.running import stranger

from collc.status.culprits import culprits
from collc.status.metrics import openmetrics
from collc.status.model import ALIVE, COMPLETED, STARTED, STOPPED, Call, Communicator, Rank

_SAMPLE = re.compile(r'([a-z_]+)\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*)\} ([0-9.e+-]+)')
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\\n]|\\["\\n])*)"')

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parse(text: str) -> Samples:
    """The samples, by the rules of OpenMetrics 1.0 as far as this text needs them."""
    lines = text.split("\n")
    assert lines[-2:] == ["# EOF", ""]
    kinds: dict[str, str] = {}
    family, found = "", {}
    for line in lines[:-2]:
        if line.startswith("# "):
            _, word, name, rest = line.split(" ", 3)
            if word == "TYPE":
                assert name not in kinds, "a family that is interrupted"
                family, kinds[name] = name, rest
            assert name == family
            assert word in ("TYPE", "HELP", "UNIT")
            assert word != "UNIT" or name.endswith(f"_{rest}")
            continue
        match = _SAMPLE.fullmatch(line)
        assert match, line
        assert match[1] == family + ("_total" if kinds[family] == "counter" else "")
        labels = _LABEL.findall(match[2])
        assert len({key for key, _ in labels}) == len(labels)
        key = (match[1], frozenset(labels))
        assert key not in found
        found[key] = float(match[3])
    return found


def value(samples: Samples, name: str, **labels: str) -> float:
    (found,) = [v for (own, given), v in samples.items() if own == name and set(labels.items()) <= given]
    return found


def test_every_rank_has_its_samples() -> None:
    waits = Call(3, "all_reduce", "all_reduce of 8 elements", False, "h", STARTED, 12.5)
    before = Call(2, "all_reduce", "all_reduce of 8 elements", False, "g", COMPLETED, 13.0)
    ranks = (
        Rank(0, ALIVE, 100, host='a "b"\\c\n', gpu="gpu0", newest=3, calls=(before, waits), waits_for=(1,)),
        Rank(1, STOPPED, 101, gpu="gpu1", newest=2, calls=(before,)),
    )
    one = Communicator("cafe", 2, "x.so", "", "", ranks)
    samples = parse(openmetrics([one], [culprits(one, 1.0)]))
    assert value(samples, "collc_calls_total", rank="0", communicator="cafe", gpu="gpu0", process="100") == 3
    assert value(samples, "collc_calls_total", rank="1") == 2
    assert value(samples, "collc_call_seconds", rank="0", call="all_reduce") == 12.5
    assert not [1 for name, labels in samples if name == "collc_call_seconds" and ("rank", "1") in labels]
    assert value(samples, "collc_waits_for", rank="0") == 1
    assert (value(samples, "collc_blamed", rank="0"), value(samples, "collc_blamed", rank="1")) == (0, 1)
    assert value(samples, "collc_state", rank="1", collc_state="stopped") == 1
    assert value(samples, "collc_state", rank="1", collc_state="alive") == 0
    assert any(("host", 'a \\"b\\"\\\\c\\n') in labels for _, labels in samples)


def test_without_a_communicator_there_are_no_samples() -> None:
    with stranger() as process:
        result = collc("status", process, "--openmetrics")
    assert result.code == 0
    assert parse(result.out) == {}
    assert "# TYPE collc_calls counter" in result.out


@pytest.mark.parametrize("other", ["--json", "--calls", "--join"])
def test_it_is_for_running_jobs_alone(other: str) -> None:
    assert f"is not for {other}" in refused(collc("status", "--openmetrics", other), code=2)
