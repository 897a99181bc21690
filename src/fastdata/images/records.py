"""Sources of images and their columns: a store on disk or in memory, image files, and several of these as one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeAlias

import cv2
import numpy as np
from msgspec import structs

from fastdata.codecs.decode import SourceImage
from fastdata.codecs.jpeg_crop import Region, Window
from fastdata.codecs.jpeg_grid import decode_buffer
from fastdata.codecs.pixels import JPEGS, decode_window
from fastdata.data.dataset import shown
from fastdata.data.in_memory import InMemoryRecords
from fastdata.errors import CodecError, FormatError, StoreError, lacking
from fastdata.images.geometry import Placement, placement
from fastdata.store.columns import SOURCE_SIZE, TEXTS, Column, ColumnReader, Lists
from fastdata.store.manifest import Form, Labels
from fastdata.store.store import Store, StoreSamples, Use
from fastdata.system.shared_memory import SharedArray
from fastdata.types import Array, StrPath

Scratch = Callable[[int], Array]
CachedRecords = tuple[InMemoryRecords, bool]  # records in memory, and whether they are pixels

# Images by number. Pickles are a few bytes; files are opened on first use, in the process that uses them.
Images: TypeAlias = "StoreImages | FileImages | ConcatImages"


class ColumnValues(NamedTuple):
    """A column of images, and a function that reads its values for rows, int64 [n], as `ColumnReader.read` does."""

    column: Column
    batch: Callable[[Array], Array | Lists | list[Any]]


class _Holdable:
    """Images, the first of which can be held in shared memory, as encoded bytes or as pixels."""

    form: Form
    records: InMemoryRecords | None = None  # the images in memory; None: all are on disk
    decoded = False  # whether these are pixels
    sides: Callable[[Array], tuple[Array, Array]]  # the heights and widths of images
    _lengths: Callable[[], Array]  # the bytes of each image on disk
    _read: Callable[[int], memoryview]
    _decode: Callable[[int, memoryview, Window, Scratch], Region]

    def memory(self, decoded: bool) -> Array:
        """Return the bytes that each image takes in memory."""
        if not decoded:
            return self._lengths()
        return np.asarray(self.form.nbytes(np.prod(self.sides(np.arange(len(self._lengths()))), axis=0)))

    def hold(self, nbytes: Array, decoded: bool, shared: bool) -> None:
        """Load the first images, of `nbytes` each, into memory; images of a store once for all processes, if `shared`."""
        key = self._key(decoded) if shared else None
        self.records = InMemoryRecords(nbytes, self._pixels if decoded else self._read, "img", key)
        self.decoded = decoded

    def _key(self, decoded: bool) -> str | None:
        """Return a key that is equal for equal bytes in memory, or None where files may change."""
        return None

    @property
    def indexed(self) -> bool:
        """Whether the images are JPEGs that may have an index of their cells."""
        return self.form.codec in JPEGS and not self.decoded

    @property
    def jpegs(self) -> bool:
        """Whether the images are JPEGs that fastdata wrote."""
        return self.form.codec == "jpeg" and not self.decoded

    def get(self, index: int) -> memoryview:
        """Return the stored bytes, valid while this object lives."""
        if self.records is not None and index < len(self.records):
            return self.records.get(index)
        return self._read(index)

    def decode(self, index: int, data: memoryview, window: Window, scratch: Scratch) -> Region:
        """Decode `data`, from `get`, to a region that contains the window. `scratch(size)` returns flat uint8 memory for it."""
        if self.decoded and self.records is not None and index < len(self.records):
            return Region(np.frombuffer(data, self.form.dtype).reshape(*self._shape(index), self.form.channels))
        return self._decode(index, data, window, scratch)

    def _pixels(self, index: int) -> Array:
        region = self._decode(index, self._read(index), Window(0, 0, *self._shape(index)), decode_buffer)
        return np.ascontiguousarray(region.pixels).view(np.uint8).reshape(-1)

    def _shape(self, index: int) -> tuple[int, int]:
        height, width = self.sides(np.array(index))
        return int(height), int(width)


class _Listed:
    """Images whose labels and sides lie in shared memory."""

    _targets: SharedArray
    _sides: SharedArray

    @property
    def targets(self) -> Array:
        return self._targets.array

    def sides(self, ids: Array) -> tuple[Array, Array]:
        return self._sides.array[ids, 0], self._sides.array[ids, 1]

    def __len__(self) -> int:
        return len(self._targets.array)


class StoreImages(StoreSamples, _Holdable):
    """One stored size of a store's images, or of their masks. cached: records in memory, by variant, for all sizes of a dataset."""

    def __init__(
        self,
        path: StrPath,
        size: int | None,
        *,
        mask: bool = False,
        image: str = "",
        expected: str | None = None,
        cached: dict[str, CachedRecords] | None = None,
    ) -> None:
        super().__init__(Store(path, expected=expected))
        self.location = shown(self.store.location)
        self.variant = self.store.variant(size, mask=mask, image=image)
        self.form = self.variant.form
        self._cached = {} if cached is None else cached
        own = self.store.manifest.xxh3_128
        self._options: dict[str, Any] = {"mask": mask, "image": image, "expected": own, "cached": self._cached}
        self.records, self.decoded = self._cached.get(self.variant.name, (None, False))
        self._reader = self.store.reader(self.variant, check=True)
        self._height, self._width = (self.store.field(self.variant, side) for side in ("height", "width"))
        self.columns = {c.name: _values_of_store(self.store, c) for c in self.store.manifest.columns}

    def sides(self, ids: Array) -> tuple[Array, Array]:
        return self._height[ids].astype(np.int64), self._width[ids].astype(np.int64)

    def placement(self, ids: Array) -> Placement:
        """Return where points of the prepared files lie in the images. It is known only if a column has a geometry."""
        files = self.columns[SOURCE_SIZE.name].batch(ids)
        return placement(self.store, self.variant, ids, np.asarray(files))[0]

    def _read(self, index: int) -> memoryview:
        return self._reader.get(index)

    def _lengths(self) -> Array:
        return self.store.index(self.variant).lengths

    def _key(self, decoded: bool) -> str | None:
        decoder = cv2.getBuildInformation() if decoded else ""  # another one may give other pixels
        return repr((self.store.identity(self.variant), decoder))

    def hold(self, nbytes: Array, decoded: bool, shared: bool) -> None:
        super().hold(nbytes, decoded, shared)
        assert self.records is not None
        self._cached[self.variant.name] = self.records, decoded
        # A new one, because what the other had mapped counts as memory of this process
        self._reader = self.store.reader(self.variant, check=True)

    def _decode(self, index: int, data: memoryview, window: Window, scratch: Scratch) -> Region:
        try:
            return decode_window(data, self.form, int(self._height[index]), int(self._width[index]), window, scratch)
        except CodecError as error:
            raise FormatError(f"sample {index} of {self.location}: {error}; {self._reader.advice(index)}") from None

    def uses(self, ids: Array) -> list[Use]:
        return self.store.uses(self.variant, ids, 0 if self.records is None else len(self.records))

    def with_size(self, size: int | None, **options: Any) -> StoreImages:
        """Return images of another size, or masks or other images of these samples. options: another `mask` or `image`."""
        return StoreImages(self.store.location, size, **(self._options | options))

    def __reduce__(self) -> Any:
        return partial(StoreImages, **self._options), (self.store.location, self.variant.size)


