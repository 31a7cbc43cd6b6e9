"""The engines by themselves: proofs of the secret, strangers at its doors, messages whole and in order."""

from __future__ import annotations

import hashlib
import hmac
import importlib.util
import os
import subprocess
from pathlib import Path

import pytest
from support.libraries import runtime_program
from support.openssl import needs_openssl

from collc.build.runtime import include_dirs
from collc.build.toolchain import find_cxx
from collc.network.hca import rdma_interfaces
from collc.network.ucx import find_ucx

HERE = Path(__file__).parent
PARTS = frozenset(
    [
        f"wire_{name}"
        for name in ("tls", "rails", "railed", "tcp", "tcp_connection", "tcp_pairs", "tcp_peers", "engines", "nics")
    ]
    + [f"wire_{name}" for name in ("ucx", "ucx_api", "ucx_connection", "ucx_worker")]
    + ["wire_control", "wire_ucx_lock"]
    + ["bootstrap_acceptor", "bootstrap_greeting", "bootstrap_sockets", "bootstrap_unique_id"]
    + [f"base_{name}" for name in ("descriptor", "environment", "library", "log", "proof", "random", "status")]
)


WITH_TLS = {"COLLC_NET": "tcp:lo", "COLLC_NET_TLS": "1"}
TLS = pytest.param("tls", marks=needs_openssl)


def run(*arguments: str, **settings: str) -> str:
    program = runtime_program(HERE / "wire_engine.cpp", PARTS)
    done = subprocess.run(
        [program, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "COLLC_NET": "tcp:lo", **settings},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("key", "message"),
    [("k", ""), ("k" * 64, "m" * 55), ("k" * 65, "m" * 56), ("secret", "m" * 64), ("secret", "m" * 1000)],
)
def test_proofs_are_hmac_of_sha256(key: str, message: str) -> None:
    """Lengths on both sides of where a block is full."""
    assert run("proof", key, message).strip() == hmac.new(key.encode(), message.encode(), hashlib.sha256).hexdigest()


def test_which_interfaces_become_rails() -> None:
    """Rails follow networks or given names, as many as each machine has. Unnamed interfaces join within networks."""
    assert run("pairs") == "pairs\n"


@pytest.mark.parametrize("how", ["refused", "silent"])
def test_the_usual_interface_takes_the_place_of_rails_that_do_not_come(how: str) -> None:
    """A stranger at the rail's address may accept connections and never answer."""
    assert run("spare", how) == "a message each way\n"


@pytest.mark.parametrize("how", ["usual", "another"])
def test_both_ends_make_one_kind_of_connection(how: str) -> None:
    """One end announced only one interface. It knows whether that is the only rail, or whether there is a spare."""
    assert run("alike", how) == "a message each way\n"


def test_answers_that_come_late_and_attempts_that_are_over() -> None:
    """An attempt reads its socket once more before it gives up, and the other end sees that the attempt is over."""
    assert run("late") == "in time\n"


def test_a_hello_that_is_sent_again_lets_nobody_in() -> None:
    """The first hello that arrives may be a copy: a thief keeps the one that the machine has sent."""
    assert run("replay") == "let in alone\n"


def test_machines_that_neither_rails_nor_the_usual_interface_join() -> None:
    """Both ends say what is missing: the rail and the spare of the other."""
    for line in run("spare", "none").splitlines():
        assert "no connection after 4 s" in line
        assert line.count(" (lo)") == 3, line


def test_which_cores_are_near_interfaces(tmp_path: Path) -> None:
    """All that are allowed where one interface tells nothing, or where none of its cores is allowed."""
    for name, cores in {"eth0": "0-1,4,6-99\n", "eth1": "2-3\n", "eth2": "12-15\n", "eth3": "\n"}.items():
        (tmp_path / name / "device").mkdir(parents=True)
        (tmp_path / name / "device/local_cpulist").write_text(cores, encoding="ascii")

    def near(*interfaces: str) -> list[int]:
        return [int(core) for core in run("near", str(tmp_path), *interfaces).split()]

    assert near("eth0") == [0, 1, 4, 6, 7]
    assert near("eth0", "eth1") == [0, 1, 2, 3, 4, 6, 7]
    assert near("eth1", "eth2") == [2, 3]
    assert near("eth2") == near("eth3") == near("lo") == near("eth1", "veth0") == list(range(8))


