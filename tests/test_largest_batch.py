"""The probe for the batch that fits: with steps that say they ran out of memory, and with memory that does run out."""

from __future__ import annotations

import math
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fastdata.bench.largest_batch import largest_batch

ERRORS: list[Callable[[], Exception]] = [
    lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    lambda: torch.OutOfMemoryError("Allocation on device 0 would exceed allowed memory."),
    lambda: MemoryError(),
    lambda: RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
    lambda: RuntimeError("[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"),
    lambda: RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."),
    lambda: RuntimeError("std::bad_alloc"),
    lambda: RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
]


def steps(most: int, error: Callable[[], Exception] = MemoryError) -> tuple[Callable[[int], None], list[int]]:
    """A step that fits up to `most`, and the sizes it was called with."""
    sizes: list[int] = []

    def step(size: int) -> None:
        sizes.append(size)
        if size > most:
            raise error()

    return step, sizes


@given(most=st.integers(1, 10**6), start=st.integers(1, 5000), limit=st.integers(1, 10**6), error=st.sampled_from(ERRORS))
def test_exact_in_few_calls(most: int, start: int, limit: int, error: Callable[[], Exception]) -> None:
    start = min(start, most, limit)
    step, sizes = steps(most, error)
    with mock.patch("gc.collect"):  # it would take most of the time
        assert largest_batch(step, start=start, limit=limit) == min(most, limit)
    assert max(sizes) <= limit and min(sizes) == start
    assert len(sizes) <= math.log2(max(sizes) / start) + math.log2(max(sizes)) + 4
    assert sizes[:2] == [start, start] and len(set(sizes)) == len(sizes) - 1


@pytest.mark.slow
def test_defaults() -> None:
    step, sizes = steps(10**9)
    assert largest_batch(step) == 65536 == sizes[-1]
    assert sizes == [1, *(2**k for k in range(17))]


@pytest.mark.slow
def test_in_order() -> None:
    step, sizes = steps(11)
    assert largest_batch(step) == 11
    assert sizes == [1, 1, 2, 4, 8, 16, 12, 10, 11]


@pytest.mark.parametrize(
    ("start", "advice"),
    [(1, "the model or the samples smaller"), (8, "a batch of 8 must fit, found 'MemoryError': pass a smaller")],
)
def test_start_does_not_fit(start: int, advice: str) -> None:
    with pytest.raises(MemoryError, match=advice) as caught:
        largest_batch(steps(0)[0], start=start)
    assert caught.value.__context__ is None


def test_start_does_not_fit_beside_what_the_first_step_left() -> None:
    left: list[int] = []

    def step(size: int) -> None:
        if left:
            raise torch.OutOfMemoryError("CUDA out of memory.\nmore")
        left.append(size)

    with pytest.raises(MemoryError, match=r"found 'CUDA out of memory\.': "):
        largest_batch(step)


@pytest.mark.parametrize("arguments", [{"start": 0}, {"start": -1}, {"start": 9, "limit": 8}, {"limit": 0}])
def test_wrong_arguments(arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="1 <= start <= limit, found start="):
        largest_batch(lambda size: pytest.fail("called"), **arguments)


@pytest.mark.slow
@pytest.mark.parametrize(
    "error", [ValueError("out of memory"), RuntimeError("shape '[2]' is invalid"), KeyboardInterrupt(), RuntimeError()]
)
def test_other_errors_pass(error: BaseException) -> None:
    def step(size: int) -> None:
        if size == 4:
            raise error

    with pytest.raises(type(error)) as caught:
        largest_batch(step)
    assert caught.value is error


@pytest.mark.slow
def test_failed_steps_leave_nothing() -> None:
    seen: list[Exception] = []  # as a debugger or a logger keeps them
    alive: list[weakref.ref[torch.Tensor]] = []

    def remembered(size: int) -> torch.Tensor:
        batch = torch.ones(size)
        alive.append(weakref.ref(batch))
        return batch

    def inner(size: int) -> None:
        batch = remembered(size)
        if size > 5:
            raise torch.OutOfMemoryError(f"CUDA out of memory, {len(batch)}")

    def step(size: int) -> None:
        assert not any(ref() is not None for ref in alive)
        cycle: list[Any] = [remembered(size)]
        cycle.append(cycle)
        try:
            inner(size)
        except torch.OutOfMemoryError as error:
            seen.append(error)
            raise RuntimeError("out of memory, again") from error

    assert largest_batch(step) == 5
    assert len(seen) == 2 and not any(ref() is not None for ref in alive)


SCRIPT = """
import resource, sys, torch
from torch import nn
from fastdata.bench.largest_batch import largest_batch
torch.set_num_threads(1)
weight = nn.Parameter(torch.ones(1 << 18))
optimizer = torch.optim.Adam([weight], foreach=False)
def empty(size):
    return torch.empty(size << 20, dtype=torch.uint8)
def train(size):
    (torch.ones(size, 1 << 18) * weight).relu().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
train(1)
before = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (before + (256 << 20), resource.RLIM_INFINITY))
print(largest_batch({"empty": empty, "train": train}[sys.argv[1]]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space")
@pytest.mark.parametrize(("kind", "least", "most"), [("empty", 180, 256), ("train", 16, 200)])
def test_memory_that_runs_out(kind: str, least: int, most: int) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, kind], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert least <= int(done.stdout) <= most


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_memory_of_a_gpu() -> None:
    free = 2 << 30
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_allocated() + free) / total)
    model = nn.Linear(1024, 1024, device="cuda")
    optimizer = torch.optim.Adam(model.parameters())

    def step(size: int) -> None:
        x = torch.ones(size, 1024, 16, device="cuda")  # 64 KiB a sample
        model(x.transpose(1, 2)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    try:
        found = largest_batch(step)
        assert 2000 < found < 32768
        assert largest_batch(step, start=found // 2) == pytest.approx(found, rel=0.1)
        step(int(found * 0.9))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()
