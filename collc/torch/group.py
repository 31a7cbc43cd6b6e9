"""The process group of torch.distributed over the NCCL API of a host library."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import time
import warnings
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from collc.bench.nccl import Nccl
from collc.errors import CollcError
from collc.network.ucx import wheel_setting
from collc.torch import checks
from collc.torch.calls import Communicator
from collc.torch.collectives import Collectives
from collc.torch.library import library_for
from collc.torch.listener import Listener, Watch
from collc.torch.mailbox import Mailbox
from collc.torch.monitored import monitored_barrier
from collc.torch.runner import Runner
from collc.torch.work import Work

_COMPILING_SECONDS = 0.05  # the interval of checks whether the first rank of a machine has a library


class CollcProcessGroup(Collectives):
    """One rank's part of a group of processes, on one machine or several.

    Args:
        store: exchanges the addresses of the group's ranks. Every process that can read it is trusted.
        timeout: the default time limit of an operation. If an operation takes longer, it fails, and the group fails on
            all ranks.
    """

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._rank, self._size = rank, size
        self._store = store
        self._seconds = timeout.total_seconds()
        self._name = ""
        self._description = "undefined"
        listener = Listener()
        try:
            addresses = _meet(store, rank, size, timeout, listener)
            self._communicator = _communicator(store, rank, addresses)
        except BaseException:
            listener.close()
            raise
        self._runner = Runner(lambda: self._communicator.end(abort=True))
        self._mailbox = Mailbox(listener, addresses, rank)
        self._barriers = 0  # the number of monitored barriers

    # The queries of torch.

    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return self._rank

    def name(self) -> str:
        return "collc"

    getBackendName = _get_backend_name = name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    def getGroupName(self) -> str:
        return self._name

    def getGroupDesc(self) -> str:
        return self._description

    group_name = property(getGroupName)
    pg_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    def get_group_store(self) -> dist.Store:
        return self._store

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> CollcProcessGroup:
        if torch.device(device).type != "cpu":
            raise RuntimeError(f"the collc backend takes CPU tensors: no backend for {device}")
        return self

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the default time limit of operations that are issued from now on."""
        self._seconds = timeout.total_seconds()

    _set_default_timeout = set_timeout

    # Sends and receives are not ordered with collectives, and make progress while the caller computes.

    def send(self, tensors: list[torch.Tensor], peer: int, tag: int = 0) -> Work:
        checks.one("send", "the list", tensors)
        return self._mailbox.send(tensors, checks.rank("send", "the receiver", peer, self._size), tag, self._seconds)

    def recv(self, tensors: list[torch.Tensor], peer: int, tag: int = 0) -> Work:
        checks.one("recv", "the list", tensors)
        return self._mailbox.receive(tensors, checks.rank("recv", "the sender", peer, self._size), tag, self._seconds)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> Work:
        checks.one("recv", "the list", tensors)
        return self._mailbox.receive(tensors, None, tag, self._seconds)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Runs a barrier whose error names the missing ranks (collc.torch.monitored)."""
        self._barriers += 1
        seconds = self._seconds if timeout is None else timeout.total_seconds()
        monitored_barrier(self._mailbox, self._rank, self._size, self._barriers, seconds, wait_all_ranks)

    # The end.

    def shutdown(self) -> None:
        """Finishes the issued operations and destroys the communicator."""
        self._runner.stop()
        self._mailbox.close()
        self._communicator.end(abort=self._runner.failed)

    def abort(self) -> None:
        """Ends the running operations on all ranks. The group cannot be used afterwards."""
        self._runner.fail("the group was aborted")


def _meet(store: dist.Store, rank: int, size: int, timeout: timedelta, listener: Listener) -> list[str]:
    """Returns the addresses of all ranks, with TCP ports if they are on several machines."""
    addresses = _told(store, "rank", rank, size, timeout, listener.address)
    if len(set(machines_of(addresses))) == 1:
        return addresses
    if rank == 0 and os.environ.get("COLLC_NET_TLS", "") not in ("", "0"):
        warnings.warn(
            "COLLC_NET_TLS encrypts collectives; what send and recv carry between machines travels in plain text",
            RuntimeWarning,
            stacklevel=2,
        )
    try:
        port = listener.open_port()
    except (CollcError, OSError) as error:
        store.set(f"collc-port-{rank}", f"!{socket.gethostname()}: {error}")
        raise dist.DistBackendError(f"collc: no port for other machines: {error}") from None
    ports = _told(store, "port", rank, size, timeout, port)
    for peer, told in enumerate(ports):
        if told.startswith("!"):
            raise dist.DistBackendError(f"collc: rank {peer} has no port for other machines: {told[1:]}")
    return [f"{address} {port}" for address, port in zip(addresses, ports, strict=True)]


def machines_of(addresses: list[str]) -> list[str]:
    """Returns the identifier of each rank's machine."""
    return [address.split()[2] for address in addresses]