def test_interfaces_of_rdma_ports(tmp_path: Path) -> None:
    """Each port has one interface, bonded ports are tested above, and C++ and Python agree."""
    ports = {"mlx5_0": {"eth2": "0"}, "mlx4_0": {"ib0": "0", "ib1": "1"}, "mlx5_bond_0": {"eth4": "0"}, "efa_0": {}}
    for device, beside in ports.items():
        (tmp_path / "class/infiniband" / device / "ports").mkdir(parents=True)
        for name, port in beside.items():
            (tmp_path / "class/infiniband" / device / "device/net" / name).mkdir(parents=True)
            (tmp_path / "class/infiniband" / device / "device/net" / name / "dev_port").write_text(f"{port}\n")
    (tmp_path / "class/net/bond0").mkdir(parents=True)
    (tmp_path / "class/infiniband/mlx5_bond_0/device/net/eth4/master").symlink_to(tmp_path / "class/net/bond0")
    found = [tuple(line.split()) for line in run("cards", str(tmp_path)).splitlines()]
    assert found == [("mlx4_0:1", "ib0"), ("mlx4_0:2", "ib1"), ("mlx5_0:1", "eth2"), ("mlx5_bond_0:1", "bond0")]
    assert rdma_interfaces(tmp_path / "class/infiniband") == found
    assert run("cards", str(tmp_path / "class")) == ""


def test_one_hello_at_a_time_where_two_ways_become_writable_at_once() -> None:
    assert run("together") == "one hello at a time\n"


def test_places_in_a_list_of_devices(tmp_path: Path) -> None:
    """One that is not here, or has no interface, keeps its place; one that names several gives each of them one."""
    for device, name in {"mlx5_0": "eth0", "mlx5_2": "eth2", "mlx5_3": "eth3", "efa_0": ""}.items():
        (tmp_path / "class/infiniband" / device / "device/net" / name).mkdir(parents=True)

    def placed(text: str) -> list[str]:
        return run("placed", str(tmp_path), text).splitlines()

    assert placed("=mlx5_0,mlx5_1,mlx5_2") == ["1 eth0", "3 eth2"]
    assert placed("mlx5_3,mlx5_9,mlx5_0") == ["1 eth3", "3 eth0"]
    assert placed("mlx5,mlx4") == ["1 eth0", "2 eth2", "3 eth3"]
    assert placed("mlx4_,mlx5") == ["2 eth0", "3 eth2", "4 eth3"]
    assert placed("efa_0,mlx5_2:1,mlx5_2") == ["2 eth2"]
    assert placed("mlx5_1") == placed("mlx5_0:2") == []


def test_cards_of_the_librarys_topology(tmp_path: Path) -> None:
    """Found by bus id and function, else by the name of the interface or its RDMA device. A bond replaces its parts."""
    for name, bus in {"eth2": "0000:5e:00.0", "eth3": "0000:5e:00.1", "eth4": "0000:af:00.0"}.items():
        (tmp_path / "devices" / bus).mkdir(parents=True)
        (tmp_path / "class/net" / name).mkdir(parents=True)
        (tmp_path / "class/net" / name / "device").symlink_to(tmp_path / "devices" / bus)
    (tmp_path / "class/infiniband/rocep175s0f0np1/device/net/eth4").mkdir(parents=True)
    (tmp_path / "class/net/bond0").mkdir()
    (tmp_path / "class/net/eth4/master").symlink_to(tmp_path / "class/net/bond0")

    def found(bus: str, name: str) -> str:
        return run("card", str(tmp_path), bus, name).strip()

    assert found("0000:5e:00.1", "") == found("0000:5e:00.1", "eth2") == found("0", "eth3") == "eth3"
    assert found("0000:5e:00.2", "eth2") == found("0000:5e:00.0", "") == "eth2"
    assert found("0000:af:00.0", "") == found("0", "eth4") == "bond0"
    assert found("0", "rocep175s0f0np1") == "eth4"
    assert found("0000:5e:00.2", "") == found("0", "eth9") == found("0000:99:00.0", "rocep175s0") == ""


