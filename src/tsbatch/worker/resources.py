"""The resources of one worker: cores, threads, device."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

import torch

from tsbatch.errors import SettingsError, reason_of
from tsbatch.worker.cpu_cores import usable_cores

__all__ = ["apply_threads", "one_operator_at_a_time", "pick_device", "threads_for", "to_device", "usable_cores"]


def threads_for(setting: int | str, config: Mapping[str, Any], cores: int) -> int:
    """Return the number of threads of one worker.

    ``auto`` divides the usable cores among the workers of the model: TorchServe starts several and lets each use all
    cores, and two such workers on two cores served fewer than half the requests of one.

    Args:
        setting: ``auto`` or a number.
        config: model-config.yaml; ``minWorkers`` is the number of workers that TorchServe starts.
        cores: usable cores.
    """
    if isinstance(setting, int):
        return setting
    workers = config.get("minWorkers")
    return max(1, cores // workers) if isinstance(workers, int) and workers > 0 else cores


def apply_threads(threads: int) -> None:
    """Set the number of threads of torch and of Rust tokenizers. Call this before the first tokenizer is used."""
    torch.set_num_threads(threads)
    os.environ["RAYON_NUM_THREADS"] = str(threads)  # read once, when a tokenizer first processes a list


def one_operator_at_a_time() -> None:
    """Limit torch to one inter-op thread; its default is the number of cores.

    A worker computes one batch at a time, so more inter-op threads would only compete with the intra-op threads. Only
    for our own process: this can be set once, before anything has run in parallel.
    """
    with contextlib.suppress(RuntimeError):  # too late, something has already run
        torch.set_num_interop_threads(1)


def pick_device(setting: str, gpu_id: int | None) -> torch.device:
    """Return the device to run on; ``auto`` selects the GPU that TorchServe assigned if torch can use it.

    Raises:
        SettingsError: the device does not exist here.
    """
    if setting == "auto":
        return torch.device("cuda", gpu_id) if gpu_id is not None and torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(setting)
        torch.empty(1, device=device).tolist()  # a device without data (meta) fails here
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise SettingsError(
            f"model-config.yaml: tsbatch.device: {setting!r} cannot be used here: {reason_of(error)}"
        ) from None
    return device


def to_device(tensors: Any, device: torch.device) -> Any:
    """Move tensors to ``device``, including those in mappings, tuples and lists.

    Copies to a GPU go through pinned memory, because only those are asynchronous.
    """
    if device.type == "cpu":
        return tensors
    if isinstance(tensors, torch.Tensor):
        pinned = tensors.pin_memory() if device.type == "cuda" and tensors.device.type == "cpu" else tensors
        return pinned.to(device, non_blocking=True)
    if isinstance(tensors, Mapping):
        return {key: to_device(value, device) for key, value in tensors.items()}
    if isinstance(tensors, (tuple, list)):
        return type(tensors)(to_device(value, device) for value in tensors)
    return tensors
