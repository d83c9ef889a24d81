from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from _simulated_server import CURVES, SimulatedServer

from tests.unit.tuning.made_up import observation
from tsbatch.diagnosis.model_facts import Known
from tsbatch.simulation.batching_rules import Overhead
from tsbatch.simulation.service_time import Machine, ServiceTime
from tsbatch.simulation.simulator import simulate
from tsbatch.tuning.observation import Observation, observe
from tsbatch.tuning.ranking import Ranking, Traffic, optimistic, pool, simulator_settings
from tsbatch.tuning.search_space import ModelSettings


def service(sizes, times, **machine):
    return ServiceTime(sizes=sizes, times=times, machine=Machine(**machine))


def observed(settings, found):
    return Observation(settings=settings, figures=observation().figures, known=observation().known, service=found)


def ranking(*runs):
    return Ranking(list(runs), Traffic(clients=8))


def test_nothing_is_predicted_where_nothing_is_known():
    assert ranking(observation()).predict(ModelSettings(1, 8, 1)) is None


def test_of_a_single_size_the_best_is_hoped_for_larger_and_smaller_ones():
    found = ranking(observed(ModelSettings(1, 8, 1), service([8], [80]))).service(ModelSettings(1, 32, 1))
    assert [float(found.mean(size)) for size in (1, 4, 8, 32)] == [10, 40, 80, 80]


def test_what_torchserve_costs_is_the_median_of_what_the_runs_show():
    runs = [
        observed(
            ModelSettings(1, 1, 1),
            replace(service([1], [20]), overhead=Overhead(frontend=1.0, batch=cost, request=0.1)),
        )
        for cost in (1.0, 0.0, 1.2)
    ]
    assert ranking(*runs).service(ModelSettings(1, 1, 1)).overhead.batch == 1.0


def test_several_runs_know_more_sizes():
    pooled = pool([service([1], [20]), service([1, 8], [22, 50])])
    assert pooled.sizes == [1, 8]
    assert list(pooled.times) == [21, 50]


def test_noise_makes_no_larger_batch_cheaper():
    assert list(pool([service([1, 2], [20, 10])]).times) == [20, 20]


def test_workers_that_share_too_few_cores_are_slower():
    one = observed(ModelSettings(1, 1, 1), service([1], [20], workers=1, cores=2, worker_cores=1.0))
    assert float(ranking(one).service(ModelSettings(2, 1, 1)).mean(1)) == 20
    assert float(ranking(one).service(ModelSettings(4, 1, 1)).mean(1)) == 40


def test_what_was_measured_with_as_many_workers_counts_more():
    one = observed(ModelSettings(1, 1, 1), service([1], [20], workers=1, cores=2, worker_cores=1.0))
    four = observed(ModelSettings(4, 1, 1), service([1], [70], workers=4, cores=2, worker_cores=1.0))
    assert float(ranking(one, four).service(ModelSettings(4, 1, 1)).mean(1)) == 70


def test_sizes_that_were_only_seen_with_other_workers_are_taken_from_there():
    one = observed(ModelSettings(1, 8, 1), service([8, 20], [48, 60]))
    four = observed(ModelSettings(4, 32, 1), service([20], [66]))
    found = ranking(one, four).service(ModelSettings(4, 8, 1))
    assert [float(found.mean(size)) for size in (8, 20)] == pytest.approx([52.8, 66])
    alone = ranking(observed(ModelSettings(1, 8, 1), service([8], [48])), four).service(ModelSettings(4, 8, 1))
    assert [float(alone.mean(size)) for size in (8, 20)] == [48, 66]


def test_at_best_a_batch_twice_as_large_costs_no_more():
    assert optimistic(service([4, 20], [30, 90])).sizes == [4, 8, 20]
    assert list(optimistic(service([4, 20], [30, 90])).times) == [30, 30, 90]
    assert optimistic(service([4, 8], [30, 90])).sizes == [4, 8]


