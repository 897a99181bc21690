"""Call a user's transform with the type that it takes, check its result, and seed the generators that it uses."""

from __future__ import annotations

import contextlib
import gc
import inspect
import random
import types
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn

from fastdata.errors import LoaderError
from fastdata.types import Array

Seeder = Callable[[int], Any]

DEPTH, MAX_ITEMS, MAX_OBJECTS = 12, 1000, 10_000  # limits of the search for generators: levels, items of a list, all objects
GOLDEN = 0x9E3779B97F4A7C15
OPAQUE = (types.ModuleType, type, np.ndarray, torch.Tensor, str, bytes, int, float, complex, type(None))
TO_TENSOR = ("ToTensor", "PILToTensor", "MaybeToTensor")  # turn PIL images into tensors, and leave tensors unchanged


class UserTransform:
    """Calls a transform with the input that it takes, and seeds its own generators.

    - albumentations: `transform(image=array)["image"]`, with an array [H, W, C];
    - an `nn.Module`, such as torchvision's v2: a tensor [C, H, W]; if it contains modules of kornia, which take floats only,
      a tensor [1, C, H, W] from 0 to 1, and the result is rounded to integers;
    - one of torchvision's or timm's that is not a module, or contains a ToTensor: a PIL image;
    - any other callable: what its first parameter is annotated with, torch.Tensor or PIL.Image.Image; else an array [H, W, C].

    A transform may return a PIL image, a tensor [C, H, W], an array [H, W, C] or, from PIL images, [C, H, W] (timm's ToNumpy).
    """

    def __init__(self, transform: Callable[..., Any]) -> None:
        self.transform = transform
        objects = list(_objects(transform))
        self._call = _caller(transform, objects)
        names = [type(found).__name__ for found in objects if not _comes_from(found, "fastdata")]
        self.crops = [name for name in names if "Crop" in name]
        self.seeders = [seeder for found in objects if (seeder := _seeder(found))]  # of generators of its own

    def __reduce__(self) -> Any:  # search again: in another process, a function has other globals
        return UserTransform, (self.transform,)

    def seed(self, seed: int) -> None:
        """Seed the transform's own generators, each with a different number derived from `seed`, 0 to 2^64 - 1."""
        for k, seeder in enumerate(self.seeders, 1):
            seeder((seed + k * GOLDEN) & 0xFFFFFFFFFFFFFFFF)

    def __call__(self, pixels: Array, channels: int) -> Array:
        """Return the transformed image, [H, W, channels]; raise LoaderError if the transform returned something else."""
        result = image = self._call(self.transform, pixels)
        if isinstance(result, torch.Tensor):
            with contextlib.suppress(TypeError, RuntimeError):  # on another device, or of a dtype that numpy lacks
                image = result.detach().numpy().transpose(1, 2, 0) if result.ndim == 3 else None
        elif _comes_from(result, "PIL"):
            image = np.asarray(result).reshape(result.height, result.width, -1)
        elif self._call is _with_pil and np.ndim(image) == 3 and image.shape[2] != channels:
            image = image.transpose(1, 2, 0)
        if isinstance(image, np.ndarray) and image.ndim == 3 and image.shape[2] == channels:
            return np.require(image, requirements=["C", "W"])
        found = f"{result.dtype} {list(result.shape)}" if hasattr(result, "dtype") else type(result).__name__
        raise LoaderError(
            f"transform returned {found}: it must return a numpy array or PIL image [H, W, {channels}], or a tensor "
            f"[{channels}, H, W] on the CPU, of a dtype that numpy has"
        )


# How to call it


def _with_tensor(transform: Any, pixels: Array) -> Any:
    return transform(torch.from_numpy(pixels).permute(2, 0, 1))


def _with_floats(transform: Any, pixels: Array) -> Any:
    largest = np.iinfo(pixels.dtype).max
    with torch.no_grad():
        result = transform(torch.from_numpy(pixels).permute(2, 0, 1)[None].float() / largest)[0]
        return (result * largest).round_().clamp_(0, largest).to(torch.from_numpy(pixels[:0]).dtype)


