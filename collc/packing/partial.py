"""The symmetry that remains in a cluster with odd servers, lost links or GPUs: rotations of parts that are still alike.

GPUs are put in a table, a row per server and a column per way into the network (the rail that a GPU hangs on, and the
how many-th GPU of its server on it). Rows and columns whose entries have equal colours are rotated, and so are twins,
GPUs with equal links to the same vertices. What a loss made odd has a colour of its own and stays where it is, so one
dead link among 64 servers leaves 63 of them, and 7 of 8 rails, alike.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from collc.packing.network import Net
from collc.packing.refine import Automorphism, Refiner


def partial_symmetry(refiner: Refiner, servers: Sequence[str], order: Sequence[int]) -> list[Automorphism]:
    """Rotations of twins, alike columns and alike rows, each an automorphism of the net; they need not commute.

    Args:
        servers: the server's name of every vertex.
        order: the ranks, server by server.
    """
    table = _table(refiner.net, servers, order)
    rows = list(dict.fromkeys(servers[rank] for rank in order))
    columns = list(dict.fromkeys(column for _, column in table))

    def colours(cells: Iterable[tuple[str, Hashable]]) -> tuple[int | None, ...]:
        return tuple(refiner.colour[table[cell]] if cell in table else None for cell in cells)

    alike_columns: dict[Hashable, list[list[int]]] = {}
    for column in columns:
        members = [table[row, column] for row in rows if (row, column) in table]
        alike_columns.setdefault(colours((row, column) for row in rows), []).append(members)
    alike_rows: dict[Hashable, list[list[int]]] = {}
    for row in rows:
        members = [table[row, column] for column in columns if (row, column) in table]
        alike_rows.setdefault(colours((row, column) for column in columns), []).append(members)
    twins: dict[Hashable, list[list[int]]] = {}
    for rank in order:
        twins.setdefault((refiner.colour[rank], tuple(refiner.near[rank])), []).append([rank])
    found = _by_length(refiner, twins.values())
    found += _rotations(refiner, alike_columns.values())
    return found + _rotations(refiner, alike_rows.values())


def _table(net: Net, servers: Sequence[str], order: Sequence[int]) -> dict[tuple[str, Hashable], int]:
    """(server, column) -> rank; a column is (the nearest vertices outside the server, a count)."""
    table: dict[tuple[str, Hashable], int] = {}
    count: dict[Hashable, int] = {}
    for rank in order:
        way = _way_out(net, servers, rank)
        place = servers[rank], way
        count[place] = count.get(place, 0) + 1
        table[servers[rank], (way, count[place])] = rank
    return table


def _way_out(net: Net, servers: Sequence[str], rank: int) -> tuple[int, ...]:
    """The forwarders of other servers, or of none, that are nearest to `rank` through forwarders of its own server."""
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
    """A rotation of each class of equally long lists; where the classes only turn together, all of a size at once."""
    large = [members for members in classes if len(members) > 1]
    made = [_rotation(refiner, [members]) for members in large]
    if all(m is not None for m in made):
        return [m for m in made if m is not None]
    return [m for m in made if m is not None] or _by_length(refiner, large)


def _by_length(refiner: Refiner, classes: Iterable[Sequence[Sequence[int]]]) -> list[Automorphism]:
    """One rotation for all classes with the same number of members."""
    sizes: dict[int, list[Sequence[Sequence[int]]]] = {}
    for members in classes:
        if len(members) > 1:
            sizes.setdefault(len(members), []).append(members)
    made = [_rotation(refiner, sizes[size]) for size in sorted(sizes)]
    return [m for m in made if m is not None]


def _rotation(refiner: Refiner, classes: Sequence[Sequence[Sequence[int]]]) -> Automorphism | None:
    """Advances every member of every class to the next one, entry by entry."""
    image = list(range(refiner.net.nranks))
    for members in classes:
        for source, target in zip(members, [*members[1:], members[0]], strict=True):
            for a, b in zip(source, target, strict=True):
                image[a] = b
    return refiner.extend(image, len(classes[0]))
