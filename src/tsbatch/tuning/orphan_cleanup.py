"""Ends a private server whose tuner was killed: ``python -m tsbatch.tuning.orphan_cleanup NAME PID CREATED``.

A tuner that is told to end stops its server itself. One that gets SIGKILL can do nothing; this small process looks
after it and then does what is left.
"""

from __future__ import annotations

import subprocess
import sys
import time

from tsbatch.serving import instance as instances
from tsbatch.serving.instance import own_process
from tsbatch.system.processes import ProcessRef, apart

SECONDS_BETWEEN_LOOKS = 0.3


def spawn(name: str) -> subprocess.Popen[bytes]:
    """Let somebody look after this process and the server of that name, which need not be there yet."""
    tuner = own_process()
    words = [name, str(tuner.pid), repr(tuner.created)]
    return subprocess.Popen(
        [sys.executable, "-m", "tsbatch.tuning.orphan_cleanup", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        **apart(),
    )


def watch(name: str, tuner: ProcessRef) -> None:
    """Wait until the tuner has ended, then end the server."""
    while tuner.running():
        time.sleep(SECONDS_BETWEEN_LOOKS)
    left = instances.load(name)
    if left is not None:
        left.stop()


if __name__ == "__main__":
    watch(sys.argv[1], ProcessRef(int(sys.argv[2]), float(sys.argv[3])))
