"""What runs on the device, on torch's meta device: the same shapes and layouts as on the CPU, and nothing read back by the host."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fastdata import GPUNormalize, NextToken, Ragged

META = torch.device("meta")


class Crossings(TorchDispatchMode):
    """Counts copies between host and device. To read a tensor of the meta device is an error of torch's."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs, out)) if isinstance(leaf, Tensor) and leaf.dim()]
        self.count += len({tensor.device.type for tensor in tensors}) > 1
        return out


def layouts(value: Any) -> list[Any]:
    return [(leaf.dtype, leaf.shape, leaf.stride()) for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def ragged(values: Tensor, offsets: Tensor) -> Any:
    lists = Ragged(values, offsets)
    return lists.lengths, lists.rows, lists.padded(4), lists.padded(0), lists.to(torch.float64).values


RGB = [0.4, 0.5, 0.6], [0.2, 0.2, 0.3]
CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "next token": (NextToken(), (torch.zeros(4, 9, dtype=torch.uint16),)),
    "next token of documents": (NextToken(), (torch.zeros(4, 9, dtype=torch.uint32), torch.zeros(4, 9, dtype=torch.uint8))),
    "ragged": (ragged, (torch.zeros(7, 4), torch.tensor([0, 3, 3, 7]))),
}
for kind in (torch.uint8, torch.uint16):
    images = [torch.zeros(shape, dtype=kind) for shape in ((3, 6, 8), (2, 3, 6, 8), (2, 3, 4, 6, 8))]
    for made in (*images, images[1].to(memory_format=torch.channels_last)):
        CASES[f"{kind} {made.shape} {made.stride()}"] = GPUNormalize(*RGB, dtype=torch.bfloat16), (made,)


@pytest.mark.parametrize("name", CASES)
def test_the_device_gets_what_the_cpu_gets_and_the_host_reads_nothing(name: str) -> None:
    call, inputs = CASES[name]
    want = layouts(call(*inputs))
    there = [tensor.to(META) for tensor in inputs]
    call = copy.deepcopy(call).to(META) if isinstance(call, nn.Module) else call
    with Crossings() as crossings:
        found = call(*there)
    assert all(leaf.device == META for leaf in pytree.tree_leaves(found) if isinstance(leaf, Tensor))
    assert layouts(found) == want and crossings.count == 0
