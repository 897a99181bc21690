"""Sources of a dataset's images: a store on disk, a copy of one in memory, or image files in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol

import numpy as np

from fastdata.data.in_memory import InMemoryRecords, how_many, progress_bar
from fastdata.data.shown import shown
from fastdata.errors import CodecError, FormatError, StoreError
from fastdata.images.form import PixelFormat
from fastdata.images.image_file import SourceImage
from fastdata.images.jpeg_cut import Cut
from fastdata.images.pixels import Region, Window, decode_window, jpeg_window
from fastdata.shared_memory import SharedArray
from fastdata.store.format import Labels
from fastdata.store.store import Store

__all__ = ["FileImages", "Images", "MemoryImages", "StoreImages", "into_memory"]

Array = np.ndarray[Any, np.dtype[Any]]

Scratch = Callable[[int], Array]
Regions = tuple[Region, ...]

END_OF_IMAGE = b"\xff\xd9"


class Images(Protocol):
    """Images by number. Pickles are a few bytes; files are opened on first use, in the process that uses them."""

    @property
    def form(self) -> PixelFormat: ...

    @property
    def jpegs(self) -> bool:
        """Whether the images are JPEGs, or files that may be."""

    @property
    def indexed(self) -> bool:
        """Whether the images are JPEGs that may have an index of their cells."""

    @property
    def labels(self) -> Labels: ...

    @property
    def targets(self) -> Array:
        """int64 [n] or float32 [n, columns]."""

    @property
    def place(self) -> str:
        """The location of the images, for messages."""

    def __len__(self) -> int: ...

    def sides(self, ids: Array) -> tuple[Array, Array]:
        """Return heights and widths, int64 [n] each."""

    def get(self, index: int) -> memoryview:
        """Return the stored bytes, valid while this object lives."""

    def decode(self, index: int, data: memoryview, window: Window, scratch: Scratch) -> Regions:
        """Decode `data`, from `get`, to regions that contain the window: one region, or one for each plane.

        `scratch(size)` returns flat uint8 memory for them.
        """

    def jpeg(self, index: int, data: memoryview, window: Window, *, cut: bool) -> Cut | None:
        """Return a JPEG that contains the window, perhaps cut out of `data`, which is from `get`; None: use `decode`.

        The JPEG is baseline, grey or YCbCr, upright, and has an end-of-image marker.
        """

    def name(self, index: int) -> str:
        """Return the path or name that an image came from."""

    def with_size(self, size: int | None) -> Images:
        """Return the same images in another stored size."""


class StoreImages:
    """One stored size of a store's images, or of their masks."""

    def __init__(self, path: str | os.PathLike[str], size: int | None, *, mask: bool = False) -> None:
        self.store = Store(path)
        self.size = size
        self.mask = mask
        self.variant = self.store.variant(size, mask=mask)
        self.form = self.variant.form
        self.jpegs = self.indexed = self.form.jpegs
        self._reader = self.store.reader(self.variant)
        self.labels = self.store.manifest.labels
        label = self.store.samples["label"]
        self.targets: Array = np.array(label, np.float32 if self.labels.kind == "vector" else np.int64)
        self._height, self._width = (self.store.samples[f"{self.variant.name}/{side}"] for side in ("height", "width"))
        self._names: list[str] | None = None

    @property
    def place(self) -> str:
        return shown(self.store.path)

    def __len__(self) -> int:
        return len(self.store)

    def sides(self, ids: Array) -> tuple[Array, Array]:
        return self._height[ids].astype(np.int64), self._width[ids].astype(np.int64)

    def get(self, index: int) -> memoryview:
        return self._reader.get(index)

    def decode(self, index: int, data: memoryview, window: Window, scratch: Scratch) -> Regions:
        h, w = int(self._height[index]), int(self._width[index])
        try:
            return decode_window(data, self.form, h, w, window, scratch)
        except CodecError as error:
            raise FormatError(f"sample {index} of {self.store.path}: {error}; run fastdata verify {self.store.path}") from None

    def jpeg(self, index: int, data: memoryview, window: Window, *, cut: bool) -> Cut | None:
        if not self.jpegs or (self.form.codec == "original" and not getattr(SourceImage(bytes(data)).header, "plain", False)):
            return None
        return _whole_jpeg(data, int(self._height[index]), int(self._width[index]), window, cut)

    def name(self, index: int) -> str:
        if self._names is None:
            self._names = self.store.names()
        return self._names[index]

    def with_size(self, size: int | None) -> StoreImages:
        return StoreImages(self.store.path, size, mask=self.mask)

    def __getstate__(self) -> tuple[Path, int | None, bool, str]:
        return self.store.path, self.size, self.mask, self.store.manifest.fingerprint

    def __setstate__(self, state: tuple[Path, int | None, bool, str]) -> None:
        path, size, mask, fingerprint = state
        self.__init__(path, size, mask=mask)  # type: ignore[misc]
        if self.store.manifest.fingerprint != fingerprint:
            raise StoreError(f"{path} was replaced while this dataset was in use; make the dataset again")


