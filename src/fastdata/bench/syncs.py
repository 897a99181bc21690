"""Find lines that make the host wait for the GPU or, on the CPU, would do so."""

from __future__ import annotations

import linecache
import os
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

__all__ = ["Sync", "find_syncs"]

# The host reads the results of these operators, or their shapes, from the device. (PyTorch, "CUDA semantics", and the kernels
# under aten/src/ATen/native/cuda, which copy to the host.) Masks as indices, and repeat_interleave, are handled below.
_READ = {
    "aten::_local_scalar_dense",  # item, bool, int, float, a tensor as an index or in a format string
    *("aten::nonzero", "aten::masked_select", "aten::bincount", "aten::equal", "aten::allclose"),
    *("aten::_unique", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive", "aten::unique_dim_consecutive"),
    *("aten::_linalg_check_errors", "aten::_linalg_eigh", "aten::_linalg_svd"),
}
_INDEX = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
# Copies to the host, and copies of the host's numbers to the device. On the CPU they are no operators.
_COPIES = {Tensor.cpu, Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__repr__}
_MADE = {torch.tensor, torch.as_tensor, Tensor.new_tensor}
_TO_CPU = re.compile(r"""\.to\(\s*(device\s*=\s*)?(torch\.device\(\s*)?["']cpu["']""")
_ON_CPU = re.compile(r"""\bdevice\s*=\s*(torch\.device\(\s*)?["']cpu["']""")
# Python functions that wait, or make the allocator wait.
_WAITING = {
    function.__code__: name
    for name, function in {
        "torch.cuda.synchronize": torch.cuda.synchronize,
        "torch.cuda.empty_cache": torch.cuda.empty_cache,
        "torch.cuda.Event.synchronize": torch.cuda.Event.synchronize,
        "torch.cuda.Stream.synchronize": torch.cuda.Stream.synchronize,
    }.items()
}
_TORCH = str(Path(torch.__file__).parent) + os.sep
_OPTIMIZERS = _TORCH + "optim" + os.sep
_HABITS = str(Path(__file__).parents[1] / "monitor" / "habits.py")  # a Trainer's watch wraps empty_cache
_WARNINGS = warnings.catch_warnings.__init__.__code__.co_filename  # from Python 3.14 on, warnings.py has no code of its own
_OWN = (__file__, str(Path(__file__).with_name("passes.py")), _HABITS, _WARNINGS)
_WARNING = "called a synchronizing CUDA operation"


class Sync(NamedTuple):
    """One place where the host waits. where: file:line, or the pass; what: the operator, or the line."""

    where: str
    what: str
    per_call: float


def find_syncs(call: Callable[[], object], calls: int) -> tuple[tuple[Sync, ...], torch.device | None]:
    """Find host syncs in `calls` calls, or in one more call if these turn out to use a GPU.

    On a GPU, syncs are those that ``torch.cuda.set_sync_debug_mode`` reports, and calls of ``synchronize`` and ``empty_cache``. On
    the CPU, they are what would wait if all tensors were on a GPU, except those that were copied to the host. (Except for LBFGS,
    PyTorch's optimizers keep numbers on the CPU, so what they read does not count.) While it is observed on the CPU, compiled code
    runs as eager code; it stays compiled.

    Returns:
        The places, those with the most waits first, and the CUDA device of the first operator that used one.
    """
    seen = _Seen()
    with _eager(), _Functions(seen), _Operators(seen), _called(seen):
        call()
    if seen.device is not None:
        seen.counts.clear()
        with _warned(seen), _called(seen):
            _repeat(call, calls)
    else:
        with _eager(), _Functions(seen), _Operators(seen), _called(seen):
            _repeat(call, calls - 1)
    return tuple(Sync(*place, count / calls) for place, count in seen.counts.most_common()), seen.device


def _eager() -> AbstractContextManager[Any]:
    """Run compiled code as eager code: a frame that Dynamo meets under our modes would never be compiled again."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def _repeat(call: Callable[[], object], calls: int) -> None:
    for _ in range(calls):
        call()


class _Seen:
    """Counts of waits by place.

    Attributes:
        quiet: True inside a function that reads numbers on the CPU only.
        host: tensors that would be on the host if the others were on a GPU.
    """

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.device: torch.device | None = None
        self.quiet = False
        self.host = WeakTensorKeyDictionary()

    def add(self, operator: str | None) -> None:
        """Count a wait at the current line; without an operator, the line itself is shown."""
        frames = list(_stack())
        user = _users(frames)
        if self.quiet or (operator and _on_the_host([f.f_code.co_filename for f in frames[:user]])):
            return
        if user == len(frames):
            backward = any(f.f_code.co_name == "_engine_run_backward" for f in frames)
            self.counts["in backward" if backward else "in the function", operator or "?"] += 1
        else:
            file, line = frames[user].f_code.co_filename, frames[user].f_lineno
            self.counts[f"{_short(file)}:{line}", operator or _line(frames[user]) or "?"] += 1


def _stack() -> Iterator[FrameType]:
    """Yield the frames from here to the observed call, without those of the measurement itself."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code not in (_repeat.__code__, find_syncs.__code__):
        if frame.f_code.co_filename not in _OWN:
            yield frame
        frame = frame.f_back


def _users(frames: list[FrameType]) -> int:
    """Return the index of the first frame outside PyTorch; the number of frames if there is none."""
    return next((k for k, f in enumerate(frames) if not f.f_code.co_filename.startswith((_TORCH, "<"))), len(frames))


def _line(frame: FrameType) -> str:
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()


def _on_the_host(files: list[str]) -> bool:
    """Return whether an optimizer reads its own numbers, such as its step count."""
    inside = {Path(file).name for file in files if file.startswith(_OPTIMIZERS)}
    return bool(inside) and "lbfgs.py" not in inside


def _short(file: str) -> str:
    return os.path.relpath(file) if file.startswith(str(Path.cwd()) + os.sep) else file


class _Functions(TorchFunctionMode):
    """Counts copies between host and GPU, which are no operators on the CPU."""

    def __init__(self, seen: _Seen) -> None:
        super().__init__()
        self.seen = seen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        seen = self.seen
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        on_host = bool(tensors) and all(value in seen.host for value in tensors)
        copied = not on_host and _copies(func, args, kwargs)
        if copied:
            seen.add(f"torch.{func.__name__}" if func in (torch.tensor, torch.as_tensor) else f"Tensor.{func.__name__}")
        seen.quiet = on_host and func is not Tensor.backward
        if func is functional.one_hot:  # on the CPU it reads whether the classes are in range
            seen.quiet |= kwargs.get("num_classes", args[1] if len(args) > 1 else -1) > 0
        try:
            result = func(*args, **kwargs)
        finally:
            seen.quiet = False
        if isinstance(result, Tensor) and (on_host or (copied and func not in _MADE)):
            if any(result is value for value in tensors):
                result = result.view_as(result)  # a copy from a GPU would be another tensor
            seen.host[result] = True
        return result


def _copies(func: Any, args: Any, kwargs: Any) -> bool:
    if func in _COPIES:
        return True
    if func is Tensor.__format__:  # for a single number, an operator reads it
        return bool(args[0].dim())
    if func is Tensor.to:  # without a GPU, device is the CPU anyway, so only the source line tells
        return _written(_TO_CPU)
    return func in _MADE and not isinstance(args[-1] if args else None, Tensor) and not _written(_ON_CPU)


def _written(pattern: re.Pattern[str]) -> bool:
    """Return whether the current line of the user's code matches."""
    frames = list(_stack())
    user = _users(frames)
    return user < len(frames) and bool(pattern.search(_line(frames[user])))


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operators that read from the device, in forward and in backward."""

    supports_higher_order_operators = True

    def __init__(self, seen: _Seen) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(getattr(func, "_schema", None), "name", "")
        if _reads(name, args, kwargs):
            self.seen.add(name)
        result = func(*args, **kwargs)
        if self.seen.device is None:
            self.seen.device = next((t.device for t in (result, *args) if isinstance(t, Tensor) and t.is_cuda), None)
        return result


def _reads(name: str, args: Any, kwargs: Any) -> bool:
    if name in _INDEX:
        masked = any(isinstance(i, Tensor) and i.dtype in (torch.bool, torch.uint8) for i in args[1])
        number = len(args) > 2 and not args[2].dim()  # x[mask] = 0.0 is masked_fill on a GPU
        return masked and not number
    if name == "aten::repeat_interleave":
        return kwargs.get("output_size") is None
    return name in _READ


@contextmanager
def _called(seen: _Seen) -> Iterator[None]:
    """Count calls of functions that wait."""
    before = sys.getprofile()

    def see(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code in _WAITING:
            seen.add(_WAITING[frame.f_code])

    sys.setprofile(see)
    try:
        yield
    finally:
        sys.setprofile(before)


@contextmanager
def _warned(seen: _Seen) -> Iterator[None]:
    """Count PyTorch's warnings of waits, which come from the waiting line."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        if _WARNING in str(message):
            seen.add(None)

    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)
