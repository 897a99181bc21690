"""--codec original: JPEG files that need no change keep their bytes."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import fastdata
from fastdata import LMDBDataset
from fastdata.prepare.finish import Summary
from fastdata.store.store import Store
from image_files import saved
from stores import folder, write_files
from support import Array, picture


def jpeg(pixels: Array | Image.Image, **options: Any) -> bytes:
    return saved(pixels, "JPEG", **{"quality": 85, **options})


def turned(orientation: int) -> Any:
    exif = Image.Exif()
    exif[274] = orientation
    return exif


@cache
def files() -> dict[str, bytes]:
    """Names, and whether the bytes stay: those in `k` do, those in `m` are made anew, those in `r` are rejects."""
    small = picture(1, 60, 90)
    return {
        "k/plain.jpg": jpeg(small),
        "k/full.jpg": jpeg(picture(2, 61, 45), subsampling=0),
        "k/half.jpg": jpeg(picture(3, 61, 45), subsampling=1, quality=100),
        "k/progressive.jpg": jpeg(picture(4, 97, 80), progressive=True),
        "k/gray.jpg": jpeg(picture(5, 40, 50)[:, :, 0]),
        "k/noted.jpg": jpeg(small, exif=turned(1), comment=b"by hand", icc_profile=b"profile"),
        "k/rgb.jpg": jpeg(small, keep_rgb=True),
        "k/behind.jpg": jpeg(small) + b"a short film",
        "k/wrong-ending.png": jpeg(picture(6, 40, 50)),
        "k/restarts.jpg": jpeg(picture(7, 80, 96), restart_marker_rows=1),
        "m/turned.jpg": jpeg(small, exif=turned(6)),
        "m/cmyk.jpg": jpeg(Image.fromarray(small).convert("CMYK")),
        "m/no-end.jpg": jpeg(small)[:-2],
        "m/photo.png": saved(small),
        "r/cut.jpg": jpeg(small)[:900],
    }


@cache
def sources() -> Path:
    return write_files(folder() / "in", files())


@cache
def made() -> Summary:
    return fastdata.prep(sources(), folder() / "o.fds", codec="original", workers=1)


def stored(path: Path, size: int | None = None) -> dict[str, bytes]:
    """The record of each sample, by name."""
    store = Store(path)
    reader = store.reader(store.variant(size))
    return {name: bytes(reader.get(k)) for k, name in enumerate(store.names())}


def test_files_that_need_no_change_keep_every_byte() -> None:
    summary, found = made(), stored(made().out)
    assert (summary.kept, summary.rejected) == (14, {"truncated": 1})
    for name, data in files().items():
        if not name.startswith("r"):
            assert (found[name] == data) == name.startswith("k"), name
    assert summary.originals == {"full": 10}


def test_the_samples_are_what_pillow_makes_of_the_files() -> None:
    dataset = LMDBDataset(made().out)
    for k in range(len(dataset)):
        name, (image, _) = dataset.name(k), dataset[k]
        if name.startswith("k"):
            with Image.open(sources() / name) as file:
                assert np.array_equal(image.permute(1, 2, 0), np.asarray(file.convert("RGB"))), name
    shape = {dataset.name(k): tuple(dataset[k][0].shape[1:]) for k in range(len(dataset))}
    assert shape["m/turned.jpg"] == (90, 60)


def test_a_size_keeps_the_images_that_have_it(tmp_path: Path) -> None:
    """Short sides: 60, 61 and so on; what is at most 60 is not resized."""
    summary = fastdata.prep(sources(), tmp_path / "o.fds", codec="original", size=[60, 48], upscale=False, workers=1)
    by_size = {size: {name for name, data in stored(summary.out, size).items() if data == files()[name]} for size in (60, 48)}
    assert by_size[60] == {
        f"k/{n}" for n in ("plain.jpg", "full.jpg", "half.jpg", "gray.jpg", "noted.jpg", "rgb.jpg", "behind.jpg")
    } | {"k/wrong-ending.png"}
    assert by_size[48] == {"k/full.jpg", "k/half.jpg", "k/gray.jpg", "k/wrong-ending.png"}
    assert summary.originals == {"60": len(by_size[60]), "48": len(by_size[48])}
    encoded = fastdata.prep(sources(), tmp_path / "j.fds", size=[60, 48], upscale=False, workers=1)
    for size, kept in by_size.items():
        jpegs, mixed = stored(encoded.out, size), stored(summary.out, size)
        assert all(mixed[name] == jpegs[name] for name in jpegs if name not in kept), "others are encoded as ever"
        assert (np.load(summary.out / f"{size}/index.npy")["length"] == [len(data) for data in mixed.values()]).all()
