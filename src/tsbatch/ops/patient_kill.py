"""A ``kill`` that gives a worker time to close, for the servers that tsbatch starts.

TorchServe ends a worker by closing its socket and at once running the command ``kill -9 PID``
(frontend/server/.../wlm/WorkLoadManager.java), which it looks up on its PATH like any other. Some milliseconds are
too few for a handler that has files to write or a pool to join; a few seconds cost nobody anything, and TorchServe
waits for as long as ``unregister_model_timeout`` says.
"""

from __future__ import annotations

import os
from pathlib import Path

SECONDS = 3
"""What a worker gets to close and end by itself; after that it is killed as ever."""

SCRIPT = f"""#!/bin/sh
# First on the PATH of a TorchServe that tsbatch started, which ends its workers with: kill -9 PID
# Waits up to {SECONDS} s for a process that is about to end by itself; everything else is the shell's own kill.
if [ "$#" -eq 2 ] && [ "$1" = "-9" ]; then
    left={SECONDS * 20}
    while kill -0 "$2" 2>/dev/null; do
        [ "$left" -eq 0 ] && kill -9 "$2" && exit 0
        left=$((left - 1))
        sleep 0.05
    done
    exit 0
fi
kill "$@"
"""


def path_with_patient_kill(folder: Path, path: str) -> str:
    """Write the command into ``folder/bin`` and put that in front of a PATH; on Windows the PATH stays as it is."""
    if os.name == "nt":
        return path
    command = folder / "bin" / "kill"
    command.parent.mkdir(exist_ok=True)
    command.write_text(SCRIPT, encoding="ascii")
    command.chmod(0o755)
    return f"{command.parent}{os.pathsep}{path}"