class FileImages(_Listed, _Holdable):
    """Image files of any format, read when needed, as upright RGB. Sizes come from the headers."""

    form = Form("file", 3, "uint8")
    location = "image files"
    columns: Mapping[str, ColumnValues] = {}
    placement: Any = None  # files have no columns with a geometry
    stores: Mapping[Path, Store] = {}

    def __init__(self, paths: Sequence[StrPath], targets: Any = None) -> None:
        self.paths = [os.fspath(p) for p in paths]
        values = np.full(len(self.paths), -1) if targets is None else np.asarray(targets)
        if len(values) != len(self.paths) or values.ndim > 2 or (values.ndim == 1) != (values.dtype.kind in "iu"):
            raise ValueError(
                f"targets are {values.dtype} {values.shape}, expected int [{len(self.paths)}] or float [{len(self.paths)}, columns]"
            )
        names = tuple(f"label{k + 1}" for k in range(values.shape[1])) if values.ndim == 2 else ()
        self.labels = Labels("vector" if names else "none" if targets is None else "class", names)
        self._targets = SharedArray.of(values.astype(np.float32 if names else np.int64))
        sides = SharedArray((len(self.paths), 3), np.int64)
        for k, path in enumerate(self.paths):
            with _naming(path):
                image = SourceImage(data := Path(path).read_bytes())
            sides.array[k] = image.height, image.width, len(data)
        self._sides = sides

    def _lengths(self) -> Array:
        return self._sides.array[:, 2]

    def _read(self, index: int) -> memoryview:
        with _naming(self.paths[index]):
            return memoryview(Path(self.paths[index]).read_bytes())

    def _decode(self, index: int, data: memoryview, window: Window, scratch: Scratch) -> Region:
        with _naming(self.paths[index]):
            return Region(SourceImage(bytes(data)).decode())

    def name(self, index: int) -> str:
        return self.paths[index]

    def shards_of(self, rows: Array) -> NoReturn:
        raise StoreError("order is 'interleaved', which follows the shards of a store, but files have no shards: leave out order")

    def uses(self, ids: Array) -> list[Use]:
        return []

    def with_size(self, size: int | None) -> NoReturn:
        raise StoreError("image files have one size each: to choose among sizes, prepare a store with several")


