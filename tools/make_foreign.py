"""Write small datasets with MosaicML Streaming and LitData, for the tests to read.

    python tools/make_foreign.py tests/data/foreign

Needs mosaicml-streaming and litdata, which install a torch of their own: use an environment other than this project's.
The datasets in tests/data/foreign were written by mosaicml-streaming 0.13.0 and litdata 0.2.76.
"""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

COUNT = 5


def opened(k: int, kind: str = "jpeg") -> Any:
    """Return an image file opened by Pillow, as a dataset's __getitem__ does: smooth, of 20 x (16 + k) pixels."""
    rows, columns = np.arange(16 + k)[:, None, None] * 5, np.arange(20)[None, :, None] * 3
    file = io.BytesIO()
    Image.fromarray((rows + columns + np.array([0, 20, 40]) + 4 * k).astype(np.uint8)).save(file, kind, quality=95)
    return Image.open(file)


def dictionary(k: int) -> dict[str, Any]:
    return {"image": opened(k), "label": k % 3, "note": f"n{k}"}


def pair(k: int) -> tuple[Any, float]:
    return opened(k), k / 2


def zipped(k: int) -> dict[str, Any]:
    return {"image": opened(k, "png"), "label": np.uint8(k)}


def as_bytes(k: int) -> dict[str, Any]:
    return {"image": opened(k).fp.getvalue(), "cls": np.int64(k)}


def make(root: Path) -> None:
    import litdata
    from streaming import MDSWriter

    shutil.rmtree(root, ignore_errors=True)
    for name, sample, columns, options in (
        ("jpeg", dictionary, {"image": "jpeg", "label": "int", "note": "str"}, {}),
        ("bytes", as_bytes, {"image": "bytes", "cls": "int64"}, {"size_limit": 2500}),
        ("zipped", zipped, {"image": "png", "label": "uint8"}, {"compression": "zstd"}),
    ):
        with MDSWriter(out=str(root / f"mds-{name}"), columns=columns, **{"size_limit": 4000, **options}) as writer:
            for k in range(COUNT):
                writer.write(sample(k))
    for name, function in (("dict", dictionary), ("pair", pair)):
        litdata.optimize(function, list(range(COUNT)), str(root / f"litdata-{name}"), chunk_size=3, num_workers=1)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
