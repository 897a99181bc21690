"""What a run made, in figures, and the lines that the command prints about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastdata import kinds
from fastdata.prepare.plan import Plan
from fastdata.sources.inputs import tried_path
from fastdata.sources.urls import to_path
from fastdata.store.manifest import Manifest
from fastdata.words import human_bytes, number_of

__all__ = ["PlanSummary", "Summary", "TaskSummary", "first_reject", "skipped_note", "summarize"]


@dataclass(frozen=True)
class Summary:
    """What a run made. `inputs_per_s` and `seconds` are of this run, the other figures of the whole store."""

    out: Path | str  # the store: a folder, or a URL
    inputs: int  # number of images, arrays or documents found
    kept: int  # of those in the store
    rejected: dict[str, int]  # count of rejected inputs by reason; rejects.jsonl lists each
    resumed: int  # number of inputs that an earlier run had finished
    bytes: int  # size of all shards
    seconds: float
    skipped: dict[str, int] = field(default_factory=dict)  # count of files of other types, by extension
    tokens: int = 0  # in a store of tokens
    kind: str = "images"  # or "tokens" or "arrays"
    originals: dict[str, int] = field(default_factory=dict)  # for codec "original", how many images of each size kept their bytes
    notes: tuple[str, ...] = ()  # what the labels are, and what is not stored or differs from the request
    first_reject: str = ""  # the first rejected input and its reason
    splits: dict[str, Summary] = field(default_factory=dict)  # of each split by its name; this one is the first of them

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
        yield f"shards of {human_bytes(self.bytes)}" + (f", {number_of(self.tokens, 'token')}" if self.tokens else "")
        for size, count in self.originals.items():
            yield f"size {size}: {number_of(count, 'image')} kept as they were, {self.kept - count} encoded"
        if self.resumed == self.inputs:
            yield "already finished"
        else:
            earlier = f", {self.resumed} done earlier" if self.resumed else ""
            yield f"{self.inputs_per_s:.0f} {item}s/s, {self.seconds:.1f} s{earlier}"


@dataclass(frozen=True)
class TaskSummary:
    """What a task made: `shards` of the plan are its own, `made` of them by this run."""

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
    """What was planned. `shards` is the largest useful number of tasks. `finished`: the store is there already."""

    out: Path
    inputs: int
    shards: int
    finished: bool
    notes: tuple[str, ...]

    def lines(self) -> Iterator[str]:
        """Yield what the command prints."""
        yield from self.notes
        inputs, shards = number_of(self.inputs, "input"), number_of(self.shards, "shard")
        then = f"planned {inputs} in {shards}; now fastdata-prep run {self.out} --task I --of N, then finish"
        yield f"{self.out}{' is finished already' if self.finished else f': {then}'}"


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
    if plan is not None and not getattr(plan.sources[first["source"]], "place", ()):
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
    """Describe a finished store. plan: None: it is not known any more. resumed: None: all. notes: besides those of the plan."""
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
