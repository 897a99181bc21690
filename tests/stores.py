"""Stores that several test files read, and what they were made from."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from PIL import Image

import fastdata
from fastdata.store.store import Store
from support import Array, encode, picture, write_pictures

SIZES = (96, 64)
CLASSES = ("apple", "pear", "plum")
SHAPES = ((70, 120), (130, 75), (101, 101), (64, 200), (97, 96), (150, 110))  # (height, width); some below a size
COUNT = 42
_keep: list[TemporaryDirectory[str]] = []  # removed when the tests' process ends


def folder() -> Path:
    """A new folder that lives as long as the tests."""
    _keep.append(TemporaryDirectory(prefix="fastdata-tests-", dir=os.environ.get("FASTDATA_TESTS")))
    return Path(_keep[-1].name)


def write_files(root: Path, files: Mapping[str, Any]) -> Path:
    """Write files by their names in a folder: text, bytes, or pixels and arrays as the ending says. Return the folder."""
    for name, value in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".npy":
            np.save(path, value)
        else:
            data = value.encode() if isinstance(value, str) else value
            path.write_bytes(data if isinstance(data, bytes) else encode(data, path.suffix))
    return root


@cache
def sources() -> Path:
    """42 PNG files in three class folders of 14, in six shapes."""
    files = {f"{CLASSES[k % 3]}/{k:03d}.png": picture(k, *SHAPES[k % len(SHAPES)]) for k in range(COUNT)}
    return write_files(folder() / "fruit", files)


@cache
def store(codec: str = "rgb", **options: Any) -> Path:
    """A store of `sources()`; by default of the sizes 96 and 64."""
    out = folder() / f"{codec}.fds"
    fastdata.prep(sources(), out, codec=codec, workers=1, **{"size": list(SIZES), **options})
    return out


@cache
def square(codec: str = "rgb") -> Path:
    """A store whose images all are 32 x 32."""
    return store(codec, size=32, resize="crop")


@cache
def unlabelled() -> Path:
    root = folder()
    write_pictures(root / "flat", 5, height=40, width=50)
    return fastdata.prep(root / "flat", root / "flat.fds", size=32, workers=1).out


@cache
def floats() -> Path:
    """A store with two float columns: k / 4 and -k for image k."""
    root = folder()
    write_pictures(root / "flat", 6, height=40, width=50)
    (root / "labels.csv").write_text("path,quarter,minus\n" + "".join(f"{k:02d}.png,{k / 4},{-k}\n" for k in range(6)))
    options = {"size": 32, "labels": root / "labels.csv", "regression": ["quarter", "minus"], "workers": 1}
    return fastdata.prep(root / "flat", root / "floats.fds", **options).out


@cache
def deep() -> Path:
    """A store of 16-bit images."""
    files = {f"a/{k}.png": np.random.default_rng(k).integers(0, 1 << 16, (40 + k, 50, 3), np.uint16) for k in range(6)}
    return fastdata.prep(write_files(folder(), files), folder() / "deep.fds", bits=16, codec="rgb", workers=1).out


@cache
def several() -> Path:
    """A store of a photo in 8 bits and a depth in 16 for each sample."""
    root, photos = folder(), [picture(k, *SHAPES[k]) for k in range(6)]
    write_files(root / "photo", {f"{k}.png": image for k, image in enumerate(photos)})
    depths = {f"{k}.png": image[..., 0].astype(np.uint16) * 251 + image[..., 1] for k, image in enumerate(photos)}
    write_files(root / "depth", depths)
    images = ("photo=photo", "depth=depth:png:16:gray")
    return fastdata.prep(root, folder() / "several.fds", images=images, workers=1).out


@cache
def masked() -> Path:
    """A store of three images, of which image k has a mask of the class k."""
    root = write_files(folder(), {f"in/{k}.png": picture(k, 30, 40) for k in range(3)})
    write_files(root, {f"masks/{k}.png": np.full((30, 40), k, np.uint8) for k in range(3)})
    return fastdata.prep(root / "in", root / "o.fds", masks=root / "masks", workers=1).out


@cache
def tokens() -> Path:
    """A store of the ids 0 to 999, which came without a tokenizer."""
    root = folder()
    np.arange(1000, dtype="<u2").tofile(root / "a.bin")
    return fastdata.prep(root / "a.bin", root / "o.fds", end_token="0", workers=1).out


@cache
def arrays() -> Path:
    """A store of one array, int16 [20, 30, 40], whose values count up from 0."""
    root = write_files(folder(), {"in/a.npy": np.arange(24_000, dtype=np.int16).reshape(20, 30, 40)})
    return fastdata.prep(root / "in", root / "o.fds", workers=1).out


@cache
def masked_arrays() -> Path:
    """A store of 14 arrays of several shapes, int16 [20 + k, 24, 30], with masks of their last digits."""
    root, values = folder(), [np.random.default_rng(k).integers(0, 1000, (20 + k, 24, 30)) for k in range(14)]
    write_files(root / "in", {f"{k:02d}.npy": array.astype(np.int16) for k, array in enumerate(values)})
    write_files(root / "masks", {f"{k:02d}.npy": (array % 10).astype(np.uint8) for k, array in enumerate(values)})
    return fastdata.prep(root / "in", root / "o.fds", masks=root / "masks", chunk=16, workers=1).out


@cache
def table() -> Path:
    """A CSV of ten rows, x from 0 to 9 and the target y = x % 2."""
    path = folder() / "t.csv"
    path.write_text("x,y\n" + "".join(f"{k},{k % 2}\n" for k in range(10)))
    return path


def whole(path: Path, size: int | None = None) -> list[Array]:
    """Every image of a store of codec rgb or jpeg, [H, W, C], read from its records without the datasets."""
    opened = Store(path)
    variant = opened.variant(size)
    reader, rows, name = opened.reader(variant), opened.samples, variant.name
    images = []
    for k in range(len(opened)):
        record = bytes(reader.get(k))
        if variant.form.codec == "jpeg":
            with Image.open(io.BytesIO(record)) as file:
                pixels = np.asarray(file)
        else:
            pixels = np.frombuffer(record, variant.form.dtype)
        images.append(pixels.reshape(int(rows[f"{name}/height"][k]), int(rows[f"{name}/width"][k]), variant.form.channels))
    return images


def sha(batches: Any) -> list[tuple[Any, ...]]:
    """What batches hold, to be compared: ids, valid, position, and the bytes of every tensor."""
    return [
        (b.ids.tolist(), b.valid, tuple(b.position), *(hash(t.contiguous().numpy().tobytes()) for t in b))  # stable in a process
        for b in batches
    ]


def once(ids: Any, n: int) -> bool:
    """Whether the ids are each of 0 .. n-1, once."""
    return Counter(np.concatenate(ids).tolist()) == Counter(range(n))


def script(code: str, *arguments: Any, timeout: float = 100, env: dict[str, str] | None = None) -> Any:
    """Run a file of Python in a process of its own, warnings being errors; returns the JSON of its last line."""
    path = folder() / "script.py"
    path.write_text(code)
    paths = filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH")))
    result = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore:This DataLoader will create", str(path), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **(env or {})},
    )
    assert result.returncode == 0, result.stderr[-4000:] + result.stdout[-1000:]
    return json.loads(result.stdout.splitlines()[-1])