def _with_pil(transform: Any, pixels: Array) -> Any:
    from PIL import Image

    if pixels.dtype != np.uint8:
        raise LoaderError(f"transform takes uint8 PIL images; the samples are {pixels.dtype}: use a function of tensors or arrays")
    return transform(Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels))


def _caller(transform: Any, objects: Iterable[Any]) -> Callable[[Any, Array], Any]:
    if _comes_from(transform, "albumentations"):
        return lambda transform, pixels: transform(image=pixels)["image"]
    is_module = isinstance(transform, nn.Module)
    if is_module and any(_comes_from(found, "kornia") for found in objects if isinstance(found, nn.Module)):
        return _with_floats
    if _comes_from(transform, "torchvision", "timm"):
        from_pil = any(type(found).__name__ in TO_TENSOR and _comes_from(found, "torchvision", "timm") for found in objects)
        return _with_tensor if is_module and not from_pil else _with_pil
    annotation = _first_annotation(transform)
    if is_module or (isinstance(annotation, type) and issubclass(annotation, torch.Tensor)):
        return _with_tensor
    return _with_pil if getattr(annotation, "__module__", "") == "PIL.Image" else lambda transform, pixels: transform(pixels)


def _comes_from(found: Any, *packages: str) -> bool:
    return any(kind.__module__.partition(".")[0] in packages for kind in type(found).__mro__)


def _first_annotation(transform: Any) -> Any:
    """Return the annotation of the first parameter, as an object, or None if there is none or it cannot be evaluated."""
    try:
        parameters = inspect.signature(transform, eval_str=True).parameters
    except (TypeError, ValueError, NameError, AttributeError):  # a built-in, or names that only type checkers see
        return None
    return next((parameter.annotation for parameter in parameters.values()), None)


# Finding its generators


def _seeder(found: Any) -> Seeder | None:
    """Return the function that seeds an object, or None if there is no such function."""
    if _comes_from(found, "albumentations") and _has(found, "set_random_state"):
        # its set_random_seed would give all transforms of a Compose the same numbers: both flips, or none
        return lambda seed: found.set_random_state(np.random.default_rng(seed), random.Random(seed))
    if _has(found, "set_random_seed"):
        return lambda seed: found.set_random_seed(seed & 0xFFFFFFFF)
    if isinstance(found, np.random.Generator):
        generator = found.bit_generator
        return lambda seed: setattr(generator, "state", type(generator)(seed).state)
    if isinstance(found, np.random.RandomState):
        return lambda seed: found.seed(seed & 0xFFFFFFFF)
    if isinstance(found, random.Random):
        return found.seed
    return found.manual_seed if isinstance(found, torch.Generator) else None


def _has(found: Any, name: str) -> bool:
    """Return whether an object has a method, without running its code."""
    return callable(inspect.getattr_static(found, name, None))


def _objects(transform: Any) -> Iterator[Any]:
    """Yield a transform, and the objects that it visibly uses."""
    shared = random.random.__self__, np.random.mtrand._rand, torch.default_generator  # type: ignore[attr-defined]
    seen = set(map(id, shared))  # these are seeded for all
    level = [transform]
    for _ in range(DEPTH):
        below: list[Any] = []
        for found in level:
            if isinstance(found, OPAQUE) or id(found) in seen or len(seen) > MAX_OBJECTS:
                continue
            seen.add(id(found))
            yield found
            if _seeder(found) is None:
                below.extend(islice(_inside(found), MAX_ITEMS))
        level = below


def _inside(found: Any) -> Iterable[Any]:
    """Return the objects that an object refers to; for a function, also the globals that it uses."""
    if isinstance(found, types.FunctionType):
        used = [found.__globals__.get(name) for name in _names(found.__code__)]
        return [found.__defaults__, found.__closure__, *used]
    body = getattr(type(found), "forward" if isinstance(found, nn.Module) else "__call__", None)
    return [*gc.get_referents(found), *([body] if isinstance(body, types.FunctionType) else [])]


def _names(code: types.CodeType) -> Iterator[str]:
    """Yield the names of globals that code, and functions inside it, may use."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
