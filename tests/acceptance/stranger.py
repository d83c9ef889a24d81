"""A stranger's machine: a fresh clone, no Java, an empty temporary folder, and everything that was started is known."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
MARK = "TSBATCH_ACCEPTANCE"
"""Every process that a stranger starts inherits this variable, and is found by it."""


def fresh_clone(folder: Path) -> Path:
    """A clone of what is committed; with uncommitted work about, a copy of what would be committed."""
    if not git("status", "--porcelain"):
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
        return folder
    for name in git("ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def path_without_java(folder: Path) -> str:
    """A PATH with every program of this one, Java's left out."""
    folder.mkdir()
    for place in os.get_exec_path():
        for program in Path(place).iterdir() if Path(place).is_dir() else ():
            link = folder / program.name
            if not program.name.startswith(("java", "jshell", "jre", "jdk")) and not link.is_symlink():
                link.symlink_to(program)
    return str(folder)


class Stranger:
    """Runs programs as somebody who has just arrived, and can say what they left behind.

    Args:
        folder: an empty folder for the clone and the state.
        temp: the temporary folder the programs are given; short, since sockets lie in it.
        java: whether there is a Java.
    """

    def __init__(self, folder: Path, temp: Path, *, java: bool) -> None:
        self.temp = temp
        self.mark = uuid.uuid4().hex
        self.ports: set[int] = set()
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("TSBATCH_", "COVERAGE_", "PYTEST_", "VIRTUAL_ENV")) and name != "JAVA_HOME"
        }
        # TEMP is what the stock torchserve reads.
        places = {"TMPDIR": str(temp), "TEMP": str(temp), "TSBATCH_STATE_DIR": str(folder / "state")}
        self.env = {**inherited, **places, MARK: self.mark}
        if not java:
            self.env["PATH"] = path_without_java(folder / "bin")

    def start(self, words: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        """Start a program; stdout and stderr go to ``log``."""
        with log.open("wb") as file:
            return subprocess.Popen(
                words,
                env=self.env,
                cwd=self.temp.parent,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def run(self, words: Sequence[str], log: Path, *, minutes: float) -> int:
        """Run a program to its end, noting the ports its processes listen on."""
        child = self.start(words, log)
        with self.watching():
            return child.wait(minutes * 60)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Note the ports that this stranger's processes listen on."""
        done = threading.Event()

        def watch() -> None:
            while not done.wait(0.5):
                for process in self.processes():
                    with contextlib.suppress(psutil.Error):
                        connections = process.net_connections("inet")
                        self.ports |= {one.laddr.port for one in connections if one.status == psutil.CONN_LISTEN}

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def processes(self) -> list[psutil.Process]:
        """What runs now of all that was started."""
        return [process for process in psutil.process_iter() if self._ours(process)]

    def _ours(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE
        except (psutil.Error, OSError):
            return False

    def left_behind(self) -> dict[str, list[str]]:
        """Processes, ports that still answer, and temporary files; empty lists when all is clean."""
        deadline = time.monotonic() + 5
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.1)
        elsewhere = list(Path(tempfile.gettempdir()).glob("tsbatch-quickstart-*"))
        return {
            "processes": [" ".join(process.cmdline())[:200] for process in self.processes()],
            "ports": [str(port) for port in sorted(self.ports) if answers(port)],
            "files": [str(path) for path in [*self.temp.iterdir(), *elsewhere]],
        }

    def clean(self) -> None:
        """End what is left; for the end of a test, also of one that failed."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()


def answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def stranger(folder: Path, *, java: bool) -> Iterator[Stranger]:
    """A stranger whose processes and temporary folder are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="ts-") as temp:
        # One level down, so that what the test machine puts beside it does not count.
        (Path(temp) / "t").mkdir()
        one = Stranger(folder, Path(temp) / "t", java=java)
        try:
            yield one
        finally:
            one.clean()


def wait_for_text(log: Path, text: str, child: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait until a program has said something.

    Raises:
        AssertionError: it ended, or the time did, before.
    """
    deadline = time.monotonic() + seconds
    while text not in log.read_text(encoding="utf-8"):
        assert child.poll() is None, f"ended before it said {text!r}:\n{log.read_text(encoding='utf-8')}"
        assert time.monotonic() < deadline, f"did not say {text!r} in {seconds} s"
        time.sleep(0.05)


def base_python() -> str:
    """The Python that a stranger would start: the one our environment was made from."""
    return str(Path(sys.base_prefix) / ("python.exe" if os.name == "nt" else "bin/python3"))


def interrupt(child: subprocess.Popen[bytes], number: signal.Signals) -> int:
    """Send a signal and return the exit code."""
    child.send_signal(number)
    return child.wait(60)
