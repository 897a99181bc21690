"""Rows and tables of the result."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from entries import ANTIALIASED, OURS, Entry, Work
from process import Contestant

from fastdata.bench.harness import table

HEADERS = [
    "",
    "resizes",
    "images/s",
    "least - greatest",
    "of fastdata",
    "CPU s/1000",
    "memory, MB",
    "1st batch, ms",
    "PSNR, dB",
    "kB",
]


def row_of(entry: Entry, work: Work, contestant: Contestant, row: dict[str, Any]) -> dict[str, Any]:
    """What `summarize` found, with what else is known of a contestant."""
    firsts = [reply["first_ms"] for reply in contestant.replies if "first_ms" in reply]
    return row | {
        "kind": entry.kind,
        "resize": entry.resize if work.train else None,
        "pss_bytes": contestant.pss_bytes,
        "start_s": contestant.start_s,
        "first_batch_ms": median(firsts) if firsts else None,
        "versions": contestant.versions,
    }


def lines_of(result: Mapping[str, Any]) -> list[str]:
    """One work as Markdown."""
    lines = ["", f"## {result['name']}: {result['title']}", ""]
    if result["counts"]:
        lines += ["This row counts: all peers that it needs took part.", ""]
    else:
        lines += [f"THIS ROW DOES NOT COUNT: {', '.join(result['missing'])} did not take part.", ""]
    rows = sorted(result["results"], key=lambda row: -row["images_per_s"]["median"])
    lines += table(HEADERS, [_cells(row) for row in rows])
    lines += [f"\nLeft out: {name}: {why}" for name, why in result["left_out"].items()]
    if sizes := result["bytes_per_image"]:
        share = sizes[OURS] / sizes["plain JPEG"]
        lines += ["", f"Our records have {sizes[OURS]:,.0f} bytes an image, {share:.3f} of plain JPEGs of the same pixels."]
    return lines


def _cells(row: Mapping[str, Any]) -> list[str]:
    rate, ratio, first, psnr = row["images_per_s"], row["ratio"], row["first_batch_ms"], row["psnr"]
    return [
        row["name"],
        row["resize"] or "-",
        f"{rate['median']:,.0f}",
        f"{rate['min']:,.0f} - {rate['max']:,.0f}",
        f"{ratio['median']:.2f}",
        f"{row['cpu_ms_per_image']:.3f}",
        f"{row['pss_bytes'] / 1e6:,.0f}",
        "-" if first is None else f"{first:.0f}",
        "-" if psnr is None else f"{psnr['median']:.1f} ({psnr['least']:.1f})",
        f"{row['bytes_per_image'] / 1e3:.1f}",
    ]


def heading(result: Mapping[str, Any]) -> list[str]:
    """How to read the tables, and the versions."""
    settings = result["settings"]
    versions = {
        f"{name} {number}" for work in result["works"] for row in work["results"] for name, number in row["versions"].items()
    }
    return [
        f"{settings['images']:,} images an epoch, which are {settings['unique']} photos, repeated; {settings['workers']} workers or"
        f" threads, batches of {settings['batch']}, uint8, shuffled, page cache warm.",
        "",
        f"Contestants take turns in {settings['rounds']} rounds of one epoch each, after one that is not counted; idle ones are"
        " stopped. Rates are medians; \"of fastdata\" is the median of the ratios within the rounds. CPU and memory (PSS, in the"
        " uncounted epoch) are those of all processes of a contestant; FFCV, LitData and fastdata map their files, which counts."
        " PSNR is the median (least) of at least 200 images against Pillow's crop, antialiased, of the decoded JPEG, for the same"
        " boxes. kB: on disk, an image.",
        "",
        f"A crop that shrinks loses to aliasing what is not \"{ANTIALIASED}\" or an area average. What a contestant makes ahead"
        " between two epochs (fastdata, DALI, tf.data) it makes in its own time: it is stopped when its epoch ends.",
        "",
        "DALI, tf.data (in training) and fastdata decode no more than the box needs, the others whole images. tf.data, FFCV and"
        " fast=True use libjpeg's fast transform, 45 dB from the exact one. Where no PSNR stands, a peer takes no boxes.",
        "",
        f"Versions of the contestants: {', '.join(sorted(versions))}.",
    ]  # fmt: skip
