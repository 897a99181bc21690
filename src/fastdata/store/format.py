"""The manifest and the per-sample table of a store, as docs/format.md specifies them.

The manifest is the commit point. It is written last; a folder without one is not yet a store.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fastdata import kinds
from fastdata.errors import FormatError, StoreError, lacking
from fastdata.store.column import NUMBERS, SOURCE_SIZE, Column, ColumnTokens
from fastdata.store.files import (
    IMAGES,
    MANIFEST,
    NAMES,
    NEXT,
    REJECTS,
    SAMPLES,
    WORK,
    FileSum,
    index_file,
    is_variant,
    open_regular,
    sum_of,
)
from fastdata.tokenizer import Spec

__all__ = ["IMAGE", "MASK", "NUMBERS", "PIXELS", "Form", "Labels", "Manifest", "Variant", "counted", "entry", "parse_column"]
__all__ += ["read_current", "read_manifest", "sample_columns", "variant_columns"]

MAJOR = 1
VERSION = "1.0"
WITH_MORE = "1.1"  # of a store with columns or several images a sample; readers of 1.0 ignore them, and see the first image
MASK = "mask-"  # the prefix of the names of variants that hold masks
IMAGE = "image-"  # the prefix of the names of variants that hold another image of each sample; then come its name and "-"
PIXELS = [("height", "<u4"), ("width", "<u4")]  # what tables say of each image
IN_ALL = ("masks", "tokens")  # sections that version 1.0 has in every manifest


@dataclass(frozen=True)
class Labels:
    """What labels mean.

    kind: "class" (int32 index into names), "vector" (a float32 per name), "none", or of a TableDataset also "integer" (itself).
    """

    kind: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Form:
    """The contents of a variant's records: the codec, the number of channels, and the name of a numpy dtype."""

    codec: str
    channels: int
    dtype: str


@dataclass(frozen=True)
class Variant:
    """One stored form of every sample, or of its mask.

    Attributes:
        size: the value of `--size`; None if images kept their size.
        form: made by the kind from (codec, channels, dtype).
        records: the number in each shard, if it differs from that of samples.
        originals: for codec "original", how many records are the unchanged bytes of a source file.
    """

    name: str
    size: int | None
    form: Any
    shards: tuple[FileSum, ...]
    records: tuple[int, ...] | None = None
    originals: int | None = None

    @property
    def is_mask(self) -> bool:
        return self.name.startswith(MASK)

    @property
    def image(self) -> str:
        """The name of the image, if samples have several and this is not the first; else ""."""
        return self.name.split("-")[1] if self.name.startswith(IMAGE) else ""


@dataclass(frozen=True)
class Manifest:
    """What a store contains and how it was made.

    Attributes:
        sections: the entries of its kind, by name.
        images: the names of the images of a sample, if it has several.
        xxh3_128: of the file that it was read from. No two stores have the same, though their fingerprints may be equal: inputs are
            known by their sizes, so that others may have replaced them.
    """

    num_samples: int
    num_rejects: int
    labels: Labels
    shard_samples: tuple[int, ...]
    variants: tuple[Variant, ...]
    files: dict[str, FileSum]
    options: dict[str, Any]
    libraries: dict[str, str]
    fingerprint: str
    version: str = VERSION
    kind: str = "images"
    sections: dict[str, Any] = field(default_factory=dict)
    columns: tuple[Column, ...] = ()
    images: tuple[str, ...] = ()
    xxh3_128: str = field(default="", compare=False)

    def to_json(self) -> bytes:
        body = {"format": "fastdata", **dict.fromkeys(IN_ALL), **asdict(self)}
        del body["xxh3_128"]
        if self.columns or self.images:
            body["version"] = WITH_MORE
        if self.columns:
            body["columns"] = [column.as_json() for column in self.columns]
        else:
            del body["columns"]
        body |= {name: section for name, section in body.pop("sections").items() if section is not None}
        for variant in body["variants"]:
            if variant["originals"] is None:
                del variant["originals"]
        del body["images"]
        if self.images:
            others = [variant for variant in body["variants"] if variant["name"].startswith(IMAGE)]
            body["images"] = {"names": self.images, "variants": others}
            body["variants"] = [variant for variant in body["variants"] if variant not in others]
        return json.dumps(body, indent=1, sort_keys=True).encode() + b"\n"

    def section(self, name: str) -> Any:
        """Return a section of its kind; None if there is no such section."""
        return self.sections.get(name)

    def shard_records(self, variant: Variant) -> tuple[int, ...]:
        """Return the number of records in each shard of a variant."""
        return self.shard_samples if variant.records is None else variant.records


