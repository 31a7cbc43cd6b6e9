"""`collc status --openmetrics`: the text is OpenMetrics, and says what the table says."""

from __future__ import annotations

import pytest
from support.cli import collc, refused
from support.openmetrics import parse, value
from support.running import stranger

from collc.status.culprits import culprits
from collc.status.metrics import openmetrics
from collc.status.model import ALIVE, COMPLETED, STARTED, STOPPED, Call, Communicator, Rank


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
