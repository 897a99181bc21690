"""The manifest and the per-sample table of a store: what docs/format.md specifies, read and written.

The manifest is the commit point. It is written last; a folder without one is not a store yet.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from fastdata.codec.pixels import CODECS, PixelFormat
from fastdata.errors import FormatError, StoreError

__all__ = [
    "MAJOR",
    "VERSION",
    "FileSum",
    "Labels",
    "Manifest",
    "Masks",
    "Variant",
    "file_sum",
    "has_foreign",
    "own_files",
    "own_folders",
    "read_manifest",
    "samples_dtype",
    "shard_file",
    "write_atomic",
]

MAJOR = 1
VERSION = "1.0"
MANIFEST = "manifest.json"
SAMPLES = "samples.npy"
NAMES = "names.txt"
REJECTS = "rejects.jsonl"
MASK = "mask-"  # before the names of variants that hold masks
WORK = "work"  # the plan and finished shards' tables, while a store is being made


@dataclass(frozen=True)
class FileSum:
    """Size and xxh3-128 (hex) of one file."""

    bytes: int
    xxh3_128: str


@dataclass(frozen=True)
class Labels:
    """kind: "class" (int32, an index into names), "vector" (float32, one per name) or "none"."""

    kind: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Variant:
    """One stored form of every sample, or of its mask. `size` is what `--size` asked for, None where images kept theirs."""

    name: str
    size: int | None
    form: PixelFormat
    shards: tuple[FileSum, ...]

    @property
    def is_mask(self) -> bool:
        return self.name.startswith(MASK)


@dataclass(frozen=True)
class Masks:
    """Of a store with masks. names: of the classes, if they are known; pixels: of each class, by number, before preparing."""

    names: tuple[str, ...]
    pixels: dict[str, int]


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

    def to_json(self) -> bytes:
        body = {"format": "fastdata", **asdict(self)}
        return json.dumps(body, indent=1, sort_keys=True).encode() + b"\n"

    def shard_path(self, root: Path, variant: Variant, shard: int) -> Path:
        return root / shard_file(variant.name, shard)


def shard_file(variant: str, shard: int) -> str:
    """Where a shard lies inside its store."""
    return f"{variant}/shard-{shard:05d}.mdb"


def samples_dtype(labels: Labels, variants: list[str]) -> np.dtype[Any]:
    """The row of samples.npy. `source` is the sample's place in the list of inputs; the rest is per variant."""
    label: Any = ("label", "<f4", (len(labels.names),)) if labels.kind == "vector" else ("label", "<i4")
    columns = [("height", "<u4"), ("width", "<u4"), ("bytes", "<u8"), ("xxh3", "<u8")]
    return np.dtype([("source", "<u8"), label, *((f"{v}/{name}", kind) for v in variants for name, kind in columns)])


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
    return StoreError(f"no store at {root}: it has no {MANIFEST}; make one with fastdata-prep SOURCE OUT")


def _newer(root: Path, version: str) -> FormatError:
    return FormatError(f"{root} has format version {version}, this fastdata reads up to {MAJOR}.x; use a newer fastdata")


def _parse(body: dict[str, Any]) -> Manifest:
    shard_samples = tuple(_get(n, int) for n in _get(body["shard_samples"], list))
    labels = Labels(_get(body["labels"]["kind"], str), tuple(_get(name, str) for name in _get(body["labels"]["names"], list)))
    if labels.kind not in ("class", "vector", "none"):
        raise ValueError(f"unknown kind of label {labels.kind!r}")
    variants = tuple(_variant(v, len(shard_samples)) for v in _get(body["variants"], list))
    if not variants or len({v.name for v in variants}) != len(variants):
        raise ValueError("a store has one or more variants of different names")
    files = {name: _sum(s) for name, s in _get(body["files"], dict).items()}
    if not {SAMPLES, NAMES, REJECTS} <= set(files):
        raise ValueError(f"it lists the files {sorted(files)}")
    if _get(body["kind"], str) != "images":
        raise FormatError(f"the store holds {body['kind']}, which this fastdata can't read; use a newer one")
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
        masks=_masks(body.get("masks")),
    )


