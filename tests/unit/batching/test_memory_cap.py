"""The memory cap: lowered by the size of the batch, never by one guilty request."""

from __future__ import annotations

import pytest
import torch

from tsbatch.batching.memory_cap import MemoryCap, is_out_of_memory, release_cached_memory


class Unspeakable(RuntimeError):
    def __str__(self):
        raise ValueError("no text")


@pytest.mark.parametrize(
    "error, expected",
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 99 bytes."), True),
        (RuntimeError("std::bad_alloc: bad allocation"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
        (KeyError("x"), False),
        (SystemExit(1), False),
        (Unspeakable(), False),
    ],
)
def test_how_memory_errors_look(error, expected):
    assert is_out_of_memory(error) is expected


def test_a_real_allocation_that_is_too_large():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


def attempt(cap, *, failed=(), fitted=(), alone=False):
    cap.begin()
    for _ in failed:
        cap.failed()
    for cost in fitted:
        cap.fitted(cost)
    return cap.settle(alone=alone)


def test_the_largest_that_fitted_becomes_the_limit():
    cap = MemoryCap()
    assert attempt(cap, failed=[800], fitted=[400, 350])
    assert cap.limit == 400


def test_without_a_failure_nothing_changes():
    cap = MemoryCap()
    assert not attempt(cap, fitted=[800])
    assert cap.limit is None


def test_one_feature_that_fails_alone_is_to_blame_and_not_the_size():
    cap = MemoryCap()
    assert not attempt(cap, failed=[800, 400, 100], fitted=[400, 100], alone=True)
    assert cap.limit is None


def test_where_nothing_fitted_nothing_is_known():
    cap = MemoryCap()
    assert not attempt(cap, failed=[800])
    assert cap.limit is None


def test_the_limit_only_goes_down():
    cap = MemoryCap()
    attempt(cap, failed=[800], fitted=[400])
    attempt(cap, failed=[400], fitted=[200])
    assert cap.limit == 200
    attempt(cap, failed=[900], fitted=[850])
    assert cap.limit == 200


def test_a_failure_is_forgotten_with_its_micro_batch():
    cap = MemoryCap()
    attempt(cap, failed=[800])
    assert not attempt(cap, fitted=[10])
    assert cap.limit is None


def test_releasing_without_a_gpu_does_nothing():
    release_cached_memory()
