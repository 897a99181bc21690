"""Decoded images that stay on a device: batches are gathered there, and the host sends a few numbers per sample."""

from __future__ import annotations

from itertools import islice
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import torch

from fastdata.errors import LoaderError
from fastdata.gpu.crops import Stack
from fastdata.gpu.streams import Home, numbered
from fastdata.images.crops import CenterCrop, Crop
from fastdata.images.dataset import ImageDataset
from fastdata.images.view import shorten
from fastdata.loader.device_prefetch import Feed
from fastdata.loader.direct import Direct
from fastdata.loader.fetch import Request
from fastdata.loader.order import EpochOrder, Part
from fastdata.loader.requests import Requests
from fastdata.loader.sizes import Size, Sizes, sized
from fastdata.loader.workers import Workers, why_died
from fastdata.machine import free_memory

__all__ = ["Resident", "check_resident", "one_device"]

Array = np.ndarray[Any, np.dtype[Any]]

CHUNK = 8 << 20  # bytes that a worker decodes at a time; loading takes a few times that for each worker
AHEAD = 2  # chunks that are copied to the device at a time


def one_device(device: str | torch.device | None, resident: str | torch.device | None) -> torch.device | None:
    """Return the device of the batches: `resident` if given, else `device`.

    Raises:
        ValueError: the two differ, or torch sees no GPU.
    """
    if device is not None and resident is not None and _numbered(device) != _numbered(resident):
        raise ValueError(
            f"resident is {str(resident)!r} and device {str(device)!r}: batches are made where the images are; leave device out"
        )
    name, value = ("device", device) if resident is None else ("resident", resident)
    chosen = None if value is None else torch.device(value)
    if chosen and chosen.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"{name} is {value!r}, but torch sees no GPU here: leave {name} out for CPU tensors")
    return chosen


def _numbered(device: str | torch.device) -> tuple[str, int]:
    device = numbered(device)
    return device.type, device.index or 0


def check_resident(dataset: Any, sizes: Sizes, device: torch.device) -> None:
    """Raise a ValueError unless a dataset's samples, in all `sizes`, can be made on the device of images of one size."""
    for _, size in sizes:
        _stored_shape(sized(dataset, size), device)


def _stored_shape(dataset: Any, device: torch.device) -> tuple[int, int]:
    """Return the (height, width) of every stored image."""
    if not isinstance(dataset, ImageDataset):
        raise ValueError(
            f"resident keeps images of fastdata's datasets on a device, but this is a {type(dataset).__name__}: leave resident out"
        )
    if dataset.fields is not None:
        raise ValueError(f"resident keeps images, labels and masks on a device, not fields {dataset.fields}: leave resident out")
    if dataset.images is not None:
        raise ValueError(
            f"resident keeps one image of each sample on a device, not {', '.join(dataset.images)}: choose one with images=, or "
            "leave resident out"
        )
    if dataset.views.several:
        raise ValueError(f"resident makes one view of an image, but crop is {dataset.crop}: give one crop, or leave resident out")
    crop = dataset.views.each[0].crop
    found = set(zip(*map(np.ndarray.tolist, dataset.sides()), strict=True))
    if dataset.transform is not None:
        raise ValueError("transform runs in workers, on numpy arrays: transform batches on the device, or leave resident out")
    if len(found) > 1:
        shapes = shorten({f"{width} x {height}" for height, width in found})
        raise ValueError(
            f"resident needs images of one size, these have {shapes}: prepare with --resize crop --upscale, or leave resident out"
        )
    (shape,) = found
    if _is_drawn(crop) and crop.resizes:
        raise ValueError(
            f"resident takes random crops that only cut, but {crop} resizes: use RandomCrop, a crop that is not random, or leave "
            "resident out; a crop of your own that only cuts says resizes = False"
        )
    return shape


def _is_drawn(crop: Crop | None) -> TypeGuard[Crop]:
    """Return whether boxes are random. Others are cut before images are held."""
    return crop is not None and crop.draws > 0


