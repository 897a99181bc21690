"""Which convolution feeds which norm, as far as torch.fx can see a model."""

from __future__ import annotations

import copy
import random
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn.parameter import is_lazy

__all__ = ["CONVS", "NORMS", "is_biased_conv", "is_norm", "links"]

CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_OTHER = " "  # no module is named so
Links = defaultdict[str, set[str]]


class _View(NamedTuple):
    """What was seen of a module. held: what Python still knows where the graph ends, so it may go anywhere."""

    root: nn.Module
    graph: fx.Graph
    held: set[fx.Node]


def is_biased_conv(module: nn.Module) -> bool:
    """Whether it is a convolution with a bias of its own, that does nothing else."""
    bias = module._parameters.get("bias")
    return _is_conv(module) and bias is not None and not is_lazy(bias)


def is_norm(module: nn.Module) -> bool:
    """Whether it is a BatchNorm that does nothing else."""
    return _plain(module, NORMS) and not _hooked(module)


def _is_conv(module: nn.Module) -> bool:
    return _plain(module, CONVS) and not module._forward_hooks


def _hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _plain(module: nn.Module, kinds: tuple[type[nn.Module], ...]) -> bool:
    """One of these classes, or a subclass that computes the same."""
    base = next((kind for kind in kinds if isinstance(module, kind)), None)
    if base is None or "forward" in vars(module):
        return False
    return all(getattr(type(module), name, None) is getattr(base, name, None) for name in ("forward", "_conv_forward"))


def links(model: nn.Module) -> tuple[Links, Links]:
    """Where each convolution goes, and what goes into each norm, by name; a name that no module has stands for all else."""
    to, of = Links(set), Links(set)
    copied = _copy(model)
    if copied is not None:
        names = {module: name for name, module in copied.named_modules()}
        with _quiet():
            for mode in (True, False):
                for module in names:
                    module.training = mode  # not train(): a model may have its own
                for view in _views(copied, set()):
                    _read(view, names, to, of)
    return to, of


def _copy(model: nn.Module) -> nn.Module | None:
    """With the same parameters, but buffers and other state of its own: a forward that changes them shall not be noticed."""
    tensors = [t for m in model.modules() for t in (*m._parameters.values(), *vars(m).values()) if isinstance(t, Tensor)]
    try:
        return copy.deepcopy(model, {id(t): t for t in tensors})
    except Exception:  # noqa: BLE001 - a model may hold anything: locks, files, process groups
        return None


@contextmanager
def _quiet() -> Iterator[None]:
    """No warnings of the tracer, and the generators of random numbers as they were: a forward may draw while it is traced."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002 - the one that models use
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices):
            warnings.simplefilter("ignore")
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002


class _Tracer(fx.Tracer):
    """Keeps what it cannot look into as one call, and notes it."""

    def __init__(self) -> None:
        super().__init__()
        self.closed: list[nn.Module] = []
        self.held: set[fx.Node] = set()  # what calls gave to the root's own forward
        self.depth = 0

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return _is_conv(m) or is_norm(m) or _hooked(m) or super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self.depth += 1
        try:
            result = self._call(m, forward, args, kwargs)
        finally:
            self.depth -= 1
        if not self.depth:
            self.held.update(_nodes(result))
        return result

    def _call(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        before = len(self.graph.nodes)
        if not self.is_leaf_module(m, ""):
            try:
                return forward(*args, **kwargs)
            except Exception:  # noqa: BLE001 - whatever the user's code does with a proxy
                for node in list(reversed(self.graph.nodes))[: len(self.graph.nodes) - before]:
                    self.graph.erase_node(node)
        self.closed.append(m)
        return self.create_proxy("call_module", self.path_of_module(m), args, kwargs)


def _views(root: nn.Module, seen: set[nn.Module]) -> Iterator[_View]:
    """What can be traced of a module, then of the parts of it that this does not show."""
    if root in seen or _is_conv(root) or not any(map(is_biased_conv, root.modules())):
        return
    seen.add(root)
    tracer, inside = _Tracer(), list(root.children())
    try:
        if "forward" not in vars(root):  # else fx would trace that of the class
            tracer.trace(root)
            inside = tracer.closed
            tracer.held.clear()  # the graph shows where it went
    except Exception:  # noqa: BLE001 - whatever the user's code does with a proxy
        pass
    if hasattr(tracer, "graph"):
        yield _View(root, tracer.graph, tracer.held.union(*(_nodes(vars(m)) for m in root.modules())))
    for module in inside:
        yield from _views(module, seen)


def _nodes(value: Any, depth: int = 4) -> Iterator[fx.Node]:
    """Of the proxies in a value, such as what a call returned, or the attributes of a module that keeps some."""
    if isinstance(value, fx.Proxy):
        yield value.node
    elif depth and isinstance(value, dict | list | tuple | set):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _nodes(item, depth - 1)


def _read(view: _View, names: dict[nn.Module, str], to: Links, of: Links) -> None:
    """Add the links that one view shows."""

    def name(node: fx.Node, kind: Callable[[nn.Module], bool]) -> str:
        module = view.root.get_submodule(str(node.target)) if node.op == "call_module" else None
        return names[module] if module is not None and kind(module) else _OTHER

    for node in view.graph.nodes:
        if node.op == "get_attr":
            owner, _, attribute = node.target.rpartition(".")
            if attribute == "bias":
                to[names[view.root.get_submodule(owner)]].add(_OTHER)
        users = {name(user, is_norm) for user in node.users}
        to[name(node, _is_conv)] |= users | {_OTHER} if node in view.held else users
        of[name(node, is_norm)].update(name(source, _is_conv) for source in node.all_input_nodes)
