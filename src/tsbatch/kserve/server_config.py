"""TorchServe's config.properties in a pod, and the command that starts TorchServe."""

from __future__ import annotations

from tsbatch.kserve.archive_facts import Facts
from tsbatch.kserve.pod_resources import HEAP_MIB

INFERENCE_PORT, MANAGEMENT_PORT, METRICS_PORT = 8080, 8081, 8082
MOUNT = "/mnt/models"
"""Where KServe's storage initializer puts the files from the storage URI."""

CONFIG = "config/config.properties"
METRICS = "config/metrics.yaml"
STORE = "model-store"

RUNTIME_COMMAND = ("torchserve", "--start", f"--model-store={MOUNT}/{STORE}", f"--ts-config={MOUNT}/{CONFIG}")
"""The command of KServe's runtime kserve-torchserve (config/runtimes/kserve-torchserve.yaml)."""

EXTRA_ARGUMENTS = ("--foreground", "--ncs")
"""Additional arguments: KServe appends a predictor's arguments to the runtime's. The container runs as long as
TorchServe does, and no snapshot of an earlier run decides what is loaded."""


def config_properties(facts: Facts) -> str:
    """Return the text of the file."""
    lines = [
        "# TorchServe in a KServe pod; written by tsbatch kserve.",
        "# The cluster's network decides who can reach the pod.",
        "# tsbatch: allow config-open",
        f"inference_address=http://0.0.0.0:{INFERENCE_PORT}",
        "# Only the probes use it, from inside the pod.",
        f"management_address=http://127.0.0.1:{MANAGEMENT_PORT}",
        "# tsbatch: allow config-open-metrics",
        f"metrics_address=http://0.0.0.0:{METRICS_PORT}",
        f"model_store={MOUNT}/{STORE}",
        f"load_models={facts.path.name}",
        "# For an archive without minWorkers; TorchServe's default is the number of cores or GPUs that it sees.",
        f"default_workers_per_model={facts.workers}",
        "# Clients of KServe have no TorchServe token.",
        "disable_token_authorization=true",
        "# /v1/models/NAME:predict and /v2/models/NAME/infer reach the handler unchanged. KServe sets",
        "# TS_SERVICE_ENVELOPE, and its envelopes answer only the first request of a batch: enable_envvars_config",
        "# stays off.",
        "ts_open_inference_protocol=true",
        "# Autoscaling queries these metrics. tsbatch diagnose reads them at the metrics address.",
        "# tsbatch: allow config-metrics-elsewhere",
        "metrics_mode=prometheus",
        f"metrics_config={MOUNT}/{METRICS}",
        f"vmargs=-Xmx{HEAP_MIB}m -XX:+ExitOnOutOfMemoryError",
    ]
    if facts.requirements:
        lines += ["# The archive has requirements.", "install_py_dep_per_model=true"]
    return "\n".join([*lines, ""])
