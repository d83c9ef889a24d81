"""The rule that compares the metrics of handlers with the metrics file."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from tsbatch.lint.documents import Document
from tsbatch.lint.findings import Issue
from tsbatch.lint.handler_file import HandlerFile, calls, last_name
from tsbatch.lint.properties_file import PropertiesFile
from tsbatch.lint.registry import rule
from tsbatch.lint.rules.metrics_file import names
from tsbatch.lint.yaml_file import MetricsFile

EMITTERS = {"add_counter", "add_time", "add_size", "add_percent", "add_error", "add_metric"}
UNNAMED = "set-metric-unnamed"
SHIPPED = {"HandlerTime", "PredictionTime"}
"""The model metrics of TorchServe's own metrics.yaml."""


@dataclass(frozen=True)
class EmittedMetrics(Document):
    """A server's file, the handlers of its models, and its metrics file (None: TorchServe's own)."""

    config: PropertiesFile
    handlers: tuple[HandlerFile, ...]
    metrics: MetricsFile | None

    def allowed(self, line: int) -> set[str]:
        """Return nothing: the findings are in the handlers' files, where the rule looks for comments itself."""
        del line
        return set()


@rule(UNNAMED, EmittedMetrics, "error")
def metric_unnamed(file: EmittedMetrics) -> Iterator[Issue]:
    """A metric that the metrics file does not name.

    TorchServe drops a handler's metric that is not in metrics.yaml, unless model_metrics_auto_detect=true.
    """
    if file.config.is_true("model_metrics_auto_detect"):
        return
    known = names(file.metrics) if file.metrics else SHIPPED
    for handler in file.handlers:
        for line, name in _emitted(handler):
            if name not in known and UNNAMED not in handler.allowed(line):
                where = "the metrics file" if file.metrics else "TorchServe's own metrics.yaml"
                right = f"- name: {name}\n  unit: Count\n  dimensions: [ModelName, Level]"
                message = f"the metric {name} is not in {where}"
                yield Issue(line, message, "TorchServe silently drops it", right, file=handler.path)


def _emitted(file: HandlerFile) -> Iterator[tuple[int, str]]:
    for call in calls(file.tree):
        if last_name(call) in EMITTERS:
            named = [keyword.value for keyword in call.keywords if keyword.arg in {"name", "metric_name"}]
            first = next(iter([*call.args[:1], *named]), None)
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield call.lineno, first.value
