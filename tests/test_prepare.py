"""A folder becomes a store: the same bytes everywhere, the pixels of an independent pipeline, and refusals that harm nothing."""

from __future__ import annotations

import functools
import io
import json
import os
import re
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import psutil
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images

from fastdata import prep
from fastdata.errors import FormatError, PrepError, StoreError
from fastdata.images.prepare import ImageRecipe, prepare_image
from fastdata.prepare.spawn import spares
from fastdata.store.store import Store, verify
from fastdata.system.machine import available_cores
from support import PREP, Array, encode, picture, run, shards, tree, write_pictures

# ------------------------------------------------------------------------------------------------------- the same bytes


@pytest.mark.slow
@pytest.mark.parametrize("options", ["--size=96 --size=48", "--codec=rgb --size=40 --gray", "--shard-samples=3 --fields=tag"])
def test_neither_workers_nor_place_change_a_byte(photos: Path, tmp_path: Path, options: str) -> None:
    """Nor does any order of Python's sets."""
    names = sorted(str(path.relative_to(photos)) for path in photos.glob("*/*"))
    rows = [f"{name},{('1', '01', '2', 'b', 'a')[k % 5]},{('x', 'y', 'zz')[k % 3]}" for k, name in enumerate(names)]
    (tmp_path / "in.csv").write_text("\n".join(["path,label,tag", *rows]))
    expected: dict[str, bytes | None] = {}
    for seed, out in enumerate(("one.fds", "elsewhere/two.fds", "elsewhere/three.fds"), 1):
        command = (*PREP, "in.csv", out, "--root", photos, "--workers", seed, *options.split())
        made = run(*command, cwd=tmp_path, env={**os.environ, "PYTHONHASHSEED": str(seed)})
        assert made.returncode == 0 and "56 of 56 images kept, 0 rejected" in made.stdout, made.stderr
        expected = expected or tree(tmp_path / out)
        assert tree(tmp_path / out) == expected
    for name, data in expected.items():
        for secret in (str(tmp_path), "one.fds", str(photos), *([socket.gethostname()] if not name.endswith(".mdb") else [])):
            assert not re.search(rf"\b{re.escape(secret)}\b".encode(), data or b""), f"{name} holds {secret}"
    assert b"workers" not in (expected["manifest.json"] or b"")


def test_a_store_holds_what_its_files_say(photos: Path, tmp_path: Path) -> None:
    """All is read without fastdata's reader: the tables here, the shards by tools/check_format.py."""
    summary = prep(photos, tmp_path / "o.fds", size=(64, 32), workers=2)
    manifest = json.loads((summary.out / "manifest.json").read_bytes())
    samples = np.load(summary.out / "samples.npy")
    names = [json.loads(line) for line in (summary.out / "names.txt").read_text().splitlines()]
    folders = sorted(p.name for p in photos.iterdir())
    expected = [f"{folder}/{p.name}" for folder in folders for p in sorted((photos / folder).iterdir())]
    assert names == expected
    assert manifest["labels"] == {"kind": "class", "names": folders}
    assert samples["label"].tolist() == [folders.index(n.split("/")[0]) for n in names]
    assert samples["source"].tolist() == list(range(56))
    assert manifest["num_samples"] == 56 == sum(manifest["shard_samples"]) and manifest["num_rejects"] == 0
    assert all(np.minimum(samples[f"{size}/height"], samples[f"{size}/width"]).tolist() == [size] * 56 for size in (64, 32))
    assert summary.bytes == sum(path.stat().st_size for path in shards(summary.out))
    checked = run(sys.executable, Path(__file__).parents[1] / "tools/check_format.py", summary.out)
    assert checked.returncode == 0, checked.stdout


# ------------------------------------------------------------------------------------------------------------ refusals


@pytest.fixture
def store(photos: Path, tmp_path: Path) -> Path:
    return prep(photos, tmp_path / "store.fds", size=32, workers=1).out


def test_a_finished_store_is_left_alone(store: Path, photos: Path) -> None:
    states = {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in store.rglob("*")}
    different = {"quality 90, now 95": {"quality": 95}, "sizes 32, now 32,16": {"size": (32, 16)}, "list of inputs": {"limit": 9}}
    for message, changed in different.items():
        with pytest.raises(PrepError, match=rf"(?s){message}.*, overwrite"):
            prep(photos, store, **{"size": 32, "workers": 1, **changed})
    summary = prep(photos, store, size=32, workers=3)
    assert summary.resumed == summary.inputs == 56 and summary.kept == 56
    assert {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in store.rglob("*")} == states


