"""Fewer trees at the same rate and depth: diving, a rounding heuristic for column generation.

Again and again: take one of the heaviest trees, give it all the weight that leaves the rate possible (an LP, with new
columns
priced in), hold it there, and go on with the rest. Each step fills some link to the brim, so few steps are needed.
"""

from __future__ import annotations

import math
from fractions import Fraction
from random import Random

from collc.errors import PackingError
from collc.packing.generate import Generator, Packing

# Float slack of the held rate and weights is 1e-7; what is lighter than this share of the rate is noise.
_TINY = 1e-5


def thinnest(generator: Generator, packing: Packing, dives: int, choices: int, seed: int = 0) -> Packing:
    """The best of several dives where the generator holds every column that may be used.

    Each dive starts from another optimal vertex, by random objectives from a fixed seed. Best is the fewest trees, then
    the least common denominator of their shares.
    """
    random = Random(seed)
    master = generator.master
    best, best_key = packing, _size(packing)
    held = False
    for _ in range(dives):
        try:
            if not held:
                generator.solve()
            chosen = _dive_whole(generator, packing.rate, random, choices, held=held)
            held = True
            if chosen is None or len(chosen) > best_key[0]:
                continue
            found = generator.subset([generator.columns[j] for j in sorted(chosen)]).exact()
        except PackingError:
            break  # the held LP ended at a limit: fewer trees are a wish, not a duty
        if found is not None and found.rate == packing.rate and _size(found) < best_key:
            best, best_key = Packing(found.rate, found.weights, packing.prices), _size(found)
    assert generator.master is master
    return best


def _size(packing: Packing) -> tuple[int, int]:
    return len(packing.weights), math.lcm(*((w / packing.rate).denominator for _, w in packing.weights))


def _dive_whole(generator: Generator, rate: Fraction, random: Random, choices: int, *, held: bool) -> list[int] | None:
    master, count = generator.master, len(generator.columns)
    goal = float(rate * generator.scale)
    if not held:
        master.hold_rate(goal)
    floor = _TINY * goal / max(generator.factor, 1)
    master.favour_all([random.random() for _ in range(count)])
    weights = generator.solve().weights
    master.favour_all([0.0] * count)
    fixed: list[int] = []
    done = False
    while not done:
        order = sorted((j for j, w in enumerate(weights) if w > floor and j not in fixed), key=lambda j: -weights[j])
        best, arg, after = floor, -1, weights
        for j in order[:choices]:
            master.favour(j, 1.0)
            now = generator.solve().weights
            master.favour(j, 0.0)
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


def thinned(generator: Generator, packing: Packing, depth: int | None, rounds: int, choices: int) -> Packing:
    """`packing` or one with fewer columns at exactly its rate, none deeper than `depth`.

    Args:
        generator: holds the columns; its master is used up, new columns stay in it.
        rounds: how often each step may price in new columns.
        choices: how many of the heaviest trees each step tries.
    """
    generator.restrict(list(generator.columns))
    try:
        chosen = _dive(generator, packing.rate, depth, rounds, choices)
        if chosen is None or len(chosen) >= len(packing.weights):
            return packing
        generator.restrict([generator.columns[j] for j in sorted(chosen)])
        found = generator.exact()
    except PackingError:
        return packing  # the held LP ended at a limit: fewer trees are a wish, not a duty
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
    """The most weight that `column` can have at the held rate."""
    master = generator.master
    master.favour(column, 1.0)
    now = generator.solve()
    for _ in range(rounds):
        found = generator.price(now, depth)
        gain = [p.column for p in found if p.cost < now.groups[p.column.group] - 1e-9]
        if not generator.add(gain):
            break
        now = generator.solve()
    master.favour(column, 0.0)
    return now.weights[column]
