"""Start TorchServe's Java process, as ts/model_server.py does."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
import zipfile
from collections.abc import Mapping
from pathlib import Path

from tsbatch.configuration.server_properties import ServerProperties
from tsbatch.errors import UsageError
from tsbatch.system.processes import MARK, detached

MAIN_CLASS = "org.pytorch.serve.ModelServer"
JAR = "model-server.jar"
LOGGING = "log4j2.xml"
LOGGING_CHOSEN = "-Dlog4j.configurationFile="

CONFIG_FILE = "config.properties"
CONSOLE = "console.log"
HARMLESS = ("WARNING: ", "Model server started.", "NOTE: Picked up", "Picked up")
CAUSES = ("Failed to bind", "Invalid configuration", "Exception: ")


def torchserve_home() -> Path:
    """Find the folder that contains the package ``ts``.

    Raises:
        UsageError: TorchServe is not installed.
    """
    # Without importing ts, which takes a while.
    found = importlib.util.find_spec("ts")
    if found is None or found.origin is None or not (Path(found.origin).parent / "frontend" / JAR).exists():
        raise UsageError('TorchServe is not installed: pip install "tsbatch[serve]"')
    return Path(found.origin).resolve().parent.parent


def command(java: Path, values: ServerProperties, work_dir: Path, temp_dir: Path) -> list[str]:
    """Build Java's argument list.

    Args:
        java: the Java to run.
        values: the server's settings; ``vmargs`` and ``plugins_path`` become arguments here.
        work_dir: the folder with config.properties.
        temp_dir: Java's temporary folder, with the unpacked models and the workers' sockets.
    """
    home = torchserve_home()
    jvm = values.get("vmargs", "").split()
    if not any(argument.startswith(LOGGING_CHOSEN) for argument in jvm):
        jvm.append(LOGGING_CHOSEN + logging_without_console(home, work_dir).as_uri())
    class_path = [str(home / "ts" / "frontend" / "*")]
    if plugins := values.get("plugins_path"):
        class_path.append(plugins if "*" in plugins else f"{plugins}/*")
    return [
        str(java),
        f"-Dmodel_server_home={home}",
        f"-Djava.io.tmpdir={temp_dir}",
        *jvm,
        "-cp",
        os.pathsep.join(class_path),
        MAIN_CLASS,
        "--python",
        values.get("python", sys.executable),
        "-f",
        str(work_dir / CONFIG_FILE),
        "-s",
        values["model_store"],
        "-ncs",
    ]


def logging_without_console(home: Path, work_dir: Path) -> Path:
    """Write TorchServe's logging configuration without its console output, which repeats all of ``ts_log.log``."""
    with zipfile.ZipFile(home / "ts" / "frontend" / JAR) as jar:
        tree = ET.ElementTree(ET.fromstring(jar.read(LOGGING)))  # noqa: S314 - a file of the installed package
    for parent in tree.iter():
        for child in [child for child in parent if "STDOUT" in (child.get("ref"), child.get("name"))]:
            parent.remove(child)
    path = work_dir / LOGGING
    tree.write(path, encoding="utf-8", xml_declaration=True)
    return path


def environment(work_dir: Path, temp_dir: Path, log_dir: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """Build the environment of Java and of the workers, which inherit it."""
    env = {**os.environ, **extra}
    # TorchServe would read this file instead of tsbatch's (ConfigManager.java).
    env.pop("TS_CONFIG_FILE", None)
    here = {"TEMP": temp_dir, "TMP": temp_dir, "TMPDIR": temp_dir, "LOG_LOCATION": log_dir, "METRICS_LOCATION": log_dir}
    return {**env, **{name: str(path) for name, path in here.items()}, MARK: str(work_dir)}


def run(arguments: list[str], work_dir: Path, log_dir: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start Java in its work folder and in a session of its own, out of reach of a terminal's Ctrl-C."""
    with (log_dir / CONSOLE).open("wb") as console:
        return subprocess.Popen(
            arguments,
            cwd=work_dir,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
            **detached(),
        )


def error_in_console(log_dir: Path) -> str:
    """Return Java's own error: the first exception, or else the first line that is not a harmless note."""
    text = (log_dir / CONSOLE).read_text(encoding="utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith(HARMLESS)]
    errors = [line for line in lines if any(cause in line for cause in CAUSES)]
    return (errors or lines or ["it printed nothing"])[0]
