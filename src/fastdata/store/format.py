"""The manifest and the per-sample table of a store: what docs/format.md specifies, read and written.

The manifest is the commit point. It is written last; a folder without one is not a store yet.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.codec.pixels import CODECS, PixelFormat
from fastdata.errors import FormatError, StoreError
from fastdata.store.chunks import MAX_AXES
from fastdata.store.files import MANIFEST, NAMES, REJECTS, SAMPLES, WORK, FileSum, is_variant, shard_file
from fastdata.store.table import Table, parse_table

__all__ = [
    "MAJOR",
    "VERSION",
    "Arrays",
    "Labels",
    "Manifest",
    "Masks",
    "Table",
    "Tokens",
    "Variant",
    "read_manifest",
    "samples_dtype",
]

MAJOR = 1
VERSION = "1.0"
MASK = "mask-"  # before the names of variants that hold masks
KINDS = {"images": CODECS, "tokens": ("tokens",), "arrays": ("chunks",), "table": ("table",)}  # and the codecs of their records
NUMBERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "int64", "float16", "float32", "float64")  # what torch holds
DTYPES = {"images": ("uint8", "uint16"), "tokens": ("uint16", "uint32"), "arrays": NUMBERS, "table": ("uint8",)}


@dataclass(frozen=True)
class Labels:
    """kind: "class" (int32, an index into names), "vector" (float32, one per name), "integer" (of tables) or "none"."""

    kind: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Variant:
    """One stored form of every sample, or of its mask. `size` is what `--size` asked for, None where images kept theirs.
    records: in each shard, where these are not the samples. originals: of codec "original", how many records are the bytes of
    the files that were prepared."""

    name: str
    size: int | None
    form: PixelFormat
    shards: tuple[FileSum, ...]
    records: tuple[int, ...] | None = None
    originals: int | None = None

    @property
    def is_mask(self) -> bool:
        return self.name.startswith(MASK)


@dataclass(frozen=True)
class Masks:
    """Of a store with masks. names: of the classes, if they are known; pixels: of each class, by number, before preparing."""

    names: tuple[str, ...]
    pixels: dict[str, int]


@dataclass(frozen=True)
class Tokens:
    """Of a store of tokens.

    Attributes:
        engine: the library that made them, or "bytes".
        name: of the tokenizer, for people.
        sha256: of its file; empty if it has none.
        vocab_size: ids are below it.
        end: the id behind each document; None: there is none.
        largest: the largest id that occurs.
        counts: tokens in each shard.
    """

    engine: str
    name: str
    sha256: str
    vocab_size: int
    end: int | None
    largest: int
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Arrays:
    """Of a store of arrays. chunk: sides of the boxes that they are cut into; channels: whether an axis of channels stands before
    the axes that are cut."""

    chunk: tuple[int, ...]
    channels: bool

    @property
    def dims(self) -> int:
        return len(self.chunk) + self.channels


@dataclass(frozen=True)
class Manifest:
    """What is in a store and how it was made."""

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
    kind: str = field(default="images")
    masks: Masks | None = None
    tokens: Tokens | None = None
    arrays: Arrays | None = None
    table: Table | None = None

    def to_json(self) -> bytes:
        body = {"format": "fastdata", **asdict(self)}
        for section in ("arrays", "table"):
            if body[section] is None:
                del body[section]
        for variant in body["variants"]:
            if variant["originals"] is None:
                del variant["originals"]
        return json.dumps(body, indent=1, sort_keys=True).encode() + b"\n"

    def shard_path(self, root: Path, variant: Variant, shard: int) -> Path:
        return root / shard_file(variant.name, shard)

    def shard_records(self, variant: Variant) -> tuple[int, ...]:
        """How many records the shards of a variant hold."""
        return self.shard_samples if variant.records is None else variant.records


def samples_dtype(kind: str, labels: Labels, variants: Sequence[str]) -> np.dtype[Any]:
    """The row of samples.npy. `source` is the sample's place in the list of inputs.

    Images have a label, and columns for each variant. Documents of tokens have the place of their first token in the store, and
    how many they have. Arrays have a label, their sides (channels first, zeros behind), and the number of their first record.
    """
    if kind == "tokens":
        return np.dtype([("source", "<u8"), ("start", "<u8"), ("tokens", "<u8")])
    label: Any = ("label", "<f4", (len(labels.names),)) if labels.kind == "vector" else ("label", "<i4")
    columns, own = [("height", "<u4"), ("width", "<u4"), ("bytes", "<u8"), ("xxh3", "<u8")], list[Any]()
    if kind == "arrays":
        columns, own = columns[2:], [("shape", "<u4", (MAX_AXES + 1,)), ("first", "<u8")]
    return np.dtype([("source", "<u8"), label, *own, *((f"{v}/{name}", kind) for v in variants for name, kind in columns)])


def read_manifest(root: Path) -> Manifest:
    """Read and check a store's manifest.

    Raises:
        StoreError: there is no store, or it is not finished.
        FormatError: the manifest is damaged, or of a newer version than this reader knows.
    """
    try:
        raw = (root / MANIFEST).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise _absent(root) from None
    except OSError as error:
        raise StoreError(f"cannot read {root / MANIFEST}: {error.strerror}") from error
    try:
        body = json.loads(raw)
        if body.pop("format") != "fastdata":
            raise ValueError('"format" is not "fastdata"')
        version = str(body["version"])
        if int(version.split(".")[0]) > MAJOR:
            raise _newer(root, version)
        return _parse(body)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(f"{root / MANIFEST} is damaged ({type(error).__name__}: {error}); prepare the store again") from None


def _absent(root: Path) -> StoreError:
    if (root / WORK).is_dir():
        return StoreError(f"{root} is not finished; run the same fastdata-prep command again, it goes on where it stopped")
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
    kind = _get(body["kind"], str)
    if kind not in KINDS:
        raise FormatError(f"the store holds {kind}, which this fastdata can't read; use a newer one")
    shard_samples = tuple(_get(n, int) for n in _get(body["shard_samples"], list))
    labels = Labels(_get(body["labels"]["kind"], str), tuple(_get(name, str) for name in _get(body["labels"]["names"], list)))
    if labels.kind not in ("class", "vector", "none") and (kind, labels.kind) != ("table", "integer"):
        raise ValueError(f"unknown kind of label {labels.kind!r}")
    variants = tuple(_variant(v, len(shard_samples), kind) for v in _get(body["variants"], list))
    if not variants or len({v.name for v in variants}) != len(variants):
        raise ValueError("a store has one or more variants of different names")
    files = {name: _sum(s) for name, s in _get(body["files"], dict).items()}
    if not {REJECTS, *(() if kind == "table" else (SAMPLES, NAMES))} <= set(files):
        raise ValueError(f"it lists the files {sorted(files)}")
    if sum(shard_samples) != body["num_samples"]:
        raise ValueError("kind or counts do not fit together")
    return Manifest(
        num_samples=_get(body["num_samples"], int),
        num_rejects=_get(body["num_rejects"], int),
        labels=labels,
        shard_samples=shard_samples,
        variants=variants,
        files=files,
        options=_get(body["options"], dict),
        libraries=_get(body["libraries"], dict),
        fingerprint=_get(body["fingerprint"], str),
        version=_get(body["version"], str),
        kind=kind,
        masks=_masks(body.get("masks")),
        tokens=_tokens(body["tokens"], variants[0]) if kind == "tokens" else None,
        arrays=_arrays(body["arrays"], variants) if kind == "arrays" else None,
        table=parse_table(body["table"], variants[0].records) if kind == "table" else None,
    )


def _masks(entry: Any) -> Masks | None:
    if entry is None:
        return None
    names = tuple(_get(name, str) for name in _get(entry["names"], list))
    return Masks(names, {k: _get(n, int) for k, n in _get(entry["pixels"], dict).items()})


def _tokens(entry: Any, variant: Variant) -> Tokens:
    engine, name, sha256 = (_get(entry[key], str) for key in ("engine", "name", "sha256"))
    end, counts = entry["end"], tuple(_get(n, int) for n in _get(entry["counts"], list))
    if len(counts) != len(variant.shards) or variant.records is None:
        raise ValueError(f"{len(counts)} counts of tokens for {len(variant.shards)} shards")
    end = None if end is None else _get(end, int)
    return Tokens(engine, name, sha256, _get(entry["vocab_size"], int), end, _get(entry["largest"], int), counts)


def _arrays(entry: Any, variants: Sequence[Variant]) -> Arrays:
    chunk, channels = tuple(_get(n, int) for n in _get(entry["chunk"], list)), entry["channels"]
    if not 1 <= len(chunk) <= MAX_AXES or not all(chunk) or type(channels) is not bool:
        raise ValueError(f"chunks of {chunk}, channels {channels}")
    if [v.name for v in variants] not in (["array"], ["array", f"{MASK}array"]) or any(v.records is None for v in variants):
        raise ValueError(f"arrays in variants {[v.name for v in variants]}")
    return Arrays(chunk, channels)


def _get(value: Any, kind: type) -> Any:
    """A value that has to be of this very JSON type; numbers are counts."""
    if type(value) is not kind or (isinstance(value, int) and value < 0):
        raise TypeError(f"found {value!r:.80}, expected a {kind.__name__}")
    return value


def _sum(entry: Any) -> FileSum:
    return FileSum(_get(entry["bytes"], int), _get(entry["xxh3_128"], str))


def _variant(entry: dict[str, Any], num_shards: int, kind: str) -> Variant:
    name, size, form = (
        _get(entry["name"], str),
        entry["size"],
        PixelFormat(*(entry["form"][key] for key in ("codec", "channels", "dtype"))),
    )
    if not is_variant(name):
        raise ValueError(f"a variant cannot be called {name!r}")
    known = form.codec in KINDS[kind] and _get(form.channels, int) in (1, 3) and form.dtype in DTYPES[kind]
    mask = not name.startswith(MASK) or (form.codec in ("rgb", "chunks") and form.channels == 1 and form.dtype in DTYPES["images"])
    if not known or not mask or (form.planes and form != PixelFormat("yuv420", 3, "uint8")):
        raise FormatError(f"the store has records of {entry['form']}, which this fastdata can't read; use a newer one")
    shards = tuple(_sum(s) for s in _get(entry["shards"], list))
    if len(shards) != num_shards:
        raise ValueError(f"variant {name} lists {len(shards)} shards, the store has {num_shards}")
    records = None if entry.get("records") is None else tuple(_get(n, int) for n in _get(entry["records"], list))
    if records is not None and len(records) != num_shards:
        raise ValueError(f"variant {name} counts the records of {len(records)} shards, the store has {num_shards}")
    originals = _get(entry["originals"], int) if form.codec == "original" else None
    return Variant(name, None if size is None else _get(size, int), form, shards, records, originals)
