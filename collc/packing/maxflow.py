"""Maximum flow in exact integers: Dinic's algorithm (1970) on arrays."""

from __future__ import annotations

from collections import deque


class FlowNetwork:
    """A directed network with integer capacities. Arcs come in pairs: arc `2k` and its reverse `2k + 1`."""

    def __init__(self, nverts: int) -> None:
        self.head: list[int] = []
        self.residual: list[int] = []
        self.arcs: list[list[int]] = [[] for _ in range(nverts)]

    def add(self, src: int, dst: int, capacity: int) -> int:
        """Adds an arc and returns its number."""
        arc = len(self.head)
        self.head += [dst, src]
        self.residual += [capacity, 0]
        self.arcs[src].append(arc)
        self.arcs[dst].append(arc + 1)
        return arc

    def maximise(self, source: int, sink: int) -> int:
        """The maximum flow from `source` to `sink` on top of what flows already."""
        total = 0
        while (level := self._levels(source, sink)) is not None:
            total += self._block(source, sink, level)
        return total

    def source_side(self, source: int) -> set[int]:
        """The vertices reachable from `source` in the residual network: the smallest minimum cut."""
        return self._search(source, forward=True)

    def sink_side(self, sink: int) -> set[int]:
        """The vertices that reach `sink` in the residual network: the complement of the largest minimum cut."""
        return self._search(sink, forward=False)

    def _search(self, start: int, *, forward: bool) -> set[int]:
        seen, stack = {start}, [start]
        while stack:
            for arc in self.arcs[stack.pop()]:
                if self.residual[arc if forward else arc ^ 1] > 0 and self.head[arc] not in seen:
                    seen.add(self.head[arc])
                    stack.append(self.head[arc])
        return seen

    def _levels(self, source: int, sink: int) -> list[int] | None:
        level = [-1] * len(self.arcs)
        level[source] = 0
        queue = deque([source])
        while queue:
            vertex = queue.popleft()
            for arc in self.arcs[vertex]:
                head = self.head[arc]
                if level[head] < 0 and self.residual[arc] > 0:
                    level[head] = level[vertex] + 1
                    if head == sink:
                        return level  # vertices farther away are on no shortest path
                    queue.append(head)
        return None

    def _block(self, source: int, sink: int, level: list[int]) -> int:
        """A blocking flow in the level graph, by depth-first search with current arcs (no recursion)."""
        head, residual, arcs = self.head, self.residual, self.arcs
        current = [0] * len(arcs)
        total = 0
        path: list[int] = []
        vertex = source
        while True:
            if vertex == sink:
                push = min(residual[a] for a in path)
                total += push
                cut = 0
                for i in range(len(path) - 1, -1, -1):
                    residual[path[i]] -= push
                    residual[path[i] ^ 1] += push
                    if residual[path[i]] == 0:
                        cut = i
                vertex = head[path[cut] ^ 1]
                del path[cut:]
                continue
            own = arcs[vertex]
            while current[vertex] < len(own):
                arc = own[current[vertex]]
                if residual[arc] > 0 and level[head[arc]] == level[vertex] + 1:
                    break
                current[vertex] += 1
            else:
                if vertex == source:
                    return total
                vertex = head[path.pop() ^ 1]
                current[vertex] += 1
                continue
            path.append(arc)
            vertex = head[arc]
