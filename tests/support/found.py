"""Machines as a run finds them, after a loss or under other names, and the plan that a library uses on each."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from collc.topology.losses import Loss, without
from collc.topology.model import Topology, VertexKind

PROGRAM = Path(__file__).parent.parent / "runtime" / "found_machines.py"


def lost(topology: Topology, loss: Loss) -> Topology:
    """The machine after a loss, without the vertices that are gone."""
    left = without(topology, loss)
    gone = set(loss.gone)
    servers = {name: tuple(m for m in members if m not in gone) for name, members in left.servers.items()}
    return replace(left, vertices=tuple(v for v in left.vertices if v.name not in gone), servers=servers)


def shuffled(topology: Topology, seed: int) -> Topology:
    """The same machine under other names, in another order."""
    draw = random.Random(seed)
    names = [f"x{i}" for i in range(len(topology.vertices))]
    draw.shuffle(names)
    new = dict(zip((v.name for v in topology.vertices), names, strict=True))
    vertices = [replace(v, name=new[v.name]) for v in topology.vertices]
    draw.shuffle(vertices)
    links = [replace(k, src=new[k.src], dst=new[k.dst]) for k in topology.links]
    draw.shuffle(links)
    servers = {name: tuple(new[m] for m in members) for name, members in topology.servers.items()}
    vertices.sort(key=lambda v: v.kind is not VertexKind.GPU)
    return replace(topology, vertices=tuple(vertices), links=tuple(links), servers=servers)


def answers(library: Path, files: Sequence[Path]) -> list[dict[str, Any]]:
    """Per file of links what the library takes, and how many elements of an all_reduce are wrong; or its error."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(library), *map(str, files)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**os.environ, "COLLC_NCCL": "/nowhere", "OPENBLAS_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
