"""Scenarios of sends and receives (see mock_scenarios.py): pipelines, experts, context parallelism."""

from __future__ import annotations

import ctypes
import os
import random
from functools import partial
from typing import Any

import numpy as np
from mock_job import FLOAT, Buffer, Comm, Job


class Transfers(Job):
    def got(self, room: Buffer, rank: int, count: int, tag: int = 0) -> bool:
        return bool(np.array_equal(room.get(), self.data(rank, count, tag)))

    def neighbors(self) -> bool:
        """Each rank sends to the next one, in one group with its receive."""
        comm, stream, right = self.comm(), self.stream(), True
        after, before = (self.rank + 1) % self.nranks, (self.rank - 1) % self.nranks
        for count in (1, 1000, 3001):
            sent, got = self.buffer(self.data(self.rank, count)), self.room(count)
            self.group(partial(self.send, sent, after, comm, stream), partial(self.recv, got, before, comm, stream))
            self.wait(stream)
            right &= self.got(got, before, count)
        return right

    def pipeline(self) -> bool:
        """One forward, one backward (1F1B): activations go up, gradients come down, an all_reduce in between."""
        comm, stream, right = self.comm(), self.stream(), True
        last, steps, count = self.nranks - 1, self.sized(6), self.sized(400)
        rooms: list[tuple[Buffer, int, int]] = []

        def forward(step: int) -> None:
            if self.rank > 0:
                rooms.append((self.room(count), self.rank - 1, step))
                self.check(self.recv(rooms[-1][0], self.rank - 1, comm, stream))
            if self.rank < last:
                self.check(self.send(self.buffer(self.data(self.rank, count, step)), self.rank + 1, comm, stream))

        def backward(step: int) -> None:
            if self.rank < last:
                rooms.append((self.room(count), self.rank + 1, 100 + step))
                self.check(self.recv(rooms[-1][0], self.rank + 1, comm, stream))
            if self.rank > 0:
                self.check(self.send(self.buffer(self.data(self.rank, count, 100 + step)), self.rank - 1, comm, stream))

        ahead = last - self.rank
        for step in range(min(ahead, steps)):
            forward(step)
        for step in range(steps - min(ahead, steps)):
            forward(ahead + step)
            backward(step)
        for step in range(steps - min(ahead, steps), steps):
            backward(step)
        right &= self.sums_are_right(comm, stream=stream)
        self.wait(stream)
        return right and all(self.got(room, rank, count, tag) for room, rank, tag in rooms)

    def experts(self) -> bool:
        """all_to_all of unequal parts, some of nothing, as experts do; then ncclAlltoAll, ncclGather, ncclScatter."""
        comm, stream, right = self.comm(), self.stream(), True
        everybody, unit = range(self.nranks), self.sized(111)
        for turn in range(3):
            counts = {(a, b): (a * 5 + b * 3 + turn) % 4 * unit for a in everybody for b in everybody}
            sent = {b: self.buffer(self.data(self.rank, counts[self.rank, b], b)) for b in everybody}
            rooms = {a: self.room(counts[a, self.rank]) for a in everybody}
            self.group(
                *[partial(self.send, sent[b], b, comm, stream) for b in everybody],
                *[partial(self.recv, rooms[a], a, comm, stream) for a in everybody],
            )
            self.wait(stream)
            right &= all(self.got(rooms[a], a, counts[a, self.rank], self.rank) for a in everybody)
        size, count = ctypes.c_size_t, self.sized(130)
        whole = self.buffer(np.concatenate([self.data(self.rank, count, b) for b in everybody]))
        room = self.room(count * self.nranks)
        at, to = ctypes.c_void_p(whole.at), ctypes.c_void_p(room.at)
        self.check(self.lib.ncclAlltoAll(at, to, size(count), FLOAT, comm, stream))
        self.wait(stream)
        right &= bool(np.array_equal(room.get(), np.concatenate([self.data(a, count, self.rank) for a in everybody])))
        self.check(self.lib.ncclGather(at, to, size(count), FLOAT, 1, comm, stream))
        self.wait(stream)
        if self.rank == 1:
            right &= bool(np.array_equal(room.get(), np.concatenate([self.data(a, count, 0) for a in everybody])))
        part = self.room(count)
        self.check(self.lib.ncclScatter(at, ctypes.c_void_p(part.at), size(count), FLOAT, 2, comm, stream))
        self.wait(stream)
        return right and self.got(part, 2, count, self.rank)

    def ring_attention(self) -> bool:
        """Blocks go round: each rank passes on what it has just received, all ranks at once."""
        comm, stream = self.comm(), self.stream()
        after, before = (self.rank + 1) % self.nranks, (self.rank - 1) % self.nranks
        count = self.sized(700)
        held, right = self.buffer(self.data(self.rank, count)), True
        for turn in range(1, 2 * self.nranks):
            room = self.room(count)
            self.group(partial(self.send, held, after, comm, stream), partial(self.recv, room, before, comm, stream))
            self.wait(stream)
            held = room
            right &= self.got(held, (self.rank - turn) % self.nranks, count)
        return right

    def crossed(self) -> bool:
        """Rank 0 sends to 1 and 2 in one group; 1 receives only after it has heard of 2, which has heard of 0."""
        comm, stream, count = self.comm(), self.stream(), self.sized(5000)
        mine = self.buffer(self.data(self.rank, count))
        rooms = [self.room(count), self.room(count)]
        if self.rank == 0:
            self.group(partial(self.send, mine, 1, comm, stream), partial(self.send, mine, 2, comm, stream))
        elif self.rank == 1:
            self.check(self.recv(rooms[0], 2, comm, stream))
            self.check(self.recv(rooms[1], 0, comm, stream))
        else:
            self.check(self.recv(rooms[0], 0, comm, stream))
            self.check(self.send(mine, 1, comm, stream))
        self.wait(stream)
        if self.rank == 0:
            return True
        if self.rank == 2:
            return self.got(rooms[0], 0, count)
        return self.got(rooms[0], 2, count) and self.got(rooms[1], 0, count)

    def many_to_one(self) -> bool:
        """Every rank sends rank 0 several messages. Rank 0 receives some in groups and some one by one."""
        comm, stream = self.comm(), self.stream()
        counts = [1, 600, 40, 2000, 7]
        if self.rank != 0:
            for tag, count in enumerate(counts):
                self.check(self.send(self.buffer(self.data(self.rank, count, tag)), 0, comm, stream))
            self.wait(stream)
            return True
        rooms = {(a, t): self.room(count) for a in range(1, self.nranks) for t, count in enumerate(counts)}
        order = [[(1, 0), (1, 1), (2, 0)], [(2, 1)], [(1, 2), (2, 2), (2, 3), (2, 4), (1, 3)], [(1, 4)]]
        for together in order:
            self.check(self.lib.ncclGroupStart())
            self.group(*[partial(self.recv, rooms[key], key[0], comm, stream) for key in together])  # groups nest
            self.check(self.lib.ncclGroupEnd())
        self.wait(stream)
        return all(self.got(room, a, counts[t], t) for (a, t), room in rooms.items())

    def coalesced(self) -> bool:
        """FSDP's groups: all_gathers, reduce_scatters and transfers together, on several streams."""
        comm, streams, right = self.comm(), [self.stream(), self.stream()], True
        everybody, count = range(self.nranks), self.sized(210)
        after, before = (self.rank + 1) % self.nranks, (self.rank - 1) % self.nranks
        for turn in range(3):
            stream = streams[turn % 2]
            mine = self.buffer(self.data(self.rank, count, turn))
            gathered, summed, room = self.room(count * self.nranks), self.room(count), self.room(count)
            parts = self.buffer(np.concatenate([self.data(self.rank, count, 10 + b) for b in everybody]))
            self.group(
                partial(self.lib.ncclAllGather, mine.at, gathered.at, count, FLOAT, comm, stream),
                partial(self.send, mine, after, comm, stream),
                partial(self.lib.ncclReduceScatter, parts.at, summed.at, count, FLOAT, 0, comm, stream),
                partial(self.recv, room, before, comm, stream),
            )
            self.wait(stream)
            right &= self.got(room, before, count, turn)
            right &= bool(
                np.array_equal(gathered.get(), np.concatenate([self.data(a, count, turn) for a in everybody]))
            )
            right &= bool(np.array_equal(summed.get(), sum(self.data(a, count, 10 + self.rank) for a in everybody)))
        return right

    def many_in_a_group(self) -> bool:
        """All to all with many tensors in one group: as it is, then in groups of each rank's own, then in a graph."""
        comm, stream = self.comm(), self.stream()
        others = [rank for rank in range(self.nranks) if rank != self.rank]
        keys = [(other, tag) for tag in range(self.given["tensors"]) for other in others]
        counts = {tag: self.given.get("count", tag % 40) for _, tag in keys}
        sent = {(b, t): self.buffer(self.data(self.rank, counts[t], 7 * b + t)) for b, t in keys}

        def calls(rooms: dict[tuple[int, int], Buffer], part: list[tuple[int, int]]) -> list[Any]:
            sends = [partial(self.send, sent[key], key[0], comm, stream) for key in part]
            return sends + [partial(self.recv, rooms[key], key[0], comm, stream) for key in part]

        def right(rooms: dict[tuple[int, int], Buffer]) -> bool:
            self.wait(stream)
            return all(self.got(rooms[a, t], a, counts[t], 7 * self.rank + t) for a, t in keys)

        all_rooms = [{(a, t): self.room(counts[t]) for a, t in keys} for _ in range(3)]
        self.group(*calls(all_rooms[0], keys))
        said = right(all_rooms[0])
        if self.given.get("once"):
            return said
        cut = len(keys) if self.rank == 0 else len(keys) // (2 * self.rank) * 2
        for at in range(0, len(keys), cut):
            self.group(*calls(all_rooms[1], keys[at : at + cut]))
        said &= right(all_rooms[1])
        ready = self.captured(stream, lambda: self.group(*calls(all_rooms[2], keys)))
        for _ in range(2):
            for room in all_rooms[2].values():
                room.set(room.like)
            self.meet(f"cleared-{_}")
            self.cuda(self.mock.cuGraphLaunch(ready, stream))
            said &= right(all_rooms[2])
        return said

    def random_transfers(self) -> list[int]:
        """The seeds under which something is wrong: messages of random pairs, grouped by each rank as it likes."""
        comm, stream, wrong = self.comm(), self.stream(), []
        for seed in self.given["seeds"]:
            common, own = random.Random(seed), random.Random(seed * 1000 + self.rank)
            messages = []
            for tag in range(common.randrange(1, 12)):
                sender, receiver = common.sample(range(self.nranks), 2)
                messages.append(
                    (sender, receiver, common.choice([0, 1, 5, 256, 257, 900, common.randrange(4000)]), tag)
                )
            rooms, pending, size = [], 0, 0
            self.check(self.lib.ncclGroupStart())
            for sender, receiver, count, tag in messages:
                if self.rank == sender:
                    self.check(self.send(self.buffer(self.data(sender, count, tag)), receiver, comm, stream))
                elif self.rank == receiver:
                    rooms.append((self.room(count), sender, count, tag))
                    self.check(self.recv(rooms[-1][0], sender, comm, stream))
                else:
                    continue
                pending += 1
                if pending > size:  # the order of all messages is one that no rank can hold up
                    self.check(self.lib.ncclGroupEnd())
                    self.check(self.lib.ncclGroupStart())
                    pending, size = 0, own.randrange(4)
            self.check(self.lib.ncclGroupEnd())
            if common.random() < 0.4 and not self.sums_are_right(comm, stream=stream):
                wrong.append(seed)
            self.wait(stream)
            if not all(self.got(*room) for room in rooms):
                wrong.append(seed)
        self.destroy(comm)
        return wrong

    def rings_on_one_gpu(self) -> list[Any]:
        """Rings of `ranks` ranks that share a GPU, each in one group. Returns whether data are right, or the errors."""
        size, said = self.given["ranks"], list[Any]()
        made = (ctypes.c_void_p * size)()
        self.nccl.check(self.lib.ncclCommInitAll(made, size, (ctypes.c_int * size)()), "ncclCommInitAll")
        comms, stream = [ctypes.c_void_p(one) for one in made], self.stream()
        for ranks in self.given["rings"]:
            rooms = [self.room(20) for _ in range(ranks)]
            self.check(self.lib.ncclGroupStart())
            for rank in range(ranks):
                sent = self.buffer(self.data(rank, 20))
                self.check(self.send(sent, (rank + 1) % ranks, comms[rank], stream))
                self.check(self.recv(rooms[rank], (rank - 1) % ranks, comms[rank], stream))
            if self.lib.ncclGroupEnd():
                said.append(self.text())
                continue
            self.wait(stream)
            said.append(all(self.got(rooms[rank], (rank - 1) % ranks, 20) for rank in range(ranks)))
        return said

    def different_sizes(self) -> dict[str, Any]:
        """Rank 0 sends fewer elements than rank 1 receives."""
        comm, stream = self.comm(), self.stream()
        if self.rank == 0:
            self.check(self.send(self.buffer(self.data(0, 100)), 1, comm, stream))
        elif self.rank == 1:
            self.check(self.recv(self.room(101), 0, comm, stream))
        self.wait(stream)
        return self.what_broke(comm)

    def courier_leaves(self) -> dict[str, Any]:
        """Rank 3 waits for rank 0, which sends nothing, while the process of rank 2 leaves and ends at once."""
        comm, stream = self.comm(), self.stream()
        if self.rank == 2:
            self.hear("receiving")
            self.destroy(comm)
            self.say("end-2")
            os._exit(0)
        if self.rank != 3:
            self.hear("broken")
            return {}
        self.check(self.recv(self.room(100), 0, comm, stream))
        self.say("receiving")
        self.wait(stream)
        said = self.what_broke(comm)
        self.say("broken")
        return said

    def sender_leaves(self) -> dict[str, Any]:
        """Rank 0 sends one message and leaves; rank 1 wants two."""
        comm, stream = self.comm(), self.stream()
        rooms = [self.room(100), self.room(100)]
        if self.rank == 0:
            self.check(self.send(self.buffer(self.data(0, 100)), 1, comm, stream))
            self.destroy(comm)
            return {}
        if self.rank == 1:
            for room in rooms:
                self.check(self.recv(room, 0, comm, stream))
            self.wait(stream)
        return {**self.what_broke(comm), "first": self.rank != 1 or self.got(rooms[0], 0, 100)}

    def what_broke(self, comm: Comm) -> dict[str, Any]:
        """Waits until the communicator reports an error, and returns it."""
        self.until(lambda: self.error(comm) != 0)
        code = self.all_reduce(self.room(4), self.room(4), comm)
        return {"code": code, "text": self.text()}
