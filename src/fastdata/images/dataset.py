"""Image datasets: an index becomes a compact tensor and its target."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fastdata.data.choice import checked
from fastdata.data.dataset import SlotDataset
from fastdata.data.random import ROW_MASK, lent_generators, loose_seeds, repeated, uniforms
from fastdata.data.shown import counted_of, in_one_line
from fastdata.data.timing import Allocate, Timing
from fastdata.images.concat import JoinedImages
from fastdata.images.crops import Crop
from fastdata.images.encoded import EncodedBatch
from fastdata.images.masks import Masks
from fastdata.images.records import Images
from fastdata.images.rendering import render_batch, render_each, render_masks, stack
from fastdata.images.view import Sample, Transform, View
from fastdata.shared_memory import SharedArray

__all__ = ["ImageDataset"]

Array = np.ndarray[Any, np.dtype[Any]]


def _of_view(name: str) -> Any:
    """A part of the view. It may be set at any time, to what the constructor takes: a Loader's next batch has it."""

    def put(dataset: Any, value: Any) -> None:
        dataset.view = dataset._fitting(replace(dataset.view, **{name: value}))

    return property(lambda dataset: getattr(dataset.view, name), put)


class ImageDataset(SlotDataset):
    """Images with targets, which are labels or masks; `fastdata.images.stored` says where they come from.

    `ds[i]` is (image, target): uint8 or uint16 [C, H, W], RGB or one channel; and an int class, a float32 vector, or -1 without
    labels; or the image's mask, uint8 or uint16 [H, W]. A yuv420 store emits planes, uint8 [1, H * 3/2, W]: rows of luma, then rows
    of Cb and Cr side by side at half the resolution (NV12), which `GPUNormalize(yuv420=True)` takes.

    Random crops and flips draw from torch's default generator, as torchvision's do. Under `fastdata.Loader` they depend on (seed,
    epoch, sample) instead.

    Attributes:
        classes: names of the classes, or of the columns of float targets; with masks, of their classes, where a palette told them.
        class_pixels: with masks, dict of class: pixels, in the order of the classes, counted in all masks of the store, also those
            that a subset leaves out, as they were before preparing. `class_weights()` makes the weights of a loss of them.
        targets: numpy, int64 [n] or float32 [n, columns], in the order of this dataset: labels, also where there are masks.
        view: crop, flips and transform.
    """

    channels_last = True

    def __init__(self, images: Images, view: View, masks: Masks | None = None) -> None:
        super().__init__()
        self._images, self._masks = images, masks
        self.view = self._fitting(view)

    @property
    def _all(self) -> Images:
        return self._images

    @property
    def classes(self) -> list[str]:
        return list(self._masks.names if self._masks else self._images.labels.names)

    @property
    def class_pixels(self) -> dict[int, int]:
        return self._masks.pixels if self._masks else {}

    def _class_counts(self) -> tuple[dict[int, int], int]:
        if self._masks is None:
            return super()._class_counts()
        return self._masks.counts(), len(self._masks.names)

    @property
    def ignore_index(self) -> int | None:
        """With masks, the class of pixels outside of the image."""
        return self._masks.ignore_index if self._masks else None

    @property
    def large_targets(self) -> bool:
        """Whether targets lie in memory that is allocated as images' is."""
        return self._masks is not None

    def __getitem__(self, index: int) -> tuple[torch.Tensor, Any]:
        row = self.rows(checked(index, len(self)))
        u = torch.rand(self.view.draws, 1, dtype=torch.float64, device="cpu").numpy()
        plan = self._plan(row[None], u)
        (pixels,) = render_each(self._images, self.view, row[None], plan, before_transform=self._seed_by_torch)
        target = self._targets_of(row[None], plan, np.empty, None)[0]
        return torch.from_numpy(pixels).permute(2, 0, 1), int(target) if target.ndim == 0 else torch.from_numpy(np.array(target))

    def read_batch(
        self,
        indices: Array,
        *,
        seed: int,
        epoch: int,
        repeats: Array | None = None,
        allocate: Allocate = np.empty,
        timing: Timing | None = None,
    ) -> tuple[Array, Array]:
        """A batch as the Loader takes it.

        Images [n, H, W, C], or planes [n, H * 3/2, W, 1]; and targets, int64 [n] or float32 [n, columns], or masks [n, H, W].

        `repeats` says which time in this epoch each sample comes; every time it looks otherwise. `allocate(shape, dtype)` gives
        the memory for the images, then for masks; `timing` is added to.
        """
        keys, rows, plan = self._planned(indices, seed, epoch, repeats)
        if self.view.transform is None:
            images = render_batch(self._images, self.view, rows, plan, allocate, timing)
        else:  # a transform that draws random numbers draws the same for the same (seed, epoch, sample)
            seeds = loose_seeds(seed, epoch, keys)
            with lent_generators() as reseed:

                def begin(k: int) -> None:
                    reseed(seeds[k])
                    self._seed_own(seeds[k])

                samples = render_each(self._images, self.view, rows, plan, timing, begin)
            images = stack(samples, allocate)
        return images, self._targets_of(rows, plan, allocate, timing)

    def _seed_own(self, seed: int) -> None:
        """Seed the generators that a transform owns."""
        if self.view.user is not None:
            self.view.user.seed(seed)

    def _seed_by_torch(self, _: int) -> None:
        """Seed them from torch's generator, which differs between the workers of torch's DataLoader."""
        if self.view.user is not None and self.view.user.has_generators:
            self._seed_own(int(torch.randint(1 << 62, (), device="cpu")))

    @property
    def transform(self) -> Transform | None:
        """A function of your own, as LMDBDataset takes it. It may be set at any time: a Loader's next batch has it.

        Raises, when it is set:
            TypeError: it can't be called.
            ValueError: the dataset has masks, or emits planes.
        """
        return self.view.transform

    @transform.setter
    def transform(self, transform: Transform | None) -> None:
        self.view = self._fitting(replace(self.view, transform=transform))

    crop: Any = _of_view("crop")
    hflip: Any = _of_view("hflip")
    vflip: Any = _of_view("vflip")

    @property
    def channels(self) -> int:
        """Of an image as it is decoded: 3, or 1."""
        return self._images.form.channels

    def encode_batch(self, indices: Array, *, seed: int, epoch: int, repeats: Array | None = None, cut: bool) -> EncodedBatch:
        """The batch that `read_batch` makes of the same arguments, before it is decoded; without masks and transforms.

        cut: JPEGs hold no more than the boxes need. They are valid while this dataset lives.
        """
        _, rows, plan = self._planned(indices, seed, epoch, repeats)
        return EncodedBatch(self._images, self.view, rows, plan, cut=cut)

    def no_jpegs(self) -> str | None:
        """Why `encode_batch` is of no use; None: it is of use."""
        if self._masks is not None:
            return "it has masks, which go with the images"
        if self.view.transform is not None:
            return "it has a transform, which takes decoded images"
        return None if self._images.jpegs else "its images are not held as JPEGs"

    def _planned(self, indices: Array, seed: int, epoch: int, repeats: Array | None) -> tuple[Array, Array, list[Sample]]:
        """What names the samples of a batch to the random numbers, their rows, and what becomes of them."""
        keys = repeated(self._keys(indices), repeats)
        rows = keys & ROW_MASK
        return keys, rows, self._plan(rows, uniforms(seed, epoch, keys, self.view.draws))

    def draw(self, indices: Array, *, seed: int, epoch: int, repeats: Array | None = None) -> tuple[Array, Array]:
        """The boxes, int64 [n, 4], and flips, bool [n, 2], that `read_batch` cuts and makes with the same arguments."""
        keys = repeated(self._keys(indices), repeats)
        sides = self._images.sides(keys & ROW_MASK)
        return self.view.draw(uniforms(seed, epoch, keys, self.view.draws), *sides, planes=self._images.form.planes)

    def _plan(self, rows: Array, u: Array) -> list[Sample]:
        """What becomes of images, and of their masks, with these uniform numbers."""
        return self.view.plan(u, *self._images.sides(rows), planes=self._images.form.planes)

    def _targets_of(self, rows: Array, plan: list[Sample], allocate: Allocate, timing: Timing | None) -> Array:
        """What goes with the images of a batch; `allocate` is for targets as large as images."""
        if self._masks is None:
            return self._images.targets[rows]
        return render_masks(self._masks.source, self.view, rows, plan, self._masks.ignore_index, allocate, timing)

    @property
    def codec(self) -> str:
        """How the images are held: "jpeg", "rgb", ..."""
        return self._images.form.codec

    @property
    def planes(self) -> bool:
        """Whether samples are planes of luma and colours."""
        return self._images.form.planes

    def sides(self) -> tuple[Array, Array]:
        """Heights and widths of the stored images, int64 [n] each."""
        return self._images.sides(self.rows(np.arange(len(self))))

    def sample_bytes(self) -> int:
        """Bytes of the largest sample, before a transform."""
        pixels = self.view.most_pixels(self.sides)
        return int(self._images.form.nbytes(pixels) + (self._masks.source.form.nbytes(pixels) if self._masks else 0))

    def with_size(self, size: int | None) -> Any:
        """The same samples from another stored size, as a dataset of the same kind."""
        return self._like(_images=self._images.with_size(size), _masks=self._masks and self._masks.with_size(size))

    def with_crop(self, crop: Crop | None, *, hflip: float = 0.0, vflip: float = 0.0, transform: Transform | None = None) -> Any:
        """The same samples with another crop, other flips and another transform: what a validation set needs after `split`."""
        return self._like(view=self._fitting(View(crop, hflip, vflip, transform)))

    def with_crop_size(self, side: int) -> Any:
        if self.view.crop is None:
            raise ValueError(f"a crop of {side} was asked for, but the dataset has no crop: give it one, such as RandomResizedCrop")
        return self._like(view=self._fitting(replace(self.view, crop=replace(self.view.crop, size=side))))

    def __add__(self, other: Any) -> Any:
        """This dataset and another one after it, on the fast path, with masks too; other datasets through torch's `ConcatDataset`.

        Raises:
            ValueError: their crops, flips, labels, classes or kinds of pixels differ, or one alone has masks.
        """
        if not isinstance(other, ImageDataset):
            return super().__add__(other)
        if other.view != self.view:
            raise ValueError(f"the datasets have {self.view} and {other.view}: make them equal with with_crop, then add them")
        rows = [None if d._chosen is None else SharedArray.of(d._chosen.array & ROW_MASK) for d in (self, other)]
        masks = [d._masks for d in (self, other) if d._masks is not None]
        if len(masks) == 1:
            raise ValueError("one of the datasets has masks, the other has none: a batch of both can't be made")
        joined = JoinedImages([(self._images, rows[0]), (other._images, rows[1])])
        return ImageDataset(joined, self.view, Masks.joined(list(zip(masks, rows, strict=True))) if masks else None)

    def _fitting(self, view: View) -> View:
        """The view, if samples of these images can be made with it."""
        if self._masks and view.transform is not None:
            raise ValueError(
                "transform takes an image, and its mask would not follow: transform both on the device; images without masks "
                "come from RAMDataset(masks=False)"
            )
        if self._images.form.planes:
            if view.transform is not None:
                raise ValueError(
                    "transform takes pixels [H, W, C], but a yuv420 store emits planes: transform on the device, or prepare with "
                    "codec jpeg or rgb"
                )
            if view.crop is not None and any(side % 2 for side in view.crop.sides(2)):
                raise ValueError(f"{view.crop}: planes have colours at half the resolution, so both sides must be even")
        return view

    def __repr__(self) -> str:
        kind, images = self._images.labels.kind, self._images
        if self._masks is not None:
            classes = f"masks of {len(self._masks.counts())} classes"
        else:
            classes = f"{len(self.classes)} {'classes' if kind == 'class' else 'columns'}" if kind != "none" else "no labels"
        count = counted_of(len(self), len(images), "images")
        return in_one_line(self, count, classes, images.form.codec, *self.view.parts(), images.place)
