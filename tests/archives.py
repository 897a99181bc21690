"""What the tests of archives and tables share: how they are written, and the pixels that a list of inputs stands for."""

from __future__ import annotations

import csv
import io
import json
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fastdata.codecs.decode import SourceImage
from fastdata.errors import CodecError
from fastdata.sources.base import read_source, release
from fastdata.sources.inputs import SourceList
from fastdata.sources.listing import list_sources
from support import Array, encode, picture


def png(seed: int, height: int = 9, width: int = 12) -> tuple[Array, bytes]:
    """Pixels and their file."""
    pixels = picture(seed, height, width)
    return pixels, encode(pixels, ".png")


def write_tar(path: Path, members: Iterable[tuple[str | tarfile.TarInfo, bytes]], **options: Any) -> Path:
    """A tar by Python's tarfile, of names, or headers, and bytes."""
    with tarfile.open(path, "w", **options) as tar:
        for name, data in members:
            header = tarfile.TarInfo(name) if isinstance(name, str) else name
            if header.isreg():
                header.size = len(data)
            tar.addfile(header, io.BytesIO(data))
    return path


def write_table(path: Path, rows: list[dict[str, Any]]) -> Path:
    """A CSV, JSONL or Parquet, as its name says. None is an empty cell."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        with path.open("w", encoding="utf-8", newline="") as file:
            cells = ([json.dumps(cell) if isinstance(cell, dict) else cell for cell in row.values()] for row in rows)
            csv.writer(file).writerows([rows[0], *cells])
    return path


def pixels_of(found: SourceList, k: int) -> Array:
    """What the decoder makes of an input."""
    return SourceImage(read_source(found.root, found.sources[k])).decode()


def all_pixels(source: Any) -> list[Array]:
    found = list_sources(source)
    try:
        return [pixels_of(found, k) for k in range(len(found.sources))]
    finally:
        release()


def problems(found: SourceList) -> list[str]:
    """The reason for which each input is rejected, "" for one that is read."""
    reasons = []
    for source in found.sources:
        reason = source.problem
        if not reason:
            try:
                SourceImage(read_source(found.root, source)).decode()
            except CodecError as error:
                reason = error.reason
        reasons.append(reason)
    release()
    return reasons


def equal(found: list[Array], wanted: Iterable[Array]) -> None:
    """Raise unless the pixels are the same; grey ones stand for three equal channels."""
    wanted = list(wanted)
    assert len(found) == len(wanted)
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(got, np.dstack([want] * 3) if want.ndim == 2 else want)
