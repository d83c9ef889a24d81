"""Renew a server's tokens while it runs, and clean up after it.

In the foreground a thread of the serving process does this. ``tsbatch serve --detach`` starts a small process instead:
``python -m tsbatch.serving.token_keeper NAME``.
"""

from __future__ import annotations

import contextlib
import sys
import threading

from tsbatch.errors import ServerError
from tsbatch.serving import instance as instances
from tsbatch.serving.instance import Instance
from tsbatch.system.processes import ProcessRef, start_detached

SECONDS_BETWEEN_LOOKS = 0.5


def keep(instance: Instance, stopped: threading.Event) -> None:
    """Renew the tokens until the server ends or ``stopped`` is set."""
    while instance.running() and not stopped.wait(SECONDS_BETWEEN_LOOKS):
        # If the server is too busy to answer in time, the next round tries again.
        with contextlib.suppress(ServerError, OSError):
            instance.keys.renew()


class Keeper:
    """The thread that renews the tokens of a server of this process."""

    def __init__(self, instance: Instance) -> None:
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=keep, args=(instance, self._stopped), name=f"token keeper of {instance.name}", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End the thread; the server keeps running."""
        self._stopped.set()
        self._thread.join()


def spawn(name: str) -> ProcessRef:
    """Start a token keeper process for a saved instance; it outlives this process and its terminal."""
    process = start_detached("tsbatch.serving.token_keeper", name)
    process.returncode = 0  # it outlives this process on purpose; without this, subprocess would warn
    return ProcessRef.of(process.pid)


def main() -> None:
    """Renew the tokens of the instance named on the command line, then clean up after it."""
    instance = instances.load(sys.argv[1])
    if instance is not None:
        keep(instance, threading.Event())
        instance.clean()


if __name__ == "__main__":
    main()
