"""The ``tsbatch:`` section of model-config.yaml, read once, validated and frozen.

::

    tsbatch:
      schema: 1
      task: text-embedding
      threads: auto
      aux: {labels: labels.json}
      limits: {items: 64}

An unknown key is an error that names the closest valid one; TorchServe itself silently drops unknown keys
(frontend/archive/.../model/ModelConfig.java). The ``handler:`` section belongs to the user; a handler may declare a
class for it (``BatchHandler.settings_class``).
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from tsbatch._version import __version__
from tsbatch.errors import SettingsError, Unprocessable

SCHEMA = 1
MAX_RESPONSE_SIZE = 6_553_500
"""TorchServe's default max_response_size in bytes (ConfigManager.java); the worker does not learn the real value."""

MAX_PROBLEMS = 6
"""Maximum number of wrong keys and values in one message."""
MAX_KEY = 60
"""Maximum number of characters of a wrong key in a message."""

Dtype = Literal["auto", "float32", "bfloat16", "float16", "int8"]
"""The number format in which a model computes; auto: the format in which it was saved."""

ModelT = TypeVar("ModelT", bound=BaseModel)

_brief = reprlib.Repr()
_brief.maxstring = _brief.maxother = MAX_KEY


class Section(BaseModel):
    """Base of every settings section: frozen, and strict about unknown keys and types.

    ``true`` is not accepted as a number, and neither are NaN and infinity, which Python's JSON and YAML accept: NaN
    would pass every bound.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Limits(Section):
    """Limits of one request; a request over a limit gets a 413 and does not affect others."""

    items: int = Field(default=64, ge=1, description="items in one request")
    characters: int = Field(default=100_000, ge=1, description="characters in one text item")
    image_pixels: int = Field(default=50_000_000, ge=1, description="pixels in one image")
    response_bytes: int = Field(
        default=MAX_RESPONSE_SIZE, ge=1024, description="bytes of one answer; set it to the server's max_response_size"
    )


class Batching(Section):
    """How features share a forward pass.

    ``packed`` uses no padding, if the model proves that it can; ``bucketed`` sorts the features by length and splits
    them where that saves padding; ``equal`` puts only features of equal length into a pass, without padding; ``single``
    runs them one by one; ``padded`` makes one pass; ``auto`` leaves the choice to the handler.
    ``proof: load`` has a text task prove the mode before it is READY; ``skip`` trusts a mode other than ``auto``.
    ``deduplicate: auto`` computes identical items once if the task is deterministic, as the ready-made ones are.
    """

    mode: Literal["auto", "packed", "bucketed", "equal", "single", "padded"] = "auto"
    proof: Literal["load", "skip"] = "load"
    max_features: int = Field(default=256, ge=1, description="features in one forward pass")
    max_tokens: int | None = Field(default=None, ge=1, description="padded length units in one forward pass")
    deduplicate: bool | Literal["auto"] = "auto"
    isolation_seconds: float = Field(
        default=30.0, gt=0, description="time for finding the bad requests of a failed batch"
    )

    @field_validator("proof")
    @classmethod
    def _has_a_mode(cls, value: str, info: ValidationInfo) -> str:
        if value == "skip" and info.data.get("mode") == "auto":
            raise ValueError("skip needs a mode other than auto, because auto chooses by the proof")
        return value


class Telemetry(Section):
    """What is reported about the time of a request."""

    server_timing: bool = Field(default=True, description="send the Server-Timing header")
    metrics: bool | Literal["auto"] = Field(
        default="auto", description="emit all metrics of a batch; auto: if the server's metrics.yaml contains them"
    )


class Settings(Section):
    """The whole ``tsbatch:`` section; every key has a default, so the section is optional."""

    schema_version: Literal[1] = Field(default=1, alias="schema")
    version: str | None = Field(default=None, description="the version of tsbatch that created the archive")
    task: str | None = Field(
        default=None, description="the ready-made task, for reports only; the handler determines it"
    )
    engine: str = Field(
        default="eager", description="the engine that runs the model; tsbatch package --engine auto measures"
    )
    dtype: Dtype = Field(default="auto", description="the number format of the engine; auto: as the model was saved")
    device: str = Field(default="auto", description="auto, cpu, cuda or cuda:N")
    threads: int | Literal["auto"] = Field(default="auto", description="torch threads of one worker")
    trust_remote_code: bool = Field(default=False, description="run Python code from the model folder")
    warmup: bool = Field(default=True, description="run example batches before the first request")
    nan: Literal["null", "error"] = Field(default="null", description="NaN and infinity in an answer: null, or a 500")
    log_messages: bool = Field(
        default=False, description="also log exception texts, which may contain parts of a payload"
    )
    aux: Mapping[str, str] = Field(default_factory=dict, description="name: file, read once into self.aux")
    limits: Limits = Field(default_factory=Limits)
    batching: Batching = Field(default_factory=Batching)
    telemetry: Telemetry = Field(default_factory=Telemetry)

    @field_validator("threads")
    @classmethod
    def _positive(cls, value: int | str) -> int | str:
        if isinstance(value, int) and value < 1:
            raise ValueError("must be auto or a number from 1")
        return value


BREAKS_BATCHING = {
    "asyncCommunication": "answers then bypass the batch loop one by one",
    "continuousBatching": "TorchServe then mixes finished and unfinished requests in one batch",
    "sequenceBatching": "TorchServe then ties a worker to one client's sequence",
}
"""Keys of model-config.yaml that change the input of ``handle``, with the reason why they are refused."""


def load_settings(config: Mapping[str, Any] | None) -> Settings:
    """Return the settings in a complete model-config.yaml.

    Args:
        config: the parsed YAML; None or empty for an archive without one.

    Raises:
        SettingsError: a key or value is wrong, or a TorchServe key breaks batching.
    """
    config = config or {}
    for key, reason in BREAKS_BATCHING.items():
        if config.get(key):
            raise SettingsError(
                f"model-config.yaml: {key} is enabled, but a BatchHandler cannot work with it ({reason}); "
                "remove the line"
            )
    section = config.get("tsbatch")
    settings = parse_section(Settings, {} if section is None else section, "tsbatch")
    if settings.version is not None and _release(settings.version) > _release(__version__):
        raise SettingsError(
            f"the archive was created with tsbatch {settings.version}, but this worker has {__version__}: "
            f"pip install 'tsbatch>={settings.version}', or package it again with the older version"
        )
    return settings


def _release(version: str) -> tuple[int, ...]:
    """Return the major and minor version: patch releases are compatible with each other."""
    return tuple(int(part) if part.isdigit() else 0 for part in version.split(".")[:2])


def parse_section(cls: type[ModelT], section: Any, name: str, *, file: str = "model-config.yaml") -> ModelT:
    """Validate ``section`` as ``cls``, with actionable errors.

    Raises:
        SettingsError: one line with the full name of the key, what is wrong and what is expected.
    """
    if not isinstance(section, Mapping):
        raise SettingsError(f"{file}: {name}: expected keys and values, got {type(section).__name__}")
    try:
        return cls.model_validate(dict(section))
    except ValidationError as error:
        raise SettingsError(f"{file}: " + "; ".join(_explain(cls, name, error))) from None


def parse_parameters(cls: type[ModelT], given: Mapping[str, Any]) -> ModelT:
    """Validate the parameters of a request as ``cls``.

    Raises:
        Unprocessable: a parameter is unknown or its value is wrong; says what is expected.
    """
    if given:
        _check_unicode(given)
    try:
        return cls.model_validate(dict(given))
    except ValidationError as error:
        raise Unprocessable("; ".join(_explain(cls, "parameters", error))) from None


def _check_unicode(given: Mapping[str, Any]) -> None:
    """Reject half surrogate pairs, which JSON and pydantic accept but no tokenizer does."""
    try:
        orjson.dumps(dict(given), option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError as error:
        if "surrogates" in str(error):
            raise Unprocessable("parameters: half of a surrogate pair", expected="whole characters") from None


def _explain(cls: type[BaseModel], name: str, error: ValidationError) -> list[str]:
    # A client may send a hundred thousand of them, each a megabyte long, so the number that is examined is limited.
    problems, lines = error.errors(include_url=False), []
    for problem in problems[:MAX_PROBLEMS]:
        path = [name, *(str(part)[:MAX_KEY] for part in problem["loc"])]
        if problem["type"] == "extra_forbidden":
            known = _keys_at(cls, problem["loc"][:-1])
            near = difflib.get_close_matches(path[-1], known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(sorted(known))}"
            lines.append(f"{'.'.join(path)} does not exist; {hint}")
        else:
            message = problem["msg"].removeprefix("Value error, ")  # pydantic's, before those of our own validators
            lines.append(f"{'.'.join(path)}: {message}, got {_brief.repr(problem['input'])}")
    if len(problems) > MAX_PROBLEMS:
        lines.append(f"and {len(problems) - MAX_PROBLEMS} more")
    return lines


def _keys_at(cls: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    for part in path:
        found = cls.model_fields.get(str(part))
        nested = found.annotation if found else None
        if not (isinstance(nested, type) and issubclass(nested, BaseModel)):
            return []
        cls = nested
    return [field.alias or key for key, field in cls.model_fields.items()]