def _sample_shape(crop: Crop | None, shape: tuple[int, int]) -> tuple[int, int]:
    """Return the (height, width) of samples of images of this shape."""
    return shape if crop is None else crop.shapes(crop.boxes(np.zeros((crop.draws, 1)), *np.array([shape]).T))[0]


class Resident(Direct):
    """The engine of images that stay on a device. They are loaded before the first batch, and again for another size.

    Args:
        dataset: one that `check_resident` accepts.
        requests: the requests, in order.
        device: where to keep the images.
        num_workers: processes that decode them, once.
    """

    across = False  # epochs may have sizes of their own

    def __init__(self, dataset: Any, requests: Requests, device: torch.device, num_workers: int) -> None:
        super().__init__(None, requests, pin=False)
        self._source = dataset
        self._device = device
        self._num_workers = num_workers
        self._size: Size | None = None

    def _locate(self, requests: list[Request]) -> Any:
        size = requests[0].size
        if size != self._size:
            self._dataset = self._size = None  # free the device's memory first
            self._dataset = ResidentImages(sized(self._source, size), self._device, self._num_workers)
            self._size = size
        return super()._locate(requests)

    def close(self) -> None:
        super().close()
        self._dataset = self._size = None


class Layer(NamedTuple):
    """The arguments of a Stack: (height, width, channels), dtype, and the value outside of an image if boxes reach there."""

    shape: tuple[int, int, int]
    dtype: torch.dtype
    outside: int | None