class FileImages:
    """Image files of any format, read when needed, as upright RGB. Sizes come from the headers."""

    form = PixelFormat("file", 3, "uint8")
    jpegs = True
    indexed = False

    def __init__(self, paths: Sequence[str | os.PathLike[str]], targets: Any = None) -> None:
        self.paths = [os.fspath(p) for p in paths]
        values = np.full(len(self.paths), -1) if targets is None else np.asarray(targets)
        if len(values) != len(self.paths) or values.ndim > 2 or (values.ndim == 1) != (values.dtype.kind in "iu"):
            raise ValueError(
                f"targets are {values.dtype} {values.shape}, expected {len(self.paths)} int classes, or as many rows of floats"
            )
        names = tuple(f"label{k + 1}" for k in range(values.shape[1])) if values.ndim == 2 else ()
        self.labels = Labels("vector" if names else "none" if targets is None else "class", names)
        self._targets = SharedArray.of(values.astype(np.float32 if names else np.int64))
        sides = SharedArray((len(self.paths), 4), np.int64)
        with progress_bar("reading headers", len(self.paths), "img") as bar:
            for k, path in enumerate(self.paths):
                data = self._read(path)
                image = self._parse(path, data)
                sides.array[k] = image.height, image.width, len(data), getattr(image.header, "plain", False)
                bar.update()
        self._sides = sides

    @property
    def targets(self) -> Array:
        return self._targets.array

    @property
    def sizes(self) -> Array:
        """The size of each file in bytes."""
        return self._sides.array[:, 2]

    @property
    def place(self) -> str:
        return "image files"

    def __len__(self) -> int:
        return len(self.paths)

    def sides(self, ids: Array) -> tuple[Array, Array]:
        return self._sides.array[ids, 0], self._sides.array[ids, 1]

    def get(self, index: int) -> memoryview:
        return memoryview(self._read(self.paths[index]))

    def decode(self, index: int, data: memoryview, window: Window, scratch: Scratch) -> Regions:
        try:
            return (Region(self._parse(self.paths[index], bytes(data)).decode()),)
        except CodecError as error:
            raise StoreError(
                f"{self.paths[index]} cannot be decoded: {error}; leave it out, or let fastdata-prep sort it out"
            ) from None

    def jpeg(self, index: int, data: memoryview, window: Window, *, cut: bool) -> Cut | None:
        height, width, _, plain = self._sides.array[index].tolist()
        return _whole_jpeg(data, height, width, window, cut) if plain else None

    def name(self, index: int) -> str:
        return self.paths[index]

    def with_size(self, size: int | None) -> NoReturn:
        raise StoreError("image files have one size; prepare a store with several")

    def _read(self, path: str) -> bytes:
        try:
            return Path(path).read_bytes()
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {error.strerror}; leave it out of the list") from None

    def _parse(self, path: str, data: bytes) -> SourceImage:
        try:
            return SourceImage(data)
        except CodecError as error:
            raise StoreError(f"{path} is not a usable image: {error}; leave it out, or let fastdata-prep sort it out") from None


def _whole_jpeg(data: memoryview, height: int, width: int, window: Window, cut: bool) -> Cut | None:
    """Return a JPEG that contains the window; None if the image has another size, or lacks its end."""
    try:
        jpeg = jpeg_window(data, height, width, window, cut=cut)
    except CodecError:
        return None
    return jpeg if jpeg.data[-2:].tobytes() == END_OF_IMAGE else None


