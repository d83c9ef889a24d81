"""The setting ``models={...}`` of config.properties, as TorchServe reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import yaml

Models = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Model name: version: key: value."""


def parse_models(text: str) -> Models:
    """The value of ``models=``, as Gson reads it: JSON, and a little more (single quotes, no quotes).

    Raises:
        ValueError: it is not that, or not name -> version -> settings.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        # Gson reads leniently what YAML reads too, but no comma before a closing brace.
        if re.search(r",\s*}", text) or not text.strip().startswith("{"):
            raise ValueError(f"not JSON: {error}") from None
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            raise ValueError(f"not JSON: {error}") from None
    if not _nested(value):
        raise ValueError('expected {"NAME": {"VERSION": {"batchSize": 8}}}')
    return {str(name): {str(key): entry for key, entry in versions.items()} for name, versions in value.items()}


def _nested(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(versions, dict) and all(isinstance(entry, dict) for entry in versions.values())
        for versions in value.values()
    )
