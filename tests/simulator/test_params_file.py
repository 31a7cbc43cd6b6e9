"""`--params`: values in the file replace values of a generation, and an error names the key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.cli import collc

from collc.errors import CollcError, UsageError
from collc.simulator.generations import MACHINES, generation_of, machine_for
from collc.simulator.params import GENERIC
from collc.simulator.params_file import read_params
from collc.topology.model import LinkKind


def write(tmp_path: Path, value: str | dict[str, Any]) -> Path:
    path = tmp_path / "params.json"
    path.write_text(value if isinstance(value, str) else json.dumps({"format": "collc-params/1", **value}))
    return path


def test_values_replace_and_the_rest_stays(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {
            "base": "h100",
            "source": "a test",
            "launch_us": 9,
            "protocols": {"LL": {"hop_us": 0.7, "block_gbps": 40}},
            "classes": {"nvswitch": {"efficiency": 0.9}, "net": {"hop_us": 2}},
            "nvls": {"efficiency": 0.6},
        },
    )
    made, base = read_params(path, GENERIC), MACHINES["h100"]
    assert made.launch_us == 9
    assert (made.protocol("LL").hop_us, made.protocol("LL").block_gbps) == (0.7, 40)
    assert made.protocol("LL").efficiency == base.protocol("LL").efficiency
    assert made.protocol("Simple") == base.protocol("Simple")
    assert made.link_class(LinkKind.NVSWITCH).efficiency == 0.9
    assert made.link_class(LinkKind.NVLINK) == base.link_class(LinkKind.NVLINK)
    assert made.link_class(LinkKind.NET).hop_us == 2
    assert made.nvls is not None
    assert base.nvls is not None
    assert made.nvls.efficiency == 0.6
    assert made.nvls.hop_us == base.nvls.hop_us


def test_a_given_value_holds_for_both_ones_kernels(tmp_path: Path) -> None:
    """Values of a file also replace the separate figures of collc's kernels; other figures stay."""
    made = read_params(write(tmp_path, {"base": "h100", "protocols": {"LL128": {"start_us": 3}}}), GENERIC)
    own, base = made.of_own_kernels().protocol("LL128"), MACHINES["h100"].of_own_kernels().protocol("LL128")
    assert made.protocol("LL128").start_us == own.start_us == 3
    assert (own.block_gbps, base.start_us) == (base.block_gbps, 0.5)
    assert made.of_own_kernels().protocol("Simple") == MACHINES["h100"].of_own_kernels().protocol("Simple")


def test_collcs_kernels_have_figures_of_their_own_where_they_were_measured() -> None:
    """Only Hopper has separate figures. Figures that both kinds of kernels share stay, and so does the machine."""
    measured = {name for name, machine in MACHINES.items() if machine != machine.of_own_kernels()}
    assert measured == {"h100", "h200", "h800"}
    for name in measured:
        base, own = MACHINES[name], MACHINES[name].of_own_kernels()
        assert own.of_own_kernels() == own
        assert own.replace(protocols=base.protocols) == base
        for theirs, ours in zip(base.protocols, own.protocols, strict=True):
            assert (ours.name, ours.hop_us, ours.efficiency) == (theirs.name, theirs.hop_us, theirs.efficiency)
            assert ours.block_gbps is not None
            assert theirs.block_gbps is not None
            assert ours.block_gbps <= theirs.block_gbps
            assert ours.start_us <= theirs.start_us


def test_without_a_base_the_topologys_generation_is_changed(tmp_path: Path) -> None:
    assert read_params(write(tmp_path, {}), MACHINES["a100"]) == MACHINES["a100"]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("{", "not JSON"),
        ("[1]", "one JSON object"),
        ('{"format": "collc-params/1", "launch_us": 1, "launch_us": 2}', "'launch_us' is given twice"),
        ('{"format": "collc-params/1", "nvls": {"hop_us": 1, "hop_us": 2}}', "'hop_us' is given twice"),
        ('{"format": ["collc-params/1"]}', "not a parameter file"),
        ({"base": ["h100"]}, "base is not a string"),
        ({"base": {}}, "base is not a string"),
        ({"source": 5}, "source is not a string"),
        ({"memory_gbps": 5e-324}, "memory_gbps cannot be 5e-324"),
        ({"protocols": {"Simple": {"efficiency": 1e-300}}}, "efficiency cannot be 1e-300"),
        ({"launch_us": 10**400}, "launch_us cannot be 1000"),
        ({"launch_us": float("nan")}, "launch_us cannot be NaN"),
        ('{"format": "collc-plan/1"}', "not a parameter file"),
        ({"launch": 3}, "unknown key 'launch'"),
        ({"base": "h999"}, "no base 'h999'"),
        ({"launch_us": -1}, "launch_us cannot be -1"),
        ({"launch_us": True}, "launch_us cannot be true"),
        ({"memory_gbps": 0}, "memory_gbps cannot be 0"),
        ({"launch_us": "NaN"}, 'launch_us cannot be "NaN"'),
        ({"protocols": {"XX": {}}}, "unknown key protocols.'XX'"),
        ({"protocols": {"LL": {"efficiency": 1.5}}}, "protocols.LL.efficiency cannot be 1.5"),
        ({"protocols": {"LL": 3}}, "protocols.LL must be an object"),
        ({"classes": {"nvlink": {"gbps": 3}}}, "unknown key classes.nvlink.'gbps'"),
        ({"nvls": {"efficiency": 0}}, "nvls.efficiency cannot be 0"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, value: str | dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_params(write(tmp_path, value), GENERIC)
    assert says in caught.value.what
    assert str(tmp_path) in str(caught.value.where)


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(CollcError, match="cannot read"):
        read_params(tmp_path / "none.json", GENERIC)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("H800", "h800"),
        ("NVIDIA GH200 480GB", "h100"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("NVIDIA A100-SXM4-40GB", "a100"),
        ("GB200", "b200"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("Tesla P100-SXM2-16GB", "p100"),
        ("MI300X", None),
        ("L40S", None),
        (None, None),
    ],
)
def test_the_generation_of_a_name(model: str | None, name: str | None) -> None:
    assert generation_of(model) == name
    machine, why = machine_for(None, model)
    assert machine.name == (name or "generic")
    assert machine.name in why


def test_every_parameter_set_names_a_limit_of_the_block_and_the_card() -> None:
    for machine in MACHINES.values():
        assert all(protocol.block_gbps for protocol in machine.protocols), machine.name
        assert machine.memory_gbps or machine.name == "generic"


def test_the_least_and_the_most_values_give_an_answer(tmp_path: Path) -> None:
    for times, rates, shares in ((0, 1e9, 1), (1e9, 1e-3, 1e-3), (1e9, 1e9, 1e-3), (0, 1e-3, 1)):
        protocol = {"hop_us": times, "start_us": times, "block_gbps": rates, "efficiency": shares}
        value = {
            **dict.fromkeys(("launch_us", "step_us", "credit_us", "issue_us"), times),
            "memory_gbps": rates,
            "protocols": dict.fromkeys(("Simple", "LL", "LL128"), protocol),
            "classes": {"nvlink": {"efficiency": shares, "hop_us": times}},
        }
        path = write(tmp_path, value)
        result = collc("simulate", "dgx1v", "--gpus", "0,1,2", "-e", "64K", "--params", path, "--json")
        assert result.code == 0, result.err
        assert all(0 <= row["time_us"] < 1e15 for row in json.loads(result.out)["rows"])
