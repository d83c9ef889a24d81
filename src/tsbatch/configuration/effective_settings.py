"""Determine the effective value of each setting of a model, and the layer it comes from.

The order of the layers differs between settings (docs/configuration.md of TorchServe claims a single order)::

    batchSize, maxBatchDelay          API > model-config.yaml > models={} > 1, 100 ms
    responseTimeout, startupTimeout   model-config.yaml (120 s if it lacks them) > models={} > API > default_... > 120 s
    workers at startup                model-config.yaml > models={} > default_workers_per_model > GPUs > cores
    workers by API                    model-config.yaml > initial_workers > default_workers_per_model > 0
    job queue                         model-config.yaml > job_queue_size > 100

Sources: frontend/server/.../wlm/ModelManager.java (createModel), ModelServer.java (initModelStore),
util/ApiUtils.java (handleRegister), util/ConfigManager.java and frontend/archive/.../model/ModelConfig.java.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tsbatch.archive.model_config import JAVA_INT_MAX, is_java_int
from tsbatch.configuration.known_settings import API_PARAMETERS, IGNORED_BELOW, MINIMUMS, MODEL_CONFIG
from tsbatch.configuration.models_property import Models, parse_models
from tsbatch.errors import UsageError

Layer = Literal["API", "model-config.yaml", "models={}", "config.properties", "default"]

UNSET = {"batch_size": -1, "max_batch_delay": -100, "response_timeout": -1, "startup_timeout": -1}
"""Values of the API's parameters that TorchServe treats as 'not given'."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a model.

    Attributes:
        name: as in ``GET /models/{name}``.
        value: the effective value; delays in ms, timeouts in s.
        layer: where it comes from.
        remark: what is surprising about it; usually empty.
    """

    name: str
    value: int | str | bool
    layer: Layer
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A model with everything that determines its settings.

    Attributes:
        name, version: as it is served.
        config: its model-config.yaml; None if TorchServe reads none.
        properties: config.properties of the server.
        api: the parameters of POST /models; None if the model is loaded at startup.
        cores: processors that Java sees.
        gpus: GPUs of the machine.
    """

    name: str
    version: str
    config: Mapping[str, Any] | None
    properties: Mapping[str, str]
    api: Mapping[str, str] | None = None
    cores: int = 1
    gpus: int = 0


def effective(model: Deployment) -> list[Setting]:
    """Return every setting of a model with its effective value.

    Raises:
        UsageError: TorchServe would not load the model with one of the values.
    """
    layers = _Layers(model)
    return [
        layers.batch("batchSize", "batch_size", 1),
        layers.batch("maxBatchDelay", "max_batch_delay", 100),
        layers.timeout("responseTimeout", "response_timeout"),
        layers.timeout("startupTimeout", "startup_timeout"),
        *layers.workers(),
        layers.queue(),
        layers.from_yaml("maxRetryTimeoutInSec", 300),
        layers.from_yaml("clientTimeoutInMills", 0),
        *(layers.from_yaml(key, default=False) for key in ("continuousBatching", "useJobTicket", "useVenv")),
    ]


def read_yaml_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers and switches of a model-config.yaml as ModelConfig.build reads them, without ignored ones."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        kind = MODEL_CONFIG.get(key)
        if kind == "int" and is_java_int(value) and value >= IGNORED_BELOW.get(key, (value,))[0]:
            found[key] = max(MINIMUMS.get(key, 0), value)
        elif kind == "bool" and isinstance(value, bool):
            found[key] = value
    return found


def read_api(given: Mapping[str, str]) -> dict[str, int]:
    """Return the API's parameters that are numbers; TorchServe treats any other value as not given.

    Raises:
        UsageError: TorchServe has no such parameter.
    """
    for name in given:
        if name not in API_PARAMETERS:
            raise UsageError(f"--api {name}: POST /models accepts {', '.join(API_PARAMETERS)}")
    numbers = {name: int(text) for name, text in given.items() if _is_java_int_text(text)}
    return {name: value for name, value in numbers.items() if value != UNSET.get(name)}


