"""The sections of a report that only images have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fastdata.images.drawn_columns import box_legend
from fastdata.images.report_columns import column_sections
from fastdata.images.report_pictures import Pictures, hex_color, spread
from fastdata.report.charts import bars, dots, histogram, many, number, share
from fastdata.report.html import Html, join, tag
from fastdata.report.page import Section
from fastdata.report.pictures import gallery, switches
from fastdata.store.canvas import class_colors
from fastdata.store.store import Store
from fastdata.words import human_bytes

__all__ = ["image_sections", "mask_section", "samples_section"]

Array = np.ndarray[Any, np.dtype[Any]]

RARE = 0.001  # a share of the pixels that is worth a look
SHOWN = 96  # samples in the gallery
EACH = 24  # most of a class
STRIP = 8  # pictures that fit into a row
LEGEND = 40  # classes in a legend


def image_sections(store: Store) -> Iterator[Section]:
    """Yield the sections on a store's images."""
    pictures = Pictures(store)
    yield samples_section(
        store, pictures.html, switches(masks=pictures.masks, boxes=pictures.shapes), SHOWN // max(1, len(store.manifest.images))
    )
    yield _sizes(store, pictures)
    if pictures.masks:
        yield mask_section(store)
    yield from column_sections(store)


def samples_section(store: Store, html: Any, tools: Sequence[Html], most: int = SHOWN) -> Section:
    """Return the gallery of at most so many samples, by class where there are classes. html: draws one."""
    labels = store.manifest.labels
    tools = list(tools)
    known = store.samples["label"] if labels.kind == "class" else np.zeros(len(store), np.int32)
    classes = np.unique(known)
    each = max(1, min(EACH, most // len(classes))) if labels.kind == "class" else most
    chosen = spread(classes, most // each)
    order = np.argsort(known, kind="stable")
    starts, ends = (np.searchsorted(known[order], chosen, side) for side in ("left", "right"))
    groups: list[tuple[str, int, list[int]]] = []
    for k, start, end in zip(chosen.tolist(), starts.tolist(), ends.tolist(), strict=True):
        name = labels.names[k] if 0 <= k < len(labels.names) else "no class" if labels.kind == "class" else ""
        groups.append((name, end - start, spread(order[start:end], each).tolist()))
    shown = sum(len(rows) for _, _, rows in groups)
    whole = many(len(store), store.kind.item)
    said = f"{number(shown)} of {whole}, evenly spaced" if shown < len(store) else f"All {whole}"
    if labels.kind == "class":
        said += f", of {len(chosen)} of {many(len(classes), 'class')}" if len(chosen) < len(classes) else ", by class"
    if labels.kind == "class" and len(groups) > 6:
        tools.append(tag("input", type="search", placeholder="Filter by class", aria_label="Filter by class"))
    parts = []
    if each >= 3 and labels.kind == "class":
        for name, count, rows in groups:
            heading = tag("h3", name, tag("small", f" {number(count)}"))
            parts.append(tag("div", heading, gallery([html(row) for row in rows], strip=len(rows) <= STRIP), data_text=name))
    else:
        parts.append(gallery([html(row) for _, _, rows in groups for row in rows]))
    body = join(
        tag("p", f"{said}. Press one to see more of it.", class_="soft"), tag("div", tools, class_="tools"), _legend(store), parts
    )
    shown_rows = [row for _, _, rows in groups for row in rows]
    return Section("samples", "Samples", body, {"shown": shown, "rows": shown_rows})


def _legend(store: Store) -> Html | None:
    """Return the colours of masks, or of boxes."""
    masks = store.manifest.section("masks")
    if masks is None:
        found = box_legend(store, LEGEND)
        items = [(hex_color(color), text) for color, text in found]
    else:
        items = [(color, f"{name}: {share(portion, 1)}") for name, color, _, portion in _mask_classes(masks)[:LEGEND]]
    return (
        tag("div", [tag("span", tag("i", style=f"background:{color}"), text) for color, text in items], class_="key")
        if items
        else None
    )


def _sizes(store: Store, pictures: Pictures) -> Section:
    variant = pictures.variant
    height, width = (store.field(variant, side).astype(np.int64) for side in ("height", "width"))
    sizes = store.index(variant).lengths
    ratio = width / height
    charts = [dots(width, height, "Width and height, pixels", ("width", "height"))]
    charts += [
        histogram(ratio, "Aspect ratio, width / height", log=True),
        histogram(sizes, "Bytes of a record", log=True, form=human_bytes),
    ]
    facts = {
        "variant": variant.name,
        "width": [int(width.min()), int(width.max())],
        "height": [int(height.min()), int(height.max())],
        "ratio": [float(ratio.min()), float(np.median(ratio)), float(ratio.max())],
        "bytes": int(sizes.sum()),
    }
    extreme = int(((ratio > 4) | (ratio < 1 / 4)).sum())
    findings = (
        (f"{many(extreme, 'image', 'is')} more than four times as long in one direction as in the other.",) if extreme else ()
    )
    size = f" with size {variant.size}" if variant.size else ""
    shapes = len(np.unique(height << 32 | width))
    said = (
        f"All images are {width[0]} × {height[0]} pixels." if shapes == 1 else f"{number(shapes)} different sizes, as stored{size}."
    )
    tile = (f"{_span(width)} × {_span(height)}", "pixels, width × height")
    return Section(
        "sizes", "Sizes", join(tag("p", said, class_="soft"), tag("div", charts, class_="columns")), facts, findings, (tile,)
    )


def _span(values: Array) -> str:
    """Format the range of whole numbers."""
    low, high = int(values.min()), int(values.max())
    return str(low) if low == high else f"{low}–{high}"


def _mask_classes(masks: Any) -> list[tuple[str, str, int, float]]:
    """Return (name, colour, pixels, share) of each class of masks that has pixels, the commonest first."""
    pixels = {int(k): count for k, count in masks.pixels.items() if count}
    total = max(1, sum(pixels.values()))
    colors = class_colors(1 << 16)
    names = dict(enumerate(masks.names))
    order = sorted(pixels, key=lambda k: -pixels[k])
    return [
        (f"{k} {names[k]}" if names.get(k) else f"class {k}", hex_color(colors[k]), pixels[k], pixels[k] / total) for k in order
    ]


def mask_section(store: Store) -> Section:
    """Return the section on the classes of masks."""
    found = _mask_classes(store.manifest.section("masks"))
    shown = found[:LEGEND]
    chart = bars(
        [(name, portion) for name, _, _, portion in shown],
        what="share of the pixels of all masks, before preparing",
        colors=[color for _, color, _, _ in shown],
        form=lambda value: share(value, 1),
    )
    more = tag("p", f"{LEGEND} of {many(len(found), 'class')}.", class_="soft") if len(found) > LEGEND else None
    rare = [name for name, _, _, portion in found if portion < RARE]
    findings = (
        (f"{many(len(rare), 'class')} of the masks: fewer than 0.1 % of the pixels ({', '.join(rare[:3])}).",) if rare else ()
    )
    return Section("masks", "Mask classes", join(more, chart), {"pixels": {name: pixels for name, _, pixels, _ in found}}, findings)