def _values_of_store(store: Store, column: Column) -> ColumnValues:
    """Return the values of a column of a store, whose files are opened on first use."""

    @cache
    def opened() -> ColumnReader:
        reader = ColumnReader(store.path, column, len(store))
        store.stamp.check()  # no file of another store is used
        return reader

    return ColumnValues(column, lambda rows: opened().read(rows))


class ConcatImages(_Listed):
    """The images of several sources, which share Labels and Form except codec. parts: each source with its rows, None for all."""

    def __init__(self, parts: Sequence[tuple[Images, Array | None]]) -> None:
        self._sources = [images for images, _ in parts]
        first = self._sources[0]
        self.form: Form = first.form
        self.labels: Labels = first.labels
        for images in self._sources[1:]:
            if images.labels != first.labels or structs.replace(images.form, codec=first.form.codec) != first.form:
                raise ValueError(
                    f"datasets of {_described(first)} and of {_described(images)} differ in labels or pixels: prepare "
                    "both with the same --classes, --gray, --bits and --mask-bits"
                )
        chosen = [(images, np.arange(len(images)) if rows is None else rows) for images, rows in parts]
        numbers = [np.full(len(rows), k) for k, (_, rows) in enumerate(chosen)]
        self._rows = SharedArray.of(np.stack([np.concatenate(numbers), np.concatenate([rows for _, rows in chosen])]))
        self._targets = SharedArray.of(np.concatenate([images.targets[rows] for images, rows in chosen]))
        self.jpegs: bool = all(images.jpegs for images in self._sources)
        self.indexed: bool = all(images.indexed for images in self._sources)
        self._sides = SharedArray.of(np.concatenate([np.stack(images.sides(rows), axis=1) for images, rows in chosen]))

    def split(self, ids: Array) -> Iterator[tuple[int, Images, Array, Array]]:
        """For each source of the rows `ids`, yield its number, the source, positions in `ids`, and row indices in the source."""
        numbers, rows = self._rows.array[:, ids]
        for k in np.unique(numbers).tolist():
            positions = np.flatnonzero(numbers == k)
            yield k, self._sources[k], positions, rows[positions]

    def _find(self, index: int) -> tuple[Images, int]:
        source, row = self._rows.array[:, index].tolist()
        return self._sources[source], row

    @property
    def stores(self) -> dict[Path, Store]:
        return {path: store for images in self._sources for path, store in images.stores.items()}

    @property
    def columns(self) -> dict[str, ColumnValues]:
        """The columns that all sources have. Raise ValueError if their types differ."""
        names = [name for name in self._sources[0].columns if all(name in images.columns for images in self._sources)]
        return {name: self._joined([images.columns[name] for images in self._sources]) for name in names}

    def _joined(self, sources: Sequence[ColumnValues]) -> ColumnValues:
        column = sources[0].column
        for values in sources[1:]:
            if structs.replace(values.column, ids=column.ids) != column:
                raise ValueError(f"columns {column} and {values.column} of two datasets differ: prepare both datasets alike")

        def batch(rows: Array) -> Array | Lists | list[Any]:
            items: list[Any] = [None] * len(rows)
            for k, _, positions, local in self.split(rows):
                found = sources[k].batch(local)
                for position, item in zip(positions.tolist(), found.items() if isinstance(found, Lists) else found, strict=True):
                    items[position] = item
            if column.type in TEXTS:
                return items
            if not column.many:
                return np.array(items, column.dtype).reshape(len(rows), *column.shape)
            offsets = np.concatenate([[0], np.cumsum([len(item) for item in items])]).astype(np.int64)
            return Lists(np.concatenate([np.empty((0, *column.shape), column.dtype), *items]), offsets)

        return ColumnValues(column, batch)

    def placement(self, ids: Array) -> Placement:
        found = Placement(np.empty((len(ids), 2)), np.empty((len(ids), 2)))
        for _, images, positions, local in self.split(ids):
            placed = images.placement(local)
            found.scale[positions], found.shift[positions] = placed.scale, placed.shift
        return found

    def uses(self, ids: Array) -> list[Use]:
        found = [(positions, use) for _, images, positions, local in self.split(ids) for use in images.uses(local)]
        return [use._replace(samples=positions[use.samples]) for positions, use in found]

    def get(self, index: int) -> memoryview:
        images, local = self._find(index)
        return images.get(local)

    def decode(self, index: int, data: memoryview, window: Window, scratch: Scratch) -> Region:
        images, local = self._find(index)
        return images.decode(local, data, window, scratch)

    @property
    def location(self) -> str:
        return " + ".join(dict.fromkeys(images.location for images in self._sources))

    def name(self, index: int) -> str:
        images, local = self._find(index)
        return images.name(local)

    def shards_of(self, rows: Array) -> Array:
        shards = np.empty(len(rows), np.int64)
        last = [images.shards_of(np.array([len(images) - 1])) for images in self._sources]
        before = np.cumsum([0, *(1 + shard.item() for shard in last)])
        for k, images, positions, local in self.split(rows):
            shards[positions] = before[k] + images.shards_of(local)
        return shards

    def with_size(self, size: int | None) -> ConcatImages:
        numbers, rows = self._rows.array
        return ConcatImages([(images.with_size(size), rows[numbers == k]) for k, images in enumerate(self._sources)])


def _described(images: Images) -> str:
    kind, names = images.labels.kind, images.labels.names
    return f"{kind!r} labels ({len(names)}: {', '.join(names[:5])}), {images.form.channels} x {images.form.dtype}"


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Name the image file in errors of reading or decoding it."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {lacking(error) or f'{error.strerror}; leave it out of the list'}") from None
    except CodecError as error:
        raise StoreError(f"{path} cannot be decoded: {error}; leave it out of the list") from None
