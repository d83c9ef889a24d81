"""The table of the engines' benchmark."""

from __future__ import annotations

from benchmarks import engines
from tsbatch.packaging.engine_trials import Trial

TRIALS = [
    Trial("eager", "float32", "packed", 50.0, 110.0, 1.0, 1.0),
    Trial("openvino", "float32", problem="needs openvino"),
]


def test_the_table_has_a_row_for_each_trial_and_names_the_fastest():
    lines = engines.table_of(TRIALS).splitlines()
    assert lines[0].startswith("| engine | dtype |")
    assert lines[2] == "| eager | float32 | packed | 50.0 | 110.0 | 1.000000 | 1.0 |  |"
    assert lines[3] == "| openvino | float32 | - | - | - | - | - | needs openvino |"
    assert lines[-1] == "`--engine auto` selects eager, float32."
