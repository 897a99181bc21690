"""The plan: a frozen list of work. The bytes of a shard depend on it alone, not on the number of machines or workers."""

from __future__ import annotations

import bisect
import json
import platform
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from msgspec import convert, to_builtins

from fastdata import kinds
from fastdata._version import __version__
from fastdata.errors import PrepError, StoreError, lacking
from fastdata.remote.bucket import Storage
from fastdata.sources.inputs import Field, Packed, Source, SourceList, shuffled, trimmed
from fastdata.sources.urls import AnyPath, UrlPath, stamps_of, to_path
from fastdata.store.columns import Column
from fastdata.store.files import MANIFEST, NEXT, PLAN, WORK, write_atomic
from fastdata.store.info import plain_values
from fastdata.store.manifest import Labels, Manifest, read_manifest
from fastdata.system.machine import installed_versions

SHARD_SAMPLES = 10_000  # the maximum, so that an interrupted run loses only seconds
SHARD_BYTES = 2 << 30  # of input; about the maximum
BUSY_SHARDS = 128  # enough to keep the cores of a large machine busy to the end
LEAST_SAMPLES, LEAST_BYTES = 4, 4 << 20  # of input; for smaller shards the overhead is noticeable
SAMPLE_BYTES = 1 << 14  # a sample takes the time of so many bytes, besides its own
SUM = "xxh3_128"  # the key of the checksum in plan.json
CPU_AVX2 = 11  # OpenCV's number for it, which cv2 does not export


@dataclass(frozen=True)
class Plan:
    """The sources, and how to make a store of them.

    `options` is a dataclass for each kind of data. Its `libraries` are packages whose versions affect the bytes; `unit` measures
    progress: "img" for inputs or "B" for bytes of input; `variants()` returns the (name, size, form) of each variant.
    """

    options: Any
    labels: Labels
    sources: Sequence[Any]  # a tuple, or a sequence that reads them from files
    bounds: tuple[int, ...]  # shard k holds sources[bounds[k]:bounds[k + 1]]
    amounts: tuple[int, ...]  # how much each shard adds to the progress, in the unit of the options
    libraries: dict[str, str]
    machine: dict[str, str]  # what of the machine that planned decides the bytes, besides the versions of libraries
    fingerprint: str = ""
    files: dict[str, bytes] = field(default_factory=dict)  # of the store, such as a tokenizer; options or columns have their sums
    columns: tuple[Column, ...] = ()
    fields: tuple[Field, ...] = ()  # where the values of the columns come from
    roots: tuple[str, ...] = ()  # the folder of the inputs, and those of their companions: further images of a sample, and masks
    skipped: dict[str, int] = field(default_factory=dict)  # count of files left out, by extension
    notes: tuple[str, ...] = ()  # lines about the inputs for the user
    stamps: dict[str, tuple[int, str]] = field(default_factory=dict)  # of files with many inputs: what changes if they are replaced

    @property
    def num_shards(self) -> int:
        return len(self.bounds) - 1

    def shard(self, index: int) -> tuple[Any, ...]:
        return tuple(self.sources[self.bounds[index] : self.bounds[index + 1]])

    def rows(self, shard: int) -> bytes:
        """Return the sources of a shard as JSON: for each, the index of its class in the kind's PLAN_TYPES, and its values."""
        classes = kinds.find(self.options.kind).module("shards").PLAN_TYPES[1]
        found = [[classes.index(type(source)), *trimmed(source)] for source in self.shard(shard)]
        return json.dumps(found, default=to_builtins).encode()  # msgspec.json refuses names that are not UTF-8

    def recorded_options(self) -> dict[str, Any]:
        """Return the options as JSON values, without unset options that are newer than format 1.0."""
        options = self.options
        unset = {one.name for one in fields(options) if one.metadata.get("newer") and getattr(options, one.name) == one.default}
        found: dict[str, Any] = json.loads(json.dumps(to_builtins(options)))
        return {name: value for name, value in found.items() if name not in unset}

    def with_fingerprint(self) -> Plan:
        """Return the plan with a checksum of all that the bytes of its store depend on."""
        body = {name: getattr(self, name) for name in ("labels", "bounds", "libraries", "columns", "fields")}
        digest = xxhash.xxh3_128(json.dumps(to_builtins({**body, "options": self.recorded_options()}), sort_keys=True).encode())
        for shard in range(self.num_shards):
            digest.update(self.rows(shard))
        return replace(self, fingerprint=digest.hexdigest())


