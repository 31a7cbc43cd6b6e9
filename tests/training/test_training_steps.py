"""Training steps: buckets and times by hand, closed forms against the simulator, model files that lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from collc.collectives.model import Collective
from collc.errors import CollcError, UsageError
from collc.simulator.params import Machine, Protocol
from collc.simulator.run import Simulator, Variant
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology, loads_topology
from collc.topology.model import PlanGraph
from collc.training.libraries import nccl, planned, ring_by_hand, single_reducer
from collc.training.net import Layer, Net, buckets, step
from collc.training.net_file import FORMAT, names, read_net

MIB = 1 << 20
ROOT = Path(__file__).parents[2]


def small(*layers: tuple[int, float], forward: float = 100.0) -> Net:
    made = tuple(Layer(f"layer{i}", size * MIB, time) for i, (size, time) in enumerate(layers))
    return Net("small", "", "v100", forward, made)


def test_buckets_close_from_the_last_layer_on() -> None:
    net = small((10, 50.0), (20, 40.0), (30, 30.0), (2, 20.0))
    found = [(bucket.bytes // MIB, bucket.ready_us) for bucket in buckets(net)]
    # The first closes at 1 MiB, the others at 25; the rest goes last.
    assert found == [(2, 20.0), (30, 50.0), (30, 140.0)]
    assert [bucket.ready_us for bucket in buckets(net, 2.0)] == [40.0, 100.0, 280.0]


def test_a_layer_without_parameters_only_takes_time() -> None:
    found = buckets(small((30, 10.0), (0, 500.0)))
    assert [(bucket.bytes // MIB, bucket.ready_us) for bucket in found] == [(30, 510.0)]


def test_calls_wait_for_their_bucket_and_for_the_call_before() -> None:
    net = small((30, 100.0), (30, 100.0), (2, 100.0), forward=50.0)
    quick = step(net, lambda size: 10.0)
    # Only the last call is not hidden: it begins when the backward pass is over.
    assert (quick.compute_us, quick.step_us, quick.communication_us) == (350.0, 360.0, 30.0)
    assert quick.share == pytest.approx(10 / 360)
    assert quick.overlap == pytest.approx(2 / 3)
    slow = step(net, lambda size: 1000.0)
    assert slow.step_us == 50 + 100 + 3000
    assert slow.overlap == pytest.approx(1 - 2800 / 3000)
    assert step(net, None).step_us == 350.0
    assert step(net, None).share == 0.0


def star(n: int, gbps: float = 1.0) -> PlanGraph:
    links = "".join(f"  - [gpu{i}, nvs0, nvswitch, {gbps}]\n" for i in range(n))
    return plan_graph(
        loads_topology(f"format: collc-topology/1\nname: s\ngpus: {n}\nswitches: [nvs0]\nlinks:\n{links}")
    )


BARE = Machine("bare", protocols=(Protocol("Simple", 0.0, 1.0, 1 << 29, None),))


def test_a_single_reducer_takes_all_buffers_in_and_out() -> None:
    assert single_reducer(star(10), BARE)(1_200_000_000) == pytest.approx(2 * 9 * 1.2e6)


@pytest.mark.parametrize("n", [3, 4, 8])
def test_a_ring_by_hand_is_the_simulated_ring_without_pipelining(n: int) -> None:
    graph, size = star(n, 25), n << 20
    simulated = Simulator(graph, Collective.ALL_REDUCE, None, BARE).predict(Variant("ring", "Simple", 1 << 29, 1), size)
    assert ring_by_hand(graph, BARE)(size) == pytest.approx(simulated.time_us, rel=1e-6)
    assert ring_by_hand(graph, BARE, 7.0)(size) == pytest.approx(simulated.time_us + 2 * (n - 1) * 7.0, rel=1e-6)


def test_plans_and_nccl_are_those_of_the_simulator() -> None:
    topology = load_topology("dgx1v")
    graph = plan_graph(topology, ["gpu0", "gpu1", "gpu2", "gpu3"])
    machine = Machine("plain", launch_us=5.0)
    ours = planned(graph, machine)
    assert ours(64 * MIB) < planned(graph, machine, "ring")(64 * MIB)
    assert nccl(graph, machine, "2.12")(64 * MIB) > 64 * MIB / 150e3


@pytest.mark.parametrize("name", names())
def test_the_models_that_come_along(name: str) -> None:
    net = read_net(name)
    assert net.name == name
    assert len(net.source) > 80
    assert all(layer.backward_us >= 0 for layer in net.layers)
    assert len(buckets(net)) >= 2
    # Two thirds of the compute time are the backward pass.
    assert sum(layer.backward_us for layer in net.layers) == pytest.approx(2 * net.forward_us, rel=1e-3)


def test_the_parameters_of_known_models() -> None:
    """In millions, as torchvision and the sources give them."""
    known = {"alexnet": 61.10, "resnet18": 11.69, "resnet50": 25.56, "vgg16": 138.36, "language-300m": 300.0}
    assert {name: round(read_net(name).gradient_bytes / 4e6, 2) for name in known} == known
    assert read_net("gpt2-xl").gradient_bytes / 4e6 == pytest.approx(1558, abs=1)


GOOD = f"format: {FORMAT}\nname: x\ngpu: v100\nforward_us: 1\nlayers:\n  - [a, 4, 1.5]\n"


def test_a_small_file(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(GOOD + "times_on: {p100: 2}\nbucket_bytes: 7\n")
    net = read_net(path)
    assert net.layers == (Layer("a", 4, 1.5),)
    assert (net.bucket_bytes, net.first_bucket_bytes) == (7, MIB)
    assert (net.factor("v100"), net.factor("p100"), net.factor("h100")) == (1.0, 2.0, None)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (("format: collc-net/1", "format: collc-net/2"), "no model file"),
        (("forward_us: 1", "forward_us: -1"), "forward_us cannot be"),
        (("forward_us: 1", "forward_us: .nan"), "forward_us cannot be"),
        (("forward_us: 1", "forward_us: nan"), "forward_us cannot be"),
        (("forward_us: 1", "forward_us: [1]"), "forward_us cannot be"),
        (("gpu: v100", "gpu: v101"), "no parameters for gpu"),
        (("gpu: v100\n", ""), "gpu is missing"),
        (("[a, 4, 1.5]", "[a, 4]"), "this is no layer"),
        (("[a, 4, 1.5]", "[a, 4.5, 1.5]"), "part of a byte"),
        (("[a, 4, 1.5]", "[a, -4, 1.5]"), "the bytes of a gradient cannot be"),
        (("[a, 4, 1.5]", "[a, 1e99, 1.5]"), "the bytes of a gradient cannot be"),
        (("[a, 4, 1.5]", "[a, 0, 1.5]"), "no layer has a gradient"),
        (("[a, 4, 1.5]", "[a, 4, inf]"), "a time cannot be"),
        (("layers:\n  - [a, 4, 1.5]", "layers: []"), "1 to 100000 layers"),
        (("name: x", "nam: x"), "unknown key"),
        (("name: x", "name: x\nname: y"), "twice"),
        (("name: x", "name: [x"), "not YAML"),
        (("name: x", "name: x\ntimes_on: {p100: 0}"), "a factor cannot be"),
        (("name: x", "name: x\nbucket_bytes: 0"), "bucket_bytes cannot be"),
    ],
)
def test_bad_files(tmp_path: Path, change: tuple[str, str], what: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(GOOD.replace(*change))
    with pytest.raises(UsageError) as caught:
        read_net(path)
    text = str(caught.value)
    assert what in text
    assert text.startswith(str(path))
    assert "\n" not in text


def test_files_that_are_none(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.yaml", tmp_path):
        with pytest.raises(CollcError):
            read_net(path)
    with pytest.raises(CollcError, match="alexnet"):
        read_net("alexnett")