class ResidentImages:
    """The images of a dataset on a device, each stored once, with the `locate` and `gather` that `Direct` needs.

    Args:
        dataset: one that `check_resident` accepts.
        device, num_workers: as for Resident.

    Raises:
        LoaderError: the images do not fit, or a worker died.
        ValueError: `check_resident` does not accept the dataset.
    """

    def __init__(self, dataset: ImageDataset, device: torch.device, num_workers: int) -> None:
        self._dataset = dataset
        self._device = device = numbered(device)
        shape = _stored_shape(dataset, device)
        (view,) = dataset.views.each
        crop = view.crop
        self._drawn = _is_drawn(crop)
        self._size = _sample_shape(crop, shape)
        self._shape = shape if self._drawn else self._size
        self._moved = self._drawn or view.hflip > 0 or view.vflip > 0
        _, first, self._place = np.unique(dataset.rows(np.arange(len(dataset))), return_index=True, return_inverse=True)
        whole = dataset.subset(first).with_crop(CenterCrop(shape, fast=crop.fast) if _is_drawn(crop) else crop)
        layers = self._layers(whole)
        _check_room(len(whole), layers, device)
        self._stacks = [Stack(len(whole), *layer, device) for layer in layers]
        long = max(stack.pixels for stack in self._stacks) > 1 << 31
        self._index = torch.int64 if long else torch.int32  # int32 where it suffices: half the bytes
        self._targets = None if whole.large_targets else torch.from_numpy(whole.targets).to(device)
        self._load(whole, num_workers)
        memory = [stack.memory for stack in self._stacks] + ([] if self._targets is None else [self._targets])
        self._home = Home(device, memory)

    def _layers(self, whole: ImageDataset) -> list[Layer]:
        """Return the layers of a dataset's images, and masks."""
        images, targets = whole.read_batch(np.zeros(1, np.int64), seed=0, epoch=0)
        _, rows, columns, channels = images.shape
        dtype, mask_dtype = (torch.from_numpy(array).dtype for array in (images, targets))
        border = self._reaches_out()
        layers = [Layer((rows, columns, channels), dtype, 0 if border else None)]
        if whole.large_targets:
            layers.append(Layer((*self._shape, 1), mask_dtype, whole.ignore_index if border else None))
        return layers

    def _reaches_out(self) -> bool:
        """Return whether boxes may reach outside the images."""
        crop = self._dataset.views.each[0].crop
        return _is_drawn(crop) and crop.reaches_outside

    def _load(self, whole: ImageDataset, num_workers: int) -> None:
        """Decode every image once, and copy them to the device in chunks."""
        rows = max(1, min(len(whole), CHUNK // whole.sample_bytes()))
        requests = Requests(EpochOrder(len(whole), 0, shuffle=False), Part(0, 1), rows, len(whole), None)
        num_workers = min(num_workers, -(-len(whole) // rows))
        pin = self._device.type == "cuda"
        workers = Workers.start(whole, requests, rows, num_workers, 2, pin_memory=pin, device=self._device, ahead=AHEAD)
        feed = Feed(workers, self._device, AHEAD, pin=pin)
        stop = 0
        try:
            while stop < len(whole):
                reply, (images, targets) = feed.receive(requests.generation)
                self._put(stop, images.permute(0, 2, 3, 1), targets)
                stop = reply.request.stop
        except Exception as error:
            if feed.died(error):
                raise LoaderError(f"a worker died while it loaded images: {error}; {why_died()}") from error
            raise
        finally:
            feed.close()

    def _put(self, start: int, images: torch.Tensor, targets: torch.Tensor) -> None:
        parts = [images]
        if self._targets is None:
            parts.append(targets[..., None])
        for stack, part in zip(self._stacks, parts, strict=True):
            stack.put(start, part)

    def locate(self, indices: Array, *, seed: int, epoch: int, repeats: Array | None) -> torch.Tensor:
        """Return a row per sample, on the device: the number of its image and, if boxes are cut, their lines in each stack."""
        numbers = self._place[indices][:, None]
        if not self._moved:
            return self._finish(self._to_device(numbers))
        boxes, flips = self._dataset.draw(indices, seed=seed, epoch=epoch, repeats=repeats)
        corners = boxes[:, :2] if self._drawn else np.zeros_like(boxes[:, :2])
        number, starts, turned = torch.split(self._to_device(np.concatenate([numbers, corners, flips], axis=1)), [1, 2, 2], 1)
        lines = [number]
        for stack in self._stacks:
            lines.extend(stack.lines(number[:, 0], starts, self._size, turned))
        return self._finish(torch.cat(lines, 1))

    def _finish(self, located: torch.Tensor) -> torch.Tensor:
        """Convert the result, and note its stream: `gather` may run on another one."""
        located = located.to(self._index)
        self._located_home = Home(self._device, [located])
        return located

    def _to_device(self, table: Array) -> torch.Tensor:
        host = torch.from_numpy(table)
        return host.pin_memory().to(self._device, non_blocking=True) if self._device.type == "cuda" else host.to(self._device)

    def gather(self, located: torch.Tensor, *, pin: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the batch of `located`: images [n, C, H, W] in channels_last layout, and targets."""
        self._home.visit()
        self._located_home.visit()
        numbers = located[:, 0]
        if self._moved:
            lines = iter(torch.split(located[:, 1:], [*self._size] * len(self._stacks), 1))
            images, *others = (stack.cut(*islice(lines, 2)) for stack in self._stacks)
        else:
            images, *others = (stack.whole(numbers) for stack in self._stacks)
        targets = others[-1][..., 0] if self._targets is None else self._targets.index_select(0, numbers)
        return images.permute(0, 3, 1, 2), targets


def _check_room(count: int, layers: list[Layer], device: torch.device) -> None:
    """Raise a LoaderError if the images do not fit. Unused memory in torch's pool counts as free."""
    need = sum(Stack.nbytes(count, *layer) for layer in layers)
    free = free_memory()
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if need > free:
        raise LoaderError(
            f"resident={str(device)!r}: {count} decoded images take {need / 1e9:.3g} GB, but {free / 1e9:.3g} GB are free there: "
            "use a subset, a smaller size of the store, or leave resident out"
        )
