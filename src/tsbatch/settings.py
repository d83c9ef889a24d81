"""The section ``tsbatch:`` of model-config.yaml, read once, checked and frozen.

::

    tsbatch:
      schema: 1
      task: text-embedding
      threads: auto
      aux: {labels: labels.json}
      limits: {items: 64}

A key that does not exist is an error that names the nearest right one; TorchServe itself drops what it does
not know without a word (frontend/archive/.../model/ModelConfig.java). The section ``handler:`` is the
user's own; a handler may declare a class for it (``BatchHandler.settings_class``).
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from tsbatch._version import __version__
from tsbatch.errors import SettingsError, Unprocessable

SCHEMA = 1
MAX_RESPONSE_SIZE = 6_553_500
"""TorchServe's default max_response_size in bytes (ConfigManager.java); the worker is not told the real one."""

MAX_PROBLEMS = 6
"""Wrong keys and values that one message names."""
MAX_KEY = 60
"""Characters of a wrong key that a message repeats."""

Dtype = Literal["auto", "float32", "bfloat16", "float16", "int8"]
"""What numbers a model computes with; auto: those that it was saved in."""

ModelT = TypeVar("ModelT", bound=BaseModel)

_brief = reprlib.Repr()
_brief.maxstring = _brief.maxother = MAX_KEY


class Section(BaseModel):
    """Base of every settings section: frozen, and strict about unknown keys and types.

    ``true`` is no number, and neither are NaN and infinity, which JSON as Python reads it and YAML have: NaN is within
    any bounds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Limits(Section):
    """What one request may ask for; over a limit it gets a 413 and hurts nobody else."""

    items: int = Field(default=64, ge=1, description="items in one request")
    characters: int = Field(default=100_000, ge=1, description="characters in one text item")
    image_pixels: int = Field(default=50_000_000, ge=1, description="pixels in one image")
    response_bytes: int = Field(
        default=MAX_RESPONSE_SIZE, ge=1024, description="bytes of one answer; keep it at the server's max_response_size"
    )


class Batching(Section):
    """What shares a forward pass.

    ``packed`` pads nothing, where the model proves that it can; ``bucketed`` sorts the features by length and cuts
    where that saves padding; ``padded`` makes one pass; ``auto`` leaves the choice to the handler.
    ``deduplicate: auto`` computes identical items once where the task is deterministic, as the ready-made ones are.
    """

    mode: Literal["auto", "packed", "bucketed", "padded"] = "auto"
    max_features: int = Field(default=256, ge=1, description="features in one forward pass")
    max_tokens: int | None = Field(default=None, ge=1, description="padded length units in one forward pass")
    deduplicate: bool | Literal["auto"] = "auto"
    isolation_seconds: float = Field(
        default=30.0, gt=0, description="time spent to find the guilty request of a failed batch"
    )


class Telemetry(Section):
    """What is told about a request's time."""

    server_timing: bool = Field(default=True, description="answer with the Server-Timing header")
    metrics: bool | Literal["auto"] = Field(
        default="auto", description="emit all metrics of a batch; auto: when the server's metrics.yaml names them"
    )


class Settings(Section):
    """Everything under ``tsbatch:``; every key has a default, so the section may be left out."""

    schema_version: Literal[1] = Field(default=1, alias="schema")
    version: str | None = Field(default=None, description="the tsbatch that made the archive")
    task: str | None = Field(default=None, description="the ready-made task, for reports; the handler decides")
    engine: str = Field(default="eager", description="what computes the model; tsbatch package --engine auto measures")
    dtype: Dtype = Field(default="auto", description="what numbers the engine computes with; auto: as it was saved")
    device: str = Field(default="auto", description="auto, cpu, cuda or cuda:N")
    threads: int | Literal["auto"] = Field(default="auto", description="torch threads of one worker")
    trust_remote_code: bool = Field(default=False, description="run Python code found in the model folder")
    warmup: bool = Field(default=True, description="run example batches before the first request")
    nan: Literal["null", "error"] = Field(default="null", description="NaN and infinity in an answer: null, or a 500")
    log_messages: bool = Field(default=False, description="log exception texts too; they may hold parts of a payload")
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
    "asyncCommunication": "answers then leave the worker one by one, past the batch loop",
    "continuousBatching": "TorchServe then mixes finished and unfinished requests in one batch",
    "sequenceBatching": "TorchServe then ties a worker to one client's sequence",
}
"""Keys of model-config.yaml that change what ``handle`` is given, with the reason they are refused."""


