"""The memory that JPEGs are decoded into begins at 40 modulo 64, in every caller: libjpeg-turbo is slow at multiples of 32."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg

import fastdata
from fastdata.images.prepare import ImageRecipe, prepare_image
from fastdata.prepare.build_plan import build_plan
from fastdata.prepare.run import for_workers
from fastdata.prepare.worker import ProgressReport, ShardTask, make_shard
from fastdata.report.drawing import draw_sheet
from support import encode, picture, write_pictures


def prepare(photos: Path, out: Path, **options: Any) -> None:
    """What a worker does, in this process."""
    work = build_plan(photos, out, **options)
    (out / "work").mkdir(parents=True)
    make_shard(for_workers(work, 1), ShardTask(0, 0, work.plan.shard(0), {}), ProgressReport([0] * 4))


def read(store: Path, crop: fastdata.Crop) -> None:
    dataset = fastdata.LMDBDataset(store, crop=crop)
    _ = [dataset[k] for k in range(6)], list(fastdata.Loader(dataset, batch_size=3))


CALLERS: dict[str, Callable[[Path, Path, Path], Any]] = {
    "random crops": lambda store, photos, out: read(store, fastdata.RandomResizedCrop(32)),
    "whole images": lambda store, photos, out: read(store, fastdata.Resize((32, 32))),
    "centre crops": lambda store, photos, out: read(store, fastdata.CenterCrop(64)),
    "images in memory": lambda store, photos, out: fastdata.RAMDataset(store, crop=fastdata.CenterCrop(64))[0],
    "files in memory": lambda store, photos, out: fastdata.RAMDataset(sorted(photos.iterdir()), crop=fastdata.CenterCrop(64))[0],
    "sheet": lambda store, photos, out: draw_sheet(store, out / "sheet.png"),
    "prepare": lambda store, photos, out: prepare(photos, out / "new.fds", size=64),
    "prepare original": lambda store, photos, out: prepare(photos, out / "new.fds", codec="original"),
    "prepare alone": lambda store, photos, out: prepare_image(encode(picture(0, 90, 110)), ImageRecipe(sizes=(64,))),
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("buffers") / "photos"
    write_pictures(folder, 6, height=150, width=180, ending=".jpg")
    return folder


@pytest.fixture(scope="module")
def store(photos: Path) -> Path:
    return fastdata.prep(photos, photos.parent / "photos.fds", size=100, workers=1).out


@pytest.fixture
def addresses(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The address, modulo 64, of each buffer that a JPEG is decoded into from here on."""
    decode, found = simplejpeg.decode_jpeg, list[int]()

    def spied(*args: Any, buffer: Any = None, **options: Any) -> Any:
        assert buffer is not None, "simplejpeg would allocate it"
        found.append(np.frombuffer(buffer, np.uint8).ctypes.data % 64)
        return decode(*args, buffer=buffer, **options)

    monkeypatch.setattr(simplejpeg, "decode_jpeg", spied)
    return found


@pytest.mark.parametrize("caller", CALLERS)
def test_every_buffer_begins_at_40(caller: str, store: Path, photos: Path, tmp_path: Path, addresses: list[int]) -> None:
    CALLERS[caller](store, photos, tmp_path)
    assert set(addresses) == {40}
