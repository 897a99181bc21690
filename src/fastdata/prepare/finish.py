"""From finished shards to a store: the tables of all shards become samples.npy, names.txt and rejects.jsonl, and the manifest
is written last."""

from __future__ import annotations

import io
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.errors import PrepError
from fastdata.prepare.plan import Plan
from fastdata.prepare.worker import shard_table
from fastdata.store.format import (
    MANIFEST,
    NAMES,
    REJECTS,
    SAMPLES,
    WORK,
    FileSum,
    Manifest,
    Masks,
    Variant,
    file_sum,
    samples_dtype,
    shard_file,
    sync,
    write_atomic,
)

__all__ = ["finish", "finished_shards"]


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


def finish(plan: Plan, out: Path) -> Manifest:
    """Write what makes a store of finished shards, the manifest last, and remove the work folder.

    Raises:
        PrepError: shards are missing.
    """
    tables = finished_shards(plan, out, thorough=False)
    if missing := sorted(set(range(plan.num_shards)) - set(tables)):
        raise PrepError(
            f"{out} lacks {len(missing)} of {plan.num_shards} shards, the first {missing[0]}; run the same command again"
        )
    ordered = [tables[k] for k in range(plan.num_shards)]
    sums = {
        SAMPLES: _write_samples(plan, ordered, out / SAMPLES),
        NAMES: _write(out / NAMES, "".join(json.dumps(plan.sources[row[0]].name) + "\n" for t in ordered for row in t["rows"])),
        REJECTS: _write(out / REJECTS, "".join(json.dumps(r, sort_keys=True) + "\n" for t in ordered for r in t["rejects"])),
    }
    counts = tuple(len(t["rows"]) for t in ordered)
    manifest = Manifest(
        num_samples=sum(counts),
        num_rejects=sum(len(t["rejects"]) for t in ordered),
        labels=plan.labels,
        shard_samples=counts,
        variants=tuple(
            Variant(name, size, form, tuple(FileSum(*t["files"][name]) for t in ordered))
            for name, size, form in plan.options.variants()
        ),
        masks=_masks(plan, ordered),
        files=sums,
        options=plan.body()["options"],
        libraries=plan.libraries,
        fingerprint=plan.fingerprint,
    )
    for variant in manifest.variants:
        for shard in range(plan.num_shards):
            sync(manifest.shard_path(out, variant, shard))
        sync(out / variant.name)
    write_atomic(out / MANIFEST, manifest.to_json())
    shutil.rmtree(out / WORK)
    return manifest


def _masks(plan: Plan, tables: list[dict[str, Any]]) -> Masks | None:
    if plan.options.mask is None:
        return None
    pixels: Counter[int] = Counter()
    for table in tables:
        pixels.update({int(k): count for k, count in table["classes"].items()})
    return Masks(plan.options.mask.names, {str(k): pixels[k] for k in sorted(pixels)})


def _write_samples(plan: Plan, tables: list[dict[str, Any]], path: Path) -> FileSum:
    names = [name for name, _, _ in plan.options.variants()]
    rows = [row for table in tables for row in table["rows"]]
    samples = np.zeros(len(rows), samples_dtype(plan.labels, names))
    samples["source"] = [row[0] for row in rows]
    samples["label"] = np.array([plan.sources[row[0]].label for row in rows], samples.dtype["label"].base).reshape(
        samples["label"].shape
    )
    for k, name in enumerate(names):
        for j, column in enumerate(("height", "width", "bytes", "xxh3")):
            samples[f"{name}/{column}"] = [row[1][k][j] for row in rows]
    buffer = io.BytesIO()
    np.save(buffer, samples, allow_pickle=False)
    write_atomic(path, buffer.getvalue())
    return file_sum(path)


def _write(path: Path, text: str) -> FileSum:
    write_atomic(path, text.encode())
    return file_sum(path)
