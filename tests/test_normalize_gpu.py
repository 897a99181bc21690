"""GPUNormalize where kernels are compiled or counted: how many passes it takes, and what torch.compile makes of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from fastdata.gpu.normalize import GPUNormalize
from test_normalize import CUDA, DTYPES, IMAGENET, LARGEST, assert_close, exact, image, run_codes

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own, in inductor
CPU = pytest.param("cpu", marks=pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler"))


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    """Nothing compiled before counts, and the compiler starts no processes."""
    from torch._inductor import config

    torch._dynamo.reset()
    with config.patch(compile_threads=1):
        yield
    torch._dynamo.reset()


def kernels(call: object, *arguments: torch.Tensor) -> list[str]:
    """The names of what a call runs on the GPU, after it has run once."""
    call(*arguments)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof:
        call(*arguments)
        torch.cuda.synchronize()
    return [
        e.name
        for e in prof.events()
        if e.device_type == torch.autograd.DeviceType.CUDA and not getattr(e, "is_user_annotation", False)
    ]


@pytest.mark.parametrize("device", [CPU, CUDA])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.slow
def test_compiled_it_rounds_once_and_keeps_the_layout(last: bool, dtype: torch.dtype, device: str) -> None:
    """Each code of both dtypes, by what inductor generates: float32 arithmetic, fused or not, and one rounding."""
    compiled = torch.compile(GPUNormalize(*IMAGENET, dtype=dtype), fullgraph=True)
    for kind, largest in LARGEST.items():
        y, bound = exact(IMAGENET, np.arange(largest + 1), largest)
        assert_close(run_codes(IMAGENET, kind, compiled, device, last=last), y, bound, dtype)


@pytest.mark.parametrize("device", [CUDA])
@pytest.mark.parametrize("kind", LARGEST)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [(64, 48), (4, 24, 16)])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_one_kernel(mode: str, last: bool, size: tuple[int, ...], dtype: torch.dtype, kind: torch.dtype, device: str) -> None:
    module, x = GPUNormalize(*IMAGENET, dtype=dtype).to(device), image(3, kind, last=last, size=size).to(device)
    call = module if mode == "eager" else torch.compile(module, fullgraph=True)
    found = kernels(call, x)
    assert len(found) == 1, found
    try:
        torch.cuda.set_sync_debug_mode("error")
        call(x)
    finally:
        torch.cuda.set_sync_debug_mode("default")
