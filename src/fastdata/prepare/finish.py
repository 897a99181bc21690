"""Turn finished shards into a store: merge their tables into samples.npy, names.txt and rejects.jsonl, then write the manifest."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from fastdata import kinds
from fastdata.errors import PrepError
from fastdata.prepare.plan import Work
from fastdata.prepare.summary import first_reject
from fastdata.prepare.worker import shard_place, shard_table
from fastdata.sources.inputs import nothing_kept
from fastdata.store.columns import join_columns
from fastdata.store.files import COLUMNS, MANIFEST, FileSum, clear, file_sum, sync, write_atomic, write_tables
from fastdata.store.manifest import Manifest, Variant
from fastdata.store.reader import INDEX_ROW

__all__ = ["finish", "finished_shards"]


def finished_shards(work: Work, shards: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Return those shards that are finished, made by this plan and with files of the recorded sizes: how many inputs were kept, and
    rejected.

    A table is published after its files were flushed, so it speaks the truth after a power failure too.
    """
    found = {}
    for shard in shards:
        with suppress(OSError, ValueError, KeyError, TypeError):
            table = _table(work.out, shard)
            sizes = {shard_place(work.out, name, shard).stat().st_size == size for name, (size, _) in table["files"].items()}
            if table["fingerprint"] == work.plan.fingerprint and sizes <= {True}:
                found[shard] = table["kept"], len(table["rejects"])
    return found


def _table(out: Path, shard: int) -> dict[str, Any]:
    return json.loads(shard_table(out, shard).read_bytes())  # type: ignore[no-any-return]


class _Tables:
    """The tables of all shards, which are read each time that they are iterated: together they may not fit into memory."""

    def __init__(self, out: Path, count: int) -> None:
        self._out, self._count = out, count

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (_table(self._out, shard) for shard in range(self._count))


def finish(work: Work) -> tuple[str, ...]:
    """Make a store from finished shards: write its tables, then the manifest. The work folder stays. Return notes to the user."""
    plan, out, kind = work.plan, work.out, work.kind
    finished = finished_shards(work, range(plan.num_shards))
    if missing := sorted(set(range(plan.num_shards)) - set(finished)):
        raise PrepError(
            f"{work.store} lacks {len(missing)} of {plan.num_shards} shards, the first {missing[0]}: run the lost tasks again, or "
            f"make all that is missing here with fastdata-prep run {work.store}"
        )
    shards: Any = _Tables(out, plan.num_shards)
    rejects, sums, indices = list[dict[str, Any]](), dict[str, list[FileSum]](), dict[str, list[bytes]]()
    for shard in shards:
        rejects += shard["rejects"]
        for name, total in shard["files"].items():
            sums.setdefault(name, []).append(FileSum(*total))
        for name, encoded in shard["indices"].items():
            indices.setdefault(name, []).append(base64.b64decode(encoded))
    counts = tuple(kept for kept, _ in finished.values())
    if not any(counts):
        first = first_reject(rejects, plan) or "there is nothing in them"
        clear(out)
        work.clear()
        with suppress(OSError):  # someone else has put a file there
            out.rmdir()
        raise nothing_kept(len(rejects), Counter(reject["reason"] for reject in rejects), first)
    tables: kinds.Tables = kind.module("shards").tables(plan, shards)
    rows = {name: np.frombuffer(b"".join(parts), INDEX_ROW) for name, parts in indices.items()}
    files = write_tables(out, tables.samples, tables.names, rejects, rows)
    files |= {name: file_sum(out / name) for name in plan.files}
    files |= join_columns(plan.columns, [shard_place(out, COLUMNS, k) for k in range(plan.num_shards)], out)
    variants = tuple(
        Variant(name, size, form, tuple(sums[name]), tables.records, tables.originals.get(name))
        for name, size, form in plan.options.variants()
    )
    manifest = Manifest(
        num_samples=sum(counts),
        num_rejects=len(rejects),
        labels=plan.labels,
        shard_samples=counts,
        variants=variants,
        files=files,
        options=plan.recorded_options(),
        libraries=plan.libraries,
        fingerprint=plan.fingerprint,
        kind=plan.options.kind,
        sections=tables.sections,
        columns=plan.columns,
        images=tables.images,
    )
    for variant in manifest.variants:
        sync(out / variant.name)  # the names; who published a shard has flushed its bytes
    write_atomic(out / MANIFEST, manifest.to_json())
    return tables.notes
