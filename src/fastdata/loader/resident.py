"""A decoded store that stays on the device: batches are gathered there, and the host sends a few numbers a sample."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from fastdata.errors import LoaderError
from fastdata.gpu.crops import Stack
from fastdata.gpu.streams import Home
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

CHUNK = 8 << 20  # bytes that a worker decodes at a time; memory of the load is a few times that for each worker
AHEAD = 2  # chunks on their way to the device


def one_device(device: str | torch.device | None, resident: str | torch.device | None) -> torch.device | None:
    """Where batches arrive: on the device that the images stay on, if they stay on one.

    Raises:
        ValueError: two devices are given that differ, or a GPU that is not there.
    """
    if device is not None and resident is not None and _numbered(device) != _numbered(resident):
        raise ValueError(
            f"resident is {str(resident)!r} and device {str(device)!r}: batches are made where the images are; leave device out"
        )
    name, given = ("device", device) if resident is None else ("resident", resident)
    chosen = None if given is None else torch.device(given)
    if chosen and chosen.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"{name} is {given!r}, but torch sees no GPU here: leave {name} out for CPU tensors")
    return chosen


def _numbered(device: str | torch.device) -> tuple[str, int]:
    device = torch.device(device)
    first = torch.cuda.current_device() if device.type == "cuda" and torch.cuda.is_available() else 0
    return device.type, first if device.index is None else device.index


def check_resident(dataset: Any, sizes: Sizes) -> None:
    """Raises ValueError where a dataset's samples, in any of its sizes, are not boxes of images that all have one size."""
    for _, size in sizes:
        _stored_shape(sized(dataset, size))


def _stored_shape(dataset: Any) -> tuple[int, int]:
    """(height, width) of every stored image."""
    if not isinstance(dataset, ImageDataset):
        raise ValueError(
            f"resident keeps images of fastdata's datasets on a device, this is a {type(dataset).__name__}: leave resident out"
        )
    crop, found = dataset.view.crop, set(zip(*map(np.ndarray.tolist, dataset.sides()), strict=True))
    if dataset.view.transform is not None:
        raise ValueError("transform works on numpy arrays in workers: transform batches on the device, or leave resident out")
    if len(found) > 1:
        shapes = shorten({f"{width} x {height}" for height, width in found})
        raise ValueError(
            f"resident needs images of one size, these have {shapes}: prepare with --resize crop --upscale, or leave resident out"
        )
    (shape,) = found
    if crop is not None and not _only_cuts(crop, shape):
        raise ValueError(
            f"resident takes crops that only cut, but {crop} resizes images of {shape[1]} x {shape[0]}: use RandomCrop or "
            "CenterCrop, prepare with that --size, or leave resident out; a crop of your own that only cuts says resizes = False"
        )
    if dataset.planes and crop is not None:
        raise ValueError(f"resident takes planes without a crop, found {crop}: use codec jpeg, png or rgb, or leave resident out")
    return shape


def _only_cuts(crop: Crop, shape: tuple[int, int]) -> bool:
    """Whether the boxes of images of this shape need not be resized."""
    if not crop.resizes or crop.draws:
        return not crop.resizes
    box = _first_box(crop, shape)
    return crop.shapes(box) == [tuple(box[0, 2:].tolist())]


def _first_box(crop: Crop, shape: tuple[int, int]) -> Array:
    """The box of one image of this shape, int64 [1, 4]."""
    return crop.boxes(np.zeros((crop.draws, 1)), *np.array([shape]).T)


class Resident(Direct):
    """The engine of images that stay on a device; they are loaded before the first batch, and anew for another size.

    Args:
        dataset: one that `check_resident` takes.
        requests: what is asked for, in order.
        device: where the images are to be.
        num_workers: processes that decode them, once.
    """

    def __init__(self, dataset: Any, requests: Requests, device: torch.device, num_workers: int) -> None:
        super().__init__(None, requests, pin=False)
        self._source, self._device, self._num_workers = dataset, device, num_workers
        self._size: Size | None = None

    def _locate(self, requests: list[Request]) -> Any:
        if requests[0].size != self._size:
            self.free()  # before there is another one
            self._dataset = Held(sized(self._source, requests[0].size), self._device, self._num_workers)
            self._size = requests[0].size
        return super()._locate(requests)

    def free(self) -> None:
        """Give the device's memory back."""
        self._dataset = self._size = None

    def close(self) -> None:
        super().close()
        self.free()


class Layer(NamedTuple):
    """What a Stack is made for: (height, width, channels), dtype, and what lies outside of an image if boxes reach there."""

    shape: tuple[int, int, int]
    dtype: torch.dtype
    outside: int | None


