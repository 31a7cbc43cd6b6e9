"""Runs a module of the collc that this file belongs to: ``python -P start.py MODULE ARGUMENT...``

It loads the package from this file's folder, so that neither the current folder nor another installation can replace
it.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import sys


def main() -> None:
    """Loads this package as `collc` and calls the module's `main()`."""
    # Ctrl-C reaches every process of the terminal. The command that started this process reports it, and a traceback of
    # each rank would hide this report. The signals are blocked until here, while Python itself starts.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    root = os.path.dirname(os.path.realpath(__file__))
    spec = importlib.util.spec_from_file_location(
        "collc", os.path.join(root, "__init__.py"), submodule_search_locations=[root]
    )
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules["collc"] = package
    spec.loader.exec_module(package)
    name = sys.argv.pop(1)
    importlib.import_module(name).main()


if __name__ == "__main__":
    main()
