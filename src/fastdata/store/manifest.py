"""The manifest and the per-sample table of a store, as docs/format.md specifies them.

The manifest is the commit point. It is written last; a folder without one is not yet a store.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta, convert, structs, to_builtins

from fastdata import kinds
from fastdata.errors import FormatError, StoreError, lacking
from fastdata.store.columns import SOURCE_SIZE, Column
from fastdata.store.files import (
    MANIFEST,
    NAMES,
    NEXT,
    REJECTS,
    SAMPLES,
    VARIANT,
    WORK,
    Count,
    Entry,
    FileSum,
    index_file,
    is_own,
    sum_of,
    sync,
    write_atomic,
)

FORMAT, VERSION = "fastdata", "1.0"
MASK = "mask-"  # the prefix of the names of variants that hold masks
IMAGE = "image-"  # the prefix of the names of variants that hold another image of each sample; then come its name and "-"


class Labels(Entry, frozen=True):
    """The meaning of labels.

    kind: "class" (int32 index into names), "vector" (a float32 per name), "none", or in a TableDataset "integer" (the number).
    """

    kind: Literal["class", "vector", "none", "integer"]
    names: tuple[str, ...] = ()


class Form(Entry, frozen=True):
    """The contents of a variant's records: the codec, the number of channels, and the name of a numpy dtype."""

    codec: str
    channels: Count
    dtype: str

    def nbytes(self, pixels: Any) -> Any:
        """Return the bytes of a sample of that many pixels (an int, or an array of them)."""
        return pixels * (self.channels * np.dtype(self.dtype).itemsize)


class Variant(Entry, frozen=True):
    """One stored form of every sample, or of its mask.

    size: the value of `--size`, or None if images kept their size.
    records: the number in each shard, if it differs from that of samples.
    originals: for codec "original", how many records are the unchanged bytes of a source file.
    """

    name: str
    size: Count | None
    form: Form
    shards: tuple[FileSum, ...]
    records: tuple[Count, ...] | None
    originals: Count | None

    @property
    def is_mask(self) -> bool:
        return self.name.startswith(MASK)

    @property
    def image(self) -> str:
        """The name of the image, if samples have several and this is not the first; else ""."""
        return self.name.split("-")[1] if self.name.startswith(IMAGE) else ""

    @property
    def of(self) -> str:
        """The name of the first image's variant that has the same heights and widths as this one."""
        return self.name.rpartition("-")[2]


class Manifest(Entry, frozen=True, kw_only=True):
    """The contents and the origin of a store.

    Attributes:
        kind: the kind of data.
        images: the names of the images of a sample, if it has several.
        sections: the sections of its kind, by name.
        xxh3_128: of the file that it was read from. It differs for every store; fingerprints may be equal, since they cover
            the sizes of inputs, not their contents.
    """

    kind: str
    num_samples: Count
    num_rejects: Count
    labels: Labels
    shard_samples: tuple[Count, ...]
    variants: tuple[Variant, ...]
    files: dict[str, FileSum]
    options: dict[str, Any]
    libraries: dict[str, str]
    fingerprint: Annotated[str, Meta(pattern=r"^[0-9a-f]{8,64}\Z")]
    sections: dict[str, Any]
    columns: tuple[Column, ...]
    images: tuple[str, ...]
    version: str = VERSION
    format: str = FORMAT
    xxh3_128: str = ""

    def to_json(self) -> bytes:
        body = to_builtins(self)
        del body["xxh3_128"]
        return json.dumps(body, indent=1, sort_keys=True).encode() + b"\n"

    def section(self, name: str) -> Any:
        """Return the section with this name, or None if there is none."""
        return self.sections.get(name)

    def shard_records(self, variant: Variant) -> tuple[int, ...]:
        """Return the number of records in each shard of a variant."""
        return self.shard_samples if variant.records is None else variant.records


def sample_columns(labels: Labels, more: Sequence[Any]) -> np.dtype[Any]:
    """Return the dtype of a row of samples.npy: `source` (the index of the input), `label`, and the columns of the kind."""
    label: Any = ("label", "<f4", (len(labels.names),)) if labels.kind == "vector" else ("label", "<i4")
    return np.dtype([("source", "<u8"), label, *more])


def read_current(path: Path) -> tuple[Path, Manifest]:
    """Return the folder of the store at a path, and its manifest. The folder is the path; or, between the removal of an old
    manifest and the arrival of the new one, the folder inside the path that holds the new store."""
    with suppress(StoreError):
        return path, read_manifest(path)
    with suppress(OSError, StoreError):
        list(path.iterdir())  # after which NFS does not remember that a name was not there
        return path / NEXT, read_manifest(path / NEXT)
    return path, read_manifest(path)


