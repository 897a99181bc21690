"""Datasets of images, on disk or in memory: map an index to a compact tensor and its target, which may be columns or a mask."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from fastdata.data.choice import checked
from fastdata.data.dataset import Allocate, SlotDataset, Timing, counted_of, in_one_line
from fastdata.data.in_memory import how_many
from fastdata.data.opening import CACHED, RAMDataset
from fastdata.data.random import ROW_MASK, isolated_global_rngs, repeated, seeds_for_user_code, uniforms
from fastdata.data.targets import Item, to_tensors
from fastdata.errors import LoaderError, StoreError, warn_user
from fastdata.images.crops import Crop
from fastdata.images.geometry import Placement, move_columns
from fastdata.images.records import ColumnValues, ConcatImages, FileImages, Images, StoreImages
from fastdata.images.sections import Masks, join_masks
from fastdata.images.tokens import decode_tokens
from fastdata.images.view import AnyCrop, EncodedBatch, Sample, Transform, View, plan_views, render_batch, render_masks
from fastdata.remote.bucket import Storage
from fastdata.remote.reader import locate
from fastdata.store.columns import TEXTS, Column, Lists
from fastdata.store.store import Use
from fastdata.types import Array, StrPath

Move = Callable[[], tuple[Placement, Array]]

LABEL = "label"  # the column of the images' labels


@dataclass(frozen=True)
class Fields:
    """The columns that a dataset emits as its targets."""

    names: str | tuple[str, ...]  # of columns, or "label"; one, for its value alone, or several, for a dict
    min_visible: float  # drop instances of whose box a smaller share lies in the output
    read: tuple[Column, ...] = field(compare=False, repr=False)  # of these names, and the boxes that drop instances of theirs

    @classmethod
    def of(cls, names: str | Sequence[str] | None, images: Images, min_visible: float = 0.0) -> Fields | None:
        """Return the fields of these names, or None without names. Raise StoreError or ValueError if an argument is wrong."""
        if names is None:
            if min_visible:
                raise ValueError(f"min_visible is {min_visible}, but fields is None, so no boxes can be dropped: give fields too")
            return None
        wanted = (names,) if isinstance(names, str) else tuple(names)
        if not wanted or len(set(wanted)) < len(wanted):
            raise ValueError(f"fields is {names!r}, but must be the name of a column, or several different names")
        columns = {name: values.column for name, values in columns_of(images).items()}
        if missing := [name for name in wanted if name not in columns]:
            hint = "" if images.columns else "; --fields, --coco and --yolo of fastdata-prep add columns"
            raise StoreError(f"there is no column {missing[0]} in {images.location}, only {', '.join(columns)}{hint}")
        if not 0 <= min_visible <= 1:
            raise ValueError(f"min_visible is {min_visible}, but must be from 0 to 1")
        groups = {columns[name].group for name in wanted} - {None}
        boxes = [name for name, column in columns.items() if column.geometry == "xyxy" and column.group in groups]
        read = tuple(columns[name] for name in dict.fromkeys([*wanted, *boxes]))
        if min_visible and not any(column.geometry == "xyxy" for column in read):
            raise ValueError(
                f"min_visible is {min_visible}, but no boxes belong to {', '.join(wanted)} of {images.location}: give fields "
                "with boxes, which fastdata-prep stores with --coco, --yolo, or --fields NAME:xyxy (or xywh, cxcywh)"
            )
        return cls(names if isinstance(names, str) else wanted, min_visible, read)

    @property
    def geometric(self) -> str | None:
        """The first field that follows the pixels, such as boxes, or None."""
        wanted = (self.names,) if isinstance(self.names, str) else self.names
        return next((column.name for column in self.read if column.geometry and column.name in wanted), None)

    def batch(self, columns: Mapping[str, ColumnValues], rows: Array, move: Move) -> Any:
        """Return the targets of the rows, int64 [n]. move: returns the placement and the sizes that `move_columns` takes."""
        found = {column.name: columns[column.name].batch(rows) for column in self.read}
        if any(column.geometry for column in self.read):
            move_columns(self.read, found, *move(), self.min_visible)
        return self._emitted(found)

    @property
    def batching(self) -> Any:
        """The way in which `Item` batches the target."""
        return self._emitted({c.name: "list" if c.type in TEXTS else "ragged" if c.many else c.type for c in self.read})

    def _emitted(self, found: Mapping[str, Any]) -> Any:
        return found[self.names] if isinstance(self.names, str) else {name: found[name] for name in self.names}


def columns_of(images: Images) -> dict[str, ColumnValues]:
    """Return the columns of images, and their labels as the last one."""
    column = Column(LABEL, "float32" if images.labels.kind == "vector" else "int64", images.targets.shape[1:])
    return {**images.columns, LABEL: ColumnValues(column, images.targets.__getitem__)}


def as_item(batch: Any) -> Any:
    """Return the only item of a batch: a number or text as Python has it, an array or list as a tensor, or a dict of these."""
    if isinstance(batch, dict):
        return {name: as_item(value) for name, value in batch.items()}
    item = batch.values if isinstance(batch, Lists) else batch[0]
    if isinstance(item, np.ndarray):
        return torch.from_numpy(np.array(item))
    return item.item() if isinstance(item, np.generic) else item


class Columns(Mapping[str, Any]):
    """The columns of a dataset's samples, in the dataset's order. Each is read when it is asked for.

    An item is a numpy array [n, ...]; for lists, text, bytes and JSON, a list of n values.
    """

    def __init__(self, values: Mapping[str, ColumnValues], rows: Array) -> None:
        self._values = values
        self._rows = rows

    def __getitem__(self, name: str) -> Any:
        if name not in self._values:
            raise KeyError(f"there is no column {name}, only {', '.join(self)}")
        found = self._values[name].batch(self._rows)
        return found.items() if isinstance(found, Lists) else found

    def __repr__(self) -> str:
        return f"Columns({', '.join(str(values.column) for values in self._values.values())})"

    def names(self, name: str) -> tuple[str, ...]:
        """Return what the numbers of a column stand for, such as COCO's categories, or the names of keypoints; () without names."""
        return self._values[name].column.names

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def _view_property(name: str) -> Any:
    """Return a property of the dataset for an argument of its views."""

    def set_value(dataset: Any, value: Any) -> None:
        dataset._set_views(**dataset._view | {name: value})

    return property(lambda dataset: dataset._view[name], set_value)


