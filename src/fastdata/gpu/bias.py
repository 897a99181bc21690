"""Biases that a following BatchNorm cancels."""

from __future__ import annotations

import copy
import weakref
from collections import Counter
from operator import attrgetter
from typing import Any

from torch import cuda, fx, nn, random

CONVS = nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d
NORMS = {nn.BatchNorm1d: {3}, nn.BatchNorm2d: {4}, nn.BatchNorm3d: {5}, nn.SyncBatchNorm: {3, 4, 5}}  # axes of the input
CHANGED = "forward", "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"


def drop_dead_bias(model: nn.Module) -> list[str]:
    """Remove, in place, the bias of each convolution that only feeds a BatchNorm, which cancels it. Return the convolutions' names.

    The running mean takes the bias over. Load older checkpoints before this, and make an optimizer, DDP or torch.compile after it.

    A bias is removed only if torch.fx can trace the model, and finds that, in training and in evaluation, `forward` calls the
    convolution once, and gives its output only to a BatchNorm that is called once. It is kept if a module has hooks, the BatchNorm
    is frozen, or one of the two is parametrized or shares tensors. Branches of `forward` must not change; inputs need a batch axis.
    """
    modules: dict[str, Any] = dict(model.named_modules())
    for conv, norm in (pairs := dead_biases(model)):
        if (mean := modules[norm].running_mean) is not None:
            mean.sub_(modules[conv].bias.detach().to(mean.device))
        modules[conv].bias = None
    return [conv for conv, _ in pairs]


def dead_biases(model: nn.Module) -> list[tuple[str, str]]:
    """Return the names of (convolution, BatchNorm) that `drop_dead_bias` finds."""
    modules = dict(model.named_modules())
    kinds = {type(m) for m in modules.values() if type(m) in NORMS or m._parameters.get("bias") is not None}
    if kinds.isdisjoint(CONVS) or kinds.isdisjoint(NORMS) or any(vars(m).get(k) for m in modules.values() for k in CHANGED):
        return []
    try:
        with random.fork_rng(range(cuda.device_count() if cuda.is_initialized() else 0)):  # type: ignore[no-untyped-call]
            copied = copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})  # shares them
            norms = dict(_pairs(copied, True) & _pairs(copied, False))
    except Exception:  # noqa: BLE001  whatever the user's code does with a proxy
        return []
    return [(name, norms[name]) for name in modules if name in norms and modules[norms[name]].training >= model.training]


class _Tracer(fx.Tracer):
    proxy_buffer_attributes = True
    kept = weakref.WeakValueDictionary[fx.Node, fx.Proxy]()  # after tracing: values that `forward` has stored somewhere

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return m.__module__.startswith("fastdata.") or super().is_leaf_module(m, module_qualified_name)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        self.kept[node] = made = super().proxy(node)
        return made


def _pairs(model: nn.Module, mode: bool) -> set[tuple[str, str]]:
    model.train(mode)
    graph = _Tracer().trace(model)
    nodes: Any = {node: model.get_submodule(str(node.target)) for node in graph.nodes if node.op == "call_module"}
    called = [module for node in nodes.values() for module in node.modules()]
    held = [tensor for m in model.modules() for tensor in (*m._parameters.values(), *m._buffers.values())]
    read = [attrgetter(node.target)(model) for node in graph.nodes if node.op == "get_attr"]
    uses = Counter(map(id, [*called, *held, *read]))
    return {
        (str(node.target), str(user.target))
        for node, conv in nodes.items()
        for user, norm in [(user, nodes.get(user)) for user in node.users]
        if type(conv) in CONVS and conv.bias is not None and conv.weight.dim() in NORMS.get(type(norm), ())
        if len(node.users) == 1 and node not in _Tracer.kept and norm.training == mode
        if all(uses[id(one)] == 1 for one in (conv, norm, conv.bias, norm.running_mean) if one is not None)
        if conv.out_channels == norm.num_features and all(tensor.is_leaf for tensor in read)  # nothing computed from parameters()
    }
