"""COLLC_CHANNELS on the host target."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.libraries import client, library, run_client
from support.ranks import ranks

HERE = Path(__file__).parent


@pytest.mark.parametrize(("channels", "ways"), [("1", "threads"), ("2", "thread")])
def test_fewer_channels_side_by_side_do_the_same(channels: str, ways: str) -> None:
    done = run_client([client(HERE / "client.c", "cores"), ways, "3"], settings={"COLLC_CHANNELS": channels})
    assert int(done.stdout.split()[0]) > 1_000_000


def test_a_rank_that_waits_with_one_channel_names_whom_it_waits_for() -> None:
    with ranks(library("cores"), 3, COLLC_CHANNELS="1", COLLC_TIMEOUT="0.5") as team:
        assert {answer["result"] for answer in team.init()} == {0}
        for rank in (1, 2):
            team.tell(rank, do="call", collective="broadcast", root=0, count=100_000)
        answers = [team.hear(rank) for rank in (1, 2)]
        assert any("waits for rank 0 in" in answer["text"] for answer in answers)
