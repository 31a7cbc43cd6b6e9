"""Finds the symmetry of a cluster with different servers, or with lost links or GPUs: rotations of equal parts.

The GPUs form a table with a row for each server and a column for each path into the network: the rail of the GPU, and
its number among the GPUs of its server on that rail. Rows and columns whose entries have equal colors are rotated, and
so are twins, which are GPUs with equal links to the same vertices. A part that a loss changed has a color of its own
and stays in place. So after the loss of one link among 64 servers, 63 servers and 7 of 8 rails can still be rotated.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from collc.packing.solvers.network import Net
from collc.packing.symmetry.refine import Automorphism, Refiner


def partial_symmetry(refiner: Refiner, servers: Sequence[str], order: Sequence[int]) -> list[Automorphism]:
    """Returns rotations of twins, of equal columns and of equal rows. Each is an automorphism; they need not commute.

    Args:
        servers: the name of the server of every vertex.
        order: the ranks, server by server.
    """
    table = _table(refiner.net, servers, order)
    rows = list(dict.fromkeys(servers[rank] for rank in order))
    columns = list(dict.fromkeys(column for _, column in table))

    def colors(cells: Iterable[tuple[str, Hashable]]) -> tuple[int | None, ...]:
        return tuple(refiner.color[table[cell]] if cell in table else None for cell in cells)

    alike_columns: dict[Hashable, list[list[int]]] = {}
    for column in columns:
        members = [table[row, column] for row in rows if (row, column) in table]
        alike_columns.setdefault(colors((row, column) for row in rows), []).append(members)
    alike_rows: dict[Hashable, list[list[int]]] = {}
    for row in rows:
        members = [table[row, column] for column in columns if (row, column) in table]
        alike_rows.setdefault(colors((row, column) for column in columns), []).append(members)
    twins: dict[Hashable, list[list[int]]] = {}
    for rank in order:
        twins.setdefault((refiner.color[rank], tuple(refiner.near[rank])), []).append([rank])
    found = _by_length(refiner, twins.values())
    found += _rotations(refiner, alike_columns.values())
    return found + _rotations(refiner, alike_rows.values())


def _table(net: Net, servers: Sequence[str], order: Sequence[int]) -> dict[tuple[str, Hashable], int]:
    """Returns (server, column) -> rank. A column is (the nearest vertices outside the server, a number from 1 on)."""
    table: dict[tuple[str, Hashable], int] = {}
    count: dict[Hashable, int] = {}
    for rank in order:
        way = _way_out(net, servers, rank)
        place = servers[rank], way
        count[place] = count.get(place, 0) + 1
        table[servers[rank], (way, count[place])] = rank
    return table


def _way_out(net: Net, servers: Sequence[str], rank: int) -> tuple[int, ...]:
    """Returns the forwarders outside the server of `rank` that are nearest to it, through forwarders of its server."""
    seen, level = {rank}, [rank]
    while level:
        heads = dict.fromkeys(net.heads[link] for v in level for link in net.out[v])
        fresh = [v for v in heads if v not in seen and v >= net.nranks]
        outside = [v for v in fresh if servers[v] != servers[rank]]
        if outside:
            return tuple(sorted(outside))
        seen.update(fresh)
        level = fresh
    return ()


def _rotations(refiner: Refiner, classes: Iterable[Sequence[Sequence[int]]]) -> list[Automorphism]:
    """Returns a rotation of each class of lists of equal length.

    If no class can be rotated by itself, all classes with the same number of lists are rotated together.
    """
    large = [members for members in classes if len(members) > 1]
    rotations = [_rotation(refiner, [members]) for members in large]
    if all(m is not None for m in rotations):
        return [m for m in rotations if m is not None]
    return [m for m in rotations if m is not None] or _by_length(refiner, large)


def _by_length(refiner: Refiner, classes: Iterable[Sequence[Sequence[int]]]) -> list[Automorphism]:
    """Returns one rotation for all classes with the same number of members."""
    sizes: dict[int, list[Sequence[Sequence[int]]]] = {}
    for members in classes:
        if len(members) > 1:
            sizes.setdefault(len(members), []).append(members)
    rotations = [_rotation(refiner, sizes[size]) for size in sorted(sizes)]
    return [m for m in rotations if m is not None]


def _rotation(refiner: Refiner, classes: Sequence[Sequence[Sequence[int]]]) -> Automorphism | None:
    """Returns the automorphism that maps every member of every class to the next one, entry by entry, or None."""
    image = list(range(refiner.net.nranks))
    for members in classes:
        for source, target in zip(members, [*members[1:], members[0]], strict=True):
            for a, b in zip(source, target, strict=True):
                image[a] = b
    return refiner.extend(image, len(classes[0]))
