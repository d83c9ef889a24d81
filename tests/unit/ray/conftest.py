"""A replica changes its process for good; a test's is put back."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def own_process_state(monkeypatch, tmp_path):
    """What a replica changes for good in its own process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    modules = set(sys.modules)
    yield
    for name in set(sys.modules) - modules:
        if name.endswith("_handler") or name == "beside":
            del sys.modules[name]
