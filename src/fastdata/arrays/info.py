"""The part of `fastdata info` on arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastdata.images.info import described_each, files_of, head_lines, mask_lines, stored_bytes
from fastdata.store.format import Variant
from fastdata.store.info import Facts, span
from fastdata.store.store import Store

__all__ = ["array_facts", "array_lines"]


def array_facts(store: Store, variant: Variant) -> Facts:
    """Return the smallest and the largest sides of a variant, and the bytes of its records."""
    facts: Facts = {"record_bytes": stored_bytes(store, [variant])}
    if len(store):
        arrays: Any = store.manifest.section("arrays")
        shapes = store.samples["shape"][:, variant.is_mask and arrays.channels : arrays.dims]
        facts |= {"smallest": shapes.min(0).tolist(), "largest": shapes.max(0).tolist()}
    return facts


def array_lines(facts: Facts) -> Iterator[str]:
    """Yield lines on the store, its labels, the arrays, the masks and the masks' classes."""
    yield from head_lines(facts, "array")
    for variant in facts["variants"]:
        line = f"  {'masks' if variant['mask'] else 'arrays'}: {variant['dtype']}, {files_of(variant)}"
        if facts["samples"]:
            low, high, chunk = (
                " x ".join(map(str, sides)) for sides in (variant["smallest"], variant["largest"], facts["arrays"]["chunk"])
            )
            line += f", {span(low, high)} in chunks of {chunk}"
        yield line + described_each(variant, facts, "an array")
    yield from mask_lines(facts)
