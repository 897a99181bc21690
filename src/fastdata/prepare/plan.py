"""The plan: a frozen list of work. The bytes of a shard depend on it alone, not on the number of machines or workers."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from msgspec import to_builtins

from fastdata import kinds
from fastdata._version import __version__
from fastdata.prepare.upload import Upload
from fastdata.remote.url import Storage
from fastdata.sources.inputs import Field, Source, SourceList
from fastdata.sources.packed import Packed, shuffled
from fastdata.sources.urls import AnyPath, UrlPath
from fastdata.store.column import Column
from fastdata.store.info import plain_values
from fastdata.store.manifest import Labels

__all__ = ["Plan", "Work", "describe_difference", "freeze", "machine_of", "make_plan", "version_of"]

SHARD_SAMPLES = 10_000  # the maximum, so that an interrupted run loses only seconds
SHARD_BYTES = 2 << 30  # of input; about the maximum
BUSY_SHARDS = 128  # enough to keep the cores of a large machine busy to the end
LEAST_SAMPLES, LEAST_BYTES = 4, 1 << 20  # of input; for smaller shards the overhead is noticeable
HASHED = 10_000  # sources whose JSON is in memory at a time
CPU_AVX2 = 11  # OpenCV's number for it, which cv2 does not export


@dataclass(frozen=True)
class Plan:
    """The sources and what to make of them.

    Attributes:
        options: a dataclass for each kind of data. Its `libraries` are packages whose versions affect the bytes, its `unit` is that
            of progress, "img" for inputs or "B" for bytes of input; `variants()` returns the (name, size, form) of each variant.
        sources: a tuple, or a sequence that reads them from the plan's files when they are asked for.
        bounds: shard k holds sources[bounds[k]:bounds[k + 1]].
        amounts: how much each shard adds to the progress, in the unit of the options.
        machine: what of the machine that planned decides the bytes, besides the versions of libraries.
        files: other files of the store by name, such as a tokenizer. The options or the columns contain their checksums.
        columns, fields: the columns of the store, and where the values of each come from.
        roots: the folder of the inputs, and that of each of their companions: further images of a sample, and masks.
        skipped: count of files left out, by extension.
        notes: lines about the inputs to show to the user.
        versions: size and tag of each object in which inputs have places, by URL: another object there is an error.
    """

    options: Any
    labels: Labels
    sources: Sequence[Any]
    bounds: tuple[int, ...]
    amounts: tuple[int, ...]
    libraries: dict[str, str]
    machine: dict[str, str]
    fingerprint: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    columns: tuple[Column, ...] = ()
    fields: tuple[Field, ...] = ()
    roots: tuple[str, ...] = ()
    skipped: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    versions: dict[str, tuple[int, str]] = field(default_factory=dict)

    @property
    def num_shards(self) -> int:
        return len(self.bounds) - 1

    def shard(self, index: int) -> tuple[Any, ...]:
        return tuple(self.sources[self.bounds[index] : self.bounds[index + 1]])

    def recorded_options(self) -> dict[str, Any]:
        """Return the options as JSON values, without those that are newer than format 1.0 and not set."""
        options = self.options
        unset = {one.name for one in fields(options) if one.metadata.get("newer") and getattr(options, one.name) == one.default}
        found: dict[str, Any] = json.loads(json.dumps(to_builtins(options)))
        return {name: value for name, value in found.items() if name not in unset}

    def body(self) -> dict[str, Any]:
        """Return everything that the fingerprint depends on, but the sources."""
        parts = {"columns": to_builtins(self.columns), "fields": to_builtins(self.fields)}
        return {
            **{name: part for name, part in parts.items() if part},
            "options": self.recorded_options(),
            "labels": to_builtins(self.labels),
            "bounds": self.bounds,
            "libraries": self.libraries,
        }


@dataclass(frozen=True)
class Work:
    """A plan and where its store is made.

    Attributes:
        out: the store to make.
        storage: options of clients of object storage, such as the endpoint. They are not in the plan: each task has its own.
        remote: the store, if it is made in object storage; `out` is the folder of this machine in which it is made.
        replaces: the finished store that this one is to replace, and inside of which `out` lies.
    """

    plan: Plan
    out: Path
    storage: Storage = field(default_factory=dict)
    remote: Upload | None = None
    replaces: Path | None = None

    @property
    def kind(self) -> kinds.Modality:
        return kinds.find(self.plan.options.kind)

    @property
    def store(self) -> Path:
        """Where the store is in the end."""
        return self.replaces or self.out

    @property
    def place(self) -> Path | str:
        """The store as the user knows it: a folder, or a URL."""
        return self.store if self.remote is None else self.remote.url


def _row_of(source: Any) -> tuple[Any, ...]:
    """Return what the fingerprint contains of a source."""
    values = {one.name: getattr(source, one.name) for one in fields(source)}  # a source that was read has no defaults in vars()
    row = {name: value for name, value in values.items() if name not in ("values", "companions") or value}
    if "companions" in row:
        row["companions"] = [_row_of(one) for one in source.companions]
    return tuple(row.values())


def make_plan(
    found: SourceList,
    options: Any,
    limit: int | None = None,
    *,
    least: tuple[int, int] = (LEAST_SAMPLES, LEAST_BYTES),
    columns: tuple[Column, ...] = (),
    files: dict[str, bytes] | None = None,
    companions: Sequence[AnyPath] = (),
) -> Plan:
    """Make a plan from a list of inputs.

    Args:
        options: with an attribute `order`, "listed" or "shuffled", and `shard_samples`, the most in a shard, if users choose these.
        limit: keep only so many, evenly spaced, so that all classes occur.
        least: the smallest shard, in samples and bytes, that is made to keep all cores busy.
        columns, files: as in the plan.
        companions: the folder of each companion of an input, such as its mask.
    """
    sources = found.sources if isinstance(found.sources, Packed) else Packed(found.sources)
    if limit is not None and limit < len(sources):
        sources = sources.taken(np.arange(limit, dtype=np.int64) * len(sources) // limit)
    if getattr(options, "order", "listed") == "shuffled":
        sources = shuffled(sources, remote=isinstance(found.root, UrlPath))
    bounds = _bounds(sources, getattr(options, "shard_samples", None), *least)
    more: dict[str, Any] = {"files": files or {}, "columns": columns, "fields": found.fields, "skipped": dict(found.skipped)}
    return freeze(options, found.labels, sources, bounds, roots=(found.root, *companions), **more)


def freeze(
    options: Any, labels: Labels, sources: Sequence[Any], bounds: tuple[int, ...], *, roots: Iterable[AnyPath], **more: Any
) -> Plan:
    """Make a plan with its fingerprint. more: its other attributes."""
    tokenizers = [name for column in more.get("columns", ()) if column.tokens for name in column.tokens.tokenizer.libraries]
    libraries = {name: version_of(name) for name in ("fastdata", "lmdb", "numpy", *options.libraries, *tokenizers)}
    amounts = tuple(
        sum(max(s.size, 0) for s in sources[begin:end]) if options.unit == "B" else end - begin for begin, end in pairwise(bounds)
    )
    more["roots"] = tuple(str(root.absolute()) for root in roots)
    plan = Plan(options, labels, sources, bounds, amounts, libraries, machine_of(libraries), **more)
    digest = xxhash.xxh3_128()
    before, after = json.dumps({**plan.body(), "sources": []}, sort_keys=True).rsplit("]", 1)
    digest.update(before.encode())
    for first in range(0, len(sources), HASHED):
        rows = json.dumps([*map(_row_of, sources[first : first + HASHED])], sort_keys=True)[1:-1]
        digest.update((f", {rows}" if first else rows).encode())
    digest.update(f"]{after}".encode())
    return replace(plan, fingerprint=digest.hexdigest())


def machine_of(libraries: Iterable[str]) -> dict[str, str]:
    """Return what of this machine decides what libraries make: its architecture; how OpenCV was built, and whether it has AVX2."""
    found = {"architecture": platform.machine()}
    if "opencv-python-headless" in libraries:
        import cv2

        found["AVX2 in OpenCV"] = "yes" if cv2.checkHardwareSupport(CPU_AVX2) else "no"  # without it, it rounds differently
        found["OpenCV build"] = xxhash.xxh3_64_hexdigest(cv2.getBuildInformation().encode())[:8]
    return found


def version_of(library: str) -> str:
    """Return the installed version of a library. Raise importlib.metadata.PackageNotFoundError if there is none."""
    return __version__ if library == "fastdata" else metadata.version(library)


def _bounds(sources: Sequence[Source], most: int | None, least_samples: int, least_bytes: int) -> tuple[int, ...]:
    """Divide the sources into equal shards, none of them empty, whatever sizes the sources claim.

    Their number depends on the sources and on `most`, not on the machine.
    """
    count, size = len(sources), sum(max(s.size, 0) for s in sources)
    busy = 1 if most is not None else min(BUSY_SHARDS, -(-count // least_samples), -(-size // least_bytes))
    shards = max(-(-count // (most or SHARD_SAMPLES)), min(-(-size // SHARD_BYTES), count), busy, 1)
    return tuple(k * count // shards for k in range(shards + 1))


def describe_difference(old: dict[str, Any], new: dict[str, Any], plans: tuple[Plan, Plan] | None = None) -> str:
    """Return lines such as "quality 90, now 95" for what differs, and the number of changed sources.

    Args:
        old, new: of plans or manifests, `options` as these are recorded, `libraries`, `columns`, and `machine`, if it is known.
        plans: both plans, if they are known.
    """
    earlier, later = (
        plain_values({**one["options"], "columns": [*map(str, one["columns"])], **one["libraries"], **one.get("machine", {})})
        for one in (old, new)
    )
    differ = [name for name in sorted({*earlier, *later}) if earlier.get(name) != later.get(name)]
    lines = [f"  {name} {earlier.get(name) or 'none'}, now {later.get(name) or 'none'}" for name in differ]
    if old["columns"] != new["columns"] and "columns" not in differ:
        lines.append("  columns: the names of their values, or the contents of a tokenizer")
    if plans is not None:
        # checksums, because the rows of 10^8 sources would fill the memory
        hashes = ((xxhash.xxh3_64_intdigest(json.dumps(_row_of(one)).encode()) for one in plan.sources) for plan in plans)
        was, now = (np.fromiter(found, np.uint64) for found in hashes)
        gone, added = len(np.setdiff1d(was, now)), len(np.setdiff1d(now, was))
        if gone or added:
            lines.append(f"  sources: {gone} gone or changed, {added} new or changed")
    return "\n".join(lines) or "  the list of sources or their labels"
