"""The page about a store: its samples, its counts and how they are distributed, in one HTML file that loads nothing."""

from __future__ import annotations

import base64
import io
import itertools
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import numpy as np

from fastdata.report.sheet import fitted
from fastdata.store.info import info_lines, store_facts
from fastdata.store.preview import CountTable, counts_of, previews
from fastdata.store.store import Store
from fastdata.types import Array, StrPath

SAMPLES, SIDE = 96, 256  # pictures, and pixels of the longer side of each
BINS, BARS = 12, 40
REJECTS = 100
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069\ufffe\uffff]")  # or turns text around


def store_page(path: StrPath) -> str:
    """Return the page of a store."""
    from jinja2 import Environment

    store = Store(path, kind=None)
    facts = store_facts(store)
    samples = [(sample, [_address(pixels) for pixels in sample.pictures]) for sample in previews(store, SAMPLES)]
    charts = [*counts_of(facts), *_distributions(store)]
    environment = Environment(autoescape=True, finalize=_printable)
    template = environment.from_string((files(__package__) / "page.html").read_text(encoding="utf-8"))
    return template.render(
        name=store.path.name,
        lines=[line.strip().partition(": ") for line in info_lines(store)],
        samples=samples,
        charts=[(chart.title, chart.rows[:BARS], len(chart.rows), max(row[1] for row in chart.rows)) for chart in charts],
        rejects=store.rejects()[:REJECTS],
    )


def _printable(value: Any) -> Any:
    """Replace what HTML cannot hold, such as undecodable bytes of file names."""
    return UNPRINTABLE.sub("\ufffd", value) if type(value) is str else value


def _address(pixels: Array) -> str:
    """Return RGB pixels as the address of an image."""
    data = io.BytesIO()
    fitted(pixels, SIDE).save(data, "JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(data.getvalue()).decode()}"


def _distributions(store: Store) -> Iterator[CountTable]:
    """Yield the distribution of every number that is stored with the samples, and of the bytes of records."""
    labels = store.manifest.labels
    for k, name in enumerate(labels.names if labels.kind == "vector" else ()):
        yield from _binned(f"label {name}", store.samples["label"][:, k])
    for name in store.samples.dtype.names or ():
        if name not in ("source", "label", "first", "start"):
            for k, values in enumerate(np.reshape(store.samples[name], (len(store), -1)).T):
                yield from _binned(f"{name} {k}" if store.samples[name].ndim > 1 else name, values)
    for variant in store.manifest.variants:
        yield from _binned(f"{variant.name}: bytes of a record", store.index(variant).lengths)


def _binned(title: str, values: Array) -> Iterator[CountTable]:
    finite = values[np.isfinite(values)] if values.any() else values[:0]  # without the axes that arrays do not have
    found, counts = np.unique(finite, return_counts=True)
    if len(found) > BINS:
        counts, edges = np.histogram(finite.astype(np.float64), BINS)
        names = [f"{low:.4g} to {high:.4g}" for low, high in itertools.pairwise(edges.tolist())]
    else:
        names = [f"{value:.7g}" for value in found.tolist()]
    if names:
        yield CountTable(title, [(name, count, None) for name, count in zip(names, counts.tolist(), strict=True)])
