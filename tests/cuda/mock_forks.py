"""Run by mock_jobs.py: forks the ranks of a job off, so that Python and its modules are read once for all of them.

    mock_forks.py FOLDER RANKS

RANKS is JSON: a list with the arguments and the settings of each rank. What a rank writes goes into the files out-RANK
and err-RANK of the folder. Prints a line `RANK STATUS` whenever one has ended. Ends with the last of them, or when its
standard input does: then it kills those that are left.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading

import mock_scenarios


def become(rank: int, folder: str, arguments: list[str], settings: dict[str, str]) -> None:
    """The forked process goes on as the rank."""
    for number, name in enumerate(("out", "err"), start=1):
        file = os.open(os.path.join(folder, f"{name}-{rank}"), os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(file, number)
        os.close(file)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.environ.update(settings)
    sys.argv[1:] = arguments
    mock_scenarios.run()


def main() -> None:
    folder, ranks = sys.argv[1], json.loads(sys.argv[2])
    living: dict[int, int] = {}
    for rank, (arguments, settings) in enumerate(ranks):
        child = os.fork()
        if child == 0:
            return become(rank, folder, arguments, settings)
        living[child] = rank
    changing = threading.Lock()

    def end_with_the_caller() -> None:
        sys.stdin.read()
        with changing:
            for child in living:
                os.kill(child, signal.SIGKILL)

    threading.Thread(target=end_with_the_caller, daemon=True).start()
    while living:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        with changing:  # nobody kills the number of a process that has gone
            child, status = os.wait()
            rank = living.pop(child)
        print(rank, os.waitstatus_to_exitcode(status), flush=True)
    sys.stdout.flush()
    os._exit(0)  # the thread waits for the caller


if __name__ == "__main__":
    main()
