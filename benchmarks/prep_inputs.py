"""The pictures that prep_rates.py works on: photos, many times, and 12-megapixel mosaics of them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import cv2
import numpy as np

MOSAIC = 3000, 4000  # pixels, height and width

Array = np.ndarray[Any, np.dtype[Any]]


def photos(folder: Path, work: Path) -> list[Path]:
    """Copies of the photos of a folder, on the disk that is worked on; generated images where there are none."""
    found = sorted(p for p in folder.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg")) if folder.is_dir() else []
    if not found:
        print(f"WARNING: no photos in {folder}; generated images take their place, whose rates are not those of photos")
    work.mkdir()
    copies = [work / f"{k:04d}.jpg" for k in range(len(found) or 40)]
    for k, copy in enumerate(copies):
        if found:
            shutil.copyfile(found[k], copy)
        else:
            cv2.imwrite(str(copy), _generated(k))
    return copies


def _generated(seed: int) -> Array:
    """Smooth colours with noise: its JPEG is about as large as a photo's."""
    rng = np.random.default_rng(seed)
    shape = (375, 500) if seed % 3 else (500, 375)
    smooth = cv2.resize(rng.integers(0, 256, (9, 12, 3)).astype(np.float32), shape[::-1], interpolation=cv2.INTER_CUBIC)
    return np.clip(smooth + rng.normal(0, 9, (*shape, 3)), 0, 255).astype(np.uint8)


def repeated(files: list[Path], count: int, out: Path) -> list[str]:
    """`count` hard links to the files in 20 class folders, in the order in which fastdata-prep takes them."""
    links = [out / f"class{k % 20:02d}" / f"{k:06d}.jpg" for k in range(count)]
    for k, link in enumerate(links):
        link.parent.mkdir(parents=True, exist_ok=True)
        os.link(files[k % len(files)], link)
    return sorted(map(str, links))


def mosaics(files: list[Path], count: int, out: Path) -> list[Path]:
    """12-megapixel images of photos at their own scale, of some 4 MB."""
    out.mkdir()
    paths = [out / f"{k:03d}.jpg" for k in range(count)]
    for k, path in enumerate(paths):
        cv2.imwrite(str(path), _mosaic(files, k), [cv2.IMWRITE_JPEG_QUALITY, 90])
    return paths


def _mosaic(files: list[Path], seed: int) -> Array:
    rng, out, top = np.random.default_rng(seed), np.zeros((*MOSAIC, 3), np.uint8), 0
    while top < MOSAIC[0]:
        left, row = 0, 10_000
        while left < MOSAIC[1]:
            photo: Any = cv2.imread(str(files[rng.integers(len(files))]))
            part = photo[: MOSAIC[0] - top, : MOSAIC[1] - left]
            out[top : top + part.shape[0], left : left + part.shape[1]] = part
            left, row = left + part.shape[1], min(row, part.shape[0])
        top += row
    return out
