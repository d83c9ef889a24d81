"""The acceptance tests start servers as the end-to-end tests do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance import older_transformers
from tests.e2e.conftest import server_factory

__all__ = ["server_factory", "transformers_457"]


@pytest.fixture(scope="session")
def transformers_457() -> Path:
    """The Python of an environment with transformers 4.57, made when it is not there."""
    return older_transformers.environment()
