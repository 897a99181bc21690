"""What a run made, in figures."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastdata.prepare.plan import Work
from fastdata.sources.reasons import tried_path
from fastdata.store.store import Store

__all__ = ["PlanSummary", "Summary", "TaskSummary", "summarize"]


@dataclass(frozen=True)
class Summary:
    """What a run made. `inputs_per_s` and `seconds` are of this run, the other figures of the whole store.

    Attributes:
        out: the store: a folder, or a URL.
        inputs: number of images, documents or rows found.
        kept: number of inputs in the store.
        rejected: count of rejected inputs by reason; rejects.jsonl lists each.
        resumed: number of inputs that an earlier run had finished.
        bytes_before: size of the kept images, of the text files, or of the table.
        bytes_after: size of all records of all sizes.
        seconds: duration of this run.
        skipped: count of files of other types, by extension.
        notes: what the labels are, where they come from, and what is not stored or differs from the request.
        first_reject: the first rejected input and its reason, or "".
        tokens: number of tokens in a store of tokens.
        originals: for codec "original", how many images of each size kept their bytes; the others were encoded.
        kind: the kind of data: "images", "tokens" or "arrays".
        splits: of a source with splits, the summary of each by its name; this one is the first of them.
    """

    out: Path | str
    inputs: int
    kept: int
    rejected: dict[str, int]
    resumed: int
    bytes_before: int
    bytes_after: int
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


@dataclass(frozen=True)
class TaskSummary:
    """What a task made.

    Attributes:
        out: the store: a folder, or a URL.
        task, of: the task's number, from 0, and the number of tasks.
        shards: the number of its shards, all of which are finished now.
        made: the number of those that this run has made.
        inputs: the number of inputs in its shards.
        rejected: how many of them were rejected.
        seconds: duration of this run.
    """

    out: Path | str
    task: int
    of: int
    shards: int
    made: int
    inputs: int
    rejected: int
    seconds: float


@dataclass(frozen=True)
class PlanSummary:
    """What was planned.

    Attributes:
        out: the store: a folder, or a URL.
        inputs: number of images or arrays, or of parts of text files.
        shards: the number of shards, which is the largest useful number of tasks.
        fingerprint: what the plan and its store are recognised by.
        finished: whether the store is finished already, so that there is nothing to run.
        kind: the kind of data, as in `Summary`.
        skipped: count of files of other types, by extension.
        notes: what the labels are, where they come from, and what is not stored.
    """

    out: Path | str
    inputs: int
    shards: int
    fingerprint: str
    finished: bool
    kind: str
    skipped: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def _first_reject(work: Work | None, rejected: list[dict[str, Any]]) -> str:
    if not rejected:
        return ""
    place, name, reason, detail = (rejected[0][key] for key in ("source", "name", "reason", "detail"))
    tried = ""
    if work is not None:
        tried = "" if getattr(work.plan.sources[place], "place", ()) else tried_path(work.roots[0], reason, name)
    return f"{name}: {reason}: {detail}{tried}"


def summarize(store: Store, work: Work | None, resumed: int | None, seconds: float, notes: tuple[str, ...]) -> Summary:
    """Describe a finished store.

    Args:
        work: its plan; None: that is not known any more, and neither are the sizes of the inputs.
        resumed: the number of inputs that earlier runs had finished; None: all.
        notes: lines to show to the user, besides those of the plan.
    """
    rejected = store.rejects()
    tokens = store.manifest.section("tokens")
    records = sum(shard.bytes for variant in store.manifest.variants for shard in variant.shards)
    before, after = (0, records) if work is None else work.kind.sizes(store, work.plan.sources)
    return Summary(
        out=store.path,
        inputs=len(store) + len(rejected),
        kept=len(store),
        rejected=dict(Counter(r["reason"] for r in rejected)),
        resumed=len(store) + len(rejected) if resumed is None else resumed,
        bytes_before=before,
        bytes_after=after,
        seconds=seconds,
        skipped={} if work is None else work.skipped,
        notes=(*(() if work is None else work.notes), *notes),
        first_reject=_first_reject(work, rejected),
        tokens=0 if tokens is None else sum(tokens.counts),
        kind=store.manifest.kind,
        originals={v.name: v.originals for v in store.manifest.variants if v.originals is not None},
    )
