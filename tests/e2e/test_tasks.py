"""Ready-made tasks on a real TorchServe: a slice of tests/acceptance/tasks/test_one_broken_of_eight.py."""

from __future__ import annotations

import pytest

from tests.e2e.one_broken import one_broken_in_eight


@pytest.fixture(scope="module")
def server(server_factory):
    with server_factory() as server:
        yield server


@pytest.mark.parametrize("task", ["text-classification", pytest.param("image-classification", marks=pytest.mark.slow)])
def test_one_broken_request_of_eight_hurts_nobody_else(server, tmp_path, task):
    one_broken_in_eight(server, task, tmp_path)
