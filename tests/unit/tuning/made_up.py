"""Something to tune that is quickly made up: figures by a formula, with noise."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from tsbatch.diagnosis.model_facts import Known
from tsbatch.tuning.history import Hypothesis, Judgement, Step
from tsbatch.tuning.objective import Figures
from tsbatch.tuning.observation import Observation
from tsbatch.tuning.search_space import ModelSettings
from tsbatch.tuning.tuner import Refused

START = ModelSettings(workers=1, batch_size=8, delay=100)


def figures(rate=100.0, p99=50.0, failed=0.0, memory=1e8, gpu_memory=None):
    return Figures(
        throughput=rate, p50=p99 / 2, p99=p99, failed=failed, memory=memory, gpu_memory=gpu_memory, requests=1000
    )


def observation(settings=START, **values):
    return Observation(settings=settings, figures=figures(**values), known=Known(cores=4))


def step(candidate, verdict="no gain", baseline=START, setting="workers"):
    pair = (observation(baseline), observation(candidate))
    return Step(
        hypothesis=Hypothesis(settings=candidate, setting=setting, why="because"),
        baseline=baseline,
        pairs=[pair],
        judgement=Judgement(verdict=verdict, aim="throughput", why="so it is", gain=1.0),
    )


@dataclass
class MadeUp:
    """A system whose rate is ``rate(settings)`` and whose P99 is ``p99(settings)``, each run by a factor off.

    Attributes:
        rate, p99, memory, gpu_memory: the truth; memory has no noise.
        noise: standard deviation of the factor's logarithm from run to run.
        drift: of a walk's steps.
        refused: settings that cannot be had.
        seed: of the noise.
        log: the settings that were measured.
    """

    rate: object = lambda settings: 100.0
    p99: object = lambda settings: 50.0
    memory: object = lambda settings: 1e8
    gpu_memory: object = lambda settings: None
    noise: float = 0.0
    drift: float = 0.0
    refused: tuple = ()
    seed: int = 0
    log: list = field(default_factory=list)

    def __post_init__(self):
        self._random = np.random.default_rng(self.seed)
        self._walk = 0.0

    def measure(self, settings):
        self.log.append(settings)
        if settings in self.refused:
            raise Refused("the worker cannot load")
        self._walk += self.drift * self._random.normal()
        factor = math.exp(self._walk + self.noise * self._random.normal())
        held = {"memory": self.memory(settings), "gpu_memory": self.gpu_memory(settings)}
        return observation(settings, rate=self.rate(settings) * factor, p99=self.p99(settings) / factor, **held)


class Listed:
    """A search that proposes these, one after the other."""

    def __init__(self, *candidates):
        self.candidates = candidates

    def propose(self, history):
        if len(history.steps) < len(self.candidates):
            return Hypothesis(settings=self.candidates[len(history.steps)], setting="workers", why="because")
        return None
