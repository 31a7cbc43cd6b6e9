"""A `collc` backend of torch.distributed for CPU tensors, over a library of the host target.

    import collc.torch
    torch.distributed.init_process_group("collc")

Importing the module registers the backend. COLLC_LIBRARY names the library. Without it, a library for this machine is
compiled when the first group is created. This takes seconds, and the library is cached.
"""

from __future__ import annotations

from collc.torch.group import CollcProcessGroup, register

__all__ = ["CollcProcessGroup", "register"]

register()