def test_a_bus_id_of_several_interfaces(tmp_path: Path) -> None:
    """That which has the card's name; else those that are up first, in the order of ports, and a bond once."""
    (tmp_path / "devices/0000:5e:00.0").mkdir(parents=True)
    ports = {"eth1": (1, "up"), "eth2": (0, "down"), "eth3": (0, "up"), "eth4": (2, "unknown"), "eth5": (0, "down")}
    for name, (port, state) in ports.items():
        folder = tmp_path / "class/net" / name
        folder.mkdir(parents=True)
        (folder / "device").symlink_to(tmp_path / "devices/0000:5e:00.0")
        (folder / "dev_port").write_text(f"{port}\n", encoding="ascii")
        (folder / "operstate").write_text(f"{state}\n", encoding="ascii")

    def found(name: str) -> list[str]:
        return run("card", str(tmp_path), "0000:5e:00.0", name).split()

    assert found("") == found("eth9") == ["eth3", "eth1", "eth4", "eth2", "eth5"]
    assert found("eth5") == ["eth5"]
    (tmp_path / "class/net/bond0").mkdir()
    for name in ("eth1", "eth3"):
        (tmp_path / "class/net" / name / "master").symlink_to(tmp_path / "class/net/bond0")
    assert found("") == ["bond0", "eth4", "eth2", "eth5"]


def test_how_far_cards_are_from_gpus(tmp_path: Path) -> None:
    """Behind one PCIe switch, on one host bridge, on one NUMA node, on another node, or unknown."""
    bridge = tmp_path / "devices/pci0000:16"
    far_bridge = tmp_path / "devices/pci0000:97"
    near_memory = tmp_path / "devices/pci0000:38"
    gpu = bridge / "0000:16:01.0/0000:17:00.0/0000:18:00.0/0000:1b:00.0"
    cards = {
        "ib0": bridge / "0000:16:01.0/0000:17:00.0/0000:18:01.0/0000:1c:00.0",
        "ib1": bridge / "0000:16:02.0/0000:2c:00.0",
        "ib2": near_memory / "0000:38:01.0/0000:39:00.0",
        "ib3": far_bridge / "0000:97:01.0/0000:98:00.0",
    }
    (tmp_path / "bus/pci/devices").mkdir(parents=True)
    for place, memory in [(gpu, 0), *((card, int(name == "ib3")) for name, card in cards.items())]:
        place.mkdir(parents=True)
        (place / "numa_node").write_text(f"{memory}\n")
    (tmp_path / "bus/pci/devices/0000:1b:00.0").symlink_to(gpu)
    for name, card in cards.items():
        (tmp_path / "class/net" / name).mkdir(parents=True)
        (tmp_path / "class/net" / name / "device").symlink_to(card)
    (tmp_path / "class/net/bond0").mkdir()

    def far(interface: str, *buses: str) -> int:
        return int(run("far", str(tmp_path), interface, *buses))

    steps = [far(name, "0000:1b:00.0") for name in cards]
    assert steps == sorted(set(steps))
    assert steps[0] == 4
    unknown = far("bond0", "0000:1b:00.0")
    assert unknown > steps[-1]
    assert far("ib0") == far("ib0", "0000:99:00.0") == far("eth9", "0000:1b:00.0") == unknown
    assert far("ib0", "0000:99:00.0", "0000:1b:00.0") == steps[0]


def on_the_loopback(engine: str) -> dict[str, str]:
    """For an engine on the loopback; UCX has no RDMA there."""
    if engine == "tcp":
        return {"COLLC_NET": "tcp:lo"}
    if engine == "tls":
        return WITH_TLS
    if find_ucx(os.environ) is None:
        pytest.skip("no UCX here (Debian: libucx0)")
    return {"COLLC_NET": "ucx:lo", "COLLC_UCX_UNSAFE_TCP": "1"}


