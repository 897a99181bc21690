"""What the command line says of a run, an estimate and a store."""

from __future__ import annotations

from collections.abc import Iterator

from fastdata.prepare.estimate import Estimate
from fastdata.prepare.job import Summary
from fastdata.prepare.table.report import table_lines
from fastdata.store.format import Variant
from fastdata.store.store import Store

__all__ = ["estimate_lines", "human_bytes", "info_lines", "summary_lines"]


WHAT = {"images": "images", "arrays": "arrays", "tokens": "documents", "table": "rows"}


def human_bytes(size: float) -> str:
    """Such as "21.3 MB"; decimal units."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))


def summary_lines(summary: Summary) -> Iterator[str]:
    """A finished run."""
    rejected, what = sum(summary.rejected.values()), WHAT[summary.kind]
    yield f"{summary.out}: {summary.kept} of {summary.inputs} {what} kept, {rejected} rejected" + (
        f" ({_counts(summary.rejected)}), listed in rejects.jsonl" if rejected else ""
    )
    if rejected:
        yield f"the first reject: {summary.first_reject}"
    if summary.skipped:
        yield f"{sum(summary.skipped.values())} files that do not end like these were left out: {_counts(summary.skipped)}"
    yield from summary.notes
    ratio = f", {summary.bytes_after / summary.bytes_before:.2f} of it" if summary.bytes_before else ""
    yield f"{human_bytes(summary.bytes_before)} before, {human_bytes(summary.bytes_after)} after{ratio}"
    if summary.tokens:
        yield f"{summary.tokens} tokens"
    if summary.resumed == summary.inputs:
        yield "it was finished already"
    else:
        earlier = f", {summary.resumed} done earlier" if summary.resumed else ""
        yield f"{summary.inputs_per_s:.0f} {what}/s, {summary.seconds:.1f} s{earlier}"


def _chunks(store: Store, variant: Variant) -> str:
    """Such as ", 96 x 80 x 80 to 128 x 128 x 128 in chunks of 32 x 32 x 32, 4.2 MB each"."""
    arrays = store.manifest.arrays
    if arrays is None or not len(store):
        return ""
    shapes = store.samples["shape"][:, variant.is_mask and arrays.channels : arrays.dims]
    low, high, chunk = (" x ".join(map(str, sides)) for sides in (shapes.min(0), shapes.max(0), arrays.chunk))
    mean = human_bytes(float(store.samples[f"{variant.name}/bytes"].mean()))
    return (
        f", {low}{'' if low == high else f' to {high}'} in chunks of {chunk}, {mean} {'a mask' if variant.is_mask else 'an array'}"
    )


def estimate_lines(found: Estimate) -> Iterator[str]:
    """A dry run."""
    yield f"{found.inputs} inputs: about {human_bytes(found.bytes)} and {found.seconds:.0f} s"
    if found.rejected:
        yield f"of {found.probes} that were tried, rejected: {_counts(found.rejected)}"
    yield from found.notes
    fits = "enough" if found.free_bytes > found.bytes else "NOT ENOUGH"
    yield f"{human_bytes(found.free_bytes)} are free on that disk: {fits}"


def info_lines(store: Store) -> Iterator[str]:
    """What is in a store and how it was made."""
    lines = {"images": _image_lines, "arrays": _image_lines, "tokens": _token_lines, "table": table_lines}[store.manifest.kind]
    yield from lines(store)
    counts: dict[str, int] = {}
    for reject in store.rejects():
        counts[reject["reason"]] = counts.get(reject["reason"], 0) + 1
    yield f"  rejected: {_counts(counts) if counts else 'none'}"
    yield "  options: " + ", ".join(f"{name} {value}" for name, value in store.manifest.options.items())
    yield "  made with: " + ", ".join(f"{name} {version}" for name, version in store.manifest.libraries.items())


def _token_lines(store: Store) -> Iterator[str]:
    manifest, found = store.manifest, store.manifest.tokens
    assert found is not None
    variant, lengths = manifest.variants[0], store.samples["tokens"]
    yield f"{store.path}: {len(store)} documents, {sum(found.counts)} tokens, format {manifest.version}"
    end = "no end token" if found.end is None else f"end token {found.end}"
    yield f"  tokenizer: {found.name or 'unknown'} ({found.engine}), {found.vocab_size} tokens, {end}"
    shards = f"{len(variant.shards)} shard{'s' * (len(variant.shards) != 1)}"
    yield f"  tokens: {variant.form.dtype}, {human_bytes(sum(s.bytes for s in variant.shards))} in {shards}"
    if len(store):
        yield f"  documents: {lengths.min()} to {lengths.max()} tokens, {lengths.mean():.0f} on average"


def _image_lines(store: Store) -> Iterator[str]:
    manifest, labels = store.manifest, store.manifest.labels
    kinds = {
        "class": f"{len(labels.names)} classes",
        "vector": f"float labels {', '.join(labels.names)}",
        "none": "no labels",
    }
    yield f"{store.path}: {len(store)} {manifest.kind}, {kinds[labels.kind]}, format {manifest.version}"
    if labels.kind == "class":
        yield f"  classes: {', '.join(labels.names[:10])}{', ...' if len(labels.names) > 10 else ''}"
    for variant in manifest.variants:
        form = variant.form
        line = f"  size {variant.name}: {form.codec}, {form.channels} x {form.dtype}, "
        if manifest.arrays is not None:
            line = f"  {variant.name}: {form.dtype}, "
        line += (
            f"{human_bytes(sum(s.bytes for s in variant.shards))} in {len(variant.shards)} shard{'s' * (len(variant.shards) != 1)}"
        )
        if manifest.arrays is not None:
            line += _chunks(store, variant)
        elif len(store):
            h, w = store.samples[f"{variant.name}/height"], store.samples[f"{variant.name}/width"]
            line += f", {w.min()} x {h.min()} to {w.max()} x {h.max()} pixels"
            mean = human_bytes(float(store.samples[f"{variant.name}/bytes"].mean()))
            line += f", {mean} {'a mask' if variant.is_mask else 'an image'}"
        yield line
    if manifest.masks is not None:
        pixels = manifest.masks.pixels
        names = dict(enumerate(manifest.masks.names))
        shares = {names.get(int(k), k): n / sum(pixels.values()) for k, n in pixels.items()}
        yield f"  masks: {len(pixels)} classes, " + ", ".join(f"{name} {share:.1%}" for name, share in list(shares.items())[:20])