class ImageDataset(SlotDataset):
    """Images with labels or masks as targets.

    `ds[i]` is (image, target). The image is uint8 or uint16 [C, H, W], RGB or one channel; a tuple if `crop` is a sequence
    of crops. The target is an int class, a float32 vector, -1 without labels, a mask (uint8 or uint16 [H, W]), or `fields`.

    Random crops and flips draw from torch's default generator, as torchvision's do; under `fastdata.Loader` they depend on (seed,
    epoch, sample). With several images a sample, `ds[i]` is ({"left": image, "right": image}, target): images share box and flips.

    Attributes:
        classes: names of the classes, or of the columns of float targets; with masks, their class names, where a palette gave them.
        class_pixels: with masks, a dict of pixel counts by class, in class order, over all mask files of the store.
        ignore_index: with masks, the class of pixels outside the image; else None.
        targets: labels, numpy int64 [n] or float32 [n, columns], in the order of this dataset, also where there are masks.
        images: the names of the images, if samples are dicts of them; else None.
        views: a View for each crop of an image; `has_views`: whether samples are tuples of images.
        crop, hflip, vflip, transform: as for LMDBDataset. Changes apply to a Loader's next batch.
    """

    def __init__(
        self,
        sources: Sequence[Images],
        names: tuple[str, ...],
        *,
        masks: Images | None = None,
        ignore_index: int | None = None,
        fields: Fields | None = None,
        **view: Any,
    ) -> None:
        super().__init__()
        self._images = sources[0]
        self._sources = tuple(sources)  # of the images of each sample, which have the same sizes
        self.images = names or None
        self._fields = fields
        self._masks = masks
        self.ignore_index = ignore_index
        self._set_views(**view)

    @property
    def _all(self) -> Images:
        return self._images

    def _as_sample(self, images: Sequence[Any]) -> Any:
        """Return the images of a sample, or of a batch, as they are emitted."""
        if self.images:
            return dict(zip(self.images, images, strict=True))
        return tuple(images) if self.has_views else images[0]

    @property
    def _mask_classes(self) -> Masks | None:
        stores = [] if self._masks is None else self._masks.stores.values()
        return join_masks([store.manifest.section("masks") for store in stores])

    @property
    def classes(self) -> list[str]:
        return list((self._mask_classes or self._images.labels).names)

    @property
    def class_pixels(self) -> dict[int, int]:
        return self._mask_classes.by_class if self._mask_classes else {}

    @property
    def large_targets(self) -> bool:
        """Whether targets, like images, are written to memory from `allocate`."""
        return self._masks is not None

    @property
    def arrays_per_batch(self) -> int:
        return len(self._sources) * len(self.views) + self.large_targets

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        rows = self.rows(checked(index, len(self)))[None]
        u = torch.rand(self.draws, 1, dtype=torch.float64, device="cpu").numpy()
        plans = plan_views(self.views, u, *self._images.sides(rows))
        images = self._render(rows, plans, np.empty, None, self._seed_by_torch)
        sample = self._as_sample([torch.from_numpy(pixels).permute(2, 0, 1) for (pixels,) in images])
        target = as_item(self._read_targets(rows, plans[0], np.empty, None))
        return (sample, target) if self._fields is None else Item.of(sample, target, self._fields.batching)

    def uses(self, indices: Array) -> list[Use]:
        rows = self.rows(indices)
        sources = (*self._sources, self._masks) if self._masks else self._sources
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
        """Return images [n, H, W, C], or a tuple (views) or dict of these, and targets; masks [n, H, W] are allocated last."""
        keys, rows, plans = self._plan_batch(indices, seed, epoch, repeats)
        if all(view.transform is None for view in self.views):
            images = self._render(rows, plans, allocate, timing)
        else:
            seeds = [seeds_for_user_code(seed, epoch, keys, view) for view in range(len(plans))]
            with isolated_global_rngs() as reseed:

                def seed_sample(view: int, k: int) -> None:
                    reseed(seeds[view][k])
                    if (user := self.views[view].user) is not None:
                        user.seed(seeds[view][k])

                images = self._render(rows, plans, allocate, timing, seed_sample)
        return self._as_sample(images), self._read_targets(rows, plans[0], allocate, timing)

    def _render(self, rows: Array, plans: list[list[Sample]], *options: Any) -> list[Array]:
        """Return the batch of each view of each image, as `render_batch` does."""
        return [batch for images in self._sources for batch in render_batch(images, self.views, rows, plans, *options)]

    def assemble(self, arrays: Sequence[torch.Tensor], targets: Any) -> tuple[Any, Any]:
        count = self.arrays_per_batch - self.large_targets
        images = [each.permute(0, 3, 1, 2) for each in arrays[:count]]
        return self._as_sample(images), arrays[count] if self.large_targets else to_tensors(targets)

    def _seed_by_torch(self, view: int, _place: int) -> None:
        """Seed a transform's generators from torch's, which differs between the workers of torch's DataLoader."""
        if (user := self.views[view].user) is not None and user.seeders:
            user.seed(int(torch.randint(1 << 62, (), device="cpu")))

    crop: Any = _view_property("crop")
    hflip: Any = _view_property("hflip")
    vflip: Any = _view_property("vflip")
    transform: Any = _view_property("transform")

    @property
    def channels(self) -> int:
        return self._images.form.channels

    def encode_batch(self, indices: Array, *, seed: int, epoch: int, repeats: Array | None = None) -> EncodedBatch:
        """Return the batch that `read_batch` makes from the same arguments, before decoding. It must have no masks or transform.

        The JPEGs are the stored bytes, valid while this dataset lives.
        """
        _, rows, (plan,) = self._plan_batch(indices, seed, epoch, repeats)
        images, shape = self._images, self.views[0].one_shape(plan)
        if any(sample.window.empty for sample in plan):
            raise LoaderError('a crop lies entirely outside of its image, so DALI has nothing to decode: use backend="torch"')
        jpegs = [images.get(row) for row in rows.tolist()]
        return EncodedBatch(plan, jpegs, self._read_targets(rows, plan, np.empty, None), (*shape, images.form.channels))

    def no_jpegs(self) -> str | None:
        """Return why `encode_batch` cannot be used, or None if it can."""
        crop = self.views[0].crop
        reasons = {
            "it has masks, which must be cropped with the images": self._masks is not None,
            "it has several crops, which share the decoded pixels": self.has_views,
            "it has a transform, which takes decoded images": self.views[0].transform is not None,
            f"DALI cannot resize as {crop} does": crop and (crop.resizes_first or crop.interpolation != "bilinear"),
            "it has several images a sample; images= chooses one": self.images,
            "its images are not JPEGs that --codec jpeg stored": not self._images.jpegs,
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    @property
    def draws(self) -> int:
        """The number of random numbers that a sample needs."""
        return sum(view.draws for view in self.views)

    def _plan_batch(self, indices: Array, seed: int, epoch: int, repeats: Array | None) -> tuple[Array, Array, list[list[Sample]]]:
        """Return the keys of a batch's random numbers, its rows, and the plan of each view."""
        keys = repeated(self._keys(indices), repeats)
        rows = keys & ROW_MASK
        u = uniforms(seed, epoch, keys, self.draws)
        return keys, rows, plan_views(self.views, u, *self._images.sides(rows))

    def _read_targets(self, rows: Array, plan: list[Sample], allocate: Allocate, timing: Timing | None) -> Any:
        """Return the targets of a batch. Masks are written to memory from `allocate`."""
        if self._fields is not None:
            return self._fields.batch(columns_of(self._images), rows, lambda: self._images.placement(rows).then(plan))
        if self._masks is None:
            return self._images.targets[rows]
        assert self.ignore_index is not None
        return render_masks(self._masks, self.views[0], rows, plan, self.ignore_index, allocate, timing)

    def sides(self) -> tuple[Array, Array]:
        """Return the heights and widths of the stored images, int64 [n] each."""
        return self._images.sides(self.rows(np.arange(len(self))))

    def sample_bytes(self) -> int:
        """Return the bytes of the largest sample, before a transform."""
        pixels = [view.most_pixels(self.sides) for view in self.views]
        images = sum(source.form.nbytes(count) for source in self._sources for count in pixels)
        return int(images + (self._masks.form.nbytes(pixels[0]) if self._masks else 0))

    def with_size(self, size: int | None) -> Any:
        """Return the same samples from another stored size, as a dataset of the same kind."""
        sources = tuple(images.with_size(size) for images in self._sources)
        return self._like(_images=sources[0], _sources=sources, _masks=self._masks and self._masks.with_size(size))

    def with_crop(self, crop: AnyCrop, *, hflip: float = 0.0, vflip: float = 0.0, transform: Transform | None = None) -> Any:
        """Return the same samples with another crop, flips and transform, for instance for a validation set after `split`."""
        other = self._like()
        other._set_views(crop, hflip, vflip, transform)
        return other

    def with_crop_size(self, side: int) -> Any:
        view = self.views[0]
        if self.has_views or view.crop is None:
            found = "several crops" if self.has_views else "no crop"
            raise ValueError(f"schedule asks for crop {side}, but the dataset has {found}: give it one, such as RandomResizedCrop")
        return self.with_crop(replace(view, crop=replace(view.crop, size=side)))

    @property
    def fields(self) -> str | tuple[str, ...] | None:
        """The columns that are emitted as targets, or None if labels or masks are."""
        return None if self._fields is None else self._fields.names

    @property
    def columns(self) -> Columns:
        """The columns of the store, in the order of this dataset: a mapping of names to arrays or lists of n values."""
        return Columns(columns_of(self._images), self.rows(np.arange(len(self))))

    def decode(self, tokens: Any, column: str | None = None) -> str:
        """Return the text of tokens, whole numbers [length]. column: a column of tokens, or None for the only one."""
        known = {name: values.column for name, values in self._images.columns.items() if values.column.tokens is not None}
        chosen = [*known] if column is None else [name for name in known if name == column]
        if len(chosen) != 1:
            raise StoreError(f"column must name a column of tokens; {self._images.location} has {', '.join(known) or 'none'}")
        return decode_tokens(next(iter(self._images.stores)), known[chosen[0]], np.asarray(tokens).reshape(-1).tolist())

    def __add__(self, other: Any) -> Any:
        """Concatenate two datasets, with their masks; raise ValueError if anything but their samples differs.

        Other datasets are added with torch's slower `ConcatDataset`.
        """
        if not isinstance(other, ImageDataset):
            return super().__add__(other)
        for name in ("ignore_index", "images", "views", "has_views", "_fields", *(["classes"] if self._masks else [])):
            mine, others = getattr(self, name), getattr(other, name)
            if mine != others:
                what = f"the datasets differ in {name.strip('_')}, {mine!r} and {others!r}"
                raise ValueError(f"{what}: prepare and open both with the same arguments")
        rows = [None if d._chosen is None else d._chosen.array & ROW_MASK for d in (self, other)]
        sources = [ConcatImages([*zip(pair, rows, strict=True)]) for pair in zip(self._sources, other._sources, strict=True)]
        masks = self._masks and other._masks and ConcatImages([*zip((self._masks, other._masks), rows, strict=True)])
        fields = self._fields and Fields.of(self.fields, sources[0], self._fields.min_visible)
        options: dict[str, Any] = {"masks": masks, "ignore_index": self.ignore_index, "fields": fields, **self._view}
        return ImageDataset(sources, self.images or (), **options)

    def _set_views(self, crop: AnyCrop = None, hflip: float = 0.0, vflip: float = 0.0, transform: Transform | None = None) -> None:
        """Set the views. Raise ValueError or TypeError if they are wrong, or do not suit these images and targets."""
        crop, several = (tuple(crop), True) if isinstance(crop, Sequence) else (crop, False)
        given = [one if isinstance(one, View) else View(one) for one in (crop if isinstance(crop, tuple) else [crop])]
        views = tuple(view.filled(hflip=hflip, vflip=vflip, transform=transform) for view in given)
        if not views:
            raise ValueError("crop is empty: give one crop or several, or None for the whole image")
        follower = "the mask" if self._masks is not None else self._fields and self._fields.geometric
        follower = follower or (f"the other images of a sample ({', '.join(self.images)})" if self.images else None)
        if follower and (several or views[0].transform is not None):
            found = f"crop is a sequence of {len(views)}, but {follower} can follow only one crop: give one crop, not a sequence"
            if not several:
                found = f"transform takes an image, and {follower} would not follow: transform them together in batch_transform="
            remedy = "images= chooses one image; RAMDataset(masks=False) leaves out masks"
            raise ValueError(f"{found}, or leave {follower} out; {remedy}")
        for view in views:
            if view.crop is not None and view.user is not None and view.user.crops:
                warn_user(f"crop= and the {view.user.crops[0]} in transform= both crop: leave one out (crop= decodes less)")
        self.views, self.has_views = views, several
        self._view = {"crop": crop, "hflip": hflip, "vflip": vflip, "transform": transform}

    def __repr__(self) -> str:
        labels = {"class": f"{len(self.classes)} classes", "vector": f"{len(self.classes)} columns"}
        classes = labels.get(self._images.labels.kind, "no labels")
        if self._masks is not None:
            classes = f"masks of {len(self.class_pixels.keys() - {self.ignore_index})} classes"
        count = counted_of(len(self), len(self._images), "samples" if self.images else "images")
        crop = "" if self.crop is None else repr(list(self.crop) if self.has_views else self.crop)
        options = [f"{name}={value!r}" for name in ("images", "fields", "hflip", "vflip") if (value := getattr(self, name))]
        if self.transform is not None:
            options.append(f"transform={getattr(self.transform, '__name__', type(self.transform).__name__)}")
        return in_one_line(self, count, classes, self._images.form.codec, crop, *options, self._images.location)


def _open_images(path: StrPath, size: int | None, chosen: str | Sequence[str] | None) -> tuple[list[StoreImages], tuple[str, ...]]:
    """Open the images of each sample, as for LMDBDataset, and return them with their names, which are () for one image."""
    if isinstance(chosen, str):
        return [StoreImages(path, size, image=chosen)], ()
    opened = StoreImages(path, size)
    names = opened.store.manifest.images if chosen is None else tuple(chosen)
    if chosen is None and not names:
        return [opened], ()
    if not names or len(set(names)) < len(names):
        raise ValueError(f"images is {chosen!r}, but must be the name of an image, or different names, such as ('left', 'right')")
    return [opened.with_size(size, image=name) for name in names], names


class LMDBDataset(ImageDataset):
    """The images of a store, read from disk.

    Args:
        path: a store made by `fastdata-prep`; a folder, or a URL.
        size: the stored size to read, or None for the largest.
        crop: RandomResizedCrop, RandomScaleCrop, CenterCrop, RandomCrop, Resize, your own Crop, or None for no crop. A list,
            or a MultiCrop, makes several views of each image: a sample's image is then a tuple, with random numbers and flips of
            its own for each view. `View` gives a view its own flips and transform.
        hflip, vflip: probability of a flip.
        transform: your own function, called in the worker after crop and flips. It takes a uint8 (or uint16) array [H, W, C] and
            returns an array [H, W, C], or a tensor [C, H, W] on the CPU. If its parameter is annotated with torch.Tensor or
            PIL.Image.Image, it gets a tensor [C, H, W] or a PIL image. An nn.Module gets a tensor; transforms of torchvision,
            kornia, albumentations and timm are called in their own way. Under the Loader, random, numpy.random, torch and
            generators in the transform's attributes, closure and globals are seeded by (seed, epoch, sample).
        fields: columns to emit as targets, in place of labels: one name gives its value, several give a dict. "label" may
            be among them. Numbers are batched to tensors [B, ...], lists to a `Ragged`, text, bytes and JSON to Python lists. Boxes
            (x1, y1, x2, y2) and keypoints (x, y, visibility) are in pixels of the emitted image: they follow its resize, crop and
            flips. Boxes are clipped to it; keypoints outside of it become (0, 0, 0), and "left_..." and "right_..." change places
            in a mirror image.
        min_visible: the share of a box that must lie in the emitted image; instances with a smaller share, or none,
            are dropped from all columns that describe them.
        images: for a store with several images a sample: those to emit. One name gives the image alone; several give a dict; None:
            all of them, as a dict.
        cache, cache_size, storage: for a URL, such as s3://bucket/photos.fds: the folder for shards on a local disk, the most bytes
            in it, such as "200GB", and options of the client: see docs/remote.md.

    Raises:
        StoreError: if the store does not exist, is not finished, lacks this size, or, without `fields`, has masks and no labels.
        FormatError: if the store is damaged, or was written by a newer version.
    """

    def __init__(
        self,
        path: StrPath,
        *,
        size: int | None = None,
        crop: AnyCrop = None,
        hflip: float = 0.0,
        vflip: float = 0.0,
        transform: Transform | None = None,
        fields: str | Sequence[str] | None = None,
        min_visible: float = 0.0,
        images: str | Sequence[str] | None = None,
        cache: StrPath | None = None,
        cache_size: int | str | None = None,
        storage: Storage | None = None,
    ) -> None:
        path = locate(path, cache, cache_size, storage)
        sources, names = _open_images(path, size, images)
        first = sources[0]
        if fields is None and first.store.manifest.section("masks") and first.labels.kind == "none":
            raise StoreError(
                f"{path} has masks and no labels, so each target would be -1: use MaskDataset for images with their masks, or "
                "RAMDataset(masks=False) for images only"
            )
        chosen = Fields.of(fields, first, min_visible)
        super().__init__(sources, names, fields=chosen, crop=crop, hflip=hflip, vflip=vflip, transform=transform)


class MaskDataset(ImageDataset):
    """The images of a store that was prepared with `--masks`, and their class masks, read from disk.

    `ds[i]` is (image, mask): uint8 or uint16 [C, H, W], and uint8 or uint16 [H, W], the class of each pixel. Both come from the
    same box with the same flips. The image is averaged or interpolated; each pixel of the resized mask takes the class at its
    centre. A `Loader` delivers masks as [B, H, W].

    Args:
        path, size, hflip, vflip, images, cache, cache_size, storage: as for LMDBDataset.
        crop: a crop, or None for the whole image.
        ignore_index: the class of pixels outside the image, where a crop is padded. Default: 255, or 65535 for uint16. Class
            255 is void, as in public data sets, if the masks have two or more other classes. Otherwise pixels of the default class
            are an error: pass the default if a loss is to ignore them, else a number that is no class.

    Raises:
        StoreError, FormatError: as for LMDBDataset, or the store has no masks.
    """

    def __init__(
        self,
        path: StrPath,
        *,
        size: int | None = None,
        crop: Crop | View | None = None,
        hflip: float = 0.0,
        vflip: float = 0.0,
        ignore_index: int | None = None,
        images: str | Sequence[str] | None = None,
        cache: StrPath | None = None,
        cache_size: int | str | None = None,
        storage: Storage | None = None,
    ) -> None:
        path = locate(path, cache, cache_size, storage)
        sources, names = _open_images(path, size, images)
        masks = sources[0].with_size(size, mask=True, image="")
        outside = masks.store.manifest.section("masks").outside(ignore_index, masks.form.dtype)
        super().__init__(sources, names, masks=masks, ignore_index=outside, crop=crop, hflip=hflip, vflip=vflip)


class RAMImages(RAMDataset, ImageDataset):
    """Images held in memory; see RAMDataset."""

    def __init__(
        self,
        source: StrPath | Sequence[StrPath],
        targets: Any = None,
        *,
        size: int | Sequence[int] | None = None,
        decoded: bool = False,
        max_bytes: int | None = None,
        masks: bool = True,
        ignore_index: int | None = None,
        fields: str | Sequence[str] | None = None,
        min_visible: float = 0.0,
        images: str | Sequence[str] | None = None,
        shared: bool = True,
        **view: Any,
    ) -> None:
        masks_of, names = None, tuple[str, ...]()
        sources: Sequence[StoreImages | FileImages]
        held: list[StoreImages | FileImages]
        if isinstance(source, str | os.PathLike):
            source = locate(source, *(view.pop(name, None) for name in CACHED))
            sizes: list[int | None] = [*size] if isinstance(size, Sequence) else [size]
            if not sizes or len(set(sizes)) < len(sizes):
                raise ValueError(f"size is {size!r}, but must be a stored size, or several different ones, such as (160, 224)")
            stored, names = _open_images(source, sizes[0], images)
            sources, held = stored, [*stored]
            if masks and fields is None and stored[0].store.manifest.section("masks"):
                masks_of = stored[0].with_size(sizes[0], mask=True, image="")
                ignore_index = masks_of.store.manifest.section("masks").outside(ignore_index, masks_of.form.dtype)
                held.append(masks_of)
            held += [one.with_size(other) for other in sizes[1:] for one in held]
        else:
            for name, value in (("size", size), ("images", images)):
                if value is not None:
                    raise ValueError(f"{name} is {value!r}, but a file is one image of one size: {name}= is for stores")
            sources = held = [FileImages(source, targets)]
        if ignore_index is not None and masks_of is None:
            raise ValueError(f"ignore_index is {ignore_index}, but the dataset has no masks: leave ignore_index out")
        nbytes = [one.memory(decoded) for one in held]
        count = how_many(np.sum(nbytes, axis=0), max_bytes)  # as many of each
        for one, each in zip(held, nbytes, strict=True):
            one.hold(each[:count], decoded, shared)
        chosen = Fields.of(fields, sources[0], min_visible)
        super().__init__(sources, names, masks=masks_of, ignore_index=ignore_index, fields=chosen, **view)