def sample_columns(labels: Labels, variants: Iterable[str], own: Sequence[Any], each: Sequence[tuple[str, str]]) -> np.dtype[Any]:
    """Return the dtype of a row of samples.npy: `source` (the index of the input), `label`, the columns `own` of the kind, and
    the (name, dtype) in `each` for every variant."""
    label: Any = ("label", "<f4", (len(labels.names),)) if labels.kind == "vector" else ("label", "<i4")
    return np.dtype([("source", "<u8"), label, *own, *variant_columns(variants, each)])


def variant_columns(variants: Iterable[str], each: Sequence[tuple[str, str]] = PIXELS) -> list[tuple[str, str]]:
    """Return the (name, dtype) of the columns for some variants. each: those of a variant."""
    return [(f"{variant}/{name}", dtype) for variant in variants for name, dtype in each]


def read_current(path: Path) -> tuple[Path, Manifest]:
    """Return the folder that the store at a path is in, and its manifest.

    The folder is the path, or the one in it of a store that is taking its place: its manifest counts once that of the old store has
    been removed, and until its files have moved to the path.

    Raises:
        StoreError, FormatError: there is no store, or its manifest is damaged.
    """
    with suppress(StoreError):
        return path, read_manifest(path)
    with suppress(OSError, StoreError):
        list(path.iterdir())  # after which NFS does not remember that a name was not there
        return path / NEXT, read_manifest(path / NEXT)
    return path, read_manifest(path)


def read_manifest(root: Path) -> Manifest:
    """Read and check a store's manifest.

    Raises:
        StoreError: there is no store, or it is unfinished.
        FormatError: the manifest is damaged, or has a newer version than this reader knows.
    """
    try:
        with open_regular(root / MANIFEST) as file:
            raw = file.read()
    except (FileNotFoundError, NotADirectoryError):
        raise _absent(root) from None
    except OSError as error:
        raise StoreError(f"cannot read {root / MANIFEST}: {lacking(error) or error.strerror}") from error
    try:
        body = json.loads(raw)
        if body.pop("format") != "fastdata":
            raise ValueError('"format" is not "fastdata"')
        version = str(body["version"])
        if int(version.split(".")[0]) > MAJOR:
            raise _newer(root, version)
        return replace(_parse(body), xxh3_128=sum_of(raw).xxh3_128)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(f"{root / MANIFEST} is damaged ({type(error).__name__}: {error}); prepare the store again") from None


def _absent(root: Path) -> StoreError:
    if (root / WORK).is_dir():
        return StoreError(f"{root} is not finished; run the same fastdata-prep command again to continue where it stopped")
    if not root.exists():
        return StoreError(f"no store at {root}: there is no such folder; make one with fastdata-prep SOURCE {root}")
    if not root.is_dir():
        return StoreError(f"no store at {root}: it is a file, and a store is a folder; make one with fastdata-prep {root} OUT")
    if inside := sorted(manifest.parent for manifest in root.glob(f"*/{MANIFEST}")):
        return StoreError(f"no store at {root}: it has no {MANIFEST}; there are stores in it: {', '.join(map(str, inside[:5]))}")
    return StoreError(f"no store at {root}: it has no {MANIFEST}; make one with fastdata-prep {root} OUT")


def _newer(root: Path, version: str) -> FormatError:
    return FormatError(f"{root} has format version {version}, this fastdata reads up to {MAJOR}.x; use a newer fastdata")


def _parse(body: dict[str, Any]) -> Manifest:
    name = entry(body["kind"], str)
    try:
        kind = kinds.find(name)
    except KeyError:
        raise FormatError(f"the store holds {name}, which this fastdata cannot read; use a newer one") from None
    shard_samples = counted(body["shard_samples"])
    labels = Labels(entry(body["labels"]["kind"], str), tuple(entry(name, str) for name in entry(body["labels"]["names"], list)))
    if labels.kind not in kind.labels:
        raise ValueError(f"unknown kind of label {labels.kind!r}")
    images = body.get("images", {"names": [], "variants": []})
    found = [*entry(body["variants"], list), *entry(images["variants"], list)]
    variants = tuple(_variant(v, len(shard_samples), kind) for v in found)
    if not variants or len({v.name for v in variants}) != len(variants):
        raise ValueError("a store has one or more variants of different names")
    files = {name: _sum(s) for name, s in entry(body["files"], dict).items()}
    if not {SAMPLES, NAMES, REJECTS, *(index_file(variant.name) for variant in variants)} <= set(files):
        raise ValueError(f"it lists the files {sorted(files)}")
    if sum(shard_samples) != body["num_samples"]:
        raise ValueError("kind or counts do not fit together")
    options = entry(body["options"], dict)
    kind.typed(options)  # which raises an error if they are damaged
    return Manifest(
        num_samples=entry(body["num_samples"], int),
        num_rejects=entry(body["num_rejects"], int),
        labels=labels,
        shard_samples=shard_samples,
        variants=variants,
        files=files,
        options=options,
        libraries=entry(body["libraries"], dict),
        fingerprint=entry(body["fingerprint"], str),
        version=entry(body["version"], str),
        kind=kind.name,
        sections=kind.sections(body, variants),
        columns=_columns(body.get("columns", []), files),
        images=_images(images, variants, files),
    )


