"""`collc compile` chooses with the parameters of the topology's GPUs, unless an option gives others."""

from __future__ import annotations

from pathlib import Path

import pytest

from collc.choose.request import LibraryRequest
from collc.errors import UsageError
from collc.simulator.generations import MACHINES


def test_parameters_follow_the_topology_unless_told(tmp_path: Path) -> None:
    assert LibraryRequest("dgx1v").parameters("V100")[0] == MACHINES["v100"]
    assert LibraryRequest("dgx1v", model="a100").parameters("V100")[0] == MACHINES["a100"]
    assert LibraryRequest("dgx1v").parameters(None)[0] == MACHINES["generic"]
    path = tmp_path / "mine.json"
    path.write_text('{"format": "collc-params/1", "launch_us": 3}')
    machine, why = LibraryRequest("dgx1v", params=path).parameters("V100")
    assert machine == MACHINES["v100"].replace(launch_us=3)
    assert str(path) in why
    with pytest.raises(UsageError, match="no parameters"):
        LibraryRequest("dgx1v", model="v999")
