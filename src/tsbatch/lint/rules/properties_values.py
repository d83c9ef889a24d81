"""Rules for the values of config.properties."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tsbatch.archive.model_config import JAVA_INT_MAX
from tsbatch.configuration.known_settings import PROPERTIES
from tsbatch.lint.findings import Issue
from tsbatch.lint.properties_file import PropertiesFile
from tsbatch.lint.registry import rule
from tsbatch.lint.rules.shared_checks import fixed, implausible_seconds

ENVELOPES = ("body", "json", "kserve", "kservev2")
METRICS_MODES = ("log", "prometheus", "legacy")
YES = {"yes", "on", "1", "y", "t", "enable", "enabled"}
TIMEOUTS = ("default_response_timeout", "default_startup_timeout", "unregister_model_timeout")
LIMITS = {"int": JAVA_INT_MAX, "long": 2**63 - 1}


@rule("config-number", PropertiesFile, "error")
def number(file: PropertiesFile) -> Iterator[Issue]:
    """A number that Java cannot parse.

    Java parses these values with Integer.parseInt: no units, no underscores, no fractions, at most 2147483647.
    TorchServe fails with a NumberFormatException, at startup or when it first uses the value.
    """
    for pair in file.pairs:
        limit = LIMITS.get(PROPERTIES.get(pair.key, ""))
        if limit is None or re.search(r"\s", pair.value.strip()):
            continue  # other rules cover values of several words
        if not re.fullmatch(r"[+-]?[0-9]+", pair.value) or int(pair.value) > limit:
            digits = re.search(r"[0-9]+", pair.value.replace("_", "").replace(",", ""))
            right = f"{pair.key}={digits[0]}" if digits and int(digits[0]) <= limit else ""
            message = f"{pair.key}={pair.value} is not a whole number for Java"
            yield Issue(pair.line, message, "TorchServe fails with a NumberFormatException when it uses it", right)


@rule("config-boolean", PropertiesFile, "error")
def boolean(file: PropertiesFile) -> Iterator[Issue]:
    """A switch that is neither true nor false.

    Java's Boolean.parseBoolean accepts true in any case; everything else is false, including yes, on and 1.
    """
    for pair in file.pairs:
        word = pair.value.lower()
        if PROPERTIES.get(pair.key) == "bool" and word not in {"true", "false"} and not re.search(r"[\s'\"$]", word):
            right = f"{pair.key}={'true' if word in YES else 'false'}"
            yield fixed(pair, f"{pair.key}={pair.value} means false", "TorchServe reads it as false", right)


@rule("config-metrics-mode", PropertiesFile, "error")
def metrics_mode(file: PropertiesFile) -> Iterator[Issue]:
    """An unknown metrics mode.

    metrics_mode is log, prometheus or legacy; for anything else TorchServe logs one error and uses log, and /metrics
    stays empty.
    """
    pair = file.last("metrics_mode")
    if pair and re.sub(r"\s", "", pair.value).lower() not in METRICS_MODES and '"' not in pair.value:
        message = f"unknown metrics_mode {pair.value}; expected {', '.join(METRICS_MODES)}"
        yield Issue(pair.line, message, "TorchServe uses log", "metrics_mode=prometheus")


@rule("config-metrics-elsewhere", PropertiesFile, "note")
def metrics_elsewhere(file: PropertiesFile) -> Iterator[Issue]:
    """Metrics that are not in the logs.

    With metrics_mode=prometheus, TorchServe writes nothing to ts_metrics.log and model_metrics.log; all metrics are at
    the metrics address.
    """
    pair = file.last("metrics_mode")
    if pair and pair.value.strip().lower() == "prometheus":
        effect = "ts_metrics.log and model_metrics.log stay empty; read http://<metrics_address>/metrics"
        yield Issue(pair.line, "metrics are available only at the metrics address", effect)


@rule("config-envelope-unknown", PropertiesFile, "error")
def envelope_unknown(file: PropertiesFile) -> Iterator[Issue]:
    """An unknown service envelope.

    Each worker imports ts.torch_handler.request_envelope.<name>; without such a module, every worker of every model
    dies while loading.
    """
    pair = file.last("service_envelope")
    if pair and pair.value and pair.value not in ENVELOPES:
        message = f"unknown service_envelope {pair.value}; expected {', '.join(ENVELOPES)}"
        yield Issue(pair.line, message, "no worker loads: No module named 'ts.torch_handler.request_envelope...'")


@rule("config-milliseconds", PropertiesFile, "warning")
def milliseconds(file: PropertiesFile) -> Iterator[Issue]:
    """A timeout in milliseconds.

    default_response_timeout, default_startup_timeout and unregister_model_timeout are in seconds.
    """
    for pair in file.pairs:
        if pair.key in TIMEOUTS and pair.value.isascii() and pair.value.isdigit():
            yield from implausible_seconds(pair.line, pair.key, int(pair.value), "=")


@rule("config-load-models-space", PropertiesFile, "error")
def load_models_space(file: PropertiesFile) -> Iterator[Issue]:
    """Whitespace in load_models.

    TorchServe splits load_models at the commas and keeps the whitespace: ' b.mar' is not the file 'b.mar', and the
    server starts without the model.
    """
    pair = file.last("load_models")
    parts = pair.value.split(",") if pair else []
    blanks = [part for part in parts[:-1] if part != part.strip()] + [part for part in parts[1:] if part[:1].isspace()]
    if pair and blanks and "#" not in pair.value:
        names = ", ".join(map(repr, blanks))
        effect = f"TorchServe looks for {names}, including the whitespace, and starts without it"
        right = f"load_models={','.join(part.strip() for part in parts)}"
        yield fixed(pair, "load_models has whitespace around its commas", effect, right)


@rule("config-no-models", PropertiesFile, "note")
def no_models(file: PropertiesFile) -> Iterator[Issue]:
    """A server that can never have a model.

    Without load_models the server starts without models, and without enable_model_api=true it answers POST /models
    with 405.
    """
    if not file.values.keys() & {"load_models", "model_snapshot"} and not file.is_true("enable_model_api"):
        effect = "unless started with --models, the server has no model and accepts none (405)"
        yield Issue(1, "neither load_models nor enable_model_api is set", effect, "enable_model_api=true")


@rule("config-shared-cores", PropertiesFile, "note")
def shared_cores(file: PropertiesFile) -> Iterator[Issue]:
    """As many workers as cores.

    Without default_workers_per_model, TorchServe starts one worker per core for each model (one per GPU if there are
    any), and each worker lets torch use all cores.
    """
    pair = file.last("load_models")
    if pair and pair.value.strip() and not file.values.keys() & {"default_workers_per_model", "models"}:
        cores = file.machine.cores
        effect = f"a model that does not set its workers gets {cores} here, each with {cores} threads"
        yield Issue(pair.line, "default_workers_per_model is not set", effect, "default_workers_per_model=1")
