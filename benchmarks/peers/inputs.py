"""What the contestants read: the same pixels as files, as stores of fastdata, and in the formats of the peers.

Photos are prepared once without compression. Those pixels are encoded by cv2 (quality 90, 4:2:0) for the peers, and `fastdata-prep`
encodes them likewise: the harness checks that both decode to the same pixels. Photos with a smaller short side are enlarged.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from contestant import TOKENS, Spec, caption, random_box
from entries import OURS, SIDE, Entry, Work
from process import Failed, without_paths

from fastdata import LMDBDataset
from fastdata.store.store import Store

sys.path.append(str(Path(__file__).resolve().parents[1]))
from prep_inputs import photos

QUALITY = 90

Array = np.ndarray[Any, np.dtype[Any]]


class Inputs:
    """Makes them when they are asked for, in the folder `work`.

    Attributes:
        count: images, a multiple of batch * workers, so that every peer's epoch is made of full batches.
    """

    def __init__(self, folder: Path, work: Path, count: int, batch: int, workers: int) -> None:
        step = batch * workers
        self.work, self.count, self.batch, self.workers = work, -(-count // step) * step, batch, workers
        found = photos(folder, work / "unique")
        self.unique = min(len(found), self.count)
        (work / "repeated").mkdir()
        for k in range(self.count):
            os.link(found[k % self.unique], work / "repeated" / f"{k:06d}.jpg")

    def spec(self, entry: Entry, work: Work, seed: int = 0) -> Spec:
        """What a contestant is told; makes nothing."""
        what = "-raw" * work.raw + "-captions" * work.captions
        files, store = self.work / f"files-{work.size}", self.work / f"{entry.program}-{work.size}{what}"
        if entry.env is None:
            store = self.work / f"store-{_codec(entry, work)}-{work.size}{'-captions' * work.captions}.fds"
        return Spec(
            variant=entry.variant,
            train=work.train,
            raw=work.raw,
            count=self.count,
            size=work.size,
            side=SIDE,
            batch=self.batch,
            workers=self.workers,
            seed=seed,
            captions=work.captions,
            files=str(files),
            pixels=str(self.work / f"pixels-{work.size}"),
            store=str(store),
        )

    def make(self, entry: Entry, work: Work, python: Path) -> Spec:
        """What an entry needs for a work.

        Raises:
            Failed: the peer can't store it.
        """
        spec = self.spec(entry, work)
        self.files(work.size)
        if entry.env is None:
            self.store(_codec(entry, work), work.size, captions=work.captions)
        elif not Path(spec.store).exists():
            written = self.work / "prepare.json"
            written.write_text(json.dumps(asdict(spec)))
            done = subprocess.run([python, program(entry), "prepare", written], capture_output=True, text=True)
            if done.returncode:
                raise Failed(f"prepare: {without_paths((done.stderr.strip().splitlines() or ['?'])[-1])}")
        return spec

    @cache  # noqa: B019  # lives as long as the program
    def store(self, codec: str, size: int, source: str = "repeated", *, captions: bool = False) -> Path:
        """A store of fastdata, whose row k is image k."""
        out = self.work / f"{'store' if source == 'repeated' else source}-{codec}-{size}{'-captions' * captions}.fds"
        options = ["--size", str(size), "--codec", codec, "--workers", str(self.workers)]
        options += ["--quality", str(QUALITY)] * codec.startswith("jpeg")
        folder = self.work / source
        if captions:
            options += ["--fields", f"tokens:uint16[{TOKENS}]", "--fields", "number:int64", "--label-column", "none"]
            folder = self._captions(folder)
        subprocess.run([sys.executable, "-m", "fastdata", "prep", folder, out, *options], check=True, capture_output=True)
        names = Store(out).names()
        if names != sorted(names):
            sys.exit(f"{out.name}: rows are not in the order of the files")
        return out

    def _captions(self, folder: Path) -> Path:
        """A table of all images with their captions and numbers."""
        table = self.work / "captions.csv"
        with table.open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["path", "tokens", "number"])
            rows.writerows([f"{folder.name}/{k:06d}.jpg", json.dumps(caption(k).tolist()), k] for k in range(self.count))
        return table

    @cache  # noqa: B019
    def files(self, size: int) -> None:
        """Plain JPEG files of all images, and the pixels behind them of the unique ones."""
        dataset = LMDBDataset(self.store("rgb", size, "unique"))
        pixels, files = self.work / f"pixels-{size}", self.work / f"files-{size}"
        pixels.mkdir()
        files.mkdir()
        for k in range(self.unique):
            image = np.ascontiguousarray(dataset[k][0].permute(1, 2, 0).numpy())
            if min(image.shape[:2]) != size:
                sys.exit(f"photo {k} has {image.shape[:2]} pixels instead of a short side of {size}")
            np.save(pixels / f"{k:06d}.npy", image)
            data = plain_jpeg(image)
            for j in range(k, self.count, self.unique):
                (files / f"{j:06d}.jpg").write_bytes(data)

    def same_pixels(self, size: int) -> dict[str, float]:
        """Check that our records and the files decode to the same pixels.

        Returns:
            Bytes per image of both.
        """
        dataset, ours, theirs = LMDBDataset(self.store("jpeg", size)), 0, 0
        for k in range(self.unique):
            record, file = bytes(dataset._images.get(k)), (self.work / f"files-{size}/{k:06d}.jpg").read_bytes()
            a, b = (cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB) for data in (record, file))
            if a is None or b is None or not np.array_equal(a, b):
                sys.exit(f"image {k} of short side {size}: our record and the plain JPEG have different pixels")
            ours, theirs = ours + len(record), theirs + len(file)
        return {OURS: ours / self.unique, "plain JPEG": theirs / self.unique}

    def bytes_per_image(self, entry: Entry, spec: Spec) -> float:
        """What the entry has on disk for an image."""
        if entry.program in ("fastdata", "bare"):
            dataset = LMDBDataset(spec.store)
            return float(np.mean([len(dataset._images.get(k)) for k in range(self.unique)]))
        path = Path(spec.store if entry.env and Path(spec.store).exists() else spec.files)
        files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
        return sum(p.stat().st_size for p in files) / self.count


def _codec(entry: Entry, work: Work) -> str:
    return entry.codec or ("rgb" if work.raw else "jpeg")


def plain_jpeg(image: Array) -> bytes:
    """As most programs write one: no restart markers, standard tables."""
    params = [
        *(cv2.IMWRITE_JPEG_QUALITY, QUALITY),
        *(cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420),
    ]
    return bytes(cv2.imencode(".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), params)[1])


def program(entry: Entry) -> Path:
    return Path(__file__).resolve().parent / f"peer_{entry.program}.py"


def with_boxes(spec: Spec, path: Path) -> Spec:
    """The same work with boxes that are given: those of torchvision's RandomResizedCrop, drawn beforehand."""
    sides = [np.load(file, mmap_mode="r").shape[:2] for file in sorted(Path(spec.pixels).glob("*.npy"))]
    boxes = [random_box(*sides[k % len(sides)], spec.scale, spec.ratio) for k in range(spec.count)]
    np.save(path, np.array(boxes, np.int64))
    return replace(spec, boxes=str(path))
