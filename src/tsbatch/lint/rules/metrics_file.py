"""Rules over metrics.yaml (frontend/.../metrics/configuration, ts/metrics/metric_cache_yaml_impl.py)."""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml

from tsbatch.configuration.known_settings import nearest
from tsbatch.lint.findings import Found
from tsbatch.lint.registry import rule
from tsbatch.lint.yaml_file import Entry, MetricsFile, entries_of, value_of

SECTIONS = ("dimensions", "ts_metrics", "model_metrics")
TYPES = ("counter", "gauge", "histogram")
FIELDS = ("name", "unit", "dimensions")


def metric_nodes(file: MetricsFile, section: str) -> Iterator[yaml.MappingNode]:
    """The node of each metric of one section."""
    found = file.entry(section)
    for kind in entries_of(found.node) if found else ():
        for node in kind.node.value if isinstance(kind.node, yaml.SequenceNode) else ():
            if isinstance(node, yaml.MappingNode):
                yield node


def names(file: MetricsFile) -> set[str]:
    """The names of the model metrics."""
    return {str(value_of(node).get("name")) for node in metric_nodes(file, "model_metrics")}


def _unknown(file: MetricsFile) -> Iterator[tuple[Entry, tuple[str, ...]]]:
    for entry in file.entries():
        if entry.key not in SECTIONS:
            yield entry, SECTIONS
        elif entry.key != "dimensions":
            yield from ((kind, TYPES) for kind in entries_of(entry.node) if kind.key not in TYPES)
    for section in ("ts_metrics", "model_metrics"):
        for node in metric_nodes(file, section):
            yield from ((field, FIELDS) for field in entries_of(node) if field.key not in FIELDS)


@rule(
    "metrics-syntax",
    MetricsFile,
    "error",
    "a metrics.yaml that is not YAML",
    "TorchServe starts without any metrics, and no worker loads: each reads the file too.",
)
def syntax(file: MetricsFile) -> Iterator[Found]:
    """Not YAML, empty, or no mapping."""
    line, why = file.problem or (1, "" if isinstance(file.root, yaml.MappingNode) else "expected lines of 'key: value'")
    if why:
        yield Found(line, f"no metrics file: {why}", "no worker loads, and no metric is written")


@rule(
    "metrics-key",
    MetricsFile,
    "error",
    "an unknown key in metrics.yaml",
    "The file has dimensions, ts_metrics and model_metrics; below them counter, gauge and histogram; below these name, "
    "unit and dimensions. With any other key TorchServe's frontend drops the whole file, and no metric is written.",
)
def unknown_key(file: MetricsFile) -> Iterator[Found]:
    """``counters:`` or ``help:``."""
    for entry, allowed in _unknown(file):
        near = nearest(entry.key, allowed)
        message = f"{entry.key} is no key here; there are {', '.join(allowed)}"
        yield Found(entry.line, message, "no metric at all is written", f"{near}:" if near else "")


@rule(
    "metrics-field",
    MetricsFile,
    "error",
    "a metric without name, unit or dimensions",
    "Every metric needs all three, and the file a section model_metrics; no worker loads otherwise.",
)
def missing_field(file: MetricsFile) -> Iterator[Found]:
    """A metric that lacks one, or a file without model metrics."""
    section = file.entry("model_metrics")
    if isinstance(file.root, yaml.MappingNode) and (section is None or not section.value):
        yield Found(1, "the file has no model_metrics", "no worker loads: Missing `model_metrics` specification")
    for name in ("ts_metrics", "model_metrics"):
        for node in metric_nodes(file, name):
            missing = [field for field in FIELDS if field not in {entry.key for entry in entries_of(node)}]
            if missing:
                line = node.start_mark.line + 1
                yield Found(line, f"the metric has no {' and no '.join(missing)}", "no worker loads: KeyError")


@rule(
    "metrics-name",
    MetricsFile,
    "error",
    "a name that does not come through",
    "A metric of the worker travels as a line of the log; in its name only letters, digits, blanks and underscores are "
    "understood.",
)
def bad_name(file: MetricsFile) -> Iterator[Found]:
    """``tokens-per-second``."""
    for node in metric_nodes(file, "model_metrics"):
        for entry in entries_of(node):
            if entry.key == "name" and not re.fullmatch(r"[\w\s]+", str(entry.value)):
                right = f"name: {re.sub(r'[^A-Za-z0-9_]', '_', str(entry.value))}"
                yield Found(
                    entry.line, f"the name {entry.value!r}", "TorchServe drops every line of this metric", right
                )
