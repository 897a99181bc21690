"""A transform of the user's: what it takes, what it gives back, and the generators that it draws from."""

from __future__ import annotations

import functools
import inspect
import random
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn

from fastdata.errors import LoaderError

__all__ = ["TakesNoTransform", "UserTransform"]

Array = np.ndarray[Any, np.dtype[Any]]
Seeder = Callable[[int], Any]

DEEP, LONG, MANY = 6, 1000, 10_000  # how far to look for generators, into how many items of a list, and at how many objects in all
GOLDEN = 0x9E3779B97F4A7C15
NOTHING_INSIDE = (types.ModuleType, type, np.ndarray, torch.Tensor, str, bytes, int, float, complex, type(None))
TO_TENSOR = ("ToTensor", "PILToTensor", "MaybeToTensor")  # these make tensors of PIL images, and leave tensors as they are


class TakesNoTransform:
    """A dataset without a transform: one that is set would be ignored, so it is refused."""

    @property
    def transform(self) -> Any:
        return None

    @transform.setter
    def transform(self, transform: Any) -> None:
        if transform is not None:
            raise TypeError(
                f"a {type(self).__name__} has no transform, which is for images: change its batches in the loop, or on the device"
            )


class UserTransform:
    """Calls a transform as it is meant to be called, and seeds the generators that it owns.

    - of albumentations: `transform(image=array)["image"]`, with an array [H, W, C];
    - an `nn.Module`, such as those of torchvision's v2: a tensor [C, H, W]; with modules of kornia in it, which take floats only,
      one [1, C, H, W] from 0 to 1, and the result is rounded to integers again;
    - of torchvision or timm, if it is no module, or has a ToTensor in it: a PIL image;
    - any other callable: what the annotation of its first parameter says, torch.Tensor or PIL.Image.Image; else an array [H, W, C].

    It may return an array [H, W, C], a tensor [C, H, W] or a PIL image. What gets PIL images may also return an array [C, H, W], as
    timm's ToNumpy does.

    Generators of its own are those of albumentations, everything else with a `set_random_seed`, and generators of numpy, random and
    torch that can be found in its attributes, closures and globals.
    """

    def __init__(self, transform: Callable[..., Any]) -> None:
        self.transform = transform
        reached = list(_reached(transform))
        self._call = _way_to_call(transform, reached)
        self._seeders = [seeder for found in reached if (seeder := _seeder(found))]

    def __reduce__(self) -> Any:  # in another process, a function has other globals
        return UserTransform, (self.transform,)

    @property
    def has_generators(self) -> bool:
        """Whether it draws from generators of its own."""
        return bool(self._seeders)

    def seed(self, seed: int) -> None:
        """Seed its generators, each with another number that follows from `seed`, 0 to 2^64 - 1."""
        for k, seeder in enumerate(self._seeders, 1):
            seeder((seed + k * GOLDEN) & 0xFFFFFFFFFFFFFFFF)

    def __call__(self, pixels: Array, channels: int) -> Array:
        """The transformed image, [H, W, channels].

        Raises:
            LoaderError: it returned something else.
        """
        made = self._call(self.transform, pixels)
        if isinstance(made, torch.Tensor):
            return _of_tensor(made, channels)
        as_pil = self._call is _with_pil
        if _comes_from(made, "PIL"):
            made = np.asarray(made)
            made = made[:, :, None] if made.ndim == 2 else made
        elif as_pil and isinstance(made, np.ndarray) and made.ndim == 3 and made.shape[0] == channels:
            if made.shape[2] == channels:
                raise LoaderError(
                    f"transform returned an array {list(made.shape)}, which may be [H, W, C] or [C, H, W]: return a tensor, "
                    "which is [C, H, W]"
                )
            made = made.transpose(1, 2, 0)
        if not isinstance(made, np.ndarray) or made.ndim != 3 or made.shape[2] != channels:
            raise _unfit(made, channels)
        return np.require(made, requirements=["C", "W"])


def _of_tensor(made: torch.Tensor, channels: int) -> Array:
    if made.ndim != 3 or made.shape[0] != channels:
        raise _unfit(made, channels)
    try:
        pixels: Array = made.detach().numpy()
    except (TypeError, RuntimeError):  # bfloat16, or on a GPU
        raise LoaderError(
            f"transform returned {made.dtype} on {made.device}: it must return a tensor on the CPU of a dtype that numpy has"
        ) from None
    return np.ascontiguousarray(pixels.transpose(1, 2, 0))


def _unfit(made: Any, channels: int) -> LoaderError:
    found = f"{made.dtype} {list(made.shape)}" if isinstance(made, np.ndarray | torch.Tensor) else type(made).__name__
    return LoaderError(
        f"transform returned {found}: it must return a numpy array [H, W, {channels}] or a tensor [{channels}, H, W]"
    )


# How to call it


def _with_array(transform: Any, pixels: Array) -> Any:
    return transform(pixels)


def _with_tensor(transform: Any, pixels: Array) -> Any:
    return transform(torch.from_numpy(pixels).permute(2, 0, 1))


