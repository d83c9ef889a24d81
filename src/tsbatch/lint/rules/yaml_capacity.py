"""Rules of model-config.yaml that weigh numbers against each other and against the machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tsbatch.lint.findings import Found
from tsbatch.lint.registry import rule
from tsbatch.lint.yaml_file import ModelConfigFile, is_int


def threads_of(config: Mapping[str, Any]) -> int | None:
    """Threads of one worker, where the YAML says a number."""
    section, torchrun = config.get("tsbatch"), config.get("torchrun")
    threads = section.get("threads") if isinstance(section, Mapping) else None
    if is_int(threads):
        return int(threads)
    omp = torchrun.get("OMP_NUMBER_THREADS") if isinstance(torchrun, Mapping) else None
    return int(omp) if is_int(omp) else None


def on_gpu(config: Mapping[str, Any]) -> bool:
    """Whether the YAML asks for GPUs."""
    return config.get("deviceType") == "gpu" or bool(config.get("deviceIds"))


def workers_of(config: Mapping[str, Any]) -> int:
    """Workers that the YAML starts; 0 when it does not say."""
    low, high = config.get("minWorkers"), config.get("maxWorkers")
    return max(1, int(low)) if is_int(low) and is_int(high) and high >= max(1, low) else 0


@rule(
    "yaml-queue-short",
    ModelConfigFile,
    "warning",
    "a queue too short for the batches",
    "Requests beyond jobQueueSize get 503. To fill every worker's batch while another is waiting takes 2 x batchSize x "
    "workers places.",
)
def queue_short(file: ModelConfigFile) -> Iterator[Found]:
    """A jobQueueSize below 2 x batchSize x maxWorkers."""
    config, entry = file.mapping(), file.entry("jobQueueSize")
    batch, workers = config.get("batchSize", 1), max(1, workers_of(config))
    if entry and is_int(entry.value) and is_int(batch) and 0 < entry.value < 2 * batch * workers:
        message = f"jobQueueSize {entry.value} is below 2 x batchSize {batch} x workers {workers}"
        effect = "bursts get 503 while batches are not full"
        yield Found(entry.line, message, effect, f"jobQueueSize: {2 * batch * workers}")


@rule(
    "yaml-threads",
    ModelConfigFile,
    "warning",
    "more threads than cores",
    "Workers whose threads together exceed the cores get in each other's way: on two cores two workers with two "
    "threads each answered 17 requests/s where one answered 40, and two with one thread each 74.",
)
def threads(file: ModelConfigFile) -> Iterator[Found]:
    """Workers x threads above the usable cores."""
    config, cores = file.mapping(), file.machine.cores
    number, workers = threads_of(config), workers_of(config)
    entry = file.entry("tsbatch") or file.entry("torchrun")
    if number and entry and workers * number > max(cores, number) and not on_gpu(config):
        message = f"{workers} workers x {number} threads on {cores} cores"
        right = f"threads: {max(1, cores // workers)}"
        yield Found(entry.line, message, "the workers wait for each other's cores", right)


@rule(
    "yaml-shared-cores",
    ModelConfigFile,
    "note",
    "several workers that each use all cores",
    "TorchServe sets no number of threads: each worker lets torch use all cores, unless the handler divides them, as "
    "tsbatch's do.",
)
def shared_cores(file: ModelConfigFile) -> Iterator[Found]:
    """Several workers on CPU, without a word about threads."""
    config, entry = file.mapping(), file.entry("minWorkers")
    if (
        entry
        and workers_of(config) > 1
        and "tsbatch" not in config
        and not on_gpu(config)
        and threads_of(config) is None
    ):
        effect = f"each of the {workers_of(config)} workers lets torch use all {file.machine.cores} cores"
        share = max(1, file.machine.cores // workers_of(config))
        yield Found(entry.line, "the workers share the cores", effect, f"torch.set_num_threads({share}) in the handler")