class _Layers:
    def __init__(self, model: Deployment) -> None:
        self._model = model
        self._yaml = None if model.config is None else read_yaml_values(model.config)
        self._api = read_api(model.api or {})
        try:
            models: Models = parse_models(model.properties["models"]) if "models" in model.properties else {}
        except ValueError as error:
            raise UsageError(f"models: {error}; TorchServe would not start") from None
        self._json = models.get(model.name, {}).get(model.version, {})

    def batch(self, key: str, parameter: str, default: int) -> Setting:
        """Return a setting for which the API has precedence over all others."""
        if parameter in self._api:
            return Setting(key, self._api[parameter], "API", self._batch_remark(key, self._api[parameter]))
        own = (self._yaml or {}).get(key, 0)
        if own > 0:
            return Setting(key, own, "model-config.yaml")
        zero = "0 in model-config.yaml counts as not set" if key in (self._yaml or {}) else ""
        found = self._from_json(key)
        return Setting(key, found or default, "models={}" if found else "default", zero)

    def timeout(self, key: str, parameter: str) -> Setting:
        """Return a setting that model-config.yaml determines, even if it does not set it."""
        if self._yaml is not None:
            if key in self._yaml:
                return Setting(key, self._yaml[key], "model-config.yaml")
            remark = "an archive whose model-config.yaml lacks it gets 120 s, whatever the other layers say"
            return Setting(key, 120, "model-config.yaml", remark)
        if found := self._from_json(key):
            remark = "models={} overrides the API's parameter" if parameter in self._api else ""
            return Setting(key, found, "models={}", remark)
        if parameter in self._api:
            return Setting(key, self._api[parameter], "API")
        return self._property(key, f"default_{parameter}", 120)

    def workers(self) -> list[Setting]:
        """Return the numbers of workers that TorchServe starts."""
        own = self._yaml or {}
        low, high = own.get("minWorkers", 0), own.get("maxWorkers", 0)
        if 0 < low <= high:
            return self._pair(low, high, "model-config.yaml")
        incomplete = {"minWorkers", "maxWorkers"} & own.keys()
        remark = f"{' and '.join(sorted(incomplete))} of model-config.yaml have no effect" if incomplete else ""
        if self._model.api is not None:
            return self._workers_by_api(remark)
        number, layer = self._default_workers()
        found = [(self._from_json(key), key) for key in ("minWorkers", "maxWorkers")]
        return [
            Setting(key, value or number, "models={}" if value else layer, "" if value else remark)
            for value, key in found
        ]

    def queue(self) -> Setting:
        """Return the number of requests that may wait."""
        if own := (self._yaml or {}).get("jobQueueSize", 0):
            return Setting("jobQueueSize", own, "model-config.yaml")
        return self._property("jobQueueSize", "job_queue_size", 100)

    def from_yaml(self, key: str, default: int | bool) -> Setting:
        """Return a setting that only model-config.yaml has."""
        own = self._yaml or {}
        return Setting(key, own[key], "model-config.yaml") if key in own else Setting(key, default, "default")

    def _workers_by_api(self, remark: str) -> list[Setting]:
        layer: Layer = "API"
        number = self._api.get("initial_workers")
        if number is None:
            found = self._property("", "default_workers_per_model", 0)
            number, layer = int(found.value), found.layer
        ignored = [key for key in ("minWorkers", "maxWorkers") if key in self._json]
        if ignored:
            remark = remark or "models={} does not set the workers of a model registered by API"
        return self._pair(max(0, number), max(0, number), layer, remark)

    def _default_workers(self) -> tuple[int, Layer]:
        if self._model.properties.get("debug", "").lower() == "true":
            return 1, "config.properties"
        found = self._property("", "default_workers_per_model", 0)
        if found.value:
            return int(found.value), found.layer
        limit = self._property("", "number_of_gpu", JAVA_INT_MAX)
        gpus = min(self._model.gpus, int(limit.value))
        return gpus or self._model.cores, "default"

    def _property(self, name: str, key: str, default: int) -> Setting:
        text = self._model.properties.get(key)
        if text is None:
            return Setting(name, default, "default")
        if not _is_java_int_text(text):
            raise UsageError(f"{key}={text}: TorchServe fails on it (NumberFormatException); expected a whole number")
        return Setting(name, int(text), "config.properties")

    def _from_json(self, key: str) -> int:
        """The value in ``models={}``; 0 if it has no effect."""
        value = self._json.get(key)
        if key not in self._json:
            return 0
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise UsageError(
                f"models: {self._model.name} {self._model.version}: {key}: TorchServe cannot read {value!r}"
            )
        if isinstance(value, str) and not _is_java_int_text(value):
            raise UsageError(f"models: {self._model.name} {self._model.version}: {key}: {value!r} is not a number")
        return max(0, int(value))

    @staticmethod
    def _batch_remark(key: str, value: int) -> str:
        return "batches of at most 2 requests" if key == "maxBatchDelay" and value == 0 else ""

    @staticmethod
    def _pair(low: int, high: int, layer: Layer, remark: str = "") -> list[Setting]:
        return [Setting("minWorkers", low, layer, remark), Setting("maxWorkers", high, layer, remark)]


def _is_java_int_text(text: str) -> bool:
    return re.fullmatch(r"[+-]?[0-9]+", text) is not None and is_java_int(int(text))