def into_memory(
    sources: Sequence[Sequence[StoreImages | FileImages]], *, decoded: bool = False, max_bytes: int | None = None
) -> list[MemoryImages]:
    """Load sources into memory: as many of the first samples as fit, the same number of each source.

    Args:
        sources: lists of images, and perhaps of their masks. A list has the same images in several sizes.
        decoded: hold pixels instead of encoded bytes.
        max_bytes: limit for all sources together; None: everything must fit.

    Returns:
        The first source of each list, in memory. Its `sizes` has the others.

    Raises:
        StoreError: if it does not fit into free memory.
    """
    nbytes = [[_sizes(source, decoded) for source in alike] for alike in sources]
    count = how_many(np.sum([size for alike in nbytes for size in alike], axis=0), max_bytes, "LMDBDataset")
    loaded = []
    for alike, each in zip(sources, nbytes, strict=True):
        copies = [MemoryImages(source, size[:count], decoded) for source, size in zip(alike, each, strict=True)]
        by_size = {
            source.variant.size: images for source, images in zip(alike, copies, strict=True) if isinstance(source, StoreImages)
        }
        for images in copies:
            images.sizes = by_size
        loaded.append(copies[0])
    return loaded


def _sizes(source: StoreImages | FileImages, decoded: bool) -> Array:
    """Return the bytes that each image takes in memory."""
    if decoded:
        heights, widths = source.sides(np.arange(len(source)))
        return np.asarray(source.form.nbytes(heights * widths))
    if isinstance(source, FileImages):
        return source.sizes
    return np.asarray(source.store.samples[f"{source.variant.name}/bytes"]).astype(np.int64)


class MemoryImages:
    """A source whose first images are held once in shared memory; the others are read from `source`.

    Args:
        source: the images.
        sizes: bytes of each image to hold.
        decoded: hold pixels instead of encoded bytes.

    Attributes:
        records: the images in memory.
        sizes: the same images in each stored size that is in memory, by size.
    """

    def __init__(self, source: StoreImages | FileImages, sizes: Array, decoded: bool) -> None:
        self.source = source
        self.form = source.form
        self.decoded = decoded and not source.form.planes  # planes are stored decoded
        self.jpegs = source.jpegs and not self.decoded
        self.indexed = source.indexed and not self.decoded
        self.records = InMemoryRecords(sizes, self._pixels if self.decoded else source.get, "img")
        self.sizes: dict[int | None, MemoryImages] = {}

    def _pixels(self, index: int) -> Array:
        heights, widths = self.source.sides(np.array([index]))
        window = Window(0, 0, int(heights[0]), int(widths[0]))
        (region,) = self.source.decode(index, self.source.get(index), window, lambda size: np.empty(size, np.uint8))
        return np.ascontiguousarray(region.pixels[:, :, : self.form.channels]).view(np.uint8).reshape(-1)

    @property
    def place(self) -> str:
        return self.source.place

    def __len__(self) -> int:
        return len(self.source)

    @property
    def labels(self) -> Labels:
        return self.source.labels

    @property
    def targets(self) -> Array:
        return self.source.targets

    def name(self, index: int) -> str:
        return self.source.name(index)

    def with_size(self, size: int | None) -> MemoryImages:
        if isinstance(self.source, FileImages):
            return self.source.with_size(size)
        stored = self.source.store.variant(size, mask=self.source.mask).size
        if stored not in self.sizes:
            known = [str(size) for size in self.sizes if size is not None]
            raise StoreError(
                f"size {stored or size} is not held in memory, only {', '.join(known) or 'the own size of the images'}: make a "
                f"RAMDataset(..., size=({', '.join([*known, str(stored)])})), which holds all of them, or use LMDBDataset"
            )
        return self.sizes[stored]

    def sides(self, ids: Array) -> tuple[Array, Array]:
        return self.source.sides(ids)

    def get(self, index: int) -> memoryview:
        return self.records.get(index) if index < len(self.records) else self.source.get(index)

    def decode(self, index: int, data: memoryview, window: Window, scratch: Scratch) -> Regions:
        if not self.decoded or index >= len(self.records):
            return self.source.decode(index, data, window, scratch)
        heights, widths = self.source.sides(np.array([index]))
        pixels = np.frombuffer(data, self.form.dtype).reshape(self.form.shape(int(heights[0]), int(widths[0])))
        return (Region(pixels),)

    def jpeg(self, index: int, data: memoryview, window: Window, *, cut: bool) -> Cut | None:
        return self.source.jpeg(index, data, window, cut=cut) if self.jpegs else None
