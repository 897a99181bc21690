"""Which parameters decay; and that the optimizers of the extra take the groups, train, and come back from a file."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from pytorch_optimizer import LARS, Lamb, NovoGrad
from torch import nn

from fastdata.optim import decay_groups
from training import cut, data, net, plain, values

NORMS = [nn.BatchNorm2d(3), nn.SyncBatchNorm(3), nn.InstanceNorm1d(3, affine=True), nn.GroupNorm(1, 3)]
NORMS += [nn.LayerNorm(3), nn.LayerNorm([3, 4, 5]), nn.RMSNorm(3), nn.RMSNorm([3, 4])]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(7, 4)
        self.norms = nn.ModuleList(copy.deepcopy(NORMS))
        self.attention = nn.MultiheadAttention(4, 2, add_bias_kv=True)
        self.recurrent = nn.LSTM(4, 4)
        self.conv = nn.Conv2d(3, 3, 1)
        self.head = nn.Linear(4, 7)
        self.head.weight = self.tokens.weight
        self.again = self.conv
        self.scale = nn.Parameter(torch.ones(4))
        self.temperature = nn.Parameter(torch.ones(()))
        self.position = nn.Parameter(torch.ones(1, 9, 4))
        self.frozen = nn.Linear(4, 4).requires_grad_(False)


WITH_DECAY = {"tokens.weight", "attention.in_proj_weight", "attention.out_proj.weight", "conv.weight", "position"}
WITH_DECAY |= {"recurrent.weight_ih_l0", "recurrent.weight_hh_l0"}


def test_weights_decay_and_nothing_else_does() -> None:
    model = Net()
    names = {parameter: name for name, parameter in model.named_parameters()}
    with_decay, without = decay_groups(model, 0.05)
    assert (with_decay["weight_decay"], without["weight_decay"]) == (0.05, 0.0)
    assert {names[p] for p in with_decay["params"]} == WITH_DECAY
    others = [name for name, p in model.named_parameters() if name not in WITH_DECAY and p.requires_grad]
    assert [names[p] for p in without["params"]] == others
    assert {"attention.bias_k", "norms.5.weight", "norms.7.weight", "temperature", "head.bias"} <= set(others)
    assert not any(name.startswith("frozen") for name in others)
    assert [names[p] for p in with_decay["params"]] == [name for name in names.values() if name in WITH_DECAY]


# The optimizers of the extra `optimizers`.

OPTIMIZERS = [partial(LARS, lr=2.0, momentum=0.9), partial(Lamb, lr=0.02), partial(NovoGrad, lr=0.02)]


@pytest.mark.parametrize("make", [*OPTIMIZERS, partial(Lamb, lr=0.02, pre_norm=True)])
def test_an_update_without_gradients_changes_no_weights(make: Any) -> None:
    """As the very first one, and later."""
    model = net(torch.float32)
    optimizer = make(decay_groups(model, 1e-2))
    for updates in (0, 3):
        plain(model, optimizer, cut(data(12, torch.float32), (4, 4, 4))[:updates])
        before = values(model)
        optimizer.zero_grad()
        optimizer.step()
        assert torch.equal(before, values(model)) and before.isfinite().all()
