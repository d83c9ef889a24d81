"""For each task, on a real TorchServe, a batch of eight with one broken input."""

from __future__ import annotations

import pytest

from tests.e2e.one_broken import one_broken_in_eight
from tests.tiny_tasks import TINY
from tsbatch.packaging.handler_files import entry_files


@pytest.fixture(scope="module")
def server(server_factory):
    return server_factory()


def test_there_is_a_tiny_model_for_every_task():
    assert set(TINY) == set(entry_files())


@pytest.mark.parametrize("task", TINY)
def test_seven_right_answers_and_one_4xx(server, tmp_path, task, record_property):
    statuses = one_broken_in_eight(server, task, tmp_path)
    record_property(task, str(statuses))
