"""The lines that the command line prints about a run or an estimate."""

from __future__ import annotations

from collections.abc import Iterator

from fastdata import kinds
from fastdata.prepare.estimate import Estimate
from fastdata.prepare.summary import Summary
from fastdata.words import human_bytes, number_of

__all__ = ["estimate_lines", "summary_lines"]


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))


def summary_lines(summary: Summary) -> Iterator[str]:
    """Yield the lines on a finished run."""
    rejected, kind = sum(summary.rejected.values()), kinds.find(summary.kind)
    yield f"{summary.out}: {summary.kept} of {number_of(summary.inputs, kind.item)} kept, {rejected} rejected" + (
        f" ({_counts(summary.rejected)}), listed in rejects.jsonl" if rejected else ""
    )
    if rejected:
        yield f"the first reject: {summary.first_reject}"
    if summary.skipped:
        count = sum(summary.skipped.values())
        one, many = kind.read
        read = f"file that is not read as {one}" if count == 1 else f"files that are not read as {many}"
        yield f"skipped {count} {read}: {_counts(summary.skipped)}"
    yield from summary.notes
    ratio = f", ratio {summary.bytes_after / summary.bytes_before:.2f}" if summary.bytes_before else ""
    yield f"{human_bytes(summary.bytes_before)} before, {human_bytes(summary.bytes_after)} after{ratio}"
    for size, count in summary.originals.items():
        others = summary.kept - count
        kept = f"{number_of(count, 'image')} kept {'its' if count == 1 else 'their'} bytes"
        yield f"size {size}: {kept}, {others} {'was' if others == 1 else 'were'} encoded"
    if summary.tokens:
        yield number_of(summary.tokens, "token")
    if summary.resumed == summary.inputs:
        yield "already finished"
    else:
        earlier = f", {summary.resumed} done earlier" if summary.resumed else ""
        yield f"{summary.inputs_per_s:.0f} {kind.item}s/s, {summary.seconds:.1f} s{earlier}"


def estimate_lines(found: Estimate) -> Iterator[str]:
    """Yield the lines on a dry run."""
    yield f"{number_of(found.inputs, 'input')}: about {human_bytes(found.bytes)} and {found.seconds:.0f} s"
    if found.rejected:
        yield f"of {found.probes} that were tried, rejected: {_counts(found.rejected)}"
    yield from found.notes
    yield f"{human_bytes(found.free_bytes)} are free on that disk: {'enough' if found.fits else 'NOT ENOUGH'}"
