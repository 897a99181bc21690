"""Turn finished shards into a store: merge their tables into samples.npy, names.txt and rejects.jsonl, then write the manifest."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastdata import kinds
from fastdata.errors import PrepError
from fastdata.prepare.folder import clear_work
from fastdata.prepare.plan import Work
from fastdata.prepare.summary import first_reject
from fastdata.prepare.worker import shard_place, shard_table
from fastdata.sources.notes import nothing_kept
from fastdata.store.columns import join_columns
from fastdata.store.files import (
    COLUMNS,
    MANIFEST,
    NAMES,
    REJECTS,
    SAMPLES,
    FileSum,
    clear,
    file_sum,
    index_file,
    sync,
    write_atomic,
    write_npy,
)
from fastdata.store.manifest import Manifest, Variant
from fastdata.store.reader import INDEX_ROW

__all__ = ["finish", "finished_shards"]


class _Counts(NamedTuple):
    """The number of a shard's samples, and of the inputs that were rejected."""

    kept: int
    rejected: int


def finished_shards(work: Work, shards: Sequence[int]) -> dict[int, _Counts]:
    """Return those shards that are finished: made by this plan, and with files of the recorded sizes.

    A table is published after its files were flushed, so it speaks the truth after a power failure too.
    """
    size_of = _size if work.remote is None else work.remote.size
    found = {}
    for shard in shards:
        try:
            size_of(shard_table(work.out, shard))
            table = _table(work.out, shard)
            if table["fingerprint"] == work.plan.fingerprint and all(
                size_of(shard_place(work.out, name, shard)) == size for name, (size, _) in table["files"].items()
            ):
                found[shard] = _Counts(table["kept"], len(table["rejects"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return found


def _size(path: Path) -> int:
    return path.stat().st_size


def _table(out: Path, shard: int) -> dict[str, Any]:
    return json.loads(shard_table(out, shard).read_bytes())  # type: ignore[no-any-return]


class _Tables(Sequence[dict[str, Any]]):
    """The tables of all shards, which are read each time that they are asked for: together they may not fit into memory."""

    def __init__(self, out: Path, count: int) -> None:
        self._out, self._count = out, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < self._count:
            raise IndexError(index)
        return _table(self._out, index)


def finish(work: Work) -> tuple[str, ...]:
    """Make a store from finished shards: write its tables, then the manifest. The work folder stays.

    Returns:
        Notes to the user.

    Raises:
        PrepError: shards are missing; or no input was kept, and everything made is removed.
    """
    plan, out, kind = work.plan, work.out, work.kind
    finished = finished_shards(work, range(plan.num_shards))
    if missing := sorted(set(range(plan.num_shards)) - set(finished)):
        raise PrepError(
            f"{work.place} lacks {len(missing)} of {plan.num_shards} shards, the first {missing[0]}: run the lost tasks again, or "
            f"make all that is missing here with fastdata-prep run {work.place}"
        )
    shards = _Tables(out, plan.num_shards)
    rejects, sums, indices = list[dict[str, Any]](), dict[str, list[FileSum]](), dict[str, list[bytes]]()
    for shard in shards:
        rejects += shard["rejects"]
        for name, total in shard["files"].items():
            sums.setdefault(name, []).append(FileSum(*total))
        for name, encoded in shard["indices"].items():
            indices.setdefault(name, []).append(base64.b64decode(encoded))
    if not any(done.kept for done in finished.values()):
        first = first_reject(rejects, work) or "there is nothing in them"
        clear(out)
        clear_work(work)
        with suppress(OSError):  # someone else has put a file there
            out.rmdir()
        raise nothing_kept(len(rejects), Counter(reject["reason"] for reject in rejects), first)
    tables: kinds.Tables = kind.shards.tables(plan, shards)
    files = {SAMPLES: write_npy(out / SAMPLES, tables.samples)}
    files[NAMES] = write_atomic(out / NAMES, "".join(json.dumps(name) + "\n" for name in tables.names).encode())
    files[REJECTS] = write_atomic(out / REJECTS, "".join(json.dumps(r, sort_keys=True) + "\n" for r in rejects).encode())
    for name, rows in indices.items():
        files[index_file(name)] = write_npy(out / index_file(name), np.frombuffer(b"".join(rows), INDEX_ROW))
    files |= {name: file_sum(out / name) for name in plan.files}
    files |= join_columns(plan.columns, [shard_place(out, COLUMNS, k) for k in range(plan.num_shards)], out)
    variants = []
    for name, size, form in plan.options.variants():
        variants.append(Variant(name, size, form, tuple(sums[name]), tables.records, tables.originals.get(name)))
    manifest = Manifest(
        num_samples=sum(done.kept for done in finished.values()),
        num_rejects=len(rejects),
        labels=plan.labels,
        shard_samples=tuple(done.kept for done in finished.values()),
        variants=tuple(variants),
        files=files,
        options=plan.recorded_options(),
        libraries=plan.libraries,
        fingerprint=plan.fingerprint,
        kind=plan.options.kind,
        sections=tables.sections,
        columns=plan.columns,
        images=tables.images,
    )
    if work.remote is not None:
        work.remote.commit(manifest)
    for variant in manifest.variants:
        sync(out / variant.name)  # the names; who published a shard has flushed its bytes
    write_atomic(out / MANIFEST, manifest.to_json())
    return tables.notes
