"""Which convolution feeds which norm, as far as torch.fx can trace a model."""

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
_OTHER = " "  # anything else; no module has this name
Links = defaultdict[str, set[str]]


class _View(NamedTuple):
    """The traced graph of a module. `escaped`: nodes that Python still references where the graph ends; they may go anywhere."""

    root: nn.Module
    graph: fx.Graph
    escaped: set[fx.Node]


def is_biased_conv(module: nn.Module) -> bool:
    """Return whether it is a plain convolution with a bias of its own."""
    bias = module._parameters.get("bias")
    return _is_conv(module) and bias is not None and not is_lazy(bias)


def is_norm(module: nn.Module) -> bool:
    """Return whether it is a plain BatchNorm."""
    return _plain(module, NORMS) and not _hooked(module)


def _is_conv(module: nn.Module) -> bool:
    return _plain(module, CONVS) and not module._forward_hooks


def _hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _plain(module: nn.Module, kinds: tuple[type[nn.Module], ...]) -> bool:
    """Return whether it is of one of these classes, or of a subclass that computes the same."""
    base = next((kind for kind in kinds if isinstance(module, kind)), None)
    if base is None or "forward" in vars(module):
        return False
    return all(getattr(type(module), name, None) is getattr(base, name, None) for name in ("forward", "_conv_forward"))


def links(model: nn.Module) -> tuple[Links, Links]:
    """Return where each convolution's output goes, and what goes into each norm, by name. `_OTHER` stands for anything else."""
    targets, sources = Links(set), Links(set)
    copied = _copy(model)
    if copied is not None:
        names = {module: name for name, module in copied.named_modules()}
        with _quiet():
            for mode in (True, False):
                for module in names:
                    module.training = mode  # not train(): a model may have its own
                for view in _views(copied, set()):
                    _read(view, names, targets, sources)
    return targets, sources


def _copy(model: nn.Module) -> nn.Module | None:
    """Return a copy that shares the parameters but not buffers or other state, so that tracing changes nothing in the model."""
    tensors = [t for m in model.modules() for t in (*m._parameters.values(), *vars(m).values()) if isinstance(t, Tensor)]
    try:
        return copy.deepcopy(model, {id(t): t for t in tensors})
    except Exception:  # noqa: BLE001 - a model may hold anything: locks, files, process groups
        return None


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the tracer's warnings, and restore the random generators: a forward may draw while it is traced."""
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
    """Keeps a module that it cannot trace as one call, and notes it in `closed`."""

    def __init__(self) -> None:
        super().__init__()
        self.closed: list[nn.Module] = []
        self.escaped: set[fx.Node] = set()  # results that calls returned to the root's own forward
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
            self.escaped.update(_nodes(result))
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
    """Yield the trace of a module, then those of its parts that this one does not show."""
    if root in seen or _is_conv(root) or not any(map(is_biased_conv, root.modules())):
        return
    seen.add(root)
    tracer = _Tracer()
    inside = list(root.children())
    try:
        if "forward" not in vars(root):  # otherwise fx would trace that of the class
            tracer.trace(root)
            inside = tracer.closed
            tracer.escaped.clear()  # the graph shows where they went
    except Exception:  # noqa: BLE001 - whatever the user's code does with a proxy
        pass
    if hasattr(tracer, "graph"):
        yield _View(root, tracer.graph, tracer.escaped.union(*(_nodes(vars(m)) for m in root.modules())))
    for module in inside:
        yield from _views(module, seen)


def _nodes(value: Any, depth: int = 4) -> Iterator[fx.Node]:
    """Yield the nodes of the proxies in a value, such as a call's result or a module's attributes."""
    if isinstance(value, fx.Proxy):
        yield value.node
    elif depth and isinstance(value, dict | list | tuple | set):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _nodes(item, depth - 1)


def _read(view: _View, names: dict[nn.Module, str], targets: Links, sources: Links) -> None:
    """Add the links of one view."""

    def name(node: fx.Node, kind: Callable[[nn.Module], bool]) -> str:
        module = view.root.get_submodule(str(node.target)) if node.op == "call_module" else None
        return names[module] if module is not None and kind(module) else _OTHER

    for node in view.graph.nodes:
        if node.op == "get_attr":
            owner, _, attribute = node.target.rpartition(".")
            if attribute == "bias":
                targets[names[view.root.get_submodule(owner)]].add(_OTHER)
        users = {name(user, is_norm) for user in node.users}
        targets[name(node, _is_conv)] |= users | {_OTHER} if node in view.escaped else users
        sources[name(node, is_norm)].update(name(source, _is_conv) for source in node.all_input_nodes)