def test_overwrite_replaces_a_damaged_store_and_keeps_what_it_did_not_make(store: Path, photos: Path) -> None:
    for name in ("sheet.png", "32/notes.txt", "my folder/x"):
        (store / name).parent.mkdir(exist_ok=True)
        (store / name).write_bytes(b"mine")
    damaged = (store / "manifest.json").read_bytes().replace(b'"kind"', b'"kond"')
    (store / "manifest.json").write_bytes(damaged)
    with pytest.raises(FormatError, match="damaged"):
        prep(photos, store, size=16)
    prep(photos, store, size=16, overwrite=True, workers=1)
    assert all((store / name).read_bytes() == b"mine" for name in ("sheet.png", "32/notes.txt", "my folder/x"))
    assert Store(store).manifest.variants[0].name == "16" and list(verify(store)) == []


FOREIGN: dict[str, Callable[[Path], Any]] = {
    "a file": lambda out: (out / "thesis.txt").write_text("years of work"),
    "a folder": lambda out: (out / "sub/sub").mkdir(parents=True),
    "a work folder": lambda out: _write(out / "work/important.tmp"),
    "a plan in a work folder": lambda out: _write(out / "work/plan.json", b'{"goal": 1}') or _write(out / "notes"),
    "another manifest": lambda out: _write(out / "manifest.json", b'{"name": "my browser extension"}') or _write(out / "a.js"),
    "numbered folders": lambda out: _write(out / "0/digit.png") or _write(out / "512/shard-00000.mdb"),
    "a link": lambda out: (out / "512").symlink_to(out.parent),
}


def _write(path: Path, data: bytes = b"years of work") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("content", FOREIGN)
def test_somebody_else_s_folder_is_refused_and_untouched(photos: Path, tmp_path: Path, content: str, overwrite: bool) -> None:
    out = tmp_path / "mine"
    out.mkdir()
    FOREIGN[content](out)
    before = tree(out)
    with pytest.raises((PrepError, FormatError)):
        prep(photos, out, size=32, overwrite=overwrite, workers=1)
    assert tree(out) == before


def test_out_in_strange_places(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(photos, tmp_path / "in")
    before = tree(tmp_path / "in")
    (tmp_path / "link").symlink_to(tmp_path / "in")
    for out in ("in", "in/o.fds", "in/ant/o.fds", "link/o.fds", "in/../in/o.fds"):
        with pytest.raises(PrepError, match="lies inside SOURCE"):
            prep(tmp_path / "in", tmp_path / out)
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(PrepError, match="exists and is not a store"):
        prep(tmp_path / "in", tmp_path / "file")
    with pytest.raises(PrepError, match="exists and is not a store"):
        prep(tmp_path / "in", tmp_path)
    with pytest.raises(StoreError, match="cannot write"):
        prep(tmp_path / "in", tmp_path / "file/o.fds")
    assert tree(tmp_path / "in") == before
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    assert prep(Path("..") / "in", size=8, workers=1).out == tmp_path / "cwd" / "in.fds"
    (tmp_path / "empty").mkdir()
    assert prep(tmp_path / "in", tmp_path / "empty", size=8, workers=1).kept == 56


# -------------------------------------------------------------------------------------------------------------- pixels


def _photos() -> list[bytes]:
    images = [*load_sample_images().images, *(picture(k, 375 + 30 * k, 500) for k in range(8))]
    return [encode(image) for image in images]


def _shape(width: int, height: int, size: int, mode: str) -> tuple[int, int]:
    """(width, height) that Pillow is to resize to, as torchvision's _compute_resized_output_size."""
    if mode == "stretch":
        return size, size
    short, long = min(width, height), max(width, height)
    if mode == "long":
        sides = max(1, int(size * short / long)), size
    else:
        sides = size, int(size * long / short)
    return sides if width <= height else sides[::-1]


@functools.lru_cache(maxsize=256)
def _reference(data: bytes, size: int, mode: str) -> Array:
    """Pillow's pixels, from its scaled decode, averaged over exact areas by OpenCV."""
    with Image.open(io.BytesIO(data)) as opened:
        shape = _shape(*opened.size, size, mode)
        opened.draft(None, shape)
        image = np.asarray(opened.convert("RGB"))
    image = cv2.resize(image, shape, interpolation=cv2.INTER_AREA)
    if mode == "crop":
        side = min(size, *shape)
        left, top = (shape[0] - side) // 2, (shape[1] - side) // 2
        image = image[top : top + side, left : left + side]
    return image


def _stored(image: Array, codec: str) -> Array:
    """What Pillow makes of pixels in that codec: a JPEG keeps a quarter of the colours' samples."""
    if codec != "jpeg":
        return image
    out = io.BytesIO()
    Image.fromarray(image).save(out, "JPEG", quality=100, subsampling="4:2:0")
    with Image.open(out) as opened:
        return np.asarray(opened)


def _check_pixels(found: Array, reference: Array, most: float = 2) -> None:
    """Under 2 codes off on average, and least so where it is not shifted."""
    assert found.shape == reference.shape
    a, b = found.astype(float), reference.astype(float)
    height, width = a.shape[:2]
    inner = np.s_[1 : height - 1, 1 : width - 1]
    apart = {
        (dy, dx): np.abs(a[inner] - b[1 + dy : height - 1 + dy, 1 + dx : width - 1 + dx]).mean()
        for dy, dx in ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0))
    }
    assert np.abs(a - b).mean() < most, apart
    assert min(apart, key=lambda shift: apart[shift]) == (0, 0), apart