def load_settings(config: Mapping[str, Any] | None) -> Settings:
    """The frozen settings in a whole model-config.yaml.

    Args:
        config: the parsed YAML; None or empty for an archive without one.

    Raises:
        SettingsError: a wrong key or value, or a TorchServe key that breaks batching.
    """
    config = config or {}
    for key, reason in BREAKS_BATCHING.items():
        if config.get(key):
            raise SettingsError(
                f"model-config.yaml: {key} is on, and a BatchHandler cannot work with it ({reason}); remove the line"
            )
    section = config.get("tsbatch")
    settings = parse_section(Settings, {} if section is None else section, "tsbatch")
    if settings.version is not None and _release(settings.version) > _release(__version__):
        raise SettingsError(
            f"the archive was made by tsbatch {settings.version} and this worker has {__version__}: "
            f"pip install 'tsbatch>={settings.version}', or package it again with the older one"
        )
    return settings


def _release(version: str) -> tuple[int, ...]:
    """Major and minor number: a patch release runs what its fellows made."""
    return tuple(int(part) if part.isdigit() else 0 for part in version.split(".")[:2])


def parse_section(cls: type[ModelT], section: Any, name: str, *, file: str = "model-config.yaml") -> ModelT:
    """``section`` as an instance of ``cls``, with errors a person can act on.

    Raises:
        SettingsError: one line with the key's full name, what was wrong and what is expected.
    """
    if not isinstance(section, Mapping):
        raise SettingsError(f"{file}: {name}: expected keys and values, got {type(section).__name__}")
    try:
        return cls.model_validate(dict(section))
    except ValidationError as error:
        raise SettingsError(f"{file}: " + "; ".join(_explain(cls, name, error))) from None


def parse_parameters(cls: type[ModelT], given: Mapping[str, Any]) -> ModelT:
    """A request's parameters as an instance of ``cls``.

    Raises:
        Unprocessable: an unknown parameter or a wrong value, with what is expected.
    """
    if given:
        _check_unicode(given)
    try:
        return cls.model_validate(dict(given))
    except ValidationError as error:
        raise Unprocessable("; ".join(_explain(cls, "parameters", error))) from None


def _check_unicode(given: Mapping[str, Any]) -> None:
    """Refuse half of a surrogate pair, which JSON can hold and pydantic lets pass, and no tokenizer takes."""
    try:
        orjson.dumps(dict(given), option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError as error:
        if "surrogates" in str(error):
            raise Unprocessable("parameters: half of a surrogate pair", expected="whole characters") from None


def _explain(cls: type[BaseModel], name: str, error: ValidationError) -> list[str]:
    # A client may send a hundred thousand of them, each a megabyte long: what is said, and looked at, has an end.
    problems, lines = error.errors(include_url=False), []
    for problem in problems[:MAX_PROBLEMS]:
        path = [name, *(str(part)[:MAX_KEY] for part in problem["loc"])]
        if problem["type"] == "extra_forbidden":
            known = _keys_at(cls, problem["loc"][:-1])
            near = difflib.get_close_matches(path[-1], known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(sorted(known))}"
            lines.append(f"{'.'.join(path)} does not exist; {hint}")
        else:
            lines.append(f"{'.'.join(path)}: {problem['msg']}, got {_brief.repr(problem['input'])}")
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
