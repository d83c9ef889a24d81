from __future__ import annotations

from tsbatch.tuning.search_space import ModelSettings, Space, space_around

START = ModelSettings(workers=2, batch_size=8, delay=30)


def test_one_setting_changes_and_the_others_stay():
    turned = START.with_value("batchSize", 16)
    assert turned == ModelSettings(2, 16, 30)
    assert START.differences(turned) == ["batchSize"]
    assert START.differences(ModelSettings(3, 8, 1, 1)) == ["maxBatchDelay", "workers", "threads"]


def test_the_lines_of_yaml_say_what_is_set_and_nothing_of_what_is_left_alone():
    assert START.yaml() == "maxBatchDelay: 30\nminWorkers: 2\nmaxWorkers: 2\nbatchSize: 8"
    assert START.with_value("maxBatchDelay", 0).yaml().startswith("maxBatchDelay: 1\n"), "0 would be 100 in a file"
    assert START.with_value("threads", 1).yaml().splitlines()[3:5] == ["tsbatch:", "  threads: 1"]


def test_turns_are_every_other_position():
    space = Space(workers=(1, 2, 3), batch_sizes=(8,), delays=(30,))
    assert space.alternatives(START, "workers") == [ModelSettings(1, 8, 30), ModelSettings(3, 8, 30)]
    assert space.alternatives(START, "batchSize") == []
    assert len(space.combinations()) == 3


class TestSpace:
    def test_what_there_is_belongs_to_it(self):
        space = space_around(START, {})
        assert START in space.combinations()
        assert 30 in space.delays

    def test_workers_that_compute_are_as_many_as_the_cores(self):
        assert space_around(START, {"cores": 4}).workers == [1, 2, 3, 4]
        assert space_around(START, {"cores": 4, "worker_cores": 1.3}).workers == [1, 2, 3, 4]

    def test_workers_that_wait_may_be_more(self):
        assert max(space_around(START, {"cores": 2, "worker_cores": 0.4}).workers) == 5
        assert max(space_around(START, {"cores": 2, "worker_cores": 0.0}).workers) == 8

    def test_workers_fit_into_the_free_memory(self):
        known = {"cores": 8, "worker_memory": 100, "free_memory": 150}
        assert max(space_around(START, known).workers) == 3  # two are there, one more fits

    def test_workers_fit_into_what_was_allowed(self):
        known = {"cores": 8, "worker_memory": 100, "free_memory": 10_000}
        assert max(space_around(START, known, memory=450).workers) == 4

    def test_threads_only_for_handlers_that_can_be_told(self):
        assert space_around(START, {"cores": 4}).threads == (None,)
        assert list(space_around(START, {"cores": 4}, threads=True).threads) == [None, 1, 4]
