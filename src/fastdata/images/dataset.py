"""Image datasets: map an index to a compact tensor and its target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fastdata.data.choice import checked
from fastdata.data.dataset import Allocate, SlotDataset, Timing, counted_of, in_one_line
from fastdata.data.random import ROW_MASK, lent_generators, loose_seeds, repeated, uniforms
from fastdata.data.targets import Item, to_tensors
from fastdata.errors import StoreError
from fastdata.images.crops import Crop
from fastdata.images.fields import Columns, Fields
from fastdata.images.masks import Masks
from fastdata.images.records import ConcatImages, Images
from fastdata.images.rendering import EncodedBatch, render_batch, render_each, render_masks, stack
from fastdata.images.view import Sample, Transform, Views
from fastdata.store.store import Use
from fastdata.system.shared_memory import SharedArray

__all__ = ["ImageDataset"]

Array = np.ndarray[Any, np.dtype[Any]]


def _view_property(name: str) -> Any:
    """Return a property for a part of the views. Setting it takes what the constructor takes."""

    def set_value(dataset: Any, value: Any) -> None:
        dataset.views = dataset._check_views(replace(dataset.views, **{name: value}))

    return property(lambda dataset: getattr(dataset.views, name), set_value)


class ImageDataset(SlotDataset):
    """Images with labels or masks as targets; `fastdata.images.stored` has the constructors.

    `ds[i]` is (image, target). The image is uint8 or uint16 [C, H, W], RGB or one channel; a tuple of them if `crop` is a sequence
    of crops. The target is an int class, a float32
    vector, -1 without labels, or the image's mask, uint8 or uint16 [H, W].

    Random crops and flips draw from torch's default generator, as torchvision's do. Under `fastdata.Loader` they depend on (seed,
    epoch, sample) instead.

    Of a store with several images a sample, `ds[i]` is ({"left": image, "right": image}, target): all come from the same box with
    the same flips. A Loader delivers a dict of batches.

    With `fields`, the target is the value of a column of the store, or a dict of several: see LMDBDataset.

    Attributes:
        classes: names of the classes, or of the columns of float targets; with masks, their class names, where a palette gave them.
        class_pixels: with masks, a dict of pixel counts by class, in class order. They count all masks of the store as they were
            before preparing, also those outside a subset.
        targets: numpy int64 [n] or float32 [n, columns], in the order of this dataset: labels, also where there are masks.
        images: the names of the images, if samples are dicts of them; else None.
        views: crop, flips and transform.
        crop, hflip, vflip, transform: as for LMDBDataset. They may be set at any time: a Loader's next batch uses the new
            value. Setting `transform` raises TypeError if it is not callable, ValueError if the dataset has masks.
    """

    def __init__(
        self,
        sources: Sequence[Images],
        views: Views,
        masks: Masks | None = None,
        fields: Fields | None = None,
        names: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        self._images = sources[0]
        self._fields = fields
        self._sources = tuple(sources)  # of the images of each sample, which have the same sizes
        self._names = names  # of these, if a sample is a dict of them
        self._masks = masks
        self.views = self._check_views(views)

    @property
    def _all(self) -> Images:
        return self._images

    @property
    def images(self) -> tuple[str, ...] | None:
        return self._names or None

    def _as_sample(self, images: Sequence[Any]) -> Any:
        """Return the images of a sample, or of a batch, as they are emitted."""
        if self.images:
            return dict(zip(self.images, images, strict=True))
        return tuple(images) if self.views.several else images[0]

    @property
    def classes(self) -> list[str]:
        return list(self._masks.names if self._masks else self._images.labels.names)

    @property
    def class_pixels(self) -> dict[int, int]:
        return self._masks.pixels if self._masks else {}

    @property
    def ignore_index(self) -> int | None:
        """The class of pixels outside the image; None without masks."""
        return self._masks.ignore_index if self._masks else None

    @property
    def large_targets(self) -> bool:
        """Whether targets, like images, are written to memory from `allocate`."""
        return self._masks is not None

    @property
    def arrays_per_batch(self) -> int:
        return len(self._sources) * len(self.views.each) + self.large_targets

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        row = self.rows(checked(index, len(self)))
        u = torch.rand(self.views.draws, 1, dtype=torch.float64, device="cpu").numpy()
        plans = self._plan(row[None], u)
        images = [
            torch.from_numpy(pixels).permute(2, 0, 1)
            for source in self._sources
            for (pixels,) in render_each(source, self.views, row[None], plans, before_transform=self._seed_by_torch)
        ]
        sample, target = self._as_sample(images), self._read_target(row, plans[0])
        return (sample, target) if self._fields is None else Item.of(sample, target, self._fields.batching(self._images.columns))

    def _read_target(self, row: Any, plan: list[Sample]) -> Any:
        labels = self._images.targets[row]
        label = int(labels) if labels.ndim == 0 else torch.from_numpy(np.array(labels))
        if self._fields is not None:
            return self._fields.item(self._images.columns, int(row), label, lambda: self._images.placement(row[None]).then(plan))
        return label if self._masks is None else torch.from_numpy(np.array(self._read_targets(row[None], plan, np.empty, None)[0]))

    def uses(self, indices: Array) -> list[Use]:
        rows = self.rows(indices)
        sources = (*self._sources, self._masks.source) if self._masks else self._sources
        return [use for source in sources for use in source.uses(rows)]

    def read_batch(
        self,
        indices: Array,
        *,
        seed: int,
        epoch: int,
        repeats: Array | None = None,
        allocate: Allocate = np.empty,
        timing: Timing | None = None,
    ) -> tuple[Any, Any]:
        """Return a batch for the Loader: images and targets.

        Images are [n, H, W, C]; a tuple of these if there are several views, a dict if samples have
        several images. Targets are int64 [n], float32 [n, columns], masks [n, H, W], or what `Fields.batch` returns.

        `repeats` counts, for each sample, its earlier occurrences in this epoch; each occurrence gets its own random numbers.
        `allocate(shape, dtype)` returns the memory for the images, then for masks. Times are added to `timing`.
        """
        keys, rows, plans = self._plan_batch(indices, seed, epoch, repeats)
        if self.views.transform is None:
            images = [b for one in self._sources for b in render_batch(one, self.views.each, rows, plans, allocate, timing)]
        else:
            seeds = [loose_seeds(seed, epoch, keys, view) for view in range(len(plans))]
            with lent_generators() as reseed:

                def seed_sample(view: int, k: int) -> None:
                    reseed(seeds[view][k])
                    self._seed_own(seeds[view][k])

                samples = render_each(self._images, self.views, rows, plans, timing, seed_sample)
            images = [stack(found, allocate) for found in samples]
        return self._as_sample(images), self._read_targets(rows, plans[0], allocate, timing)

    def assemble(self, arrays: Sequence[torch.Tensor], targets: Any) -> tuple[Any, Any]:
        count = self.arrays_per_batch - self.large_targets
        images = [each.permute(0, 3, 1, 2) for each in arrays[:count]]
        return self._as_sample(images), arrays[count] if self.large_targets else to_tensors(targets)

    def _seed_own(self, seed: int) -> None:
        """Seed the generators that the transform owns."""
        if self.views.user is not None:
            self.views.user.seed(seed)

    def _seed_by_torch(self, _view: int, _place: int) -> None:
        """Seed the transform's generators from torch's, which differs between the workers of torch's DataLoader."""
        if self.views.user is not None and self.views.user.has_generators:
            self._seed_own(int(torch.randint(1 << 62, (), device="cpu")))

    crop: Any = _view_property("crop")
    hflip: Any = _view_property("hflip")
    vflip: Any = _view_property("vflip")
    transform: Any = _view_property("transform")

    @property
    def channels(self) -> int:
        """Channels of a decoded image: 3 or 1."""
        return self._images.form.channels

    def encode_batch(self, indices: Array, *, seed: int, epoch: int, repeats: Array | None = None) -> EncodedBatch:
        """Return the batch that `read_batch` makes from the same arguments, before decoding. It has no masks and no transform.

        JPEGs hold only what the boxes need. The bytes are valid while this dataset lives.
        """
        _, rows, (plan,) = self._plan_batch(indices, seed, epoch, repeats)
        targets = self._read_targets(rows, plan, np.empty, None)
        return EncodedBatch(self._images, self.views.each[0], rows, plan, targets)

    def no_jpegs(self) -> str | None:
        """Return why `encode_batch` cannot be used; None: it can."""
        if self._masks is not None:
            return "it has masks, which must be cropped with the images"
        if self.views.transform is not None:
            return "it has a transform, which takes decoded images"
        if self.views.several:
            return "it has several crops, which share what is decoded"
        if self.images:
            return "it has several images a sample; images= chooses one"
        return None if self._images.jpegs else "its images are not held as JPEGs"

    def _plan_batch(self, indices: Array, seed: int, epoch: int, repeats: Array | None) -> tuple[Array, Array, list[list[Sample]]]:
        """Return the keys of a batch's random numbers, its rows, and the plan of each view."""
        keys = repeated(self._keys(indices), repeats)
        rows = keys & ROW_MASK
        return keys, rows, self._plan(rows, uniforms(seed, epoch, keys, self.views.draws))

    def _plan(self, rows: Array, u: Array) -> list[list[Sample]]:
        """Plan the views, and the masks, from uniform numbers."""
        return self.views.plan(u, *self._images.sides(rows))

    def _read_targets(self, rows: Array, plan: list[Sample], allocate: Allocate, timing: Timing | None) -> Any:
        """Return the targets of a batch. Masks are written to memory from `allocate`."""
        if self._fields is not None:
            labels = self._images.targets[rows]
            return self._fields.batch(self._images.columns, rows, labels, lambda: self._images.placement(rows).then(plan))
        if self._masks is None:
            return self._images.targets[rows]
        return render_masks(self._masks.source, self.views.each[0], rows, plan, self._masks.ignore_index, allocate, timing)

    @property
    def codec(self) -> str:
        """The codec of the stored images: "jpeg", "rgb", ..."""
        return self._images.form.codec

    def sides(self) -> tuple[Array, Array]:
        """Return the heights and widths of the stored images, int64 [n] each."""
        return self._images.sides(self.rows(np.arange(len(self))))

    def sample_bytes(self) -> int:
        """Return the bytes of the largest sample, before a transform."""
        pixels = [view.most_pixels(self.sides) for view in self.views.each]
        images = sum(source.form.nbytes(count) for source in self._sources for count in pixels)
        return int(images + (self._masks.source.form.nbytes(pixels[0]) if self._masks else 0))

    def with_size(self, size: int | None) -> Any:
        """Return the same samples from another stored size, as a dataset of the same kind."""
        sources = tuple(images.with_size(size) for images in self._sources)
        return self._like(_images=sources[0], _sources=sources, _masks=self._masks and self._masks.with_size(size))

    def with_crop(
        self, crop: Crop | Sequence[Crop] | None, *, hflip: float = 0.0, vflip: float = 0.0, transform: Transform | None = None
    ) -> Any:
        """Return the same samples with another crop, flips and transform, such as for a validation set after `split`."""
        return self._like(views=self._check_views(Views(crop, hflip, vflip, transform)))

    def with_crop_size(self, side: int) -> Any:
        if self.views.several:
            raise ValueError(f"a crop of {side} was asked for, but the dataset has several crops: set dataset.crop to others")
        (view,) = self.views.each
        if view.crop is None:
            raise ValueError(f"a crop of {side} was asked for, but the dataset has no crop: give it one, such as RandomResizedCrop")
        return self._like(views=self._check_views(replace(self.views, crop=replace(view.crop, size=side))))

    @property
    def fields(self) -> str | tuple[str, ...] | None:
        """The columns that are emitted as targets; None: labels or masks."""
        if self._fields is None:
            return None
        return self._fields.names[0] if self._fields.single else self._fields.names

    @property
    def columns(self) -> Columns:
        """The columns of the store, in the order of this dataset: a mapping of names to arrays or lists of n values."""
        rows = self.rows(np.arange(len(self)))
        return Columns(self._images.columns, rows, self._images.targets[rows])

    def decode(self, tokens: Any, column: str | None = None) -> str:
        """Return the text of tokens, by the tokenizer of their column, without the padding at their end.

        Args:
            tokens: whole numbers [length].
            column: the column they come from; None: the only one that holds tokens.

        Raises:
            StoreError: if there is no such column.
            MissingExtraError: if the tokenizer's library is not installed.
        """
        known = [name for name, values in self._images.columns.items() if values.column.tokens is not None]
        if (column is None and len(known) != 1) or (column is not None and column not in known):
            which = "name one of them" if column is None and known else f"{column or 'tokens'} cannot be decoded"
            raise StoreError(f"{self._images.place} has the columns of tokens {', '.join(known) or 'none'}: {which}")
        return self._images.columns[column or known[0]].decode(np.asarray(tokens).reshape(-1).tolist())

    def __add__(self, other: Any) -> Any:
        """Concatenate two datasets, with their masks. Other datasets are added with torch's slower `ConcatDataset`.

        Raises:
            ValueError: if their crops, flips, labels, classes or kinds of pixels differ, or only one has masks.
        """
        if not isinstance(other, ImageDataset):
            return super().__add__(other)
        if other.views != self.views:
            raise ValueError(f"the datasets have {self.views} and {other.views}: make them equal with with_crop, then add them")
        rows = [None if d._chosen is None else SharedArray.of(d._chosen.array & ROW_MASK) for d in (self, other)]
        masks = [d._masks for d in (self, other) if d._masks is not None]
        if len(masks) == 1:
            raise ValueError("only one of the datasets has masks, so their targets cannot be in one batch")
        if self.images != other.images:
            raise ValueError(f"the datasets have the images {self.images} and {other.images}: open both with the same images=")
        sources = [ConcatImages([*zip(pair, rows, strict=True)]) for pair in zip(self._sources, other._sources, strict=True)]
        if self._fields != other._fields:
            raise ValueError(
                f"the datasets have the fields {self.fields} and {other.fields}, so their targets cannot be in one batch"
            )
        joined = Masks.concat(list(zip(masks, rows, strict=True))) if masks else None
        return ImageDataset(sources, self.views, joined, self._fields, self._names)

    def _check_views(self, views: Views) -> Views:
        """Return the views, or raise ValueError if they do not suit these images and targets."""
        geometric = self._fields.geometric(self._images.columns) if self._fields else None
        follower = "its mask" if self._masks is not None else geometric
        follower = follower or (f"the others of its sample ({', '.join(self.images)})" if self.images else None)
        remedy = "images= chooses one image, RAMDataset(masks=False) leaves out masks"
        if follower and views.several:
            found = f"crop makes {len(views.each)} views of an image, and {follower} can follow only one"
            raise ValueError(f"{found}: give one crop, or leave the other out; {remedy}")
        if follower and views.transform is not None:
            found = f"transform takes an image, and {follower} would not follow"
            raise ValueError(f"{found}: transform both on the device, or leave the other out; {remedy}")
        return views

    def __repr__(self) -> str:
        kind = self._images.labels.kind
        if self._masks is not None:
            classes = f"masks of {len(self._masks.counts())} classes"
        else:
            classes = f"{len(self.classes)} {'classes' if kind == 'class' else 'columns'}" if kind != "none" else "no labels"
        if self._fields is not None:
            classes = f"fields={self.fields!r}"
        classes = f"images={self.images!r}, {classes}" if self.images else classes
        count = counted_of(len(self), len(self._images), "samples" if self.images else "images")
        return in_one_line(self, count, classes, self.codec, *self.views.parts(), self._images.place)
