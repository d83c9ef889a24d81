"""The Grafana dashboard and the alert rules ask for metrics that exist; against a real server: tests/e2e."""

from __future__ import annotations

import json

import pytest
import yaml

from tests.dashboards import FOLDER, expressions, names_in
from tsbatch.configuration.server_properties import ServerProperties


def declared():
    """The metrics of the core's metrics.yaml, with the labels Prometheus gives them."""
    tree = yaml.safe_load((FOLDER.parent.parent / "metrics.yaml").read_text(encoding="utf-8"))
    kinds = (kind for part in ("ts_metrics", "model_metrics") for kind in tree[part].values())
    return {metric["name"]: {*metric["dimensions"], "Hostname"} for kind in kinds for metric in kind}


@pytest.mark.parametrize("where, expression", expressions())
def test_every_metric_asked_for_is_declared(where, expression):
    names = names_in(expression)
    assert names, where
    assert names <= declared().keys(), where


def test_both_files_ask_for_something():
    files = {where.partition(":")[0] for where, _ in expressions()}
    assert files == {"grafana.json", "alerts.yaml"}
    assert len(expressions()) > 25


def test_names_are_found_in_expressions():
    expression = 'sum by (ModelName) (rate(QueueWaitTime{ModelName=~"$model"}[5m])) / 1000 > 0.9 * Requests5XX'
    assert names_in(expression) == {"QueueWaitTime", "Requests5XX"}


def test_grouping_is_by_labels_that_the_metrics_have():
    for where, expression in expressions():
        labels = set().union(*(declared()[name] for name in names_in(expression)))
        for group in expression.split("sum by (")[1:]:
            asked = {label.strip() for label in group.partition(")")[0].split(",")}
            assert asked <= labels, where


def test_panels_do_not_overlap():
    taken = set()
    for panel in json.loads((FOLDER / "grafana.json").read_text(encoding="utf-8"))["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        assert panel["description"].strip()
        taken |= cells


def test_every_alert_says_what_to_do():
    groups = yaml.safe_load((FOLDER / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
    for rule in groups[0]["rules"]:
        assert {"summary", "action"} <= rule["annotations"].keys(), rule["alert"]


def test_serve_names_the_core_metrics_file():
    values = ServerProperties()
    values.complete()
    assert values["metrics_config"].endswith("metrics.yaml")
