"""Write the golden store: a tiny store of generated images, with which a test checks that the format's bytes do not change.

    python tools/make_golden.py tests/data/golden.fds

It holds raw pixels that are never resized, which no version of a codec or of a resize filter can change. Run this again only when
the format changes on purpose, which makes a new format version.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

from fastdata import prep

SPARE = 220_000  # zeros after the pixels, which every reader ignores: so much input makes two shards


def write_inputs(root: Path) -> None:
    """Write 20 small PPM images in two classes, with various names, and two files that are not images."""
    rng = np.random.Generator(np.random.PCG64(7))
    for k in range(20):
        height, width = 3 + k % 5, 4 + k % 7
        pixels = rng.integers(0, 256, height * width * 3, np.uint8).tobytes()
        name = ("plain", "with space", "new\nline", "é🦊", "b\udcff")[k % 5]
        folder = root / ("zebra", "ant hill")[k % 2]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}-{k:02d}.ppm").write_bytes(b"P6 %d %d 255\n" % (width, height) + pixels + bytes(SPARE))
    (root / "zebra" / "empty.png").write_bytes(b"")
    (root / "zebra" / "text.jpg").write_bytes(b"no image")


def make(out: Path) -> None:
    """Make the store: two variants, both of the images' own size, since none is enlarged."""
    with tempfile.TemporaryDirectory() as folder:
        write_inputs(Path(folder) / "in")
        prep(Path(folder) / "in", out, size=(64, 32), upscale=False, codec="rgb", workers=1, overwrite=True)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
