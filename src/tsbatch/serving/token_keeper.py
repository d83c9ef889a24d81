"""Keeps a server's tokens fresh and cleans up when the server ends.

In the foreground this runs as a thread of the serving process; ``tsbatch serve --detach`` leaves it
behind as a small process of its own: ``python -m tsbatch.serving.token_keeper NAME``.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading

from tsbatch.errors import ServerError
from tsbatch.serving import instance as instances
from tsbatch.serving.instance import Instance
from tsbatch.system.processes import ProcessRef, apart

SECONDS_BETWEEN_LOOKS = 0.5


def keep(instance: Instance, stopped: threading.Event) -> None:
    """Renew the tokens while the server runs and nobody says ``stopped``."""
    while instance.running() and not stopped.wait(SECONDS_BETWEEN_LOOKS):
        # A server too busy to answer in time is asked again at the next look.
        with contextlib.suppress(ServerError, OSError):
            instance.keys.renew()


class Keeper:
    """The thread that keeps a server of this process."""

    def __init__(self, instance: Instance) -> None:
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=keep, args=(instance, self._stopped), name=f"keeper of {instance.name}", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End the thread; the server goes on."""
        self._stopped.set()
        self._thread.join()


def spawn(name: str) -> ProcessRef:
    """Start a keeper process for a saved instance; it outlives this process and its terminal."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tsbatch.serving.token_keeper", name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        **apart(),
    )
    # Left behind on purpose; subprocess would warn that nobody waited for it.
    process.returncode = 0
    return ProcessRef.of(process.pid)


def main() -> None:
    """Keep the instance named on the command line, then clean up after it."""
    instance = instances.load(sys.argv[1])
    if instance is not None:
        keep(instance, threading.Event())
        instance.clean()


if __name__ == "__main__":
    main()
