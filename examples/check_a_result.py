"""Plans, runs and checks an all_reduce on four GPUs of a DGX-1V, on this machine's CPUs. Run: `python FILE [FOLDER]`.

The folder [build] gets the library. Needs numpy and a C++ compiler, no GPU.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import collc


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "build")
    folder.mkdir(exist_ok=True)

    planned = collc.plan("dgx1v", "all_reduce", gpus=[0, 1, 4, 6])
    print(planned)
    print(f"the limit: {planned.limit}")

    # The program in the interpreter, which defines what programs mean.
    inputs = [np.arange(1000) * (rank + 1) for rank in range(4)]
    for result in collc.lower(planned).run(inputs):
        assert result is not None
        assert (result == sum(inputs)).all()

    # The same in a library, as a job would call it.
    built = collc.compile("dgx1v", folder / "libcollc-four.so", target="host", gpus=[0, 1, 4, 6])
    with collc.Library(built.path) as library:
        results = library.all_reduce(inputs)
    print("every rank has the sum:", all((result == sum(inputs)).all() for result in results))


if __name__ == "__main__":
    main()