def _told(store: dist.Store, what: str, rank: int, size: int, timeout: timedelta, own: str) -> list[str]:
    """Returns the values of all ranks for a key. The error names missing ranks, which the library would wait for.

    Args:
        own: the value of this rank.

    Raises:
        DistStoreError: ranks are missing after `timeout`.
    """
    keys = [f"collc-{what}-{peer}" for peer in range(size)]
    store.set(keys[rank], own)
    try:
        store.wait(keys, timeout)
    except RuntimeError as error:
        missing = [str(peer) for peer, key in enumerate(keys) if not store.check([key])]
        if not missing:
            raise
        raise dist.DistStoreError(
            f"collc: rank {', '.join(missing)} of {size} did not come to the group within {timeout.total_seconds():g} s"
        ) from error
    return [store.get(key).decode() for key in keys]


def _communicator(store: dist.Store, rank: int, addresses: list[str]) -> Communicator:
    """Returns the communicator of this rank.

    The first rank of each machine compiles a library if needed, and rank 0 makes the id. All ranks get their errors.
    The compiler may take longer than the time limit of operations, so the others wait as long as these ranks live.
    """
    machines = machines_of(addresses)
    firsts = sorted({machine: peer for peer, machine in reversed(list(enumerate(machines)))}.values())
    shape = tuple(machines.count(machines[first]) for first in firsts)
    world = dist.get_world_size() if dist.is_initialized() else 0
    if rank in firsts:
        try:
            made = library_for(shape, world)
            store.set(_library_of(rank), Nccl(made).unique_id().hex() if rank == 0 else "made")
        except Exception as error:
            store.set(_library_of(rank), f"!{error}")
            raise
    told = {first: _made(store, first, addresses[first]) for first in firsts}
    os.environ.update(wheel_setting(os.environ))
    return Communicator(library_for(shape, world), len(addresses), rank, bytes.fromhex(told[0]))


def _library_of(first: int) -> str:
    return f"collc-library-{first}"


def _made(store: dist.Store, first: int, address: str) -> str:
    """Waits until the first rank of a machine has a library, and returns its message.

    Raises:
        DistBackendError: that rank has ended or has no library.
    """
    with contextlib.closing(Watch(address)) as watch:
        while not store.check([_library_of(first)]):
            if not watch.alive():
                raise dist.DistBackendError(f"collc: rank {first} ended while it made the library of this group")
            time.sleep(_COMPILING_SECONDS)
    told = str(store.get(_library_of(first)).decode())
    if told.startswith("!"):
        raise dist.DistBackendError(f"collc: rank {first} has no library for this group: {told[1:]}")
    return told


def _make(store: dist.Store, rank: int, size: int, timeout: timedelta) -> CollcProcessGroup:
    return CollcProcessGroup(store, rank, size, timeout)


def register() -> None:
    """Registers "collc" as a backend of torch.distributed, once.

    dist.monitored_barrier rejects every backend except Gloo by name, so it is wrapped for groups of this backend.
    """
    if hasattr(dist.Backend, "COLLC"):
        return
    dist.Backend.register_backend("collc", _make, devices=["cpu"])
    gloos = dist.monitored_barrier

    @functools.wraps(gloos)
    def monitored(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        chosen = dist.group.WORLD if group is None else group
        if not isinstance(chosen, CollcProcessGroup):
            gloos(group, timeout, wait_all_ranks)
            return
        if isinstance(timeout, (int, float)):
            timeout = timedelta(seconds=timeout)
        chosen.monitored_barrier(timeout, wait_all_ranks)

    dist.monitored_barrier = dist.distributed_c10d.monitored_barrier = monitored
