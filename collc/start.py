"""Runs a module of the collc that this file belongs to: ``python -P start.py MODULE ARGUMENT...``

The package is loaded from beside this file, so that neither the current folder nor another installation can take its
place.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import sys


def main() -> None:
    """Loads this very package as `collc` and calls the module's `main()`."""
    # Ctrl-C reaches every process of the terminal. The command that started this one reports it; a traceback from each
    # rank would bury its line. The signals were blocked until here, for the time in which Python itself starts.
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
