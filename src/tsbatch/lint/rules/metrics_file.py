"""Rules for metrics.yaml (frontend/.../metrics/configuration, ts/metrics/metric_cache_yaml_impl.py)."""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml

from tsbatch.configuration.known_settings import nearest
from tsbatch.lint.findings import Issue
from tsbatch.lint.registry import rule
from tsbatch.lint.yaml_file import Entry, MetricsFile, entries_of, value_of

METRIC_SECTIONS = ("ts_metrics", "model_metrics")
SECTIONS = ("dimensions", *METRIC_SECTIONS)
TYPES = ("counter", "gauge", "histogram")
FIELDS = ("name", "unit", "dimensions")


def _metric_nodes(file: MetricsFile, *sections: str) -> Iterator[yaml.MappingNode]:
    """The node of each metric of some sections."""
    for section in filter(None, map(file.entry, sections)):
        for kind in entries_of(section.node):
            nodes = kind.node.value if isinstance(kind.node, yaml.SequenceNode) else ()
            yield from (node for node in nodes if isinstance(node, yaml.MappingNode))


def names(file: MetricsFile) -> set[str]:
    """Return the names of the model metrics."""
    return {str(value_of(node).get("name")) for node in _metric_nodes(file, "model_metrics")}


def _keys(file: MetricsFile) -> Iterator[tuple[Entry, tuple[str, ...]]]:
    """Every key of the file, with the keys that are allowed there."""
    for entry in file.entries():
        yield entry, SECTIONS
        if entry.key in METRIC_SECTIONS:
            yield from ((kind, TYPES) for kind in entries_of(entry.node))
    for node in _metric_nodes(file, *METRIC_SECTIONS):
        yield from ((field, FIELDS) for field in entries_of(node))


@rule("metrics-syntax", MetricsFile, "error")
def syntax(file: MetricsFile) -> Iterator[Issue]:
    """A metrics.yaml that is not YAML.

    TorchServe starts without any metrics, and no worker loads, because each worker reads the file too.
    """
    mapping = isinstance(file.root, yaml.MappingNode)
    line, cause = file.problem or (1, "" if mapping else "expected lines of 'key: value'")
    if cause:
        yield Issue(line, f"not a metrics file: {cause}", "no worker loads, and no metric is written")


@rule("metrics-key", MetricsFile, "error")
def unknown_key(file: MetricsFile) -> Iterator[Issue]:
    """An unknown key in metrics.yaml.

    The file has dimensions, ts_metrics and model_metrics; below them counter, gauge and histogram; below these name,
    unit and dimensions. With any other key, TorchServe's frontend discards the whole file, and no metric is written.
    """
    for entry, allowed in _keys(file):
        if entry.key not in allowed:
            meant = nearest(entry.key, allowed)
            message = f"unknown key {entry.key}; expected {', '.join(allowed)}"
            yield Issue(entry.line, message, "no metric at all is written", f"{meant}:" if meant else "")


@rule("metrics-field", MetricsFile, "error")
def missing_field(file: MetricsFile) -> Iterator[Issue]:
    """A metric without name, unit or dimensions.

    Every metric needs all three, and the file needs a section model_metrics; otherwise no worker loads.
    """
    section = file.entry("model_metrics")
    if isinstance(file.root, yaml.MappingNode) and (section is None or not section.value):
        yield Issue(1, "the file has no model_metrics", "no worker loads: Missing `model_metrics` specification")
    for node in _metric_nodes(file, *METRIC_SECTIONS):
        given = {entry.key for entry in entries_of(node)}
        if missing := [field for field in FIELDS if field not in given]:
            message = f"the metric has no {' and no '.join(missing)}"
            yield Issue(node.start_mark.line + 1, message, "no worker loads: KeyError")


@rule("metrics-name", MetricsFile, "error")
def bad_name(file: MetricsFile) -> Iterator[Issue]:
    """A metric name that TorchServe cannot parse.

    A worker sends its metrics as log lines, in which a name may contain only letters, digits, spaces and underscores.
    """
    for node in _metric_nodes(file, "model_metrics"):
        for entry in entries_of(node):
            name = str(entry.value)
            if entry.key == "name" and not re.fullmatch(r"[\w\s]+", name):
                right = f"name: {re.sub(r'[^A-Za-z0-9_]', '_', name)}"
                yield Issue(entry.line, f"the name {name!r}", "TorchServe drops every line of this metric", right)
