"""The model-config.yaml of an archive, always with every key that TorchServe needs.

TorchServe silently ignores unknown keys and invalid values, and an archive whose YAML lacks the timeouts pins both to
120 s, whatever the server's settings are (frontend/archive/.../model/ModelConfig.java). So the file is always complete,
every number is a whole number in Java's range, and options override the model folder's file, which overrides the
defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeGuard

import yaml

from tsbatch._version import __version__
from tsbatch.errors import SettingsError, UsageError
from tsbatch.settings import SCHEMA, Settings, load_settings, parse_section

CONFIG_NAME = "model-config.yaml"
JAVA_INT_MAX = 2**31 - 1
GIGABYTE = 10**9

DEFAULTS = {
    "minWorkers": 1,
    "maxWorkers": 1,
    "batchSize": 8,
    "maxBatchDelay": 10,
    "responseTimeout": 120,
    "startupTimeout": 120,
}
"""Default value of each key.

``maxBatchDelay`` (ms) is the latency that a single request pays for waiting for others that do not come. Under load,
requests queue while the worker computes and are taken at once, so a long delay gains nothing. TorchServe's own default
is 100. The timeouts (s) are TorchServe's; ``startupTimeout`` grows with the weights.
"""

STARTUP_SECONDS_PER_GIGABYTE = 30
"""Added to ``startupTimeout`` for each gigabyte of weights: enough for a disk that reads about 35 MB/s."""

_OPTIONS = {
    "workers": ("minWorkers", "maxWorkers"),
    "batch_size": ("batchSize",),
    "max_batch_delay": ("maxBatchDelay",),
    "response_timeout": ("responseTimeout",),
    "startup_timeout": ("startupTimeout",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The requested settings; None means the value of the model folder's own file, or else the default.

    Attributes:
        workers: processes that serve the model, at least 1.
        batch_size: maximum number of requests in a batch, at least 1.
        max_batch_delay: milliseconds to wait for a batch to fill, at least 1.
        response_timeout: seconds a batch may take before TorchServe kills the worker.
        startup_timeout: seconds a worker may take to load.
        threads: torch threads of one worker, or auto: the cores divided among the workers.
        base: the parsed model-config.yaml to start from; its other keys and its section ``handler`` stay as they are.

    Raises:
        UsageError: a number is not whole or out of range.
    """

    workers: int | None = None
    batch_size: int | None = None
    max_batch_delay: int | None = None
    response_timeout: int | None = None
    startup_timeout: int | None = None
    threads: int | Literal["auto"] | None = None
    base: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for option, keys in _OPTIONS.items():
            if getattr(self, option) is not None:
                _check_number(keys[0], getattr(self, option), where=f"--{option.replace('_', '-')}")

    def requested(self) -> dict[str, int]:
        """Return the value of each TorchServe key that an option sets."""
        given = {option: getattr(self, option) for option in _OPTIONS}
        return {key: value for option, value in given.items() if value is not None for key in _OPTIONS[option]}


def complete(
    config: ModelConfig, *, task: str | None = None, aux: Mapping[str, str] | None = None, weight_bytes: int = 0
) -> dict[str, Any]:
    """Return the complete, validated model-config.yaml as a mapping.

    Args:
        config: the requested settings.
        task: the ready-made task; None for a custom handler.
        aux: file inside the archive, by the auxiliary file's name.
        weight_bytes: size of the weights, which determines the default ``startupTimeout``.

    Raises:
        UsageError: TorchServe or tsbatch would not accept a key or value.
    """
    base = _fill_workers(config.base)
    for key in (key for key in DEFAULTS if key in base):
        _check_number(key, base[key], where=f"{CONFIG_NAME}: {key}")
    startup = DEFAULTS["startupTimeout"] + STARTUP_SECONDS_PER_GIGABYTE * (weight_bytes // GIGABYTE)
    numbers = {
        key: config.requested().get(key, base.pop(key, default))
        for key, default in {**DEFAULTS, "startupTimeout": startup}.items()
    }
    if numbers["minWorkers"] > numbers["maxWorkers"]:
        raise UsageError(
            f"{CONFIG_NAME}: minWorkers is above maxWorkers, so TorchServe would ignore both; make them equal"
        )
    section = _tsbatch_section(base.pop("tsbatch", None), config, task, aux or {})
    whole = {**numbers, **base, "tsbatch": section}
    _check_sections(whole, ready_made=task is not None)
    return whole


def overruled(config: ModelConfig) -> list[str]:
    """Return one line for each number of the model folder's own file that an option overrides."""
    base = _fill_workers(config.base)
    return [
        f"{CONFIG_NAME} of the model folder says {key}: {base[key]}; the option's {value} is used"
        for key, value in config.requested().items()
        if key in base and base[key] != value
    ]


def dump(config: Mapping[str, Any]) -> bytes:
    """Return ``config`` as YAML in plain ASCII, because Python reads the file in the worker's own encoding."""
    return yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=False, width=120).encode("ascii")


def read(path: Path) -> dict[str, Any]:
    """Read a model-config.yaml as a mapping.

    Raises:
        UsageError: it cannot be read, is not YAML, or contains no keys.
    """
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise UsageError(f"{path}: expected lines of 'key: value', got {type(value).__name__}")
    return value


def is_java_int(value: Any) -> TypeGuard[int]:
    """Return whether Java parses a YAML value as an Integer."""
    return isinstance(value, int) and not isinstance(value, bool) and -JAVA_INT_MAX - 1 <= value <= JAVA_INT_MAX


def _fill_workers(base: Mapping[str, Any]) -> dict[str, Any]:
    filled = dict(base)
    for one, other in (("minWorkers", "maxWorkers"), ("maxWorkers", "minWorkers")):
        if one in filled:
            filled.setdefault(other, filled[one])
    return filled


def _check_number(key: str, value: Any, *, where: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise UsageError(f"{where}: expected a whole number, got {value!r} (TorchServe would silently ignore it)")
    if value == 0 and key == "maxBatchDelay":
        raise UsageError(
            f"{where}: must be at least 1; TorchServe turns 0 into 100 ms, and with 1 it takes what is queued without "
            "waiting"
        )
    if not 1 <= value <= JAVA_INT_MAX:
        raise UsageError(f"{where}: must be from 1 to {JAVA_INT_MAX}, got {value}")


def _tsbatch_section(own: Any, config: ModelConfig, task: str | None, aux: Mapping[str, str]) -> dict[str, Any]:
    if own is not None and not isinstance(own, Mapping):
        raise UsageError(f"{CONFIG_NAME}: tsbatch: expected keys and values, got {type(own).__name__}")
    section = {"schema": SCHEMA, **(own or {}), "version": __version__}
    if task is not None:
        section["task"] = task
    if config.threads is not None or "threads" not in section:
        section["threads"] = "auto" if config.threads is None else config.threads
    own_aux = section.pop("aux", None) or {}
    if not isinstance(own_aux, Mapping):
        raise UsageError(f"{CONFIG_NAME}: tsbatch.aux: expected 'name: file' lines, got {type(own_aux).__name__}")
    for name in own_aux.keys() & aux.keys():
        raise UsageError(f"--aux {name}: the model folder's {CONFIG_NAME} already has an auxiliary file of that name")
    if own_aux or aux:
        section["aux"] = {**own_aux, **aux}
    return section


def _check_sections(config: Mapping[str, Any], *, ready_made: bool) -> None:
    try:
        if ready_made:
            load_settings(config)
        else:
            parse_section(Settings, config["tsbatch"], "tsbatch")
    except SettingsError as error:
        raise UsageError(str(error)) from None
