"""The lines that the command line prints about a run or an estimate."""

from __future__ import annotations

from collections.abc import Iterator

from fastdata import kinds
from fastdata.prepare.estimate import Estimate
from fastdata.prepare.summary import PlanSummary, Summary, TaskSummary
from fastdata.words import human_bytes, number_of

__all__ = ["estimate_lines", "plan_lines", "store_lines", "summary_lines", "task_line"]


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))


def plan_lines(planned: PlanSummary) -> Iterator[str]:
    """Yield the lines on a plan for tasks."""
    yield from _skipped(planned.skipped, planned.kind)
    yield from planned.notes
    if planned.finished:
        yield f"{planned.out} is finished already"
    else:
        inputs, shards = number_of(planned.inputs, "input"), number_of(planned.shards, "shard")
        yield f"{planned.out}: planned {inputs} in {shards}; now fastdata-prep run {planned.out} --task I --of N, then finish"


def task_line(made: TaskSummary) -> str:
    """Return the line on a task."""
    if not made.shards:
        return f"{made.out}: task {made.task} of {made.of} has nothing to do"
    before = made.shards - made.made
    earlier = f", {before} done earlier" if before else ""
    inputs = f"{number_of(made.inputs, 'input')}, {made.rejected} rejected"
    return f"{made.out}: task {made.task} of {made.of}: {number_of(made.shards, 'shard')}{earlier}; {inputs}; {made.seconds:.1f} s"


def summary_lines(summary: Summary) -> Iterator[str]:
    """Yield the lines on a finished run."""
    yield from store_lines(summary)
    if summary.resumed == summary.inputs:
        yield "already finished"
    else:
        earlier = f", {summary.resumed} done earlier" if summary.resumed else ""
        yield f"{summary.inputs_per_s:.0f} {kinds.find(summary.kind).item}s/s, {summary.seconds:.1f} s{earlier}"


def _skipped(skipped: dict[str, int], kind: str) -> Iterator[str]:
    if skipped:
        count = sum(skipped.values())
        one, many = kinds.find(kind).read
        read = f"file that is not read as {one}" if count == 1 else f"files that are not read as {many}"
        yield f"skipped {count} {read}: {_counts(skipped)}"


def store_lines(summary: Summary) -> Iterator[str]:
    """Yield the lines on a finished store."""
    rejected, kind = sum(summary.rejected.values()), kinds.find(summary.kind)
    yield f"{summary.out}: {summary.kept} of {number_of(summary.inputs, kind.item)} kept, {rejected} rejected" + (
        f" ({_counts(summary.rejected)}), listed in rejects.jsonl" if rejected else ""
    )
    if rejected:
        yield f"the first reject: {summary.first_reject}"
    yield from _skipped(summary.skipped, summary.kind)
    yield from summary.notes
    before = ratio = ""
    if summary.bytes_before:
        before = f"{human_bytes(summary.bytes_before)} before, "
        ratio = f", ratio {summary.bytes_after / summary.bytes_before:.2f}"
    yield f"{before}{human_bytes(summary.bytes_after)} after{ratio}"
    for size, count in summary.originals.items():
        others = summary.kept - count
        kept = f"{number_of(count, 'image')} kept {'its' if count == 1 else 'their'} bytes"
        yield f"size {size}: {kept}, {others} {'was' if others == 1 else 'were'} encoded"
    if summary.tokens:
        yield number_of(summary.tokens, "token")


def estimate_lines(found: Estimate) -> Iterator[str]:
    """Yield the lines on a dry run."""
    yield f"{number_of(found.inputs, 'input')}: about {human_bytes(found.bytes)} and {found.seconds:.0f} s"
    if found.rejected:
        yield f"of {found.probes} that were tried, rejected: {_counts(found.rejected)}"
    yield from found.notes
    where = "that disk"
    if found.waiting:
        where = f"the disk of this machine, where up to {human_bytes(found.waiting)} wait to be sent"
    yield f"{human_bytes(found.free_bytes)} are free on {where}: {'enough' if found.fits else 'NOT ENOUGH'}"
