"""Augmentations of kornia on the device. A sample's result depends on (seed, epoch, id), not on its batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fastdata.gpu.batch import Ragged

LARGEST = {torch.uint8: 255, torch.uint16: 65535}
DRAWN = ("rand", "randn", "randperm")  # the operators that kornia draws with
ACROSS = ("MixAugmentationBase", "RandomMotionBlur")  # kornia's: they mix samples, or choose one of them for all


class Augment(nn.Module):
    """Applies augmentations of kornia to integer batches on their device.

    A sample's random numbers depend on (seed, epoch, id) only: not on its batch, its place there, or the number of ranks. torch's
    own generators stay unchanged.

    Kornia 0.9 or newer gets the whole batch as floats from 0 to 1, and draws for all samples at once. What it would draw per batch
    (the order of ColorJitter's steps; with `p_batch`, whether to apply at all) is drawn once per epoch. The result is rounded to
    integers again for `GPUNormalize`.

    A transform that moves pixels is an error for a batch with masks, boxes or keypoints, which would stay. For several views, the
    result is a tuple, and each view has random numbers of its own.

    Args:
        transform: a module of kornia.augmentation, or an `ImageSequential`, `AugmentationSequential` (of images) or `nn.Sequential`
            of such modules, none of which mixes samples.
        seed: 0 to 2^64 - 1.
    """

    def __init__(self, transform: nn.Module, *, seed: int = 0) -> None:
        super().__init__()
        if not 0 <= seed < 1 << 64:
            raise ValueError(f"seed is {seed}, but must be from 0 to 2^64 - 1")
        self.transform = transform
        self.seed = seed
        self._moving: str | None = None  # the name of a module that moves pixels
        modules = list(transform.modules()) if isinstance(transform, nn.Module) else []
        if not any(kind.__module__.startswith("kornia.") for module in modules for kind in type(module).__mro__):
            raise TypeError(
                f"Augment takes augmentations of kornia, found {type(transform).__name__}: give it to LMDBDataset(transform=)"
            )
        for module in modules:
            name, kinds = type(module).__name__, {kind.__name__ for kind in type(module).__mro__}
            if any(kind.startswith(ACROSS) for kind in kinds):
                raise ValueError(f"{name} changes samples together, so results would depend on batches: apply it after Augment")
            if "AugmentationBase2D" in kinds and "IntensityAugmentationBase2D" not in kinds:
                self._moving = name

    @torch.no_grad()
    def forward(self, images: Any, ids: Any = None, epoch: int | None = None) -> Any:
        """Return the augmented images in the same dtype on the same device, [B, C, H, W] in channels_last.

        Args:
            images: a Loader's batch, which has ids and epoch, or uint8 or uint16 images [B, C, H, W], or a tuple of such images.
            ids, epoch: ids of the samples, integers [B], and the epoch, from 0.
        """
        if ids is None and hasattr(images, "ids"):
            batch, ids, epoch = images, images.ids, images.position[0]
            images, *targets = (batch,) if isinstance(batch, Tensor) else tuple(batch)
            targets = [*targets[0].values()] if targets and isinstance(targets[0], Mapping) else targets[:1]
            masks = (part.dim() == 3 and part.dtype in LARGEST for part in targets if isinstance(part, Tensor))
            boxes = (part.values.dim() > 1 for part in targets if isinstance(part, Ragged))  # or keypoints
            if self._moving and any((*masks, *boxes)):
                text = f"{self._moving} moves pixels, but masks, boxes and keypoints would stay"
                raise TypeError(f"{text}: move all together with kornia's AugmentationSequential, in a batch_transform=")
        if ids is None or epoch is None:
            raise TypeError("Augment takes a batch of a Loader, or images with ids= and epoch=: random numbers depend on these")
        if isinstance(images, tuple):
            return tuple(self._augmented(view, ids, epoch, number) for number, view in enumerate(images))
        return self._augmented(images, ids, epoch)

    def _augmented(self, images: Any, ids: Any, epoch: int, view: int = 0) -> Tensor:
        if not isinstance(images, Tensor) or images.dtype not in LARGEST or images.dim() != 4:
            found = f"{images.dtype} {list(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
            raise TypeError(
                f"images must be uint8 or uint16 [B, C, H, W], found {found}: augment before GPUNormalize; for a dict, call "
                "augment(batch[0][NAME], batch.ids, batch.position[0]) for each NAME"
            )
        if len(ids) != len(images):
            raise ValueError(f"there are {len(ids)} ids for {len(images)} images: give one id for each")
        seed = self.seed - (1 << 64) if self.seed >> 63 else self.seed
        common = _mixed(_mixed(torch.tensor([seed], device="cpu")) + epoch)
        common = _mixed(common + GOLDEN * torch.tensor([view], device="cpu")) if view else common
        keys = _mixed(common + GOLDEN * torch.as_tensor(ids, dtype=torch.int64, device="cpu"))
        count, largest = len(images), LARGEST[images.dtype]
        floats = images.float() / largest
        if count == 1:  # with two rows, a number for the whole batch differs in shape from one per sample
            floats, keys = floats.expand(2, *floats.shape[1:]), keys.expand(2)
        with _Drawing(keys, common):
            out: Tensor = self.transform(floats)
        out = (out[:count] * largest).round_().clamp_(0, largest).to(images.dtype)
        return out.contiguous(memory_format=torch.channels_last)


class _Drawing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode in which random tensors with a row per sample come from the samples' keys, and all others from the epoch's."""

    def __init__(self, keys: Tensor, common: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._keys = keys
        self._common = common
        self._draws = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **(kwargs or {}))
        options = {name: value for name, value in (kwargs or {}).items() if name != "generator"}
        name = func._schema.name.removeprefix("aten::")
        if name not in DRAWN:
            raise TypeError(f"a transform uses torch's {name}, but Augment knows only {', '.join(DRAWN)}: omit modules with {name}")
        if name == "randperm":  # one row, because it belongs to no sample
            order = self._uniform(torch.empty(1, *args, device=options.get("device"))).argsort()[0]
            return order.to(options.get("dtype") or torch.int64)
        out = torch.empty(*args, **options)
        numbers = self._uniform(out)
        return out.copy_(torch.special.ndtri(numbers.clamp(min=2.0**-25)) if name == "randn" else numbers)

    def _uniform(self, out: Tensor) -> Tensor:
        """Return float32 numbers with the shape and device of `out`, uniform in [0, 1) with 24 bits."""
        count, length = len(self._keys), len(out) if out.dim() else 1
        if length not in (1, count):
            found = f"{list(out.shape)}, but Augment needs a first dimension of 1 or {count}, the number of samples"
            raise TypeError(f"the transform draws random numbers of shape {found}: omit that transform")
        rows = self._keys if length == count else self._common
        self._draws += 1
        rows = _mixed(rows + self._draws).to(out.device, non_blocking=True)
        steps = torch.arange(out.numel() // len(rows), device=out.device) + 1
        return (_shifted(_mixed(rows[:, None] + GOLDEN * steps), 40).float() * 2.0**-24).view(out.shape)


GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)


def _mixed(x: Tensor) -> Tensor:
    """Apply the finalizer of SplitMix64 (Steele, Lea and Flood, 2014) to int64: each input bit flips half of the output bits."""
    x = (x ^ _shifted(x, 30)) * (0xBF58476D1CE4E5B9 - (1 << 64))
    x = (x ^ _shifted(x, 27)) * (0x94D049BB133111EB - (1 << 64))
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Shift right, filling with zeros."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
