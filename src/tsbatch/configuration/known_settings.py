"""The settings that TorchServe 0.12.0 knows, and common mistakes.

Sources: the constants of frontend/.../util/ConfigManager.java and frontend/.../archive/model/ModelConfig.java in the
wheel's jar. TorchServe silently ignores any other key.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Literal

Kind = Literal["text", "int", "long", "bool", "path", "address", "list", "map"]
"""The type of a value; ``path`` and ``address`` are texts with further rules."""

PROPERTIES: dict[str, Kind] = {
    "debug": "bool",
    "inference_address": "address",
    "management_address": "address",
    "metrics_address": "address",
    "load_models": "text",
    "blacklist_env_vars": "text",
    "default_workers_per_model": "int",
    "default_response_timeout": "int",
    "default_startup_timeout": "int",
    "unregister_model_timeout": "int",
    "number_of_netty_threads": "int",
    "netty_client_threads": "int",
    "job_queue_size": "int",
    "number_of_gpu": "int",
    "metrics_config": "path",
    "metrics_mode": "text",
    "model_metrics_auto_detect": "bool",
    "disable_system_metrics": "bool",
    "ipex_enable": "bool",
    "cpu_launcher_enable": "bool",
    "cpu_launcher_args": "text",
    "ipex_gpu_enable": "bool",
    "async_logging": "bool",
    "cors_allowed_origin": "text",
    "cors_allowed_methods": "text",
    "cors_allowed_headers": "text",
    "decode_input_request": "bool",
    "keystore": "path",
    "keystore_pass": "text",
    "keystore_type": "text",
    "certificate_file": "path",
    "private_key_file": "path",
    "max_request_size": "int",
    "max_response_size": "int",
    "limit_max_image_pixels": "bool",
    "default_service_handler": "text",
    "service_envelope": "text",
    "model_server_home": "path",
    "model_store": "path",
    "prefer_direct_buffer": "bool",
    "allowed_urls": "text",
    "install_py_dep_per_model": "bool",
    "enable_metrics_api": "bool",
    "grpc_inference_address": "text",
    "grpc_management_address": "text",
    "grpc_inference_port": "int",
    "grpc_management_port": "int",
    "grpc_inference_max_connection_age_ms": "long",
    "grpc_management_max_connection_age_ms": "long",
    "grpc_inference_max_connection_age_grace_ms": "long",
    "grpc_management_max_connection_age_grace_ms": "long",
    "enable_grpc_ssl": "bool",
    "initial_worker_port": "int",
    "initial_distribution_port": "int",
    "workflow_store": "path",
    "cpp_log_config": "path",
    "ts_open_inference_protocol": "bool",
    "token_expiration_min": "text",
    "ts_header_key_sequence_id": "text",
    "ts_header_key_sequence_start": "text",
    "ts_header_key_sequence_end": "text",
    "disable_token_authorization": "bool",
    "enable_model_api": "bool",
    # These cannot be set from the environment.
    "use_native_io": "bool",
    "io_ratio": "int",
    "metric_time_interval": "int",
    "enable_envvars_config": "bool",
    "model_snapshot": "text",
    "models": "text",
    "version": "text",
    "system_metrics_cmd": "text",
    "use_env_allowed_urls": "bool",
    "python": "path",
    # Read by the Python launcher (ts/model_server.py).
    "vmargs": "text",
    "plugins_path": "path",
}
"""Key of config.properties: the type of its value."""

NOT_FROM_ENVIRONMENT = {
    *("use_native_io", "io_ratio", "metric_time_interval", "enable_envvars_config", "model_snapshot", "models"),
    *("version", "system_metrics_cmd", "use_env_allowed_urls", "python", "vmargs", "plugins_path"),
}

ENVIRONMENT = {
    {"token_expiration_min": "TS_TOKEN_EXPIRATION_TIME_MIN"}.get(
        key, key.upper() if key.startswith("ts_") else f"TS_{key.upper()}"
    ): key
    for key in PROPERTIES
    if key not in NOT_FROM_ENVIRONMENT
}
"""Environment variable: the key it sets if ``enable_envvars_config=true``."""

MODEL_CONFIG: dict[str, Kind] = {
    "minWorkers": "int",
    "maxWorkers": "int",
    "batchSize": "int",
    "maxBatchDelay": "int",
    "responseTimeout": "int",
    "startupTimeout": "int",
    "deviceType": "text",
    "parallelType": "text",
    "parallelLevel": "int",
    "deviceIds": "list",
    "torchrun": "map",
    "maxRetryTimeoutInSec": "int",
    "clientTimeoutInMills": "int",
    "jobQueueSize": "int",
    "useJobTicket": "bool",
    "sequenceMaxIdleMSec": "int",
    "sequenceTimeoutMSec": "int",
    "maxSequenceJobQueueSize": "int",
    "maxNumSequence": "int",
    "continuousBatching": "bool",
    "sequenceBatching": "bool",
    "asyncCommunication": "bool",
    "useVenv": "bool",
}
"""Key of model-config.yaml that the frontend reads: the type of its value."""

MINIMUMS = {"batchSize": 1, "minWorkers": 1, "maxSequenceJobQueueSize": 1, "maxNumSequence": 1}
"""Key of model-config.yaml: the number that TorchServe uses instead of a smaller one; 0 for other numbers."""

IGNORED_BELOW = {
    "responseTimeout": (1, "120 s"),
    "startupTimeout": (1, "120 s"),
    "maxBatchDelay": (0, "100 ms"),
    "maxWorkers": (0, "default_workers_per_model"),
}
"""Key of model-config.yaml: TorchServe ignores a smaller number, and what it uses instead."""

TORCHRUN: dict[str, Kind] = {
    "nnodes": "int",
    "nproc-per-node": "int",
    "rdzv-backend": "text",
    "rdzv-endpoint": "text",
    "rdzv-conf": "text",
    "monitor-interval": "int",
    "node-rank": "int",
    "OMP_NUMBER_THREADS": "int",
}
"""Key of the section ``torchrun`` of model-config.yaml: the type of its value."""

MODELS_JSON: dict[str, Kind] = {
    "defaultVersion": "bool",
    "marName": "text",
    "minWorkers": "int",
    "maxWorkers": "int",
    "batchSize": "int",
    "maxBatchDelay": "int",
    "responseTimeout": "int",
    "startupTimeout": "int",
    "parallelLevel": "int",
    "runtimeType": "text",
}
"""Key of one version in ``models={}``; the first two and parallelLevel apply only in a snapshot."""

API_PARAMETERS = ("batch_size", "max_batch_delay", "initial_workers", "response_timeout", "startup_timeout")
"""Numbers that ``POST /models`` accepts (frontend/.../http/messages/RegisterModelRequest.java)."""

MEANT_FOR_A_MODEL = {
    "batch_size": "batchSize",
    "batchsize": "batchSize",
    "default_batch_size": "batchSize",
    "max_batch_size": "batchSize",
    "max_batch_delay": "maxBatchDelay",
    "batch_delay": "maxBatchDelay",
    "default_batch_delay": "maxBatchDelay",
    "default_max_batch_delay": "maxBatchDelay",
    "min_workers": "minWorkers",
    "min_worker": "minWorkers",
    "max_workers": "maxWorkers",
    "max_worker": "maxWorkers",
    "device_type": "deviceType",
    "device_ids": "deviceIds",
    "max_retry_timeout_in_sec": "maxRetryTimeoutInSec",
    "client_timeout_in_mills": "clientTimeoutInMills",
    "parallel_type": "parallelType",
    **{key.lower(): key for key in MODEL_CONFIG},
}
"""Wrong key that people write in config.properties: the key of model-config.yaml that they need."""

MEANT_FOR_THE_SERVER = {
    "workers": "default_workers_per_model",
    "num_workers": "default_workers_per_model",
    "initial_workers": "default_workers_per_model",
    "default_workers": "default_workers_per_model",
    "workers_per_model": "default_workers_per_model",
    "response_timeout": "default_response_timeout",
    "startup_timeout": "default_startup_timeout",
    "timeout": "default_response_timeout",
    "queue_size": "job_queue_size",
    "model_path": "model_store",
    "model_dir": "model_store",
    "model_url": "load_models",
    "metrics_format": "metrics_mode",
    "enable_token_auth": "disable_token_authorization",
    "disable_token_auth": "disable_token_authorization",
    "token_expiration": "token_expiration_min",
    "port": "inference_address",
    "host": "inference_address",
    "inference_port": "inference_address",
    "management_port": "management_address",
    "metrics_port": "metrics_address",
}
"""Wrong key that people write in config.properties: the right key."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known key that ``word`` was probably meant to be, by its letters; None if none is similar."""
    by_letters = {_letters(key): key for key in known}
    matches = difflib.get_close_matches(_letters(word), by_letters, n=1, cutoff=0.84)
    return by_letters[matches[0]] if matches else None


def _letters(word: str) -> str:
    return re.sub(r"[^a-z0-9]", "", word.lower())
