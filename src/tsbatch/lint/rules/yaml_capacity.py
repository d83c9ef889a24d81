"""Rules that compare numbers of model-config.yaml with each other and with the machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tsbatch.archive.model_config import is_java_int
from tsbatch.lint.findings import Issue
from tsbatch.lint.registry import rule
from tsbatch.lint.rules.shared_checks import short_queue
from tsbatch.lint.yaml_file import ModelConfigFile


def threads_of(config: Mapping[str, Any]) -> int | None:
    """Return the threads of one worker, if the YAML sets a number."""
    for section, key in (("tsbatch", "threads"), ("torchrun", "OMP_NUMBER_THREADS")):
        values = config.get(section)
        if isinstance(values, Mapping) and is_java_int(values.get(key)):
            return int(values[key])
    return None


def on_gpu(config: Mapping[str, Any]) -> bool:
    """Return whether the YAML asks for GPUs."""
    return config.get("deviceType") == "gpu" or bool(config.get("deviceIds"))


def _workers_of(config: Mapping[str, Any]) -> int:
    """The workers that the YAML starts; 0 if it does not set them."""
    low, high = config.get("minWorkers"), config.get("maxWorkers")
    return max(1, low) if is_java_int(low) and is_java_int(high) and high >= max(1, low) else 0


@rule("yaml-queue-short", ModelConfigFile, "warning")
def queue_short(file: ModelConfigFile) -> Iterator[Issue]:
    """A queue that is too short for the batches.

    Requests beyond jobQueueSize get 503. To fill every worker's batch while another one waits, the queue needs room for
    2 x batchSize x workers requests.
    """
    config, entry = file.mapping(), file.entry("jobQueueSize")
    batch, workers = config.get("batchSize", 1), max(1, _workers_of(config))
    if entry and is_java_int(entry.value) and is_java_int(batch) and entry.value > 0:
        subject = f"jobQueueSize {entry.value}"
        yield from short_queue(entry.line, subject, entry.value, batch, workers, "jobQueueSize: ")


@rule("yaml-threads", ModelConfigFile, "warning")
def threads(file: ModelConfigFile) -> Iterator[Issue]:
    """More threads than cores.

    Workers whose threads together exceed the cores slow each other down: on two cores, two workers with two threads
    each answered 17 requests/s, one worker answered 40, and two workers with one thread each answered 74.
    """
    config, cores = file.mapping(), file.machine.cores
    number, workers = threads_of(config), _workers_of(config)
    entry = file.entry("tsbatch") or file.entry("torchrun")
    if number and entry and workers * number > max(cores, number) and not on_gpu(config):
        message = f"{workers} workers x {number} threads on {cores} cores"
        right = f"threads: {max(1, cores // workers)}"
        yield Issue(entry.line, message, "the workers compete for the cores", right)


@rule("yaml-shared-cores", ModelConfigFile, "note")
def shared_cores(file: ModelConfigFile) -> Iterator[Issue]:
    """Several workers that each use all cores.

    TorchServe does not set the number of threads: each worker lets torch use all cores, unless the handler divides
    them, as tsbatch's handlers do.
    """
    config, entry, cores = file.mapping(), file.entry("minWorkers"), file.machine.cores
    workers = _workers_of(config)
    divided = "tsbatch" in config or on_gpu(config) or threads_of(config) is not None
    if entry and workers > 1 and not divided:
        effect = f"each of the {workers} workers lets torch use all {cores} cores"
        right = f"torch.set_num_threads({max(1, cores // workers)}) in the handler"
        yield Issue(entry.line, "the workers share the cores", effect, right)
