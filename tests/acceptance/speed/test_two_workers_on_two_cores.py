"""Two workers on two cores, with nothing set by the user, beside one."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from _bench import Bench, Case
from _corpus import corpora, minilm_tokens
from _ratios import ratios, turn
from _systems import ALONE, NOTHING_SET, RECOMMENDED, model_dir

from tsbatch.worker.resources import usable_cores

TURNS = 3
CASE = Case("mixed", 64, 256, 5.0)
ONE = replace(RECOMMENDED, workers=1)


def say(message):
    print(message, file=sys.stderr, flush=True)


@pytest.mark.skipif(usable_cores() < 2, reason="two workers want two cores")
def test_two_workers_are_not_slower_than_one(tmp_path, record_property):
    systems = [RECOMMENDED, ONE, NOTHING_SET, ALONE]
    assert all(system.threads is None for system in systems)
    rates = {system: [] for system in systems}
    with Bench(tmp_path, corpora(512, minilm_tokens(model_dir())), say) as bench:
        for system in systems:
            bench.start(system)
        for number in range(TURNS):
            for system in turn(systems, number):
                rates[system].append(bench.run(system, CASE, number).rate)
    ours = ratios(rates[RECOMMENDED], rates[ONE])
    record_property("tsbatch: two workers / one", f'"{ours.text()}"')
    record_property("one by one: two workers / one", f'"{ratios(rates[NOTHING_SET], rates[ALONE]).text()}"')
    assert ours.median >= 1.0
