"""What lint says TorchServe does, to be seen on a real one: each claim with the file as it is bad, and mended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.e2e.raw_server import ECHO, RawServer

See = Callable[[RawServer], Any]


@dataclass(frozen=True)
class ConfigClaim:
    """A claim about config.properties.

    Attributes:
        rule: whose claim it is.
        bad, good: the file; ``good`` None for what ``--fix`` makes of it.
        see: what is looked at.
        then, wished: what it shows with the bad and with the good file.
        env: the server's environment.
        files: what else lies in the model store: archive name: model-config.yaml.
    """

    rule: str
    bad: str
    see: See
    then: Any
    wished: Any
    good: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    files: dict[str, str | None] = field(default_factory=lambda: {"m": None})


def response_timeout(server: RawServer) -> Any:
    """Of a model that was registered without any parameter; the error's name when it cannot be."""
    answer = server.register("m")
    if answer.status != 200:
        return answer.json()["type"]
    return server.describe("m")["responseTimeout"]


def batch_size(server: RawServer) -> Any:
    assert server.register("m").status == 200
    return server.describe("m")["batchSize"]


def delay(server: RawServer) -> Any:
    assert server.register("m").status == 200
    return server.describe("m")["maxBatchDelay"]


def register_status(server: RawServer) -> int:
    return server.register("m").status


def starts(server: RawServer) -> bool:
    return not server.console


def loaded(server: RawServer) -> list[str]:
    return sorted(server.models())


def far_url(server: RawServer) -> str:
    """Registering from a host that the pattern was not meant to allow: refused, or tried."""
    told = server.register("m", url="https://exampleXcom/m.mar").body.decode()
    return "refused" if "does not match any allowed" in told else "tried"


def metrics_page(server: RawServer) -> bool:
    """Whether the metrics address shows the request that was counted."""
    from tests.e2e.support import request

    server.register("m", initial_workers=1)
    server.predict("m")
    return b"ts_inference_requests_total" in request(server.metrics, "GET", "/metrics").body


CONFIG_CLAIMS = [
    ConfigClaim(
        "config-several-pairs",
        "cors_allowed_origin=* default_response_timeout=33\n",
        response_timeout,
        120,
        33,
    ),
    ConfigClaim(
        "config-model-key", "batch_size=8\n", batch_size, 1, 8, good='models={"m": {"1.0": {"batchSize": 8}}}\n'
    ),
    ConfigClaim("config-unknown-key", "default_reponse_timeout=33\n", response_timeout, 120, 33),
    ConfigClaim("config-trailing-blank", "enable_model_api=true \n", register_status, 405, 200),
    ConfigClaim("config-boolean", "enable_model_api=yes\n", register_status, 405, 200),
    ConfigClaim("config-backslash", "allowed_urls=https://example\\.com/.*\n", far_url, "tried", "refused"),
    ConfigClaim(
        "config-swallowed-line",
        "workflow_store=C:\\\\wf\\\\\\\ndefault_response_timeout=33\n",
        response_timeout,
        120,
        33,
        good="default_response_timeout=33\n",
    ),
    ConfigClaim(
        "config-inline-comment",
        "default_response_timeout=33 # seconds\n",
        response_timeout,
        "NumberFormatException",
        33,
    ),
    ConfigClaim(
        "config-number",
        "default_response_timeout=33s\n",
        response_timeout,
        "NumberFormatException",
        33,
        good="default_response_timeout=33\n",
    ),
    ConfigClaim("config-quotes", 'metrics_address="http://127.0.0.1:{metrics}"\n', starts, False, True),
    ConfigClaim(
        "config-address",
        "metrics_address=127.0.0.1:{metrics}\n",
        starts,
        False,
        True,
        good="metrics_address=http://127.0.0.1:{metrics}\n",
    ),
    ConfigClaim(
        "config-models-json",
        'models={"m": {"1.0": {"batchSize": 8,}}}\n',
        starts,
        False,
        True,
        good='models={"m": {"1.0": {"batchSize": 8}}}\n',
    ),
    ConfigClaim(
        "config-models-value",
        'models={"m": {"1.0": {"maxBatchDelay": 0}}}\n',
        delay,
        100,
        1,
        good='models={"m": {"1.0": {"maxBatchDelay": 1}}}\n',
    ),
    ConfigClaim(
        "config-models-key",
        'models={"m": {"1.0": {"batch_size": 8}}}\n',
        batch_size,
        1,
        8,
        good='models={"m": {"1.0": {"batchSize": 8}}}\n',
    ),
    ConfigClaim(
        "config-load-models-space",
        "load_models=m.mar, n.mar\ndefault_workers_per_model=1\n",
        loaded,
        ["m"],
        ["m", "n"],
        files={"m": None, "n": None},
    ),
    ConfigClaim(
        "config-duplicate-key", "default_response_timeout=33\ndefault_response_timeout=44\n", response_timeout, 44, 44
    ),
    ConfigClaim(
        "config-env-syntax",
        "default_response_timeout=${WAIT}\n",
        response_timeout,
        "NumberFormatException",
        33,
        env={"WAIT": "33"},
    ),
    ConfigClaim(
        "config-env-unset",
        "default_response_timeout=$$WAIT_LONG$$\n",
        starts,
        False,
        True,
        good="default_response_timeout=33\n",
    ),
    ConfigClaim(
        "config-env-off",
        "use_env_allowed_urls=true\n",
        response_timeout,
        120,
        33,
        good="enable_envvars_config=true\n",
        env={"TS_DEFAULT_RESPONSE_TIMEOUT": "33"},
    ),
    ConfigClaim(
        "config-port-twice",
        "metrics_address=http://127.0.0.1:{inference}\n",
        starts,
        False,
        True,
        good="metrics_address=http://127.0.0.1:{metrics}\n",
    ),
    ConfigClaim(
        "config-metrics-mode", "metrics_mode=json\n", metrics_page, False, True, good="metrics_mode=prometheus\n"
    ),
]


