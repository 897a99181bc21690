"""The sections of a report on the quality of images, and on images that are there twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fastdata.errors import CodecError, MissingExtraError
from fastdata.images.quality import BLURRED, Look, alike, look_at, perceptual_hash
from fastdata.images.report_pictures import Pictures, spread
from fastdata.report.charts import histogram, many, number, share
from fastdata.report.html import Html, join, tag
from fastdata.report.page import Section
from fastdata.report.pictures import gallery
from fastdata.store.store import Store

__all__ = ["quality_sections"]

Array = np.ndarray[Any, np.dtype[Any]]

WORST = 8  # pictures of each problem
GROUPS, OF_GROUP = 8, 4  # groups of duplicates, and pictures of each
PIXELS = 2 << 30  # most pixels that are decoded for measuring


class Measured(NamedTuple):
    """Evenly spaced images and their measures.

    Attributes:
        rows: their numbers, int64 [n].
        looks: the measures of each.
        broken: the numbers of those that cannot be decoded.
        hashed: whether there are perceptual hashes.
    """

    rows: Array
    looks: list[Look]
    broken: list[int]
    hashed: bool


def quality_sections(store: Store, pictures: Pictures, most: int) -> Iterator[Section]:
    """Measure at most so many images, and yield the sections on their quality and on duplicates."""
    measured = _measured(store, pictures, most)
    yield _quality(store, pictures, measured)
    yield _duplicates(store, pictures, measured)


def _measured(store: Store, pictures: Pictures, most: int) -> Measured:
    height, width = (store.field(pictures.variant, side).astype(np.int64) for side in ("height", "width"))
    fitting = max(1, PIXELS // max(1, int((height * width).mean())))
    rows = spread(np.arange(len(store)), min(most, fitting))
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
    return Measured(np.array(good, np.int64), looks, broken, hashed)


def _quality(store: Store, pictures: Pictures, measured: Measured) -> Section:
    rows, looks, broken, _ = measured
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
    of = f"{number(len(rows))} of {many(len(store), 'image')}" if len(rows) < len(store) else many(len(store), "image")
    findings = [
        f"{counts[key]} of {of} {'are' if counts[key] > 1 else 'is'} {name}." for key, (name, _, _) in found.items() if counts[key]
    ]
    if broken:
        findings.append(f"{many(len(broken), 'image')} cannot be decoded, the first is {broken[0]}: run fastdata verify.")
    parts = [
        tag(
            "p",
            f"Measured: {of}{', evenly spaced' if len(rows) < len(store) else ''}. Sharpness is the variance of the "
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


def _duplicates(store: Store, pictures: Pictures, measured: Measured) -> Section:
    rows, looks, _, hashed = measured
    sums = store.field(pictures.variant, "xxh3")
    order = np.argsort(sums, kind="stable")
    edges = np.diff(np.concatenate([[0], sums[order][1:] == sums[order][:-1], [0]]))
    runs = zip(np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist(), strict=True)
    equal = [order[start : end + 1].tolist() for start, end in runs]
    equal.sort(key=len, reverse=True)
    _, firsts = np.unique(sums[rows], return_index=True)  # equal images count once
    hashes = {int(rows[k]): found for k in sorted(firsts.tolist()) if (found := looks[k].hash) is not None}
    numbers = list(hashes)
    similar = [[numbers[k] for k in group] for group in alike(list(hashes.values()))]
    extra = sum(len(group) - 1 for group in equal)
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
    facts = {
        "equal": equal[:1000],
        "groups": len(equal),
        "repeats": extra,
        "similar": similar[:1000] if hashed else None,
        "conflicts": len(clash),
    }
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
