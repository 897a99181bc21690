"""From finished shards to a store: the tables of all shards become samples.npy, names.txt and rejects.jsonl, and the manifest
is written last."""

from __future__ import annotations

import io
import json
import shutil
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from fastdata import kinds
from fastdata.errors import PrepError
from fastdata.prepare.folder import clear
from fastdata.prepare.plan import Plan
from fastdata.prepare.worker import shard_table
from fastdata.sources.reasons import nothing_kept
from fastdata.store.files import MANIFEST, NAMES, REJECTS, SAMPLES, WORK, FileSum, file_sum, shard_file, sync, write_atomic
from fastdata.store.format import Manifest, Variant

__all__ = ["finish", "finished_shards"]

Array = np.ndarray[Any, np.dtype[Any]]


def finished_shards(plan: Plan, out: Path, *, thorough: bool) -> dict[int, dict[str, Any]]:
    """The tables of the shards that are finished: same plan, and every file there with the right size.

    `thorough` also reads them and compares their checksums: workers leave it to the system when a shard reaches the disk, so
    after a power cut a table may speak of bytes that never did.
    """
    found = {}
    for shard in range(plan.num_shards):
        try:
            table = json.loads(shard_table(out, shard).read_bytes())
            whole = table["fingerprint"] == plan.fingerprint and all(
                _as_recorded(out / shard_file(name, shard), FileSum(*total), thorough) for name, total in table["files"].items()
            )
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if whole:
            found[shard] = table
    return found


def _as_recorded(path: Path, total: FileSum, thorough: bool) -> bool:
    return path.stat().st_size == total.bytes and (not thorough or file_sum(path) == total)


def finish(plan: Plan, out: Path) -> tuple[str, ...]:
    """Write what makes a store of finished shards, the manifest last, and remove the work folder.

    Returns:
        What the caller shall know of it.

    Raises:
        PrepError: shards are missing; or nothing was kept, and what was made is removed.
    """
    found = finished_shards(plan, out, thorough=False)
    if missing := sorted(set(range(plan.num_shards)) - set(found)):
        raise PrepError(
            f"{out} lacks {len(missing)} of {plan.num_shards} shards, the first {missing[0]}; run the same command again"
        )
    ordered = [found[k] for k in range(plan.num_shards)]
    kind = kinds.find(plan.options.kind)
    if not any(map(kind.kept, ordered)):
        clear(out, set())
        with suppress(OSError):  # others have put something there
            out.rmdir()
        raise _nothing_kept([reject for table in ordered for reject in table["rejects"]])
    tables: kinds.Tables = kind.tables(plan, ordered)
    sums = {
        **({} if tables.samples is None else {SAMPLES: _write_samples(tables.samples, out / SAMPLES)}),
        **({} if tables.names is None else {NAMES: _write(out / NAMES, "".join(json.dumps(n) + "\n" for n in tables.names))}),
        REJECTS: _write(out / REJECTS, "".join(json.dumps(r, sort_keys=True) + "\n" for t in ordered for r in t["rejects"])),
        **{name: file_sum(out / name) for name in plan.files},
    }
    manifest = Manifest(
        num_samples=sum(tables.counts),
        num_rejects=sum(len(t["rejects"]) for t in ordered),
        labels=plan.labels,
        shard_samples=tables.counts,
        variants=tuple(
            Variant(
                name, size, form, tuple(FileSum(*t["files"][name]) for t in ordered), tables.records, tables.originals.get(name)
            )
            for name, size, form in plan.options.variants()
        ),
        files=sums,
        options=plan.body()["options"],
        libraries=plan.libraries,
        fingerprint=plan.fingerprint,
        kind=plan.options.kind,
        sections=tables.sections,
    )
    for variant in manifest.variants:
        for shard in range(plan.num_shards):
            sync(manifest.shard_path(out, variant, shard))
        sync(out / variant.name)
    write_atomic(out / MANIFEST, manifest.to_json())
    shutil.rmtree(out / WORK)
    return tables.notes


def _nothing_kept(rejects: list[dict[str, Any]]) -> PrepError:
    first = "{name}: {reason}: {detail}".format(**rejects[0]) if rejects else "there is nothing in them"
    return nothing_kept(len(rejects), Counter(reject["reason"] for reject in rejects), first)


def _write_samples(samples: Array, path: Path) -> FileSum:
    buffer = io.BytesIO()
    np.save(buffer, samples, allow_pickle=False)
    write_atomic(path, buffer.getvalue())
    return file_sum(path)


def _write(path: Path, text: str) -> FileSum:
    write_atomic(path, text.encode())
    return file_sum(path)