@dataclass(frozen=True)
class PrepareRun:
    """A plan and where its store is made."""

    plan: Plan
    out: Path  # the store to make
    storage: Storage = field(default_factory=dict)  # options of clients of object storage, which each task has for itself
    replaces: Path | None = None  # the finished store that this one is to replace, and inside of which `out` lies
    url: str = ""  # where the finished store is copied to
    mark: str = ""  # for workers: a part of the names of temporary files that no other run uses
    share: int = 0  # and the bytes of memory that each may take at any time; for an input that takes more, it waits for its turn

    @property
    def kind(self) -> kinds.Modality:
        return kinds.find(self.plan.options.kind)

    @property
    def store(self) -> Path:
        """The location of the store when it is finished."""
        return self.replaces or self.out

    def is_stored(self) -> bool:
        """Return whether the store is finished, even if it has not yet taken the place of the store that it replaces."""
        for folder in [self.out] if self.out.exists() else [self.store / NEXT, self.store]:
            with suppress(StoreError):
                return read_manifest(folder).fingerprint == self.plan.fingerprint
        return False


def make_plan(
    found: SourceList,
    options: Any,
    limit: int | None = None,
    *,
    least: tuple[int, int] = (LEAST_SAMPLES, LEAST_BYTES),
    companions: Sequence[AnyPath] = (),
    **more: Any,
) -> Plan:
    """Make a plan from all inputs of a list, or from `limit` of them, evenly spaced, so that all classes occur.

    Args:
        options: may have `order`, "listed" or "shuffled", and `shard_samples`, the most samples in a shard.
        least: the smallest shards, in samples and bytes, that are made to keep all cores busy.
        companions: the folder of each companion of an input, such as its mask.
        more: columns and files, as in the plan.
    """
    sources = found.sources if isinstance(found.sources, Packed) else Packed(found.sources)
    if limit is not None and limit < len(sources):
        sources = sources.taken(np.arange(limit, dtype=np.int64) * len(sources) // limit)
    if getattr(options, "order", "listed") == "shuffled":
        sources = shuffled(sources, remote=isinstance(found.root, UrlPath))
    bounds, roots = _bounds(sources, getattr(options, "shard_samples", None), *least), (found.root, *companions)
    return freeze(options, found.labels, sources, bounds, roots=roots, fields=found.fields, skipped=dict(found.skipped), **more)


def freeze(
    options: Any, labels: Labels, sources: Sequence[Any], bounds: tuple[int, ...], *, roots: Iterable[AnyPath], **more: Any
) -> Plan:
    """Make a plan with its fingerprint. more: its other attributes."""
    tokenizers = [name for column in more.get("columns", ()) if column.tokens for name in column.tokens.tokenizer.libraries]
    libraries = _versions(("fastdata", "lmdb", "numpy", *options.libraries, *tokenizers))
    amounts = tuple(
        sum(max(s.size, 0) for s in sources[begin:end]) if options.unit == "B" else end - begin for begin, end in pairwise(bounds)
    )
    root, *_ = folders = tuple(roots)
    more["roots"] = tuple(str(folder.absolute()) for folder in folders)
    files = [*dict.fromkeys(source.container for source in sources if source.container)]
    more["stamps"] = dict(zip(files, stamps_of([root / file for file in files]), strict=True))
    return Plan(options, labels, sources, bounds, amounts, libraries, machine_of(libraries), **more).with_fingerprint()


def _bounds(sources: Sequence[Source], most: int | None, least_samples: int, least_bytes: int) -> tuple[int, ...]:
    """Divide the sources into equal shards, none of them empty, even if sources claim wrong sizes. most: samples in a shard."""
    count, size = len(sources), sum(max(s.size, 0) for s in sources)
    busy = 1 if most is not None else min(BUSY_SHARDS, -(-count // least_samples), -(-(size + count * SAMPLE_BYTES) // least_bytes))
    shards = max(-(-count // (most or SHARD_SAMPLES)), min(-(-size // SHARD_BYTES), count), busy, 1)
    return tuple(k * count // shards for k in range(shards + 1))


# Machines


def machine_of(libraries: Iterable[str]) -> dict[str, str]:
    """Return the properties of this machine that decide bytes: its architecture; OpenCV's build, and whether it has AVX2."""
    found = {"architecture": platform.machine()}
    if "opencv-python-headless" in libraries:
        import cv2

        found["AVX2 in OpenCV"] = "yes" if cv2.checkHardwareSupport(CPU_AVX2) else "no"  # without it, it rounds differently
        found["OpenCV build"] = xxhash.xxh3_64_hexdigest(cv2.getBuildInformation().encode())[:8]
    return found


def _versions(libraries: Iterable[str]) -> dict[str, str]:
    """Return the installed version of each library, or "none" if it is not installed."""
    found = installed_versions() | {"fastdata": __version__}
    return {name: found.get(name, "none") for name in libraries}


def check_host(work: PrepareRun, *, inputs: bool = True) -> None:
    """Raise a PrepError if this machine would make other bytes than the plan means, or the inputs are not there.

    inputs: whether inputs are read here; if not, only versions of libraries count, as they write the store's tables.
    """
    plan, host = work.plan, socket.gethostname()
    planned = {**plan.libraries, **(plan.machine if inputs else {})}
    here = _versions(plan.libraries) | (machine_of(plan.libraries) if inputs else {})
    if lines := [f"  {name} {planned[name]}, here {here.get(name)}" for name in planned if planned[name] != here.get(name)]:
        raise PrepError(
            "\n".join([f"{host} would make other bytes than the machine that planned {work.store}:", *lines])
            + "\nRun on a machine with the same libraries and processor, or plan again with another OUT or --overwrite."
        )
    for root in map(to_path, plan.roots if inputs else ()):
        if isinstance(root, Path) and not (root.is_dir() and (root.samefile(".") or any(root.iterdir()))):
            raise PrepError(f"{root}, the folder of inputs for {work.store}, is missing or empty on {host}: mount it there")


# What has changed


def difference(old: Plan | Manifest, new: Plan) -> str:
    """Return lines about the differences from an earlier plan, or from a store's; "" if there are none."""
    machine = old.machine if isinstance(old, Plan) else new.machine
    if isinstance(old, Plan) and (replaced := [file for file in old.stamps if old.stamps[file] != new.stamps.get(file)]):
        return f"  {replaced[0]} was replaced"
    if (old.fingerprint, machine) == (new.fingerprint, new.machine):
        return ""
    options = old.recorded_options() if isinstance(old, Plan) else old.options
    was, now = (
        {**values, "columns": [*map(str, one.columns)], **one.libraries}
        for one, values in ((old, {**options, **machine}), (new, {**new.recorded_options(), **new.machine}))
    )
    return differing(was, now) or "  the list of inputs, their labels, or the meaning of columns is different"


def differing(was: dict[str, Any], now: dict[str, Any]) -> str:
    """Return lines such as "quality 90, now 95" for the JSON values that differ."""
    earlier, later = plain_values(was), plain_values(now)
    names = [name for name in sorted({*earlier, *later}) if earlier.get(name) != later.get(name)]
    return "\n".join(f"  {name} {earlier.get(name) or 'none'}, now {later.get(name) or 'none'}" for name in names)


# The plan as files: plan.json, which every task reads, and the sources of each shard, which one task reads


def plan_path(out: Path) -> Path:
    """Return the path of a store's plan. The file exists only if the plan is complete."""
    return out / WORK / PLAN


def plan_folder(out: Path) -> Path:
    """Return the folder in which the store at `out` is made: `out`, or the folder of its replacement."""
    inner = out / WORK / NEXT
    return inner if plan_path(inner).exists() else out


def _sources_path(out: Path, plan: Plan, shard: int) -> Path:
    return out / WORK / f"sources-{plan.fingerprint[:8]}-{shard:05d}.json"


def save_plan(plan: Plan, out: Path) -> None:
    """Write the plan's sources and the store's other files, then plan.json. Writing again gives the same bytes."""
    for name, data in plan.files.items():
        (out / name).parent.mkdir(exist_ok=True)
        write_atomic(out / name, data)
    saved = (write_atomic(_sources_path(out, plan, k), plan.rows(k), durable=False) for k in range(plan.num_shards))
    sums = [total.xxh3_128 for total in saved]
    files = {name: xxhash.xxh3_128_hexdigest(data) for name, data in plan.files.items()}
    body = {**vars(plan), "kind": plan.options.kind, "options": plan.recorded_options(), "sources": sums, "files": files}
    text = json.dumps(to_builtins(body), sort_keys=True)
    signed = {**json.loads(text), SUM: xxhash.xxh3_128_hexdigest(text.encode())}
    write_atomic(plan_path(out), json.dumps(signed, sort_keys=True).encode())


def load_plan(out: Path, storage: Storage | None = None) -> PrepareRun | None:
    """Read the plan of an unfinished store or replacement. Return None if the store is finished, and the plan gone.

    Sources are read when they are asked for.
    """
    folder = plan_folder(out)
    if not plan_path(folder).exists() and ((out / MANIFEST).exists() or (out / NEXT / MANIFEST).exists()):
        return None
    plan, sums = read_plan(folder)
    plan = replace(plan, files={name: _checked(folder / name, total) for name, total in sums.items()})
    return PrepareRun(plan, folder, storage or {}, None if folder == out else out)


def read_plan(out: Path) -> tuple[Plan, dict[str, str]]:
    """Return the plan in plan.json without the store's other files, and the checksums of these."""
    try:
        body: dict[str, Any] = json.loads(plan_path(out).read_bytes())
        if body.pop(SUM) != xxhash.xxh3_128_hexdigest(json.dumps(body, sort_keys=True).encode()):
            raise ValueError("its checksum is wrong")
        types = kinds.find(body["kind"]).module("shards").PLAN_TYPES
        plan = convert({**body, "files": {}}, Plan)
        return replace(plan, options=convert(body["options"], types[0]), sources=_Sources(out, plan, types[1])), body["files"]
    except (FileNotFoundError, NotADirectoryError):
        where = f"OUT {out} has no plan on {socket.gethostname()}"
        raise PrepError(f"{where}; make a plan with fastdata-prep plan SOURCE {out}, on a disk that all machines share") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PrepError(f"{plan_path(out)} is damaged ({error}); start again with --overwrite or another OUT") from None


def _checked(path: Path, total: str) -> bytes:
    """Return the bytes of a file whose checksum is known."""
    try:
        data, why = path.read_bytes(), "its checksum is wrong"
    except OSError as error:
        data, why = b"", lacking(error) or str(error.strerror)
    if xxhash.xxh3_128_hexdigest(data) != total:
        raise PrepError(
            f"{path} cannot be used: {why}. Unless another process has finished this store, plan it again with the "
            "same SOURCE and options; finished shards are kept"
        )
    return data


class _Sources(Sequence[Any]):
    """The sources of a plan, read from files whose checksums `saved` has. The sources of one shard are in memory at a time."""

    def __init__(self, out: Path, saved: Plan, classes: Sequence[type[Any]]) -> None:
        self._out, self._saved, self._classes = out, saved, classes
        self._read = lru_cache(maxsize=1)(self._load)

    def __len__(self) -> int:
        return self._saved.bounds[-1]

    def __getitem__(self, index: Any) -> Any:
        found = range(len(self))[index]
        if isinstance(found, range):
            return tuple(map(self.__getitem__, found))
        shard = bisect.bisect_right(self._saved.bounds, found) - 1
        return self._read(shard)[found - self._saved.bounds[shard]]

    def _load(self, shard: int) -> list[Any]:
        rows = json.loads(_checked(_sources_path(self._out, self._saved, shard), self._saved.sources[shard]))
        names = [[one.name for one in fields(kind)] for kind in self._classes]
        return [convert(dict(zip(names[k], row, strict=False)), self._classes[k]) for k, *row in rows]