@pytest.mark.parametrize("engine", ["tcp", TLS, "ucx"])
def test_strangers_have_no_effect(engine: str) -> None:
    """125 of each kind at both doors: silent, half a hello, garbage, a hello with a wrong proof."""
    assert run("meet", "125", **on_the_loopback(engine)) == "300 messages each way\n"


@pytest.mark.parametrize("engine", ["tcp", TLS, "ucx"])
def test_another_secret_is_no_connection(engine: str) -> None:
    assert "no connection after 1 s" in run("wrong", **on_the_loopback(engine))


@needs_openssl
def test_keys_of_tls_change_on_the_way() -> None:
    """40 MB each way. The key changes every 16 MiB."""
    assert run("many", "1200", **WITH_TLS) == "1200 messages each way\n"


@pytest.mark.parametrize("machine", ["0", "1"])
@needs_openssl
def test_a_plain_end_is_refused_by_one_with_tls(machine: str) -> None:
    """It knows the secret, so it passes the door; the engine that encrypts takes nothing from it."""
    said = run("plain", machine)
    assert "broke (TLS: " in said or "has closed its connection" in said


@needs_openssl
def test_with_tls_nothing_that_passes_is_readable() -> None:
    """A relay between the machines keeps all bytes; without TLS it finds the bodies."""
    assert run("relay") == "bodies are readable\n"
    assert run("relay", **WITH_TLS) == "nothing is readable\n"


def test_tls_says_what_it_lacks(tmp_path: Path) -> None:
    """A library of that name that is none, UCX, and a value that is no switch."""
    empty = tmp_path / "empty.c"
    empty.write_text("int nothing;\n")
    subprocess.run(
        [find_cxx().path, "-x", "c", "-shared", "-fPIC", str(empty), "-o", str(tmp_path / "libssl.so.3")], check=True
    )
    said = run("open", **WITH_TLS, LD_LIBRARY_PATH=str(tmp_path))
    assert said == ("COLLC_NET_TLS needs OpenSSL 3, libssl.so.3 (Debian: libssl3): it has no OPENSSL_init_crypto\n")
    said = run("open", **{**WITH_TLS, "COLLC_NET": "ucx"})
    assert said == "COLLC_NET_TLS: the engine ucx does not encrypt; COLLC_NET=tcp does\n"
    assert run("open", COLLC_NET_TLS="yes").startswith("COLLC_NET_TLS")


def test_ucx_is_declared_as_its_headers_say() -> None:
    """Compiled with the headers of the system and of the extra `ucx`, or with those beside the library of COLLC_UCX."""
    named, wheel = os.environ.get("COLLC_UCX"), importlib.util.find_spec("libucx")
    places = [Path(named).parent.parent / "include"] if named else [Path("/usr/include")]
    if wheel is not None and wheel.origin is not None and not named:
        places.append(Path(wheel.origin).parent / "include")
    found = [place for place in places if (place / "ucp/api/ucp.h").exists()]
    if not found:
        pytest.skip("no headers of UCX here (Debian: libucx-dev, or the extra `ucx`)")
    for place in found:
        ours = [f"-I{folder}" for folder in include_dirs()]
        # The compiler searches /usr/include by itself, after the folder of its C++ library.
        theirs = [] if place == Path("/usr/include") else ["-isystem", str(place)]
        command = [find_cxx().path, "-std=c++17", "-fsyntax-only", *ours, *theirs]
        done = subprocess.run([*command, str(HERE / "ucx_abi.cpp")], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_an_engine_that_does_not_exist_is_one_line() -> None:
    """Variables of users may still name `plugin`, an engine that earlier versions had."""
    for engine in ("plugin", "verbs"):
        said = run("open", COLLC_NET=f"{engine}:/opt/lib/libnccl-net.so,lo")
        assert said == f"COLLC_NET: there is no engine {engine}; name tcp or ucx\n"