def test_threads_that_were_not_measured_are_not_predicted():
    one = observed(ModelSettings(1, 1, 1), service([1], [20]))
    assert ranking(one).predict(ModelSettings(1, 1, 1, 2)) is None


@pytest.mark.parametrize("traffic", [Traffic(clients=12), Traffic(rate=40.0)], ids=["closed", "open"])
def test_other_settings_are_predicted_from_one_run(traffic):
    server = SimulatedServer(CURVES["mostly each, 2 + 12·n"], traffic, noise=0.0)
    seen = server.measure(ModelSettings(1, 8, 10))
    for settings in (ModelSettings(2, 8, 10), ModelSettings(1, 8, 50), ModelSettings(1, 4, 10)):
        predicted = Ranking([seen], traffic).predict(settings)
        truth = server.truth(settings)
        assert predicted.throughput == pytest.approx(truth.throughput, rel=0.05), settings
        assert predicted.p50 == pytest.approx(truth.p50, rel=0.1), settings


def test_an_observation_survives_a_file():
    server = SimulatedServer(CURVES["a knee at 8"], Traffic(clients=12))
    seen = server.measure(ModelSettings(2, 8, 10))
    again = Observation.from_json(seen.to_json())
    assert again.figures == seen.figures
    assert again.evidence == seen.evidence
    assert again.known == seen.known
    assert again.service.to_json() == seen.service.to_json()
    for name in ("sizes", "times", "spread"):
        assert getattr(again.service, name) == pytest.approx(getattr(seen.service, name), abs=1e-4)
    # By the clock: a closed loop magnifies what is rounded in a file.
    predicted = [Ranking([one], Traffic(rate=60.0)).predict(ModelSettings(1, 8, 1)) for one in (seen, again)]
    assert predicted[0].p50 == pytest.approx(predicted[1].p50, rel=0.01)


def test_workers_are_dealt_out_to_the_gpus():
    one = observed(ModelSettings(1, 8, 1), service([8], [80]))
    one = replace(one, known=replace(one.known, gpus=2, worker_gpu_memory=0.25))
    found = [ranking(one).predict(ModelSettings(workers, 8, 1)).gpu_memory for workers in (1, 2, 3, 4)]
    assert found == [0.25, 0.25, 0.5, 0.5]
    assert (
        ranking(observed(ModelSettings(1, 8, 1), service([8], [80]))).predict(ModelSettings(4, 8, 1)).gpu_memory is None
    )


def test_gpu_memory_goes_with_the_batch_size():
    """A large batch that was tried once says nothing against many workers with small ones."""
    runs = []
    for size, share in ((8, 0.1), (8, 0.06), (64, 0.5)):
        one = observed(ModelSettings(1, size, 1), service([size], [80]))
        runs.append(replace(one, known=replace(one.known, gpus=1, worker_gpu_memory=share)))
    found = ranking(*runs)
    assert [found.predict(ModelSettings(1, size, 1)).gpu_memory for size in (8, 36, 64, 128)] == pytest.approx(
        [0.1, 0.3, 0.5, 0.5]
    )
    assert found.predict(ModelSettings(1, 4, 1)).gpu_memory == pytest.approx(0.05)
    assert found.predict(ModelSettings(4, 8, 1)).gpu_memory == pytest.approx(0.4)


def test_one_batch_in_fifty_that_takes_long_is_still_in_what_is_predicted():
    """A load test of ten thousand batches has as ma factor of 10s; of a few of them only, none would be large."""
    factors = np.array([1.0] * 980 + [8.0] * 20)
    slow = replace(service([1], [10.0]), spread=list(factors / factors.mean()))
    settings, rare = ModelSettings(1, 1, 1), Traffic(rate=5.0)
    samples = simulate(simulator_settings(settings, 100), rare.arrivals(4000, 0), slow, seed=0).samples
    found = observe(settings, samples, Known(), seconds=800.0, answered=len(samples), service=slow)
    assert found.figures.p99 > 60
    assert Ranking([found], rare).predict(settings).p99 == pytest.approx(found.figures.p99, rel=0.1)