def read_manifest(root: Path) -> Manifest:
    """Read and check a store's manifest. A StoreError says that there is none; a FormatError, that it is damaged, or of another
    version."""
    try:
        raw = (root / MANIFEST).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise _absent(root) from None
    except OSError as error:
        raise StoreError(f"cannot read {root / MANIFEST}: {lacking(error) or error.strerror}") from error
    return parse_manifest(raw, root / MANIFEST)


def commit(root: Path, manifest: Manifest) -> None:
    """Flush the files that a manifest lists and the names in their folders, then write the manifest, which makes them a store."""
    paths = [root / name for name in manifest.files]
    for path in (*paths, *{path.parent for path in paths}):
        sync(path)
    write_atomic(root / MANIFEST, manifest.to_json())


def parse_manifest(raw: bytes, path: object) -> Manifest:
    """Return the manifest of these bytes. path: of its file, or its URL. Raises the errors of `read_manifest`."""
    try:
        body = json.loads(raw)
        if body["format"] != FORMAT:
            raise ValueError(f'"format" is not "{FORMAT}"')
        if body["version"] != VERSION:
            raise FormatError(
                f"{path} has format version {body['version']!s:.20}, but this fastdata reads {VERSION}: prepare the store again, "
                "or use the fastdata that wrote it"
            )
        return structs.replace(_parse(body), xxh3_128=sum_of(raw).xxh3_128)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(f"{path} is damaged ({type(error).__name__}: {error}); prepare the store again") from None


def _absent(root: Path) -> StoreError:
    if (root / WORK).is_dir():
        return StoreError(f"{root} is not finished; run the same fastdata-prep command again to continue where it stopped")
    if not root.exists():
        return StoreError(f"no store at {root}: there is no such folder; make one with fastdata-prep SOURCE {root}")
    why = f"it has no {MANIFEST}" if root.is_dir() else "it is a file, and a store is a folder"
    inside = ", ".join(sorted(str(manifest.parent) for manifest in root.glob(f"*/{MANIFEST}"))[:5])
    what_to_do = f"give one of the stores in it: {inside}" if inside else f"make one with fastdata-prep {root} OUT"
    return StoreError(f"no store at {root}: {why}; {what_to_do}")


def _parse(body: dict[str, Any]) -> Manifest:
    manifest = convert(body, Manifest)
    try:
        kind = kinds.find(manifest.kind)
    except KeyError:
        raise FormatError(f"the store holds {manifest.kind}, which this fastdata cannot read; use a newer fastdata") from None
    sections_of = kind.module("sections")
    types = sections_of.TYPES
    if manifest.sections.keys() != types.keys():
        raise ValueError(f"sections must be {', '.join(types)}; found: {', '.join(manifest.sections):.80}")
    sections = {name: convert(manifest.sections[name], one) for name, one in types.items()}
    for variant in manifest.variants:
        if not re.fullmatch(VARIANT, variant.name):
            raise ValueError(f"a variant cannot be called {variant.name!r:.80}")
        if not sections_of.reads(variant.form, mask=variant.is_mask):
            raise FormatError(f"the store has records of {variant.form}, which this fastdata cannot read; use a newer fastdata")
        shards = len(manifest.shard_samples)
        if {len(variant.shards), len(manifest.shard_records(variant))} != {shards}:
            raise ValueError(f"variant {variant.name} must list {shards} shards, and as many record counts")
    variants = manifest.variants
    if not variants or sum(manifest.shard_samples) != manifest.num_samples:
        raise ValueError("the numbers of samples do not fit together")
    names = {variant.name for variant in variants}
    if len(names) < len(variants) or not {variant.of for variant in variants} <= names:
        raise ValueError("the names of its variants do not fit together")
    if any(column.geometry for column in manifest.columns) and SOURCE_SIZE not in manifest.columns:
        raise ValueError(f"columns have a geometry, but there is no column {SOURCE_SIZE.name}")
    tables = SAMPLES, NAMES, REJECTS, *(index_file(variant.name) for variant in variants)
    of_columns = (name for column in manifest.columns for name in (*column.files, column.tokenizer_file) if name)
    if missing := [name for name in (*tables, *of_columns) if name not in manifest.files]:
        raise ValueError(f"it does not list {missing[0]}")
    if foreign := [name for name in manifest.files if not is_own(name)]:
        raise ValueError(f"{foreign[0]!r:.80} is no file of a store")
    return structs.replace(manifest, sections=sections)
