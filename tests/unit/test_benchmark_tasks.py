"""The table and the targets of the tasks' benchmark."""

from __future__ import annotations

from benchmarks import tasks
from benchmarks._task_models import BUILDS
from tsbatch.packaging.requirements import TASKS

RATES = {
    "tensor": {"batch": [300.0, 310.0], "single": [100.0, 100.0], "stock": [150.0, 160.0]},
    "reranking": {"batch": [9.0, 9.0], "single": [10.0, 10.0]},
}


def test_each_task_has_a_row_with_its_ratios():
    lines = tasks.table_of(RATES).splitlines()
    assert lines[2].startswith("| tensor | 3 linear layers | 305 | 3.05 (3.00 to 3.10) | 1.97 (1.94 to 2.00) | base_h")
    assert lines[3] == "| reranking | MiniLM | 9 | 0.90 (0.90 to 0.90) | - | - |"


def test_a_batch_that_is_slower_than_single_requests_misses_its_target():
    assert [(target.what, target.met) for target in tasks.targets(RATES)] == [
        ("tensor, single", True),
        ("tensor, stock", True),
        ("reranking, single", False),
    ]


def test_every_ready_made_task_is_measured():
    assert set(BUILDS) == set(TASKS)
