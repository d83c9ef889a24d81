"""The acceptance tests start servers as the end-to-end tests do."""

from __future__ import annotations

from tests.e2e.conftest import server_factory

__all__ = ["server_factory"]
