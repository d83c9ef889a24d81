"""The config.properties of TorchServe in a pod, and the command that starts it."""

from __future__ import annotations

from tsbatch.kserve.archive_facts import Facts
from tsbatch.kserve.pod_resources import HEAP

INFERENCE_PORT, MANAGEMENT_PORT, METRICS_PORT = 8080, 8081, 8082
MOUNT = "/mnt/models"
"""Where KServe's storage initializer puts what lies at the storage URI."""

CONFIG = "config/config.properties"
METRICS = "config/metrics.yaml"
STORE = "model-store"

RUNTIME_COMMAND = ("torchserve", "--start", f"--model-store={MOUNT}/{STORE}", f"--ts-config={MOUNT}/{CONFIG}")
"""What KServe's runtime kserve-torchserve starts (config/runtimes/kserve-torchserve.yaml)."""

MORE_ARGUMENTS = ("--foreground", "--ncs")
"""What we add to it: KServe appends a predictor's arguments to the runtime's. The container lives as long as
TorchServe, and no snapshot of an earlier run decides what is loaded."""


def config_properties(facts: Facts) -> str:
    """The file's text."""
    lines = [
        "# TorchServe in a pod of KServe; written by tsbatch kserve.",
        "# Who reaches the pod is for the cluster's network to decide.",
        "# tsbatch: allow config-open",
        f"inference_address=http://0.0.0.0:{INFERENCE_PORT}",
        "# The probes alone ask it, from inside the pod.",
        f"management_address=http://127.0.0.1:{MANAGEMENT_PORT}",
        "# tsbatch: allow config-open-metrics",
        f"metrics_address=http://0.0.0.0:{METRICS_PORT}",
        f"model_store={MOUNT}/{STORE}",
        f"load_models={facts.path.name}",
        "# For an archive that sets none; TorchServe's own number is that of the cores, or GPUs, that it sees.",
        f"default_workers_per_model={facts.workers}",
        "# KServe's clients have no token of TorchServe's.",
        "disable_token_authorization=true",
        "# /v1/models/NAME:predict and /v2/models/NAME/infer reach the handler as they are. KServe sets",
        "# TS_SERVICE_ENVELOPE, and its envelopes answer only the first request of a batch: enable_envvars_config",
        "# stays off.",
        "ts_open_inference_protocol=true",
        "# What autoscaling asks for. tsbatch diagnose reads it at the metrics address.",
        "# tsbatch: allow config-metrics-elsewhere",
        "metrics_mode=prometheus",
        f"metrics_config={MOUNT}/{METRICS}",
        f"vmargs=-Xmx{HEAP}m -XX:+ExitOnOutOfMemoryError",
    ]
    if facts.requirements:
        lines += ["# The archive names requirements.", "install_py_dep_per_model=true"]
    return "\n".join([*lines, ""])
