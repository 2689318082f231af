"""A program that makes runs in processes of their own and kills them: `run place, seed, seconds`.

It imports everything once and forks for each run, which so begins at once. It starts no thread
itself: what a library's threads hold would be held for ever in a fork.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from tests.spark.lake.lake_runs import append

import polymux.spark.lake.delta
import polymux.spark.lake.iceberg  # noqa: F401  (imported before the forks)
from polymux.spark.lake.lake import open_lake

DAY = "2026-11-01"


def main() -> None:
    """Read `[place, seed, seconds]` from each line; print whether the run has ended by itself."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    for line in sys.stdin:
        place, seed, seconds = json.loads(line)
        child = os.fork()
        if child == 0:
            append(open_lake(place), seed, [DAY])
            os._exit(0)
        signal.sigtimedwait([signal.SIGCHLD], seconds)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        while signal.sigtimedwait([signal.SIGCHLD], 0):
            pass
        print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)


if __name__ == "__main__":
    main()
