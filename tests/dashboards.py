"""What the dashboards ask Prometheus for."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

import tsbatch

FOLDER = Path(tsbatch.__file__).parent / "serving/dashboards"
NO_METRICS = {"sum", "by", "rate", "count", "label_replace", "changes", "avg_over_time"}


def expressions() -> list[tuple[str, str]]:
    """Every PromQL expression of the files, and where it stands."""
    dashboard = json.loads((FOLDER / "grafana.json").read_text(encoding="utf-8"))
    found = [
        (f"grafana.json: {panel['title']}", target["expr"])
        for panel in dashboard["panels"]
        for target in panel["targets"]
    ]
    rules = yaml.safe_load((FOLDER / "alerts.yaml").read_text(encoding="utf-8"))["groups"][0]["rules"]
    return found + [(f"alerts.yaml: {rule['alert']}", rule["expr"]) for rule in rules]


def names_in(expression: str) -> set[str]:
    """The metric names in a PromQL expression."""
    bare = re.sub(r'"[^"]*"|\{[^}]*\}|\[[^\]]*\]|\bby \([^)]*\)', " ", expression)
    return set(re.findall(r"\b[A-Za-z_]\w+\b", bare)) - NO_METRICS