class Held:
    """The images of a dataset on a device, each once, and what makes batches of them, as `Direct` asks for them.

    Args:
        dataset: one that `check_resident` takes.
        device, num_workers: as for Resident.

    Raises:
        LoaderError: they do not fit; or a worker died.
        ValueError: `check_resident` does not take it.
    """

    def __init__(self, dataset: ImageDataset, device: torch.device, num_workers: int) -> None:
        self._dataset, self._device, self._shape = dataset, device, _stored_shape(dataset)
        crop = dataset.view.crop
        self._moved = crop is not None or dataset.view.hflip > 0 or dataset.view.vflip > 0
        self._split = dataset.planes and self._moved  # luma and colours flip each for themselves
        self._crop = self._shape if crop is None else crop.shapes(_first_box(crop, self._shape))[0]
        _, first, self._place = np.unique(dataset.rows(np.arange(len(dataset))), return_index=True, return_inverse=True)
        whole = dataset.subset(first).with_crop(CenterCrop(self._shape, fast=crop.fast) if crop else None)
        layers = self._layers(whole)
        _check_room(len(whole), layers, device)
        self._stacks = [Stack(len(whole), *layer, device) for layer in layers]
        long = max(stack.pixels for stack in self._stacks) > 1 << 31
        self._index = torch.int64 if long else torch.int32  # half the bytes
        self._targets = None if whole.large_targets else torch.from_numpy(whole.targets).to(device)
        self._load(whole, num_workers)
        held = [stack.memory for stack in self._stacks] + ([] if self._targets is None else [self._targets])
        self._home = Home(device, held)

    def _layers(self, whole: ImageDataset) -> list[Layer]:
        """Of what kind the images of a dataset are, and its masks."""
        images, masks = (torch.from_numpy(array) for array in whole.read_batch(np.zeros(1, np.int64), seed=0, epoch=0))
        (_, rows, columns, channels), border = images.shape, self._reaches_out()
        layers = [Layer((rows, columns, channels), images.dtype, 0 if border else None)]
        if self._split:
            height = self._shape[0]
            layers = [Layer((height, columns, 1), images.dtype, None), Layer((height // 2, columns // 2, 2), images.dtype, None)]
        if whole.large_targets:
            layers.append(Layer((rows, columns, 1), masks.dtype, whole.ignore_index if border else None))
        return layers

    def _reaches_out(self) -> bool:
        """Whether boxes may reach beyond the images."""
        crop = self._dataset.view.crop
        if crop is None or not crop.reaches_outside or crop.draws:
            return crop is not None and crop.reaches_outside
        box = _first_box(crop, self._shape)
        return bool((box[:, :2] < 0).any() or (box[:, :2] + box[:, 2:] > self._shape).any())

    def _load(self, whole: ImageDataset, num_workers: int) -> None:
        """Decode every image once, and copy them to the device chunk by chunk."""
        rows = max(1, min(len(whole), CHUNK // whole.sample_bytes()))
        requests = Requests(EpochOrder(len(whole), 0, shuffle=False), Part(0, 1), rows, len(whole), None)
        num_workers = min(num_workers, -(-len(whole) // rows))
        pin = self._device.type == "cuda"
        workers = Workers.start(whole, requests, rows, num_workers, 2, pin_memory=pin, device=self._device, ahead=AHEAD)
        feed, stop = Feed(workers, self._device, AHEAD, pin=pin), 0
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
        if self._split:
            height, width = self._shape
            parts = [images[:, :height], images[:, height:].reshape(len(images), height // 2, width // 2, 2)]
        if self._targets is None:
            parts.append(targets[..., None])
        for stack, part in zip(self._stacks, parts, strict=True):
            stack.put(start, part)

    def locate(self, indices: Array, *, seed: int, epoch: int, repeats: Array | None) -> torch.Tensor:
        """A row for each sample, on the device: the number of its image and, where boxes are cut, their lines in each stack."""
        numbers = self._place[indices][:, None]
        if not self._moved:
            return self._settled(self._sent(numbers))
        boxes, flips = self._dataset.draw(indices, seed=seed, epoch=epoch, repeats=repeats)
        number, starts, turned = torch.split(self._sent(np.concatenate([numbers, boxes[:, :2], flips], axis=1)), [1, 2, 2], 1)
        lines = [number]
        for stack, (height, width) in zip(self._stacks, self._sizes(), strict=True):
            lines.extend(stack.lines(number[:, 0], starts, (height, width), turned))
        return self._settled(torch.cat(lines, 1))

    def _settled(self, located: torch.Tensor) -> torch.Tensor:
        """In the end, and where it was made: `gather` may come on another stream."""
        located = located.to(self._index)
        self._told = Home(self._device, [located])
        return located

    def _sent(self, table: Array) -> torch.Tensor:
        told = torch.from_numpy(table)
        return told.pin_memory().to(self._device, non_blocking=True) if self._device.type == "cuda" else told.to(self._device)

    def _sizes(self) -> list[tuple[int, int]]:
        """(height, width) of what is cut from each stack."""
        height, width = self._crop
        return [(height, width), (height // 2, width // 2)] if self._split else [(height, width)] * len(self._stacks)

    def gather(self, located: torch.Tensor, *, pin: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """A batch of what `locate` found: images [n, C, H, W] in channels_last layout, and targets."""
        self._home.visit()
        self._told.visit()
        numbers = located[:, 0]
        if self._moved:
            lines = iter(torch.split(located[:, 1:], [side for size in self._sizes() for side in size], 1))
            images, *others = (stack.cut(next(lines), next(lines)) for stack in self._stacks)
        else:
            images, *others = (stack.whole(numbers) for stack in self._stacks)
        if self._split:
            images = torch.cat([images.flatten(1), others[0].flatten(1)], 1).view(len(numbers), -1, self._shape[1], 1)
        targets = others[-1][..., 0] if self._targets is None else self._targets.index_select(0, numbers)
        return images.permute(0, 3, 1, 2), targets


def _check_room(count: int, layers: list[Layer], device: torch.device) -> None:
    """Raises LoaderError where so many images do not fit; what torch keeps there unused counts as free."""
    need, free = sum(Stack.nbytes(count, *layer) for layer in layers), free_memory()
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if need > free:
        raise LoaderError(
            f"resident={str(device)!r}: {count} decoded images take {need / 1e9:.3g} GB, but {free / 1e9:.3g} GB are free there: "
            "take a subset, a smaller size of the store, or leave resident out"
        )
