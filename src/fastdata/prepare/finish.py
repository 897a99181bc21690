"""Turn finished shards into a store: merge their tables, then write the manifest; and summaries of a run."""

from __future__ import annotations

import base64
import json
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fastdata import kinds
from fastdata.errors import PrepError
from fastdata.prepare.plan import Plan, PrepareRun
from fastdata.prepare.worker import shard_path, shard_table
from fastdata.sources.inputs import ABSENT, tried_path
from fastdata.sources.urls import to_path
from fastdata.store.columns import join_columns
from fastdata.store.files import COLUMNS, WORK, FileSum, clear, file_sum, write_tables
from fastdata.store.manifest import Manifest, Variant, commit
from fastdata.store.reader import INDEX_ROW
from fastdata.words import human_bytes, number_of


@dataclass(frozen=True)
class Summary:
    """The result of a run. `inputs_per_s` and `seconds` are of this run, the other figures of the whole store.

    Attributes:
        out: the store: a folder, or a URL.
        inputs, kept: number of images, arrays or documents found, and of those in the store.
        rejected: count of rejected inputs by reason; rejects.jsonl lists each.
        resumed: number of inputs that an earlier run had finished.
        bytes: size of all shards.
        skipped: count of files of other types, by extension.
        originals: for codec "original", how many images of each size kept their bytes; the others were encoded.
        notes: what the labels are, where they come from, and what is not stored or differs from the request.
        first_reject: the first rejected input and its reason, or "".
        splits: for a source with splits, the summary of each split by name; this summary is the first split's.
    """

    out: Path | str
    inputs: int
    kept: int
    rejected: dict[str, int]
    resumed: int
    bytes: int
    seconds: float
    skipped: dict[str, int] = field(default_factory=dict)
    tokens: int = 0
    kind: str = "images"
    originals: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    first_reject: str = ""
    splits: dict[str, Summary] = field(default_factory=dict)

    @property
    def inputs_per_s(self) -> float:
        return (self.inputs - self.resumed) / self.seconds if self.seconds else 0.0

    @property
    def reject_rate(self) -> float:
        return sum(self.rejected.values()) / self.inputs if self.inputs else 0.0

    def lines(self) -> Iterator[str]:
        """Yield what the command prints."""
        rejected, item = sum(self.rejected.values()), kinds.find(self.kind).item
        yield f"{self.out}: {self.kept} of {number_of(self.inputs, item)} kept, {rejected} rejected" + (
            f" ({_counted(self.rejected)}), listed in rejects.jsonl" if rejected else ""
        )
        if rejected:
            yield f"the first reject: {self.first_reject}"
        yield from skipped_note(self.skipped, self.kind)
        yield from self.notes
        yield f"{human_bytes(self.bytes)} in shards" + (f", {number_of(self.tokens, 'token')}" if self.tokens else "")
        for size, count in self.originals.items():
            yield f"size {size}: {number_of(count, 'image')} kept unchanged, {self.kept - count} encoded"
        if self.resumed == self.inputs:
            yield "already finished"
        else:
            earlier = f", {self.resumed} done earlier" if self.resumed else ""
            yield f"{self.inputs_per_s:.0f} {item}s/s, {self.seconds:.1f} s{earlier}"


@dataclass(frozen=True)
class TaskSummary:
    """A task's result: the task has `shards` of the plan's shards, and this run made `made`."""

    shards: int = 0
    made: int = 0
    inputs: int = 0
    rejected: int = 0

    def __str__(self) -> str:
        if not self.shards:
            return "nothing to do"
        earlier, inputs = self.shards - self.made, number_of(self.inputs, "input")
        return f"{number_of(self.shards, 'shard')}, {earlier} done earlier; {inputs}, {self.rejected} rejected"


@dataclass(frozen=True)
class PlanSummary:
    """The result of planning. `shards` is the largest useful number of tasks. `finished`: the store is there already."""

    out: Path
    inputs: int
    shards: int
    finished: bool
    notes: tuple[str, ...]

    def lines(self) -> Iterator[str]:
        """Yield what the command prints."""
        yield from self.notes
        inputs, shards = number_of(self.inputs, "input"), number_of(self.shards, "shard")
        then = f"planned {inputs} in {shards}; next: fastdata-prep run {self.out} --task I --of N for each I"
        yield f"{self.out}{' is finished already' if self.finished else f': {then}, then fastdata-prep finish {self.out}'}"


def _counted(counts: Mapping[str, int]) -> str:
    """Return counts as text, the largest first."""
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))


def skipped_note(skipped: Mapping[str, int], kind: str) -> list[str]:
    """Return a line about files that were left out, if there are any."""
    return [f"skipped {number_of(sum(skipped.values()), 'file')}, not read as {kind}: {_counted(skipped)}"] if skipped else []


