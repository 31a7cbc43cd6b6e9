"""Checks the claims of a plan about copies and sums inside a switch, computed from the graph in exact arithmetic."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from collc.checker.certificates import certificate_bound
from collc.collectives.model import Collective
from collc.errors import CertificateError, IRError
from collc.ir.nodes import Program, Through
from collc.limits import spend
from collc.packing.model import InSwitch, Plan, Prices
from collc.topology.model import PlanGraph


@dataclass(frozen=True, slots=True)
class Port:
    """The ids of the links between a rank and the switch: `up` leads to the switch, `down` comes from it."""

    up: int
    down: int


def switch_ports(graph: PlanGraph, switch: int) -> tuple[Port, ...] | None:
    """Returns the port of every rank; None unless each rank has exactly one link to the switch and one from it."""
    spend(len(graph.links))
    up: dict[int, list[int]] = {r: [] for r in graph.ranks}
    down: dict[int, list[int]] = {r: [] for r in graph.ranks}
    for link in graph.links:
        if link.dst == switch and link.src in up:
            up[link.src].append(link.id)
        elif link.src == switch and link.dst in down:
            down[link.dst].append(link.id)
    if any(len(found[r]) != 1 for found in (up, down) for r in graph.ranks):
        return None
    return tuple(Port(up[r][0], down[r][0]) for r in graph.ranks)


def in_switch_bound(
    graph: PlanGraph, collective: Collective, root: int | None, switch: int, prices: Prices, where: str = "certificate"
) -> Fraction:
    """Returns the GB/s that no plan through `switch` exceeds: the price of all capacity over the least cost of a GB/s.

    Raises:
        CertificateError: the switch does not join all ranks, or the prices prove nothing.
    """
    ports = switch_ports(graph, switch)
    if ports is None:
        raise CertificateError(
            f"{graph.vertices[switch].name} does not join every rank by one link each way", where=where
        )
    price = dict(prices.prices)
    if len(price) != len(prices.prices):
        raise CertificateError("a link has two prices", where=where)
    for link, value in price.items():
        if not 0 <= link < len(graph.links) or value < 0:
            raise CertificateError(f"link {link} does not exist or has a negative price", where=where)
    whole, parts = _costs(collective, ports, price)
    heads = parts if root is None else [parts[root]]
    # In all_gather and reduce_scatter, the rank of a block is its head. In all_reduce, the cheapest rank is the head.
    asking = sum(heads, Fraction(0)) / len(heads) if collective.per_rank else min(heads)
    if whole + asking == 0:
        raise CertificateError("the prices let one unit be served for free, so they prove nothing", where=where)
    total = sum((graph.links[link].gbps * value for link, value in price.items()), Fraction(0))
    return total / (whole + asking)


def _costs(
    collective: Collective, ports: Iterable[Port], price: dict[int, Fraction]
) -> tuple[Fraction, list[Fraction]]:
    """Returns the cost of a GB/s on the links that carry it for any head, and for each head the cost of the others."""
    none = Fraction(0)
    up = [price.get(port.up, none) for port in ports]
    down = [price.get(port.down, none) for port in ports]
    whole = (sum(up, none) if collective.reduces else none) + (sum(down, none) if collective.spreads else none)
    parts = [
        (b if collective.reduces else none) + (a if collective.spreads else none) for a, b in zip(up, down, strict=True)
    ]
    return whole, parts


def check_in_switch(graph: PlanGraph, plan: Plan, made: InSwitch, where: str) -> None:
    """Checks that the heads' parts fit on the links and that both bounds are proven.

    Raises:
        CertificateError: a claim does not hold. The error names the place.
    """
    collective, root = plan.collective, plan.root
    if not collective.uses_trees:
        raise CertificateError(f"{collective.value} neither copies nor sums inside switches", where=where)
    vertex = graph.vertices[made.switch]
    for needed, able, what in (
        (collective.reduces, vertex.reduce, "reduce"),
        (collective.spreads, vertex.multicast, "multicast"),
    ):
        if needed and not able:
            raise CertificateError(f"{vertex.name} cannot {what}", where=f"{where}.switch")
    bound = in_switch_bound(graph, collective, root, made.switch, made.prices, f"{where}.certificate")
    _check_heads(graph, plan, made, where)
    if bound != made.bound:
        raise CertificateError(f"the certificate proves {bound}, not {made.bound}", where=f"{where}.bound_gbps")
    if made.rate > bound or made.optimal != (made.rate == bound):
        raise CertificateError(f"rate {made.rate}, bound {bound}: optimal says otherwise", where=f"{where}.optimal")
    limit = certificate_bound(graph, collective, root, made.cut, f"{where}.cut")
    if limit != made.cut_bound:
        raise CertificateError(f"the cut proves {limit}, not {made.cut_bound}", where=f"{where}.cut_gbps")


def _check_heads(graph: PlanGraph, plan: Plan, made: InSwitch, where: str) -> None:
    """Checks that parts are positive, have one head each and add up to the rate, and that no link is overloaded."""
    collective, root = plan.collective, plan.root
    at = f"{where}.heads"
    spend(4 * len(made.heads))
    part = dict(made.heads)
    if len(part) != len(made.heads):
        raise CertificateError("a rank is listed twice", where=at)
    for rank, weight in made.heads:
        if not 0 <= rank < graph.nranks or weight <= 0:
            raise CertificateError(f"rank {rank} does not exist or its part {weight} is not positive", where=at)
    if sum(part.values(), Fraction(0)) != made.rate or made.rate <= 0:
        raise CertificateError(f"the parts do not add up to the rate {made.rate}", where=at)
    if root is not None and set(part) != {root}:
        raise CertificateError(f"the head of all data is the root {root}", where=at)
    if collective.per_rank and any(part.get(r) != made.rate / graph.nranks for r in graph.ranks):
        raise CertificateError(f"every rank is the head of rate/N = {made.rate / graph.nranks}", where=at)
    ports = switch_ports(graph, made.switch)
    assert ports is not None
    for rank, port in enumerate(ports):
        own = part.get(rank, Fraction(0))
        up = (made.rate if collective.reduces else 0) + (own if collective.spreads else 0)
        down = (made.rate if collective.spreads else 0) + (own if collective.reduces else 0)
        for link, load in ((port.up, up), (port.down, down)):
            if load > graph.links[link].gbps:
                raise CertificateError(f"link {link} carries {load} GB/s of {graph.links[link].gbps}", where=at)


def check_follows_switch(program: Program, plan: Plan, graph: PlanGraph, slack: Fraction) -> None:
    """Checks that every head of `plan.in_switch` serves the fraction of every block that its weight says.

    All FIFOs must go through the switch of the plan, over the ports of the ranks that they join.

    Args:
        slack: the error of a head's fraction that is allowed for each share and each head.

    Raises:
        IRError: the program does not follow the plan.
    """
    made = plan.in_switch
    ports = None if made is None else switch_ports(graph, made.switch)
    if made is None or ports is None:
        raise IRError("it goes through a switch, and its plan does not")
    heads: dict[int, int] = {}
    spend(4 * len(program.fifos) + len(program.shares))
    for number, fifo in enumerate(program.fifos):
        head, reader = (fifo.dsts if fifo.through is Through.SUM else (fifo.src,))[0], fifo.dsts[0]
        if fifo.through is None or fifo.routes != ((ports[fifo.src].up, ports[reader].down),):
            raise IRError("does not go through the switch of the plan", where=f"fifo {number}")
        if heads.setdefault(fifo.share, head) != head:
            raise IRError(f"ranks {heads[fifo.share]} and {head} both serve share {fifo.share}")
    whole = sum((weight for _, weight in made.heads), Fraction(0))
    per_rank = plan.collective.per_rank
    wanted = {(head, head) if per_rank else (0, head): weight for head, weight in made.heads}
    found: dict[tuple[int, int], Fraction] = defaultdict(Fraction)
    for number, share in enumerate(program.shares):
        found[share.block, heads.get(number, -1)] += share.hi - share.lo
    for key in {**wanted, **found}:
        part = wanted.get(key, Fraction(0)) / (wanted[key] if per_rank and key in wanted else whole)
        if abs(found[key] - part) > slack * (len(program.shares) + len(made.heads)):
            raise IRError(f"rank {key[1]} serves another part of block {key[0]} than its weight in the plan says")
