"""What the benchmarks read: images cut from real photos, as JPEG files and as stores of the same pixels.

Photos: a folder that is given; else those of shared/data, beside or in the checkout; else those that come with scikit-image,
scikit-learn and matplotlib. Regions of half to all of a photo, mirrored at times, a little brighter or darker, become images
of 500 x 375 pixels, so that no two are alike; what they show repeats.
"""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from fastdata.system.machine import available_cores

ROOT = Path(__file__).resolve().parents[2]
SIDES = (375, 500)  # height and width, or the other way round
QUALITY = 95  # about that of photos as they are collected: 100 kB for such an image
SAMPLES = {
    "skimage": ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "hubble_deep_field.jpg", "motorcycle_left.png"),
    "sklearn": ("china.jpg", "flower.jpg"),
    "matplotlib": ("grace_hopper.jpg",),
}

Array = np.ndarray[Any, np.dtype[Any]]


class Inputs:
    """The inputs in a folder.

    Attributes:
        count: images. files: of them, 000000.jpg and so on, plain JPEG (4:2:0).
        store: the same pixels behind the same JPEG quality, made by fastdata-prep; a record's name ends in the file's number.
        raw: a quarter of them, short side 256, as bare pixels.
        about: what they are, in a sentence.
    """

    def __init__(self, work: Path) -> None:
        self.files, self.store, self.raw = (work / name for name in ("files", "photos.fds", "raw.fds"))
        said = json.loads((work / "about.json").read_text())
        self.count, self.about = int(said["count"]), str(said["about"])

    @classmethod
    def at(cls, work: Path, photos: Path | None, *, quick: bool) -> Inputs:
        """Those in a folder, which are made if it has none."""
        if not (work / "about.json").exists():
            make(work, photos, 64 if quick else 4096)
        return cls(work)

    def path(self, number: int) -> Path:
        return self.files / f"{number:06d}.jpg"

    def pixels(self, count: int, side: int) -> Array:
        """Squares from the middle of so many images, over and over if there are fewer: uint8 [count, side, side, 3]."""
        out = np.empty((count, side, side, 3), np.uint8)
        for k in range(min(count, self.count)):
            image: Any = cv2.imread(str(self.path(k)), cv2.IMREAD_COLOR_RGB)
            top, left = ((n - 375) // 2 for n in image.shape[:2])
            out[k] = cv2.resize(image[top : top + 375, left : left + 375], (side, side), interpolation=cv2.INTER_AREA)
        for k in range(self.count, count):
            out[k] = out[k % self.count]
        return out


def find(folder: Path | None) -> tuple[list[Path], str]:
    """Photos, and a word on where they are from."""
    for place in (folder,) if folder else (ROOT.parent / "shared/data/photos", ROOT / "shared/data/photos"):
        if found := sorted(p for p in place.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg", ".png")):
            return found, f"photos of the folder {place.name}"
    specs = {name: importlib.util.find_spec(name) for name in SAMPLES} if folder is None else {}
    roots = [Path(root) for spec in specs.values() if spec for root in spec.submodule_search_locations or ()]
    wanted = {name for names in SAMPLES.values() for name in names}
    if found := sorted(path for root in roots for path in root.rglob("*") if path.name in wanted):
        return found, f"photos that come with {', '.join(name for name, spec in specs.items() if spec)}"
    raise SystemExit(f"no photos in {folder or 'the sample data of ' + ', '.join(SAMPLES)}: give a folder of some with --photos")


def make(work: Path, folder: Path | None, count: int) -> None:
    """Write everything; about.json comes last."""
    import fastdata

    started = time.perf_counter()
    paths, origin = find(folder)
    photos = [photo for photo in (cv2.imread(str(path)) for path in paths) if photo is not None and min(photo.shape[:2]) >= 128]
    for k in range(len(photos)):
        (work / f"source/{k:03d}").mkdir(parents=True, exist_ok=True)
    (work / "files").mkdir(exist_ok=True)
    cv2.setNumThreads(1)
    with ThreadPoolExecutor(available_cores()) as pool:
        sizes = list(pool.map(lambda k: _write(work, photos, k), range(count)))
    fastdata.prep(work / "source", work / "photos.fds", quality=QUALITY)
    fastdata.prep(work / "source", work / "raw.fds", size=256, codec="rgb", limit=count // 4)
    _same_pixels(work)
    about = (
        f"{count:,} images of 500 x 375 pixels and {np.mean(sizes) / 1e3:.0f} kB, regions of {len(photos)} {origin}, mirrored at"
        " times and a little brighter or darker."
    )
    print(f"made in {time.perf_counter() - started:.0f} s")
    (work / "about.json").write_text(json.dumps({"count": count, "about": about}))


def _write(work: Path, photos: Sequence[Array], number: int) -> int:
    """An image of its own, without loss and as a plain JPEG, whose bytes it returns."""
    rng, kind = np.random.default_rng(number), number % len(photos)
    photo = photos[kind]
    height, width = SIDES if photo.shape[0] <= photo.shape[1] else SIDES[::-1]
    scale = min(photo.shape[0] / height, photo.shape[1] / width) * np.sqrt(rng.uniform(0.5, 1))
    h, w = int(height * scale), int(width * scale)
    top, left = rng.integers(photo.shape[0] - h + 1), rng.integers(photo.shape[1] - w + 1)
    part = photo[top : top + h, left : left + w]
    image = cv2.resize(part, (width, height), interpolation=cv2.INTER_AREA if scale > 1 else cv2.INTER_CUBIC)
    image = cv2.convertScaleAbs(image[:, ::-1] if rng.random() < 0.5 else image, alpha=rng.uniform(0.85, 1.15))
    cv2.imwrite(str(work / f"source/{kind:03d}/{number:06d}.png"), image, [cv2.IMWRITE_PNG_COMPRESSION, 1])
    params = [cv2.IMWRITE_JPEG_QUALITY, QUALITY, cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420]
    return (work / f"files/{number:06d}.jpg").write_bytes(cv2.imencode(".jpg", image, params)[1].tobytes())


def _same_pixels(work: Path) -> None:
    """Check, for some images, that a store's record and the plain file decode to the same pixels."""
    from fastdata import LMDBDataset

    dataset = LMDBDataset(work / "photos.fds")
    for k in range(0, len(dataset), len(dataset) // 16):
        image = cv2.imread(str(work / f"files/{Path(dataset.name(k)).stem}.jpg"), cv2.IMREAD_COLOR_RGB)
        if not np.array_equal(dataset[k][0].permute(1, 2, 0).numpy(), image):
            raise SystemExit(f"record {k} and its plain JPEG have different pixels")


if __name__ == "__main__":
    import part

    part.main(lambda setting: part.Result([setting.inputs.about], found={"images": setting.inputs.count}))