def first_reject(rejects: Sequence[Mapping[str, Any]], plan: Plan | None) -> str:
    """Return the first reject, why it is one, and where a file was looked for; "" if there is none."""
    if not rejects:
        return ""
    first, tried = rejects[0], ""
    if plan is not None and not getattr(plan.sources[first["source"]], "locator", ()):
        tried = tried_path(to_path(plan.roots[0]), first["reason"], first["name"])
    return f"{first['name']}: {first['reason']}: {first['detail']}{tried}"


def summarize(
    out: Path | str,
    manifest: Manifest,
    rejects: Sequence[Mapping[str, Any]],
    plan: Plan | None = None,
    *,
    resumed: int | None = None,
    seconds: float = 0.0,
    notes: tuple[str, ...] = (),
) -> Summary:
    """Summarize a finished store. plan: None if it is gone. resumed: None for all inputs. notes: added to the plan's notes."""
    tokens, inputs = manifest.section("tokens"), manifest.num_samples + len(rejects)
    return Summary(
        out=out,
        inputs=inputs,
        kept=manifest.num_samples,
        rejected=dict(Counter(reject["reason"] for reject in rejects)),
        resumed=inputs if resumed is None else resumed,
        bytes=sum(shard.bytes for variant in manifest.variants for shard in variant.shards),
        seconds=seconds,
        skipped={} if plan is None else plan.skipped,
        tokens=0 if tokens is None else sum(tokens.counts),
        kind=manifest.kind,
        originals={v.name: v.originals for v in manifest.variants if v.originals is not None},
        notes=(*(() if plan is None else plan.notes), *notes),
        first_reject=first_reject(rejects, plan),
    )


def finished_shards(work: PrepareRun, shards: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Return how many inputs were kept and rejected in each finished shard of this plan whose files have the recorded sizes.

    A shard's table is published after its files were flushed, so it can be trusted even after a power failure.
    """
    found = {}
    for shard in shards:
        with suppress(OSError, ValueError, KeyError, TypeError):
            table = _table(work.out, shard)
            sizes = {shard_path(work.out, name, shard).stat().st_size == size for name, (size, _) in table["files"].items()}
            if table["fingerprint"] == work.plan.fingerprint and sizes <= {True}:
                found[shard] = table["kept"], len(table["rejects"])
    return found


def _table(out: Path, shard: int) -> dict[str, Any]:
    return json.loads(shard_table(out, shard).read_bytes())  # type: ignore[no-any-return]


class _ShardTables:
    """The tables of all shards, which are read each time that they are iterated: together they may not fit into memory."""

    def __init__(self, out: Path, count: int) -> None:
        self._out, self._count = out, count

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (_table(self._out, shard) for shard in range(self._count))


def finish(work: PrepareRun) -> tuple[str, ...]:
    """Make a store from finished shards: write its tables, then the manifest. The work folder stays. Return notes to the user."""
    plan, out, kind = work.plan, work.out, work.kind
    finished = finished_shards(work, range(plan.num_shards))
    if missing := sorted(set(range(plan.num_shards)) - set(finished)):
        raise PrepError(
            f"{work.store} lacks {len(missing)} of {plan.num_shards} shards, such as {missing[0]}: run the lost tasks again, or "
            f"make all missing shards here with fastdata-prep run {work.store}"
        )
    shards: Any = _ShardTables(out, plan.num_shards)
    rejects, sums, indices = list[dict[str, Any]](), dict[str, list[FileSum]](), dict[str, list[bytes]]()
    for shard in shards:
        rejects += shard["rejects"]
        for name, total in shard["files"].items():
            sums.setdefault(name, []).append(FileSum(*total))
        for name, encoded in shard["indices"].items():
            indices.setdefault(name, []).append(base64.b64decode(encoded))
    counts = tuple(kept for kept, _ in finished.values())
    if not any(counts):
        first = first_reject(rejects, plan)
        clear(out)
        shutil.rmtree(work.store / WORK, ignore_errors=True)
        with suppress(OSError):  # someone else has put a file there
            out.rmdir()
        if not rejects:
            raise PrepError("SOURCE is blank: it holds no document, so no store was made")
        reasons = Counter(reject["reason"] for reject in rejects)
        listed = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
        hint = "; if SOURCE is a table, paths are relative to its folder, or to --root FOLDER" if reasons.keys() <= ABSENT else ""
        raise PrepError(f"none of {len(rejects)} inputs can be used ({listed}), so no store was made; the first: {first}{hint}")
    tables: kinds.Tables = kind.module("shards").tables(plan, shards)
    rows = {name: np.frombuffer(b"".join(parts), INDEX_ROW) for name, parts in indices.items()}
    files = write_tables(out, tables.samples, tables.names, rejects, rows)
    files |= {name: file_sum(out / name) for name in plan.files}
    files |= join_columns(plan.columns, [shard_path(out, COLUMNS, k) for k in range(plan.num_shards)], out)
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
    commit(out, manifest)
    return tables.notes
