"""A plan as files in the work folder: plan.json, which every task reads, and slices of the sources; a task reads those it needs."""

from __future__ import annotations

import bisect
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import xxhash

from fastdata import kinds
from fastdata.errors import PrepError, lacking
from fastdata.prepare.host import machine_of
from fastdata.prepare.plan import Plan, Work, describe_difference
from fastdata.prepare.typed_json import decode, decode_rows, encode, encode_rows
from fastdata.prepare.upload import Upload
from fastdata.remote.url import Storage
from fastdata.sources.urls import to_path
from fastdata.store.files import MANIFEST, NEXT, PLAN, WORK, write_atomic

__all__ = ["difference", "load_plan", "next_folder", "plan_folder", "plan_path", "save_plan"]

SLICE = 10_000  # sources: a slice ends with the shard that reaches so many
SUM = "xxh3_128"
BROKEN = OSError, ValueError, KeyError, TypeError, AttributeError, ImportError


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


def _slice_path(out: Path, fingerprint: str, number: int) -> Path:
    return out / WORK / f"sources-{fingerprint[:8]}-{number:05d}.json"


def _checksum(data: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(data)


def save_plan(work: Work) -> None:
    """Write the plan's slices and the store's other files, then plan.json. Written again, the files have the same bytes."""
    plan, out = work.plan, work.out
    for name, data in plan.files.items():
        (out / name).parent.mkdir(exist_ok=True)
        write_atomic(out / name, data)
    slices = list[tuple[int, str]]()
    for begin, end in _slices(plan.bounds):
        data = json.dumps(encode_rows(plan.sources[begin:end])).encode()
        write_atomic(_slice_path(out, plan.fingerprint, len(slices)), data, durable=False)
        slices.append((begin, _checksum(data)))
    body = {
        "fingerprint": plan.fingerprint,
        **plan.body(),
        "machine": machine_of(work.kind),
        "frozen": encode((plan.options, plan.labels, plan.columns, plan.fields)),
        "amounts": plan.amounts,
        "slices": slices,
        "files": {name: _checksum(data) for name, data in plan.files.items()},
        "roots": [str(root) for root in work.roots],
        "versions": work.versions,
        "skipped": work.skipped,
        "notes": work.notes,
    }
    text = json.dumps(body, sort_keys=True)
    write_atomic(plan_path(out), json.dumps({**body, SUM: _checksum(text.encode())}, sort_keys=True).encode())


def _slices(bounds: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first source of each slice and that of the next one."""
    begin = bounds[0]
    for bound in bounds[1:]:
        if bound - begin >= SLICE or bound == bounds[-1]:
            yield begin, bound
            begin = bound


def load_plan(out: Path, remote: Upload | None = None, storage: Storage | None = None) -> Work:
    """Read the plan of a store that is being made. Its sources are read when they are asked for.

    Args:
        out: the store; the plan may be that of one that is to replace it.
        remote: the store, if it is in object storage; then `out` is its folder on this machine.
        storage: options of clients of object storage, which are not in the plan.

    Raises:
        PrepError: there is no plan, or it is damaged.
    """
    store, out = out, plan_folder(out)
    body = _read(out)
    try:
        options, labels, columns, fields = decode(body["frozen"])
        plan = Plan(
            options,
            labels,
            _Sources(out, body, remote),
            tuple(body["bounds"]),
            tuple(body["amounts"]),
            body["libraries"],
            body["fingerprint"],
            {name: _checked(out / name, total) for name, total in body["files"].items()},
            columns,
            fields,
        )
        kind = kinds.find(options.kind)
        roots, notes = tuple(map(to_path, body["roots"])), tuple(body["notes"])
        versions = {url: tuple(found) for url, found in body["versions"].items()}
        return Work(
            kind,
            plan,
            out,
            roots,
            body["skipped"],
            notes,
            body["machine"],
            remote=remote,
            versions=versions,
            storage=dict(storage or {}),
            replaces=None if out == store else store,
        )
    except BROKEN as error:
        raise _damaged(plan_path(out), error) from None


def _read(out: Path) -> dict[str, Any]:
    """Return plan.json."""
    try:
        body: dict[str, Any] = json.loads(plan_path(out).read_bytes())
        if body.pop(SUM) != _checksum(json.dumps(body, sort_keys=True).encode()):
            raise ValueError("its checksum is wrong")
    except (FileNotFoundError, NotADirectoryError):
        what = "is a finished store" if (out / MANIFEST).exists() else "has no plan"
        raise PrepError(f"OUT {out} {what}; make a plan with fastdata-prep plan SOURCE {out}") from None
    except BROKEN as error:
        raise _damaged(plan_path(out), error) from None
    return body


def _damaged(path: Path, error: Exception | str) -> PrepError:
    again = "plan again with the same SOURCE and options (finished shards are kept)"
    if path.name == PLAN:
        again = "start again with --overwrite, or at a URL with another OUT"
    return PrepError(f"{path} is damaged ({error}); {again}")


def _checked(path: Path, total: str) -> bytes:
    """Return the bytes of a file whose checksum is known."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise PrepError(
            f"{path} is gone: perhaps another fastdata-prep is making a store at the same place, or has made one; if not, plan "
            "again with the same SOURCE and options (finished shards are kept)"
        ) from None
    except OSError as error:
        if found := lacking(error):
            raise PrepError(f"{path} cannot be read: {found}") from None
        raise _damaged(path, error.strerror or str(error)) from None
    if _checksum(data) != total:
        raise _damaged(path, "its checksum is wrong")
    return data


class _Sources(Sequence[Any]):
    """The sources of a plan. One slice is in memory at a time.

    Args:
        body: of plan.json.
        remote: where slices come from that are not in the folder.
    """

    def __init__(self, out: Path, body: dict[str, Any], remote: Upload | None) -> None:
        self._out, self._fingerprint, self._remote = out, body["fingerprint"], remote
        self._count: int = body["bounds"][-1]
        self._starts: list[int] = [start for start, _ in body["slices"]]
        self._sums = [total for _, total in body["slices"]]
        self._held: tuple[int, tuple[Any, ...]] = -1, ()

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Any, ...]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            begin, end, step = index.indices(self._count)
            if step != 1:
                return tuple(self[k] for k in range(begin, end, step))
            found: tuple[Any, ...] = ()
            while begin < end:
                held, first = self._slice(begin)
                found += held[begin - first : end - first]
                begin = first + len(held)
            return found
        if not 0 <= index < self._count:
            raise IndexError(index)
        held, first = self._slice(index)
        return held[index - first]

    def _slice(self, index: int) -> tuple[tuple[Any, ...], int]:
        """Return the slice that a source lies in, and the index of its first source."""
        number = bisect.bisect_right(self._starts, index) - 1
        if self._held[0] != number:
            path = _slice_path(self._out, self._fingerprint, number)
            if self._remote is not None:
                self._remote.pull([path])
            data = _checked(path, self._sums[number])
            try:
                self._held = number, decode_rows(json.loads(data))
            except BROKEN as error:
                raise _damaged(path, error) from None
        return self._held[1], self._starts[number]


def difference(work: Work) -> str:
    """Describe how a plan and this machine differ from the plan that was saved; return "" if they do not.

    Raises:
        PrepError: the saved plan cannot be read.
    """
    old, new = _read(work.out), {**work.plan.body(), "machine": machine_of(work.kind)}
    try:
        if old["fingerprint"] == work.plan.fingerprint and old["machine"] == new["machine"]:
            return ""
        sources = _Sources(work.out, old, work.remote), work.plan.sources
        return describe_difference(old, new, work.kind, work.kind, sources)
    except BROKEN as error:
        raise _damaged(plan_path(work.out), error) from None