def _decoded(data: bytes, **options: Any) -> list[Array]:
    chosen = ImageRecipe(**options)
    found = []
    for record in prepare_image(data, chosen):
        if chosen.codec == "rgb":
            found.append(np.frombuffer(record.data, np.uint8).reshape(record.height, record.width, -1))
        else:
            with Image.open(io.BytesIO(record.data)) as opened:
                found.append(np.asarray(opened))
    return found


FINE = [{"codec": "rgb"}, {"codec": "jpeg", "quality": 100}]


@pytest.mark.parametrize("codec", FINE, ids=lambda c: c["codec"])
@pytest.mark.parametrize("mode", ["short", "long", "crop", "stretch"])
@pytest.mark.parametrize("size", [224, 100])  # with and without a decode that is scaled down
def test_photos_are_those_of_pillow(codec: dict[str, Any], mode: str, size: int) -> None:
    for data in _photos():
        (found,) = _decoded(data, sizes=(size,), resize=mode, **codec)
        _check_pixels(found, _stored(_reference(data, size, mode), codec["codec"]))


def test_smaller_images_are_enlarged_and_without_upscale_nothing_grows() -> None:
    data = encode(picture(1, 50, 70), ".png")
    with Image.open(io.BytesIO(data)) as opened:
        for mode, shape in (("short", (140, 100)), ("long", (100, 71)), ("stretch", (100, 100))):
            (found,) = _decoded(data, sizes=(100,), codec="rgb", resize=mode)
            _check_pixels(found, np.asarray(opened.resize(shape, Image.Resampling.BICUBIC)))
        (found,) = _decoded(data, sizes=(100,), codec="rgb", resize="crop")
        assert found.shape == (100, 100, 3)
        for mode, shape in (("short", (50, 70)), ("long", (50, 70)), ("crop", (50, 50)), ("stretch", (50, 70))):
            (found,) = _decoded(data, sizes=(100,), codec="rgb", resize=mode, upscale=False)
            assert found.shape == (*shape, 3)
        (found,) = _decoded(data, sizes=(60,), codec="rgb", resize="stretch", upscale=False)
        assert found.shape == (50, 60, 3)


def test_a_run_takes_the_processes_that_wait_also_dead_ones_and_ends_the_others(tmp_path: Path) -> None:
    write_pictures(tmp_path / "in", 12)
    prep(tmp_path / "in", tmp_path / "plain.fds", workers=1)
    before = {*psutil.Process().children()}
    with spares(None):
        assert 1 <= len({*psutil.Process().children()} - before) <= max(1, available_cores() - 1)
        prep(tmp_path / "in", tmp_path / "a.fds", workers=1)
    with spares(1):
        assert len({*psutil.Process().children()} - before) == 1
    assert {*psutil.Process().children()} == before
    with spares(1):
        (spare,) = {*psutil.Process().children()} - before
        spare.kill()
        prep(tmp_path / "in", tmp_path / "b.fds", workers=1)
    assert {*psutil.Process().children()} == before
    assert tree(tmp_path / "a.fds") == tree(tmp_path / "b.fds") == tree(tmp_path / "plain.fds")