def _masks(entry: Any) -> Masks | None:
    if entry is None:
        return None
    names = tuple(_get(name, str) for name in _get(entry["names"], list))
    return Masks(names, {k: _get(n, int) for k, n in _get(entry["pixels"], dict).items()})


def _get(value: Any, kind: type) -> Any:
    """A value that has to be of this very JSON type; numbers are counts."""
    if type(value) is not kind or (isinstance(value, int) and value < 0):
        raise TypeError(f"found {value!r:.80}, expected a {kind.__name__}")
    return value


def _sum(entry: Any) -> FileSum:
    return FileSum(_get(entry["bytes"], int), _get(entry["xxh3_128"], str))


def _variant(entry: dict[str, Any], num_shards: int) -> Variant:
    name, size, form = (
        _get(entry["name"], str),
        entry["size"],
        PixelFormat(*(entry["form"][key] for key in ("codec", "channels", "dtype"))),
    )
    if not _OWN_FOLDER.fullmatch(name) or name == WORK:
        raise ValueError(f"a variant cannot be called {name!r}")
    known = form.codec in CODECS and _get(form.channels, int) in (1, 3) and form.dtype in ("uint8", "uint16")
    mask = not name.startswith(MASK) or (form.codec, form.channels) == ("rgb", 1)
    if not known or not mask or (form.planes and form != PixelFormat("yuv420", 3, "uint8")):
        raise FormatError(f"the store has records of {entry['form']}, which this fastdata can't read; use a newer one")
    shards = tuple(_sum(s) for s in _get(entry["shards"], list))
    if len(shards) != num_shards:
        raise ValueError(f"variant {name} lists {len(shards)} shards, the store has {num_shards}")
    return Variant(name, None if size is None else _get(size, int), form, shards)


def file_sum(path: Path) -> FileSum:
    """Size and xxh3-128 of a file, read in blocks."""
    digest, size = xxhash.xxh3_128(), 0
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
            size += len(block)
    return FileSum(size, digest.hexdigest())


_OWN_FOLDER = re.compile(r"work|(mask-)?(full|[0-9]+)")
_OWN_FILE = re.compile(
    r"(manifest\.json|samples\.npy|names\.txt|rejects\.jsonl|work/(plan|shard-[0-9]+)\.json)(\.[0-9]+\.tmp)?"
    r"|work/(mask-)?(full|[0-9]+)-[0-9]+\.[0-9]+\.tmp|(mask-)?(full|[0-9]+)/shard-[0-9]+\.mdb"
)


def own_files(root: Path) -> list[Path]:
    """The files in a folder that only preparing makes there, by their names; the manifest first."""
    found = [path for path in _entries(root) if _OWN_FILE.fullmatch(path.relative_to(root).as_posix())]
    return sorted(found, key=lambda path: (path.name != MANIFEST, path))


def own_folders(root: Path) -> list[Path]:
    """The folders that preparing makes in a store."""
    return [path for path in root.iterdir() if _OWN_FOLDER.fullmatch(path.name) and path.is_dir() and not path.is_symlink()]


def has_foreign(root: Path) -> bool:
    """Whether a folder holds anything that preparing does not make."""
    return not set(_entries(root)) <= {*own_files(root), *own_folders(root)}


def _entries(root: Path) -> list[Path]:
    return [*root.iterdir(), *(path for folder in own_folders(root) for path in folder.iterdir())]


def write_atomic(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Write a small file so that it is either whole or absent; if `durable`, also after a power cut."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        if durable:
            sync(temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync(path.parent)


def sync(path: Path) -> None:
    """Make the bytes of a file, or the names in a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
