"""A plan as files in the work folder: plan.json, which every task reads, and the sources of each shard, which one task reads."""

from __future__ import annotations

import bisect
import json
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from msgspec import convert, to_builtins
from xxhash import xxh3_128_hexdigest

from fastdata import kinds
from fastdata.errors import PrepError, lacking
from fastdata.prepare.plan import Plan, Work, describe_difference
from fastdata.remote.url import Storage
from fastdata.sources.packed import trimmed
from fastdata.store.files import MANIFEST, NEXT, PLAN, WORK, write_atomic

__all__ = ["difference", "load_plan", "next_folder", "plan_folder", "plan_path", "save_plan"]

SUM = "xxh3_128"


def plan_path(out: Path) -> Path:
    """Return the path of a store's plan. The file exists only if the plan is complete."""
    return out / WORK / PLAN


def next_folder(out: Path) -> Path:
    """Return the folder in which a store is made that is to replace the one at `out`."""
    return out / WORK / NEXT


def plan_folder(out: Path) -> Path:
    """Return the folder in which the store at `out` is made: `out`, or if one is to replace it, the folder of that."""
    inner = next_folder(out)
    return inner if plan_path(inner).exists() else out


def _sources_path(out: Path, fingerprint: str, shard: int) -> Path:
    return out / WORK / f"sources-{fingerprint[:8]}-{shard:05d}.json"


def save_plan(work: Work) -> None:
    """Write the plan's sources and the store's other files, then plan.json. Written again, the files have the same bytes."""
    plan, out = work.plan, work.out
    for name, data in plan.files.items():
        (out / name).parent.mkdir(exist_ok=True)
        write_atomic(out / name, data)
    classes, sums = work.kind.shards.PLAN_TYPES[1], list[str]()
    for shard in range(plan.num_shards):
        rows = [[classes.index(type(source)), *trimmed(source)] for source in plan.shard(shard)]
        data = json.dumps(rows, default=to_builtins).encode()  # msgspec.json refuses names that are not UTF-8
        write_atomic(_sources_path(out, plan.fingerprint, shard), data, durable=False)
        sums.append(xxh3_128_hexdigest(data))
    files = {name: xxh3_128_hexdigest(data) for name, data in plan.files.items()}
    body = {**vars(plan), "kind": plan.options.kind, "options": plan.recorded_options(), "sources": sums, "files": files}
    text = json.dumps(to_builtins(body), sort_keys=True)
    write_atomic(plan_path(out), json.dumps({**json.loads(text), SUM: xxh3_128_hexdigest(text.encode())}, sort_keys=True).encode())


def load_plan(out: Path, storage: Storage | None = None) -> Work:
    """Read the plan of a store that is being made, or of one that is to replace it. Sources are read when they are asked for.

    Raises:
        PrepError: there is no plan, or it is damaged.
    """
    folder = plan_folder(out)
    plan, sums = _read(folder)
    plan = replace(plan, files={name: _checked(folder / name, total) for name, total in sums.items()})
    return Work(plan, folder, storage=dict(storage or {}), replaces=None if folder == out else out)


def _read(out: Path) -> tuple[Plan, dict[str, str]]:
    """Return the plan in plan.json, which lacks its files, and their checksums."""
    try:
        body: dict[str, Any] = json.loads(plan_path(out).read_bytes())
        if body.pop(SUM) != xxh3_128_hexdigest(json.dumps(body, sort_keys=True).encode()):
            raise ValueError("its checksum is wrong")
        types = kinds.find(body["kind"]).shards.PLAN_TYPES
        plan = convert({**body, "files": {}}, Plan)
        return replace(plan, options=convert(body["options"], types[0]), sources=_Sources(out, plan, types[1])), body["files"]
    except (FileNotFoundError, NotADirectoryError):
        what = "is a finished store" if (out / MANIFEST).exists() else "has no plan"
        raise PrepError(f"OUT {out} {what}; make a plan with fastdata-prep plan SOURCE {out}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PrepError(f"{plan_path(out)} is damaged ({error}); start again with --overwrite") from None


def _checked(path: Path, total: str) -> bytes:
    """Return the bytes of a file whose checksum is known."""
    try:
        data, why = path.read_bytes(), "its checksum is wrong"
    except OSError as error:
        data, why = b"", lacking(error) or str(error.strerror)
    if xxh3_128_hexdigest(data) != total:
        raise PrepError(
            f"{path} cannot be used: {why}; unless another fastdata-prep has made a store there, plan again with the same SOURCE "
            "and options (finished shards are kept)"
        )
    return data


class _Sources(Sequence[Any]):
    """The sources of a plan, from files whose checksums are the sources of `saved`. Those of one shard are in memory at a time."""

    def __init__(self, out: Path, saved: Plan, classes: Sequence[type[Any]]) -> None:
        self._out, self._saved, self._classes = out, saved, classes
        self._shard: int | None = None
        self._read: list[Any] = []

    def __len__(self) -> int:
        return self._saved.bounds[-1]

    def __getitem__(self, index: Any) -> Any:
        found = range(len(self))[index]
        if isinstance(found, range):
            return tuple(map(self.__getitem__, found))
        shard = bisect.bisect_right(self._saved.bounds, found) - 1
        if shard != self._shard:
            self._shard, self._read = shard, self._load(shard)
        return self._read[found - self._saved.bounds[shard]]

    def _load(self, shard: int) -> list[Any]:
        rows = json.loads(_checked(_sources_path(self._out, self._saved.fingerprint, shard), self._saved.sources[shard]))
        names = [[one.name for one in fields(kind)] for kind in self._classes]
        return [convert(dict(zip(names[k], row, strict=False)), self._classes[k]) for k, *row in rows]


def difference(work: Work) -> str:
    """Describe how a plan and this machine differ from the plan that was saved; return "" if they do not.

    Raises:
        PrepError: the saved plan cannot be read.
    """
    (old, _), new = _read(work.out), work.plan
    if (old.fingerprint, old.machine) == (new.fingerprint, new.machine):
        return ""
    was, now = ({**vars(plan), "options": plan.recorded_options()} for plan in (old, new))
    return describe_difference(was, now, (old, new))
