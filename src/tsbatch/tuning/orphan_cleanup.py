"""Stop a private server whose tuner was killed: ``python -m tsbatch.tuning.orphan_cleanup NAME PID CREATED``.

A tuner that gets another signal stops its server itself. After SIGKILL it cannot, so this small process waits until the
tuner has ended and then stops the server.
"""

from __future__ import annotations

import subprocess
import sys

from tsbatch.serving import instance as instances
from tsbatch.system.polling import wait_until
from tsbatch.system.processes import ProcessRef, own_process, start_detached

POLL_INTERVAL = 0.3


def spawn(name: str) -> subprocess.Popen[bytes]:
    """Start a process that watches this one; the server with that name need not exist yet."""
    tuner = own_process()
    return start_detached("tsbatch.tuning.orphan_cleanup", name, str(tuner.pid), repr(tuner.created))


def watch(name: str, tuner: ProcessRef) -> None:
    """Wait until the tuner has ended, then stop the server."""
    wait_until(lambda: not tuner.running(), interval=POLL_INTERVAL)
    left = instances.load(name)
    if left is not None:
        left.stop()


if __name__ == "__main__":
    watch(sys.argv[1], ProcessRef(int(sys.argv[2]), float(sys.argv[3])))
