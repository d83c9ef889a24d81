"""Parse the setting ``models={...}`` of config.properties as TorchServe does."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import yaml

Models = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Settings by model name and version."""


def parse_models(text: str) -> Models:
    """Parse the value of ``models=`` as Gson does: JSON, but single quotes or no quotes are allowed too.

    Raises:
        ValueError: it is not JSON, or not structured as name -> version -> settings.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        # Gson accepts what YAML accepts, except a comma before a closing brace.
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
