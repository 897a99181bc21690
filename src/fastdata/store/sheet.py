"""A contact sheet: evenly spaced samples with their labels, as one PNG."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from fastdata.codec.pixels import decode_record
from fastdata.errors import StoreError
from fastdata.store.store import Store

__all__ = ["draw_sheet"]

Array = np.ndarray[Any, np.dtype[Any]]
TILE, CAPTION, GAP, COLUMNS, ROWS = 144, 20, 8, 8, 6


def draw_sheet(path: str | os.PathLike[str], out: str | os.PathLike[str], *, size: int | None = None) -> int:
    """Draw up to 48 evenly spaced samples of a store, each above its label. Returns how many."""
    store = Store(path)
    count = min(len(store), COLUMNS * ROWS)
    rows = max(1, -(-count // COLUMNS))
    sheet = np.full((rows * (TILE + CAPTION + GAP) + GAP, COLUMNS * (TILE + GAP) + GAP, 3), 255, np.uint8)
    variant = store.variant(size)
    reader = store.reader(variant)
    for place in range(count):
        index = place * len(store) // count
        row = store.samples[index]
        pixels = decode_record(
            reader.get(index), variant.form, int(row[f"{variant.name}/height"]), int(row[f"{variant.name}/width"])
        )
        top, left = (n * step + GAP for n, step in zip(divmod(place, COLUMNS), (TILE + CAPTION + GAP, TILE + GAP), strict=True))
        _paste(sheet[top : top + TILE, left : left + TILE], _rgb8(pixels))
        _caption(sheet[top + TILE : top + TILE + CAPTION, left : left + TILE], _label(store, index))
    ok, data = cv2.imencode(".png", cv2.cvtColor(sheet, cv2.COLOR_RGB2BGR))
    if not ok:
        raise StoreError(f"OpenCV could not encode the sheet for {out}")
    Path(out).write_bytes(data.tobytes())
    return count


def _rgb8(pixels: Array) -> Array:
    small = pixels if pixels.dtype == np.uint8 else (pixels // 257).astype(np.uint8)
    return np.repeat(small, 3, axis=2) if small.shape[2] == 1 else small


def _paste(tile: Array, pixels: Array) -> None:
    """Fit an image into a tile, centred. Small images are enlarged with hard edges, so that their pixels show."""
    scale = TILE / max(pixels.shape[:2])
    height, width = (max(1, round(n * scale)) for n in pixels.shape[:2])
    fitted = cv2.resize(
        np.ascontiguousarray(pixels), (width, height), interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_NEAREST
    )
    top, left = (TILE - height) // 2, (TILE - width) // 2
    tile[top : top + height, left : left + width] = fitted


def _label(store: Store, index: int) -> str:
    labels, label = store.manifest.labels, store.samples["label"][index]
    if labels.kind == "class":
        return labels.names[int(label)] if 0 <= label < len(labels.names) else "?"
    return " ".join(f"{v:.3g}" for v in label) if labels.kind == "vector" else str(index)


def _caption(strip: Array, text: str) -> None:
    ascii_text = text.encode("ascii", "replace").decode()  # OpenCV's built-in font has no other letters
    limit = strip.shape[1] // 8
    short = ascii_text if len(ascii_text) <= limit else ascii_text[: limit - 2] + ".."
    cv2.putText(strip, short, (1, CAPTION - 6), cv2.FONT_HERSHEY_SIMPLEX, 0.42, (40, 40, 40), 1, cv2.LINE_AA)
