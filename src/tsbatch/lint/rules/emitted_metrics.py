"""The rule over the metrics that handlers emit and the metrics file that must name them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from tsbatch.lint.documents import Document
from tsbatch.lint.findings import Found
from tsbatch.lint.handler_file import HandlerFile, calls
from tsbatch.lint.properties_file import PropertiesFile
from tsbatch.lint.registry import rule
from tsbatch.lint.rules.metrics_file import names
from tsbatch.lint.yaml_file import MetricsFile

EMITTERS = {"add_counter", "add_time", "add_size", "add_percent", "add_error", "add_metric"}
UNNAMED = "set-metric-unnamed"
SHIPPED = {"HandlerTime", "PredictionTime"}
"""What TorchServe's own metrics.yaml names for models."""


@dataclass(frozen=True)
class Emitted(Document):
    """A server's file, the handlers of its models, and the metrics file it names (None: TorchServe's own)."""

    config: PropertiesFile
    handlers: tuple[HandlerFile, ...]
    metrics: MetricsFile | None

    def allowed(self, line: int) -> set[str]:
        """Nothing: the findings are in the handlers' files, which the rule asks itself."""
        del line
        return set()


@rule(
    UNNAMED,
    Emitted,
    "error",
    "a metric that no metrics file names",
    "TorchServe drops a handler's metric that metrics.yaml does not name, unless model_metrics_auto_detect=true.",
)
def metric_unnamed(file: Emitted) -> Iterator[Found]:
    """``context.metrics.add_counter("Tokens", ...)`` without an entry for it."""
    if file.config.is_true("model_metrics_auto_detect"):
        return
    known = names(file.metrics) if file.metrics else SHIPPED
    for handler in file.handlers:
        for line, name in _emitted(handler):
            if name not in known and UNNAMED not in handler.allowed(line):
                where = "the metrics file" if file.metrics else "TorchServe's own metrics.yaml"
                right = f"- name: {name}\n  unit: Count\n  dimensions: [ModelName, Level]"
                message = f"the metric {name} is not in {where}"
                yield Found(line, message, "TorchServe drops it without a word", right, file=handler.path)


def _emitted(file: HandlerFile) -> Iterator[tuple[int, str]]:
    for call in calls(file.tree):
        if isinstance(call.func, ast.Attribute) and call.func.attr in EMITTERS:
            named = [keyword.value for keyword in call.keywords if keyword.arg in {"name", "metric_name"}]
            first = next(iter([*call.args[:1], *named]), None)
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield call.lineno, first.value
