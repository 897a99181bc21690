"""The sections of a report that only images have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fastdata.errors import CodecError, MissingExtraError
from fastdata.images.drawn_columns import box_legend
from fastdata.images.quality import BLURRED, Look, alike, look_at, perceptual_hash
from fastdata.images.report_columns import column_sections
from fastdata.images.report_pictures import Pictures, hex_color
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
WORST = 8  # pictures of each problem
GROUPS, OF_GROUP = 8, 4  # groups of duplicates, and pictures of each
PIXELS = 2 << 30  # most pixels that are decoded for measuring
LEGEND = 40  # classes in a legend


def image_sections(store: Store, most: int) -> Iterator[Section]:
    """Yield the sections on a store's images. most: how many are measured."""
    pictures = Pictures(store)
    yield samples_section(
        store, pictures.html, switches(masks=pictures.masks, boxes=pictures.shapes), SHOWN // max(1, len(store.manifest.images))
    )
    yield _sizes(store, pictures)
    rows, looks, broken = _measured(store, pictures, most)
    yield _quality(store, pictures, rows, looks, broken)
    yield _duplicates(store, pictures, rows, looks)
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
    chosen = _spread(classes, most // each)
    order = np.argsort(known, kind="stable")
    starts, ends = (np.searchsorted(known[order], chosen, side) for side in ("left", "right"))
    groups: list[tuple[str, int, list[int]]] = []
    for k, start, end in zip(chosen.tolist(), starts.tolist(), ends.tolist(), strict=True):
        name = labels.names[k] if 0 <= k < len(labels.names) else "no class" if labels.kind == "class" else ""
        groups.append((name, end - start, _spread(order[start:end], each).tolist()))
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


def _spread(values: Array, most: int) -> Array:
    """Return at most so many of the values, evenly spaced."""
    return values if len(values) <= most else values[np.arange(most) * len(values) // most]


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
    sizes = store.field(variant, "bytes")
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
    findings = (f"{many(extreme, 'image')} are more than four times as long as wide, or as wide as long.",) if extreme else ()
    size = f" with size {variant.size}" if variant.size else ""
    shapes = len(np.unique(height << 32 | width))
    said = (
        f"All images are {width[0]} × {height[0]} pixels." if shapes == 1 else f"{number(shapes)} different sizes, as stored{size}."
    )
    tile = (f"{span(width)} × {span(height)}", "pixels, width × height")
    return Section(
        "sizes", "Sizes", join(tag("p", said, class_="soft"), tag("div", charts, class_="columns")), facts, findings, (tile,)
    )


def span(values: Array) -> str:
    """Format the range of whole numbers."""
    low, high = int(values.min()), int(values.max())
    return str(low) if low == high else f"{low}–{high}"


def _measured(store: Store, pictures: Pictures, most: int) -> tuple[Array, list[Look], list[int]]:
    """Measure evenly spaced images. Return their numbers, their measures, and the numbers of images that cannot be decoded."""
    height, width = (store.field(pictures.variant, side).astype(np.int64) for side in ("height", "width"))
    fitting = max(1, PIXELS // max(1, int((height * width).mean())))
    rows = _spread(np.arange(len(store)), min(most, fitting))
    hashed = True
    try:
        perceptual_hash(np.zeros((8, 8), np.uint8))
    except MissingExtraError:
        hashed = False
    good, looks, broken = [], [], []
    for row in rows.tolist():
        try:
            looks.append(look_at(pictures.pixels(row), hashed=hashed))
            good.append(row)
        except CodecError:
            broken.append(row)
    return np.array(good, np.int64), looks, broken


def _quality(store: Store, pictures: Pictures, rows: Array, looks: list[Look], broken: list[int]) -> Section:
    sharpness = np.array([look.sharpness for look in looks])
    median = float(np.median(sharpness)) if len(looks) else 0.0
    plain = np.array([look.dark or look.bright or look.flat for look in looks], bool)
    found = {
        "dark": ("nearly black", "95 % of the pixels are below 32 of 255", [k for k, look in enumerate(looks) if look.dark]),
        "bright": ("nearly white", "95 % of the pixels are above 224 of 255", [k for k, look in enumerate(looks) if look.bright]),
        "flat": (
            "of one colour",
            "the standard deviation of the brightness is below 3",
            [k for k, look in enumerate(looks) if look.flat],
        ),
        "blurred": (
            "blurred",
            f"their sharpness is below {share(BLURRED, 1)} of the median",
            [k for k in np.argsort(sharpness, kind="stable").tolist() if sharpness[k] < BLURRED * median and not plain[k]],
        ),
    }
    counts = {name: len(places) for name, (_, _, places) in found.items()}
    measured = f"{number(len(rows))} of {many(len(store), 'image')}" if len(rows) < len(store) else many(len(store), "image")
    findings = [
        f"{counts[key]} of {measured} {'are' if counts[key] > 1 else 'is'} {name}."
        for key, (name, _, _) in found.items()
        if counts[key]
    ]
    if broken:
        findings.append(f"{many(len(broken), 'image')} cannot be decoded, the first is {broken[0]}: run fastdata verify.")
    parts = [
        tag(
            "p",
            f"Measured: {measured}{', evenly spaced' if len(rows) < len(store) else ''}. Sharpness is the variance of the "
            "Laplacian of the brightness, at 256 pixels at most; smooth drawings are low too.",
            class_="soft",
        ),
        tag(
            "div",
            histogram(np.array([look.luma for look in looks]), "Mean brightness, 0 to 255"),
            histogram(sharpness, "Sharpness", log=True),
            class_="columns",
        ),
    ]
    for name, why, places in found.values():
        if places:
            shown = places[:WORST]
            few = f", {WORST} of them" if len(places) > WORST else ""
            parts += [tag("h3", f"{number(len(places))} {name}", tag("small", f" {why}{few}"))]
            parts.append(gallery([pictures.html(int(rows[k])) for k in shown]))
    if not any(counts.values()) and len(looks):
        least = np.argsort(sharpness, kind="stable")[:6].tolist()
        parts += [
            tag("h3", "The least sharp", tag("small", " none of them is flagged")),
            gallery([pictures.html(int(rows[k])) for k in least]),
        ]
    facts: dict[str, Any] = {"measured": len(rows), **counts, "broken": len(broken), "median_sharpness": median}
    facts["rows"] = {key: [int(rows[k]) for k in places] for key, (_, _, places) in found.items()}
    return Section("quality", "Quality", join(parts), facts, tuple(findings))


def _duplicates(store: Store, pictures: Pictures, rows: Array, looks: list[Look]) -> Section:
    sums = store.field(pictures.variant, "xxh3")
    order = np.argsort(sums, kind="stable")
    edges = np.diff(np.concatenate([[0], sums[order][1:] == sums[order][:-1], [0]]))
    runs = zip(np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist(), strict=True)
    equal = [order[start : end + 1].tolist() for start, end in runs]
    equal.sort(key=len, reverse=True)
    twins = {row: group[0] for group in equal for row in group}
    places = [k for k, look in enumerate(looks) if look.hash is not None and twins.get(int(rows[k]), int(rows[k])) == int(rows[k])]
    similar = [[int(rows[places[k]]) for k in group] for group in alike([looks[k].hash or 0 for k in places])]
    extra = sum(len(group) - 1 for group in equal)
    hashed = any(look.hash is not None for look in looks)
    findings = []
    if equal:
        findings.append(f"{many(extra, 'image', 'is')} equal to another one, in {many(len(equal), 'group')}.")
    if similar:
        findings.append(f"{many(len(similar), 'group')} of images that look alike.")
    clash = [group for group in (*equal, *similar) if _differ(store, group)]
    if clash:
        findings.append(
            f"{many(len(clash), 'group')} of equal or similar images {'have' if len(clash) > 1 else 'has'} different labels."
        )
    parts = [tag("p", f"Exact: the checksums of all {number(len(store))} stored records.", class_="soft")]
    parts += _groups(store, pictures, equal, "equal")
    if hashed:
        said = f"Similar: the perceptual hashes (phash) of {number(len(rows))} images differ by at most 4 of 64 bits."
        parts.append(tag("p", said, class_="soft"))
        parts += _groups(store, pictures, similar, "similar")
    else:
        parts.append(tag("p", "Images that only look alike were not searched for: pip install imagehash.", class_="soft"))
    facts = {"equal": equal[:1000], "repeats": extra, "similar": similar[:1000] if hashed else None, "conflicts": len(clash)}
    return Section("duplicates", "Duplicates", join(parts), facts, tuple(findings))


def _differ(store: Store, group: Sequence[int]) -> bool:
    labels = store.samples["label"][group]
    return store.manifest.labels.kind != "none" and bool((labels != labels[:1]).any())


def _groups(store: Store, pictures: Pictures, groups: Sequence[Sequence[int]], what: str) -> list[Html]:
    """Return the first groups of images; those with different labels come first."""
    if not groups:
        return [tag("p", f"No {what} images.")]
    parts = []
    for group in sorted(groups, key=lambda group: not _differ(store, group))[:GROUPS]:
        conflict = _differ(store, group)
        said = (
            f"{len(group)} {what} images"
            + (f", {OF_GROUP} of them" if len(group) > OF_GROUP else "")
            + (" with different labels" if conflict else "")
        )
        heading = tag("h3", said)
        shown = gallery([pictures.html(row) for row in group[:OF_GROUP]])
        parts.append(tag("div", heading, shown, class_="group conflict" if conflict else "group"))
    if len(groups) > GROUPS:
        parts.append(tag("p", f"{number(len(groups) - GROUPS)} more groups of {what} images are not shown.", class_="soft"))
    return parts


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
