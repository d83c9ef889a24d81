"""What a pod of KServe would run, on this machine: the image's packages, the storage, and the container's commands.

The one thing that is changed is where things are: another folder than /mnt/models, other ports than 8080 to 8082.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.acceptance.bare_python import python_with
from tests.acceptance.kserve_models import Deployed
from tests.kserve import RUNTIME_ARGS
from tsbatch.serving.java_runtime import find_java
from tsbatch.system.ports import free_ports
from tsbatch.system.processes import MARK, detached, end_marked, marked

TORCHSERVE = "#!{python}\nfrom ts.model_server import start\n\nstart()\n"


class Pod:
    """One container's processes.

    Attributes:
        address: where it takes requests.
        metrics: where it tells its metrics.
        process: what the container's command started.
    """

    def __init__(self, deployed: Deployed, folder: Path) -> None:
        self._deployed, self._folder = deployed, folder
        self._ports = dict(zip(("8080", "8081", "8082"), map(str, free_ports(3)), strict=True))
        self.address = f"http://127.0.0.1:{self._ports['8080']}"
        self.metrics = f"http://127.0.0.1:{self._ports['8082']}"
        self._lay_out()
        self._env = self._environment()
        container = deployed.container
        stored = "storageUri" in container
        # KServe appends the predictor's arguments to those of its runtime.
        command = [*RUNTIME_ARGS, *container["args"]] if stored else container["args"]
        self.process = self._start(command)

    def run(self, command: list[str], **changes: str) -> int:
        """Run a command in the container, as kubelet does for ``exec``; its exit code."""
        words = [self._here(word) for word in command]
        for old, new in changes.items():
            words = [word.replace(old, new) for word in words]
        done = subprocess.run(words, env=self._env, cwd=self._home, capture_output=True, timeout=60, check=False)
        return done.returncode

    def probe(self, name: str) -> bool:
        """Whether one of the container's exec probes succeeds now."""
        return self.run(self._deployed.container[name]["exec"]["command"]) == 0

    def memory(self) -> int:
        """Bytes that all its processes hold, what they share counted once."""
        return sum(process.memory_full_info().pss for process in self._processes())

    def wait_gone(self, seconds: float) -> bool:
        """Wait until nothing of it runs."""
        deadline = time.monotonic() + seconds
        while self._processes() and time.monotonic() < deadline:
            self.process.poll()
            time.sleep(0.1)
        return not self._processes()

    def last_words(self) -> str:
        """The end of what it printed."""
        return (self._folder / "printed.txt").read_text(encoding="utf-8", errors="replace")[-3000:]

    def _processes(self) -> list[psutil.Process]:
        return [one for one in marked(str(self._folder)) if one.status() != psutil.STATUS_ZOMBIE]

    def _lay_out(self) -> None:
        names = re.findall(r"^([\w.-]+)==", (self._deployed.folder / "requirements.txt").read_text(), re.MULTILINE)
        self._python = python_with(self._folder / "venv", *names)
        script = self._python.parent / "torchserve"
        script.write_text(TORCHSERVE.format(python=self._python), encoding="utf-8")
        script.chmod(0o755)
        self._home = self._folder / "home"
        self._temp = self._folder / "t"
        for folder in (self._home, self._temp):
            folder.mkdir()
        config = self._deployed.folder / "storage" / "config" / "config.properties"
        # Other servers of this machine have the usual ports of gRPC.
        one, other = free_ports(2)
        grpc = [f"grpc_inference_port={one}", f"grpc_management_port={other}"]
        config.write_text("\n".join([self._here(config.read_text()), *grpc, ""]), encoding="ascii")

    def _environment(self) -> dict[str, str]:
        path = [self._python.parent, find_java().parent, "/usr/bin", "/bin"]
        return {
            "PATH": os.pathsep.join(map(str, path)),
            "HOME": str(self._home),
            "TEMP": str(self._temp),
            "TMPDIR": str(self._temp),
            "PYTHONPATH": str(self._deployed.folder / "worker"),
            # As KServe sets them for protocol v2 (inference_service_defaults.go, kserve-torchserve.yaml).
            "TS_SERVICE_ENVELOPE": "kservev2",
            "PROTOCOL_VERSION": "v2",
            MARK: str(self._folder),
        }

    def _here(self, text: str) -> str:
        text = text.replace("/mnt/models", str(self._deployed.folder / "storage"))
        return re.sub(r"\b808[012]\b", lambda match: self._ports[match[0]], text)

    def _start(self, command: list[str]) -> subprocess.Popen[bytes]:
        words = " ".join(shlex.quote(self._here(word)) for word in command)
        with (self._folder / "printed.txt").open("wb") as out:
            # Through a shell, so that the program is found on the container's PATH.
            return subprocess.Popen(
                ["/bin/sh", "-c", f"exec {words}"],
                cwd=self._home, env=self._env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, **detached(),
            )  # fmt: skip


@contextmanager
def pod_of(deployed: Deployed, folder: Path) -> Iterator[Pod]:
    """A pod; whatever is left of it afterwards is killed."""
    folder.mkdir()
    pod = Pod(deployed, folder)
    try:
        yield pod
    finally:
        end_marked(str(folder))
        pod.process.wait(10)
