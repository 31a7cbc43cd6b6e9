"""NCCL as a baseline: what its rule takes for a size, and how long that takes in our model.

`versions.py` holds NCCL's constants by version, `rule.py` its choice of algorithm and protocol, `programs.py` its ring
and tree on one server as programs of ours, `closed.py` what no program of ours does: sums inside switches, several
servers; `fabrics.py` what networks cost.
"""

from collc.simulator.nccl.baseline import Baseline, Nccl

__all__ = ["Baseline", "Nccl"]
