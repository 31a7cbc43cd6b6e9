"""A `collc` backend of torch.distributed for CPU tensors, over a library of the host target.

    import collc.torch
    torch.distributed.init_process_group("collc")

Importing the module registers the backend. The library is the one that COLLC_LIBRARY names; without it one is compiled
for this machine when the first group is made (seconds, then cached).
"""

from __future__ import annotations

from collc.torch.group import CollcProcessGroup, register

__all__ = ["CollcProcessGroup", "register"]

register()