@dataclass(frozen=True)
class YamlClaim:
    """A claim about model-config.yaml: the bad file, the good one (None: what ``--fix`` makes), and what holds.

    ``then`` and ``wished`` are keys of GET /models/{name}, or the status of the registration where that is refused.
    """

    rule: str
    bad: str
    then: dict[str, Any] | int
    wished: dict[str, Any]
    good: str | None = None


T = "responseTimeout: 60\nstartupTimeout: 60\n"
YAML_CLAIMS = [
    YamlClaim("yaml-type", f"batchSize: '8'\n{T}", {"batchSize": 1}, {"batchSize": 8}),
    YamlClaim("yaml-unknown-key", f"batchsize: 8\n{T}", {"batchSize": 1}, {"batchSize": 8}),
    YamlClaim("yaml-delay-zero", f"maxBatchDelay: 0\n{T}", {"maxBatchDelay": 100}, {"maxBatchDelay": 1}),
    YamlClaim("yaml-workers-pair", f"minWorkers: 2\n{T}", {"minWorkers": 0}, {"minWorkers": 2, "maxWorkers": 2}),
    YamlClaim(
        "yaml-range",
        "batchSize: 0\nmaxBatchDelay: -5\nresponseTimeout: 0\nstartupTimeout: 60\n",
        {"batchSize": 1, "maxBatchDelay": 100, "responseTimeout": 120},
        {"batchSize": 2, "maxBatchDelay": 5, "responseTimeout": 9},
        good="batchSize: 2\nmaxBatchDelay: 5\nresponseTimeout: 9\nstartupTimeout: 60\n",
    ),
    YamlClaim(
        "yaml-timeouts-pinned",
        "batchSize: 2\n",
        {"responseTimeout": 120, "startupTimeout": 120},
        {"responseTimeout": 300, "startupTimeout": 400},
        good="batchSize: 2\nresponseTimeout: 300\nstartupTimeout: 400\n",
    ),
    YamlClaim(
        "yaml-server-key",
        f"job_queue_size: 7\n{T}",
        {"jobQueueSize": 100},
        {"jobQueueSize": 7},
        good=f"jobQueueSize: 7\n{T}",
    ),
    YamlClaim(
        "yaml-nested-key",
        f"handler: {{batchSize: 8}}\n{T}",
        {"batchSize": 1},
        {"batchSize": 8},
        good=f"batchSize: 8\n{T}",
    ),
    YamlClaim(
        "yaml-duplicate-key",
        f"batchSize: 8\nbatchSize: 3\n{T}",
        {"batchSize": 3},
        {"batchSize": 8},
        good=f"batchSize: 8\n{T}",
    ),
    YamlClaim("yaml-empty", "# nothing\n", 500, {"batchSize": 8}, good=f"batchSize: 8\n{T}"),
    YamlClaim(
        "yaml-syntax",
        "batchSize: 8\n\tmaxBatchDelay: 5\n",
        {"batchSize": 1},
        {"batchSize": 8},
        good=f"batchSize: 8\n{T}",
    ),
]

HANDLE = """
class Own:
    def initialize(self, context):
        self.context = context

    def handle(self, data, context):
        {body}
"""


@dataclass(frozen=True)
class HandlerClaim:
    """A claim about a handler module: ``then`` is a part of what the worker logs, or of the answer to two requests."""

    rule: str
    bad: str
    then: str
    good: str = ECHO


HANDLER_CLAIMS = [
    HandlerClaim("handler-no-class", "import os\n", "Expected only one class"),
    HandlerClaim(
        "handler-two-classes",
        f"import dataclasses\n\n\n@dataclasses.dataclass\nclass Options:\n    top: int = 5\n\n{ECHO}",
        "Expected only one class",
    ),
    HandlerClaim(
        "handler-module-handle",
        f"{ECHO}\n\ndef handle(data, context):\n    return None if data is None else ['more'] * (len(data) + 1)\n",
        "number of batch response mismatched",
    ),
    HandlerClaim(
        "handler-function-none",
        "def handle(data, context):\n    return [str(len(row)) for row in data]\n",
        "NoneType",
        good="def handle(data, context):\n    return None if data is None else [str(len(row)) for row in data]\n",
    ),
    HandlerClaim(
        "handler-relative-import", f"from .net import Net\n{ECHO}", "No module named 'ts.torch_handler.own_handler'"
    ),
    HandlerClaim(
        "handler-argv",
        f"import argparse\n\nOPTIONS = argparse.ArgumentParser().parse_args()\n{ECHO}",
        "unrecognized arguments",
    ),
    HandlerClaim(
        "handler-first-only",
        HANDLE.format(body="return [str(row) for row in str(data[0])[:1]]"),
        "number of batch response mismatched",
    ),
    HandlerClaim("handler-one-answer", HANDLE.format(body='return ["one"]'), "number of batch response mismatched"),
    HandlerClaim("handler-no-list", HANDLE.format(body='return {"a": len(data)}'), "Invalid model predict output"),
    HandlerClaim("handler-exits", f"import sys\n\n{HANDLE.format(body='sys.exit(3)')}", "Worker died"),
    HandlerClaim("handler-syntax", "def broken(:\n    pass\n", "SyntaxError"),
]
