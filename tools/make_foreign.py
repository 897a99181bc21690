"""Write small datasets with MosaicML Streaming and LitData, for the tests to read.

    python tools/make_foreign.py tests/data/foreign

Needs mosaicml-streaming and litdata, which install a torch of their own: use an environment other than this project's.
The datasets in tests/data/foreign were written by mosaicml-streaming 0.13.0 and litdata 0.2.76.
"""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

COUNT = 5


def pixels(k: int, height: int = 16) -> Any:
    """Return a smooth image, uint8 [height, 20, 3]."""
    rows, columns = np.arange(height)[:, None, None] * 5, np.arange(20)[None, :, None] * 3
    return (rows + columns + np.array([0, 20, 40]) + 4 * k).astype(np.uint8)


def opened(k: int, kind: str) -> Any:
    """Return an image file opened by Pillow, as a dataset's __getitem__ does."""
    file = io.BytesIO()
    Image.fromarray(pixels(k, 16 + k)).save(file, kind, quality=95)
    return Image.open(file)


def jpeg_bytes(k: int) -> bytes:
    return opened(k, "jpeg").fp.getvalue()


MDS: dict[str, tuple[dict[str, str], Callable[[int], dict[str, Any]], dict[str, Any]]] = {
    "jpeg": (
        {"image": "jpeg", "label": "int", "note": "str"},
        lambda k: {"image": opened(k, "jpeg"), "label": k % 3, "note": f"n{k}"},
        {},
    ),
    "pil": ({"x": "pil", "y": "str"}, lambda k: {"x": Image.fromarray(pixels(k, 16 + k)), "y": f"c{k % 2}"}, {}),
    "array": (
        {"img": "ndarray", "label": "float32", "mask": "ndarray:uint8:16,20"},
        lambda k: {"img": pixels(k), "label": np.float32(k / 2), "mask": pixels(k)[:, :, 0]},
        {},
    ),
    "fixed": ({"image": "ndarray:uint8:16,20,3"}, lambda k: {"image": pixels(k)}, {}),
    "zipped": (
        {"image": "png", "label": "uint8"},
        lambda k: {"image": opened(k, "png"), "label": np.uint8(k)},
        {"compression": "zstd"},
    ),
    "bytes": ({"image": "bytes", "cls": "int64"}, lambda k: {"image": jpeg_bytes(k), "cls": np.int64(k)}, {}),
}


def litdata_dict(k: int) -> dict[str, Any]:
    return {"image": opened(k, "jpeg"), "label": k % 3, "note": f"n{k}"}


def litdata_arrays(k: int) -> tuple[Any, float]:
    return pixels(k), k / 2


def litdata_pil(k: int) -> tuple[Any, str]:
    return Image.fromarray(pixels(k, 16 + k)), f"c{k % 2}"


def make(root: Path) -> None:
    import litdata
    from streaming import MDSWriter

    shutil.rmtree(root, ignore_errors=True)
    for name, (columns, sample, options) in MDS.items():
        with MDSWriter(out=str(root / f"mds-{name}"), columns=columns, size_limit=4000, **options) as writer:
            for k in range(COUNT):
                writer.write(sample(k))
    for function in (litdata_dict, litdata_arrays, litdata_pil):
        out = root / function.__name__.replace("_", "-")
        litdata.optimize(function, list(range(COUNT)), str(out), chunk_size=3, num_workers=1)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
