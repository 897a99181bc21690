"""What the contestants deliver, looked at outside the timed region."""

from __future__ import annotations

import io
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from contestant import Spec
from entries import SIDE, Entry, Work
from inputs import program, with_boxes
from PIL import Image
from process import Contestant, Failed

WRONG_DB = 20.0  # below, these are other pixels; plain bilinear is above, aliasing and all

Array = np.ndarray[Any, np.dtype[Any]]


def reply(found: dict[str, Any], count: int, *, captions: bool) -> None:
    """Raise Failed unless an epoch was every sample once, as uint8 of the right shape, with its caption if there are some."""
    if sorted(found["shape"]) != sorted([3, SIDE, SIDE]) or found["dtype"] != "uint8":
        raise Failed(f"WRONG OUTPUT: {found['dtype']} {found['shape']}")
    if not found["once"] or found["images"] != count:
        raise Failed(f"WRONG OUTPUT: {found['images']} images, which are not each of {count} once")
    if captions and not found["captions"]:
        raise Failed("WRONG OUTPUT: the tokens are not those of the images")


def pixels(entry: Entry, work: Work, spec: Spec, python: Path, folder: Path) -> dict[str, Any] | None:
    """Run a contestant on given boxes, and compare its first images with Pillow's; None: it takes no boxes.

    Raises:
        Failed: they are wrong.
    """
    if entry.kind == "limit":
        return None
    written, out = folder / "check.json", folder / "check.npz"
    spec = with_boxes(spec, folder / "boxes.npy") if work.train and entry.env != "ffcv" else spec
    written.write_text(json.dumps(asdict(spec)))
    contestant = Contestant(python, program(entry), written, folder / "check.log")
    try:
        reply(contestant.ask(f"check {out}"), spec.count, captions=entry.says_captions(work))
    finally:
        contestant.close()
    with np.load(out) as found:
        kept = {name: found[name] for name in found.files}
    out.unlink()
    if work.train and "boxes" not in kept:
        return None
    images = kept["images"].transpose(0, 2, 3, 1) if kept["images"].shape[1] == 3 else kept["images"]
    boxes = kept["boxes"] if work.train else [None] * len(images)
    values = [
        max(psnr(image, other) for other in wanted(spec, int(k), box))
        for image, k, box in zip(images, kept["numbers"], boxes, strict=True)
    ]
    if np.median(values) < WRONG_DB:
        raise Failed(f"WRONG OUTPUT: {np.median(values):.1f} dB PSNR against Pillow")
    return {"images": len(values), "median": float(np.median(values)), "least": min(values)}


def wanted(spec: Spec, number: int, box: Array | None) -> list[Array]:
    """What Pillow makes of the decoded image: a crop, and an antialiased bilinear resize.

    Without a box, the centre: where it lies between two pixels, either is right.
    """
    if spec.raw:
        stored = sorted(Path(spec.pixels).glob("*.npy"))
        image = Image.fromarray(np.load(stored[number % len(stored)]))
    else:
        image = Image.open(io.BytesIO((Path(spec.files) / f"{number:06d}.jpg").read_bytes())).convert("RGB")
    side = spec.side, spec.side
    if box is not None:
        top, left, h, w = map(int, box)
        part = image.crop((left, top, left + w, top + h))
        return [np.asarray(part if part.size == side else part.resize(side, Image.Resampling.BILINEAR))]
    rows, columns = ({(n - spec.side) // 2, (n - spec.side + 1) // 2} for n in (image.height, image.width))
    return [np.asarray(image.crop((x, y, x + spec.side, y + spec.side))) for y in rows for x in columns]


def psnr(a: Array, b: Array) -> float:
    """In dB; 99 for equal pixels."""
    error = float(np.mean((a.astype(np.float64) - b) ** 2))
    return min(99.0, 10 * math.log10(255**2 / max(error, 1e-12)))