def _with_name(transform: Any, pixels: Array) -> Any:
    return transform(image=pixels)["image"]


def _with_floats(transform: Any, pixels: Array) -> Any:
    largest = np.iinfo(pixels.dtype).max
    with torch.no_grad():
        made = transform(torch.from_numpy(pixels).permute(2, 0, 1)[None].float() / largest)[0]
        return (made * largest).round_().clamp_(0, largest).to(torch.from_numpy(pixels[:0]).dtype)


def _with_pil(transform: Any, pixels: Array) -> Any:
    from PIL import Image

    if pixels.dtype != np.uint8:
        raise LoaderError(f"transform takes PIL images, which have no {pixels.dtype} pixels: use a function of tensors or arrays")
    return transform(Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels))


def _way_to_call(transform: Any, reached: Iterable[Any]) -> Callable[[Any, Array], Any]:
    if _comes_from(transform, "albumentations"):
        return _with_name
    module = isinstance(transform, nn.Module)
    if module and any(_comes_from(found, "kornia") for found in reached if isinstance(found, nn.Module)):
        return _with_floats
    if _comes_from(transform, "torchvision", "timm"):
        of_pil = any(type(found).__name__ in TO_TENSOR and _comes_from(found, "torchvision", "timm") for found in reached)
        return _with_tensor if module and not of_pil else _with_pil
    if module:
        return _with_tensor
    wanted = _first_annotation(transform)
    if isinstance(wanted, type) and issubclass(wanted, torch.Tensor):
        return _with_tensor
    return _with_pil if wanted is not None and getattr(wanted, "__module__", "") == "PIL.Image" else _with_array


def _comes_from(found: Any, *packages: str) -> bool:
    return any(kind.__module__.partition(".")[0] in packages for kind in type(found).__mro__)


def _first_annotation(transform: Any) -> Any:
    """The annotation of the first parameter, as an object; None: there is none, or it can't be found."""
    try:
        parameters = inspect.signature(transform, eval_str=True).parameters
    except (TypeError, ValueError, NameError, AttributeError):  # built in; or names that are known to type checkers only
        return None
    first = next(iter(parameters.values()), None)
    return None if first is None or first.annotation is first.empty else first.annotation


# Its generators


def _seeder(found: Any) -> Seeder | None:
    """What seeds an object, if that is a generator or has one."""
    if _comes_from(found, "albumentations") and _has(found, "set_random_state"):
        # its set_random_seed gives each of several transforms the same numbers: both flips of a Compose, or none
        return lambda seed: found.set_random_state(np.random.default_rng(seed), random.Random(seed))
    if _has(found, "set_random_seed"):
        return lambda seed: found.set_random_seed(seed & 0xFFFFFFFF)
    if isinstance(found, np.random.Generator):
        return functools.partial(_seed_numpy, found.bit_generator)
    if isinstance(found, np.random.RandomState):
        return lambda seed: found.seed(seed & 0xFFFFFFFF)
    if isinstance(found, random.Random):
        return found.seed
    return found.manual_seed if isinstance(found, torch.Generator) else None


def _has(found: Any, name: str) -> bool:
    """Whether an object has a method, without running code of its own."""
    return callable(inspect.getattr_static(found, name, None))


def _seed_numpy(generator: Any, seed: int) -> None:
    generator.state = type(generator)(seed).state


def _reached(transform: Any) -> Iterator[Any]:
    """A transform, and the objects that it can be seen to use."""
    shared = random.random.__self__, np.random.mtrand._rand, torch.default_generator  # type: ignore[attr-defined]
    seen = set(map(id, shared))  # these are seeded for everyone
    level = [transform]
    for _ in range(DEEP):
        below: list[Any] = []
        for found in level:
            if isinstance(found, NOTHING_INSIDE) or id(found) in seen:
                continue
            if len(seen) == MANY:
                return
            seen.add(id(found))
            yield found
            if _seeder(found) is None:
                below.extend(islice(_inside(found), LONG))
        level = below


def _inside(found: Any) -> Iterator[Any]:
    """What an object holds, or a function refers to."""
    if isinstance(found, Mapping):
        yield from found.values()
    elif isinstance(found, list | tuple | set | frozenset):
        yield from found
    elif isinstance(found, functools.partial):
        yield from (found.func, *found.args, *found.keywords.values())
    elif isinstance(found, types.MethodType | types.BuiltinMethodType):
        yield from (found.__self__, getattr(found, "__func__", None))
    elif isinstance(found, types.FunctionType):
        yield from map(_contents, found.__closure__ or ())
        yield from (found.__defaults__ or ())
        yield from (found.__globals__[name] for name in _names(found.__code__) if name in found.__globals__)
    else:
        yield from getattr(found, "__dict__", {}).values()
        body = getattr(type(found), "forward" if isinstance(found, nn.Module) else "__call__", None)
        if isinstance(body, types.FunctionType):
            yield body


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _names(code: types.CodeType) -> Iterator[str]:
    """The names of globals that code may use, and the functions inside of it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