def _images(found: dict[str, Any], variants: Sequence[Variant], files: Container[str]) -> tuple[str, ...]:
    """Read the names of the images, if samples have several."""
    names = tuple(entry(name, str) for name in entry(found["names"], list))
    sizes = [variant.size for variant in variants if not variant.is_mask and not variant.image]
    want = [(name, size) for name in names[1:] for size in sizes]
    if len(set(names)) != len(names) or [(v.image, v.size) for v in variants if v.image] != want:
        raise ValueError("the variants of several images do not fit their names")
    if names and IMAGES not in files:
        raise ValueError(f"it does not list {IMAGES}")
    return names


def entry(value: Any, kind: type) -> Any:
    """Return a value of the manifest after checking that it has this exact type; numbers must not be negative."""
    if type(value) is not kind or (isinstance(value, int) and value < 0):
        raise TypeError(f"found {value!r:.80}, expected a {kind.__name__}")
    return value


def counted(values: Any) -> tuple[int, ...]:
    """Return a list of counts as a tuple, checked as `entry` does."""
    return tuple(entry(n, int) for n in entry(values, list))


def _columns(found: Any, files: Container[str]) -> tuple[Column, ...]:
    """Read the list of columns, which stores of version 1.0 lack."""
    columns = tuple(map(parse_column, entry(found, list)))
    if len({column.name for column in columns}) != len(columns):
        raise ValueError("two columns have one name")
    if any(column.geometry for column in columns) and SOURCE_SIZE not in columns:
        raise ValueError(f"columns have a geometry, but there is no column {SOURCE_SIZE.name}")
    needed = [name for column in columns for name in (*column.files, column.tokenizer_file) if name]
    if missing := [name for name in needed if name not in files]:
        raise ValueError(f"it does not list {missing[0]}")
    return columns


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"found {value!r:.80}, expected a whole number")
    return value


def parse_column(found: dict[str, Any]) -> Column:
    """Read a column's entry in a manifest. Raise ValueError, KeyError or TypeError if it is damaged."""
    return Column(
        name=entry(found["name"], str),
        type=entry(found["type"], str),
        shape=counted(found["shape"]),
        many=entry(found["many"], bool),
        geometry=None if found["geometry"] is None else entry(found["geometry"], str),
        group=None if found["group"] is None else entry(found["group"], str),
        names=tuple(entry(name, str) for name in entry(found["names"], list)),
        ids=tuple(_whole(number) for number in entry(found.get("ids", []), list)),
        tokens=_column_tokens(found.get("tokens")),
    )


def _column_tokens(found: Any) -> ColumnTokens | None:
    if found is None:
        return None
    spec = Spec(*(entry(found["tokenizer"][key], str) for key in ("engine", "name", "sha256")))
    return ColumnTokens(spec, entry(found["vocab_size"], int), None if found["pad"] is None else entry(found["pad"], int))


def _sum(found: Any) -> FileSum:
    return FileSum(entry(found["bytes"], int), entry(found["xxh3_128"], str))


def _variant(found: dict[str, Any], num_shards: int, kind: kinds.Kind) -> Variant:
    name, size = entry(found["name"], str), found["size"]
    codec, channels, dtype = (found["form"][key] for key in ("codec", "channels", "dtype"))
    if not is_variant(name):
        raise ValueError(f"a variant cannot be called {name!r}")
    form = kind.form(codec, entry(channels, int), dtype, mask=name.startswith(MASK))
    if form is None:
        raise FormatError(f"the store has records of {found['form']}, which this fastdata cannot read; use a newer one")
    shards = tuple(_sum(s) for s in entry(found["shards"], list))
    if len(shards) != num_shards:
        raise ValueError(f"variant {name} lists {len(shards)} shards, the store has {num_shards}")
    records = None if found.get("records") is None else counted(found["records"])
    if records is not None and len(records) != num_shards:
        raise ValueError(f"variant {name} counts the records of {len(records)} shards, the store has {num_shards}")
    originals = entry(found["originals"], int) if codec == "original" else None
    return Variant(name, None if size is None else entry(size, int), form, shards, records, originals)
