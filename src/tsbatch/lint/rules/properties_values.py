"""Rules over the values of config.properties."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tsbatch.configuration.known_settings import JAVA_INT_MAX, PROPERTIES
from tsbatch.lint.findings import Found
from tsbatch.lint.properties_file import PropertiesFile
from tsbatch.lint.registry import rule
from tsbatch.lint.rules.properties_keys import whole

ENVELOPES = ("body", "json", "kserve", "kservev2")
METRICS_MODES = ("log", "prometheus", "legacy")
BOOLEANS = {"true", "false"}
YES = {"yes", "on", "1", "y", "t", "enable", "enabled"}
MANY_SECONDS = 10_000
TIMEOUTS = ("default_response_timeout", "default_startup_timeout", "unregister_model_timeout")


@rule(
    "config-number",
    PropertiesFile,
    "error",
    "a number that Java cannot read",
    "Java reads these values with Integer.parseInt: no units, no underscores, no fractions, at most 2147483647. "
    "TorchServe ends with a NumberFormatException, at the start or when the value is first used.",
)
def number(file: PropertiesFile) -> Iterator[Found]:
    """``job_queue_size=1k`` or ``100.0``."""
    for pair in file.pairs:
        kind = PROPERTIES.get(pair.key)
        if kind not in {"int", "long"} or re.search(r"\s", pair.value.strip()):
            continue  # several words are another rule's matter
        limit = JAVA_INT_MAX if kind == "int" else 2**63 - 1
        if not re.fullmatch(r"[+-]?[0-9]+", pair.value) or int(pair.value) > limit:
            digits = re.search(r"[0-9]+", pair.value.replace("_", "").replace(",", ""))
            right = f"{pair.key}={digits[0]}" if digits and int(digits[0]) <= limit else ""
            effect = "TorchServe fails with a NumberFormatException when it needs the value"
            yield Found(pair.line, f"{pair.key}={pair.value} is no whole number for Java", effect, right)


@rule(
    "config-boolean",
    PropertiesFile,
    "error",
    "a switch that is neither true nor false",
    "Java's Boolean.parseBoolean takes true in any case; everything else, also yes, on and 1, is false.",
)
def boolean(file: PropertiesFile) -> Iterator[Found]:
    """``enable_model_api=yes``."""
    for pair in file.pairs:
        word = pair.value.lower()
        if PROPERTIES.get(pair.key) == "bool" and word not in BOOLEANS and not re.search(r"[\s'\"$]", word):
            right = f"{pair.key}={'true' if word in YES else 'false'}"
            yield Found(
                pair.line,
                f"{pair.key}={pair.value} means false",
                "TorchServe takes it for false",
                right,
                whole(pair, right),
            )


@rule(
    "config-metrics-mode",
    PropertiesFile,
    "error",
    "a metrics mode that does not exist",
    "metrics_mode is log, prometheus or legacy; with anything else TorchServe writes one error line and uses log, "
    "and /metrics stays empty.",
)
def metrics_mode(file: PropertiesFile) -> Iterator[Found]:
    """``metrics_mode=json``."""
    pair = file.last("metrics_mode")
    if pair and re.sub(r"\s", "", pair.value).lower() not in METRICS_MODES and '"' not in pair.value:
        message = f"metrics_mode={pair.value} does not exist; there are {', '.join(METRICS_MODES)}"
        yield Found(pair.line, message, "TorchServe uses log", "metrics_mode=prometheus")


@rule(
    "config-metrics-elsewhere",
    PropertiesFile,
    "note",
    "metrics that are not in the logs",
    "With metrics_mode=prometheus nothing is written to ts_metrics.log and model_metrics.log; all is on the metrics "
    "address.",
)
def metrics_elsewhere(file: PropertiesFile) -> Iterator[Found]:
    """``metrics_mode=prometheus``: whoever reads the logs finds nothing."""
    pair = file.last("metrics_mode")
    if pair and pair.value.strip().lower() == "prometheus":
        effect = "ts_metrics.log and model_metrics.log stay empty; read http://<metrics_address>/metrics"
        yield Found(pair.line, "metrics go to the metrics address alone", effect)


@rule(
    "config-envelope-unknown",
    PropertiesFile,
    "error",
    "a service envelope that does not exist",
    "TorchServe imports ts.torch_handler.request_envelope.<name> in the worker; when there is no such module every "
    "worker of every model dies while loading.",
)
def envelope_unknown(file: PropertiesFile) -> Iterator[Found]:
    """``service_envelope=kfserving``."""
    pair = file.last("service_envelope")
    if pair and pair.value and pair.value not in ENVELOPES:
        message = f"service_envelope={pair.value} does not exist; there are {', '.join(ENVELOPES)}"
        yield Found(pair.line, message, "no worker loads: No module named 'ts.torch_handler.request_envelope...'", "")


@rule(
    "config-milliseconds",
    PropertiesFile,
    "warning",
    "a time-out in milliseconds",
    "default_response_timeout, default_startup_timeout and unregister_model_timeout are seconds.",
)
def milliseconds(file: PropertiesFile) -> Iterator[Found]:
    """``default_response_timeout=120000``, which is 33 hours."""
    for pair in file.pairs:
        if pair.key in TIMEOUTS and pair.value.isascii() and pair.value.isdigit() and int(pair.value) >= MANY_SECONDS:
            right = f"{pair.key}={max(1, int(pair.value) // 1000)}"
            effect = f"TorchServe waits {int(pair.value) / 3600:.0f} hours"
            yield Found(pair.line, f"{pair.key} is in seconds", effect, right)


@rule(
    "config-load-models-space",
    PropertiesFile,
    "error",
    "blanks in load_models",
    "TorchServe cuts load_models at the commas and keeps the blanks: ' b.mar' is another file than 'b.mar', and the "
    "server starts without the model.",
)
def load_models_space(file: PropertiesFile) -> Iterator[Found]:
    """``load_models=a.mar, b.mar``."""
    pair = file.last("load_models")
    parts = pair.value.split(",") if pair else []
    blanks = [part for part in parts[:-1] if part != part.strip()] + [part for part in parts[1:] if part[:1].isspace()]
    if pair and blanks and "#" not in pair.value:
        right = f"load_models={','.join(part.strip() for part in parts)}"
        names = ", ".join(map(repr, blanks))
        effect = f"TorchServe looks for {names}, blanks included, and starts without it"
        yield Found(pair.line, "load_models has blanks beside its commas", effect, right, whole(pair, right))


@rule(
    "config-no-models",
    PropertiesFile,
    "note",
    "a server that can get no model",
    "Without load_models the server starts empty, and without enable_model_api=true POST /models gets 405.",
)
def no_models(file: PropertiesFile) -> Iterator[Found]:
    """Neither load_models nor the model API."""
    if not file.values.keys() & {"load_models", "model_snapshot"} and not file.is_true("enable_model_api"):
        effect = "unless --models is given at the start, the server has no model and takes none (405)"
        yield Found(1, "neither load_models nor enable_model_api is set", effect, "enable_model_api=true")


@rule(
    "config-shared-cores",
    PropertiesFile,
    "note",
    "as many workers as cores",
    "Without default_workers_per_model TorchServe starts one worker a core for each model (one a GPU where there are "
    "some), and each lets torch use all cores.",
)
def shared_cores(file: PropertiesFile) -> Iterator[Found]:
    """load_models without a number of workers."""
    pair = file.last("load_models")
    if pair and pair.value.strip() and not file.values.keys() & {"default_workers_per_model", "models"}:
        effect = (
            f"a model without workers of its own gets {file.machine.cores} here, each with {file.machine.cores} threads"
        )
        message = "default_workers_per_model is not set"
        yield Found(pair.line, message, effect, "default_workers_per_model=1")
