"""Finds fewer trees at the same rate and depth by diving, a rounding heuristic for column generation.

Each step takes one of the heaviest trees, gives it the largest weight that still allows the rate (by an LP, with new
columns priced in) and fixes that weight. Each step fills some link, so few steps are needed.
"""

from __future__ import annotations

import math
from fractions import Fraction
from random import Random

from collc.errors import PackingError
from collc.packing.solvers.generate import Generator, Packing

# Trees lighter than this fraction of the rate are noise, because the float LP fixes rate and weights within 1e-7.
_TINY = 1e-5


def best_dive(generator: Generator, packing: Packing, dives: int, choices: int, seed: int = 0) -> Packing:
    """Returns the best result of several dives, for a generator that has every column that may be used.

    Each dive starts from another optimal vertex, by random objectives from a fixed seed. The best result has the fewest
    trees, and among these the least common denominator of their shares.

    Args:
        packing: the packing to improve.
        dives: the number of dives.
        choices: the number of heaviest trees that each step tries.
    """
    random = Random(seed)
    master = generator.master
    best, best_key = packing, _size(packing)
    held = False
    for _ in range(dives):
        try:
            if not held:
                generator.solve()
                master.hold_rate(float(packing.rate * generator.scale))
                held = True
            chosen = _dive_whole(generator, packing.rate, random, choices)
            if chosen is None or len(chosen) > best_key[0]:
                continue
            found = generator.subset([generator.columns[j] for j in sorted(chosen)]).exact()
        except PackingError:
            break  # the LP ended at a limit, and fewer trees are optional
        if found is not None and found.rate == packing.rate and _size(found) < best_key:
            best, best_key = Packing(found.rate, found.weights, packing.prices), _size(found)
    assert generator.master is master
    return best


def _size(packing: Packing) -> tuple[int, int]:
    return len(packing.weights), math.lcm(*((w / packing.rate).denominator for _, w in packing.weights))


def _dive_whole(generator: Generator, rate: Fraction, random: Random, choices: int) -> list[int] | None:
    """Returns the columns of one dive, whose master LP holds `rate`; None if they do not carry it."""
    master, count = generator.master, len(generator.columns)
    goal = float(rate * generator.scale)
    floor = _TINY * goal / max(generator.factor, 1)
    master.favor_all([random.random() for _ in range(count)])
    weights = generator.solve().weights
    master.favor_all([0.0] * count)
    fixed: list[int] = []
    done = False
    while not done:
        order = sorted((j for j, w in enumerate(weights) if w > floor and j not in fixed), key=lambda j: -weights[j])
        best, arg, after = floor, -1, weights
        for j in order[:choices]:
            master.favor(j, 1.0)
            now = generator.solve().weights
            master.favor(j, 0.0)
            if now[j] > best * (1 + _TINY):
                best, arg, after = now[j], j, now
        done = arg < 0
        if not done:
            fixed.append(arg)
            master.fix(arg, best)
            weights = after
    for j in fixed:
        master.free(j)
    return fixed if not order else None


def dive_for_fewer_trees(
    generator: Generator, packing: Packing, depth: int | None, rounds: int, choices: int
) -> Packing:
    """Returns `packing`, or a packing with fewer columns at exactly its rate.

    Args:
        generator: has the columns. Its master LP cannot be used afterwards.
        depth: the most depth of new columns; None for no limit.
        rounds: how often each step may price in new columns.
        choices: the number of heaviest trees that each step tries.
    """
    generator.restrict(list(generator.columns))
    try:
        chosen = _dive(generator, packing.rate, depth, rounds, choices)
        if chosen is None or len(chosen) >= len(packing.weights):
            return packing
        generator.restrict([generator.columns[j] for j in sorted(chosen)])
        found = generator.exact()
    except PackingError:
        return packing  # the LP ended at a limit, and fewer trees are optional
    if found is None or found.rate != packing.rate:
        return packing
    return Packing(found.rate, found.weights, packing.prices)


def _dive(generator: Generator, rate: Fraction, depth: int | None, rounds: int, choices: int) -> list[int] | None:
    master = generator.master
    goal = float(rate * generator.scale)
    if generator.solve().rate < goal * (1 - 1e-9):
        return None
    master.hold_rate(goal)
    weights = generator.solve().weights
    fixed: list[int] = []
    floor = _TINY * goal / max(generator.factor, 1)
    while True:
        order = sorted((j for j, w in enumerate(weights) if w > floor and j not in fixed), key=lambda j: -weights[j])
        if not order:
            return fixed
        best, arg = 0.0, order[0]
        for j in order[:choices]:
            value = _heaviest(generator, j, depth, rounds)
            if value > best * (1 + _TINY):
                best, arg = value, j
        if best <= floor:
            return None
        fixed.append(arg)
        master.fix(arg, best)
        weights = generator.solve().weights


def _heaviest(generator: Generator, column: int, depth: int | None, rounds: int) -> float:
    """Returns the largest weight that `column` can have at the fixed rate."""
    master = generator.master
    master.favor(column, 1.0)
    now = generator.solve()
    for _ in range(rounds):
        found = generator.price(now, depth)
        gain = [p.column for p in found if p.cost < now.groups[p.column.group] - 1e-9]
        if not generator.add(gain):
            break
        now = generator.solve()
    master.favor(column, 0.0)
    return now.weights[column]
