"""Batches on their way to a GPU: bit-equal whatever the consumer does, no waits of the host, and memory that stays flat.

The tests of `test_copies.py`, on a real one. A consumer that is slow queues `_sleep`.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fastdata import GPUNormalize, Loader, Prefetcher
from support import engine_of, under_way
from test_copies import PASSES, are_wanted, augmented

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]

CYCLES = 10_000_000  # some 6 ms
Batch = tuple[Tensor, Tensor]


def made(workers: int = 2, device: str | None = "cuda", **options: Any) -> Loader:
    return Loader(augmented(), 6, shuffle=True, num_workers=workers, device=device, **options)


def passes(loader: Loader) -> Iterator[Batch]:
    for _ in range(PASSES):
        yield from loader


def train(batches: Iterable[Batch]) -> list[Tensor]:
    """What a slow consumer sees that keeps nothing, and fills the memory that it frees."""
    found = []
    for images, targets in batches:
        torch.cuda._sleep(CYCLES)
        found += [images.clone(), targets.clone()]
        for tensor in (images, targets):
            torch.empty_like(tensor).fill_(99)
        del images, targets, tensor
    return found


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("depth", [1, 4])
def test_a_slow_consumer_sees_every_batch_as_it_was_made(workers, depth):
    with made(workers, device_prefetch=depth) as loader:
        assert are_wanted(train(passes(loader)))
        assert loader.stats().copies == 0


@pytest.mark.filterwarnings("default")  # inductor warns of its own imports, and of TF32
def test_with_cuda_graphs_of_torch_compile(monkeypatch):
    from torch._inductor import config

    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(0)
    model = nn.Sequential(GPUNormalize(0.5, 0.25), nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 4)).cuda()
    quick, found, options = torch.compile(model, mode="reduce-overhead", dynamic=False), list[Tensor](), {"drop_last": True}
    with torch.no_grad(), made(0, None, **options) as loader:
        want = [model(images.cuda()) for images, _ in passes(loader)]
    with torch.no_grad(), config.patch(compile_threads=1), made(**options) as loader:
        for images, _ in passes(loader):
            torch.compiler.cudagraph_mark_step_begin()
            torch.cuda._sleep(CYCLES)
            found.append(quick(images).clone())
            del images
    assert len(found) == len(want) and all(torch.allclose(a, b, atol=1e-4, rtol=1e-4) for a, b in zip(found, want, strict=True))


# No waits


@pytest.mark.parametrize("pinned", [False, True])
def test_a_busy_gpu_does_not_hold_the_host(pinned):
    """Copies wait for what the consumer's stream was given before; the host does not, also where memory is pageable."""
    tensors = [torch.full((1 << 20,), float(k)) for k in range(5)]
    batches = iter(Prefetcher([tensor.pin_memory() if pinned else tensor for tensor in tensors], "cuda"))
    for warm in ([tensor.pin_memory() for tensor in tensors], [tensor.cuda() for tensor in tensors]):
        del warm  # torch's allocators have memory now, which is not had while the GPU works
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)
    first = next(batches)
    assert not torch.cuda.current_stream().query(), "the stream sleeps on for a second"
    assert float(first[0]) == 0 and [float(batch[0]) for batch in batches] == [1, 2, 3, 4]


def test_copies_run_beside_the_consumers_work():
    with made() as loader:
        batches = passes(loader)
        for _ in range(3):
            next(batches)
        torch.cuda.synchronize()
        time.sleep(0.3)  # the workers have made the next ones
        images, _ = next(batches)
        torch.cuda._sleep(2_000_000_000)
        done = under_way(engine_of(loader))[-1][0]
        end = time.monotonic() + 0.5
        while not done.query() and time.monotonic() < end:
            time.sleep(0.001)
        assert len(engine_of(loader)._queue) == 2 and done.query() and not torch.cuda.current_stream().query()
    assert images.is_cuda


# Memory


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_memory_stays_flat_over_2000_batches():
    with made() as loader:
        batches = (batch for _ in range(1000) for batch in loader)
        for k, (images, targets) in enumerate(batches):
            images.float().add_(targets.sum())
            if k == 200:
                gc.collect()
                before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), resident()
            if k == 2200:
                gc.collect()
                break
        size = sum(tensor.nbytes for tensor in (images, targets))
        assert torch.cuda.memory_allocated() - before[0] <= 4 * size
        assert torch.cuda.memory_reserved() - before[1] <= 20 << 20, "one segment of torch's at the most"
        assert resident() - before[2] < 8 << 20
    del images, targets
    batches.close()
