"""Read the images of other projects' test suites beside Pillow, and write benchmarks/results/real-files.md.

    git clone --depth 1 https://github.com/python-pillow/Pillow suites/pillow     # and others: the page names the collections
    python tools/real_files.py suites/*

Each argument is a collection: a tar archive or a folder. Each file in it that Pillow or fastdata takes for an image, or that is
named like one, is read by both, in another process, which may crash or hang. A file that occurs twice counts once. Needs the extra
`formats`. Exits with 1 if a difference has no reason in REASONS.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import sys
import tarfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "benchmarks" / "results" / "real-files.md"
NAMED = re.compile(
    r"\.(png|jpe?g|jfif|webp|tiff?|gif|bmp|dib|jp2|j2[kc]|jp[xcf]|avifs?|hei[cf]|hif|jxl|psd|p[pgbn]m|qoi|sgi|ras|rgb|bw|sun|msp)$",
    re.IGNORECASE,
)
TEXTS = re.compile(r"\.(py|pyi|c|h|cc|cpp|hpp|cxx|rs|go|php|phpt|js|txt|md|rst|html|xml|json|cmake|sh|am|in)$")
LARGEST = 1 << 26  # bytes of a file
PIXELS = 1 << 25
SECONDS = 30.0  # for a file, both ways
TOLERANCE = 2  # codes: Pillow rounds transparency and inks otherwise, and cuts 16 bits to 8 where fastdata rounds
LIBRARIES = ("pillow", "opencv-python-headless", "simplejpeg", "tifffile", "imagecodecs", "pillow-heif", "pillow-jxl-plugin")
REASONS = (
    (r"\.gif$", "the part of the screen that the first frame leaves free is transparent, so white here; Pillow shows a colour"),
    (r"xmp_tags_orientation|imagemagick_orientation", "an orientation in XMP, or in a PNG's text, is ignored (docs/inputs.md)"),
    (r"planar-16\.tif$", "Pillow misreads planes of 16 bits; tifffile, which is used here, does not"),
    (r"gray-[24].*tRNS\.png$", "Pillow compares the transparent level with levels that it has scaled to 8 bits"),
    (r"i_trns\.png$", "Pillow drops the transparent level of 16-bit grey"),
    (r"rgb32bf-abgr\.bmp$", "alpha that is zero everywhere is ignored"),
)
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Seen:
    """What became of a file.

    Attributes:
        suite, name: the collection, and the file's name in it.
        format: as fastdata calls it, else Pillow's name, or the name's ending.
        result: equal, near, differs, rejected (by fastdata only), more (read by fastdata only), neither, or lost (no answer).
        what: the difference or the reason.
    """

    suite: str
    name: str
    format: str
    result: str
    what: str = ""


def by_fastdata(data: bytes) -> tuple[str, Array | str, str]:
    """Return the format, the pixels or the reason, and the message."""
    from fastdata.codecs.decode import SourceImage
    from fastdata.errors import CodecError

    name = ""
    try:
        source = SourceImage(data, max_pixels=PIXELS)
        name = source.header.format
        return name, source.decode(), ""
    except CodecError as error:
        return name, error.reason, str(error)


def by_pillow(data: bytes) -> tuple[str, Array | str]:
    """Return Pillow's name of the format, and upright RGB on white, or the error."""
    import pillow_heif
    import pillow_jxl  # noqa: F401
    from PIL import Image, ImageOps

    pillow_heif.register_heif_opener()
    warnings.simplefilter("ignore")
    Image.MAX_IMAGE_PIXELS = None
    name = ""
    try:
        with Image.open(io.BytesIO(data)) as image:
            name = (image.format or "").lower()
            if image.width * image.height > PIXELS:
                return name, "too-large"
            image.load()
            return name, _rgb(ImageOps.exif_transpose(image))
    except Exception as error:  # noqa: BLE001  plugins raise nearly every kind
        return name, f"{type(error).__name__}: {error}"


def _rgb(image: Any) -> Array:
    from PIL import Image

    if image.mode.startswith("I;16") or image.mode == "I":
        gray = (np.clip(np.asarray(image).astype(np.int64), 0, 65535) + 128) // 257
        return np.repeat(gray.astype(np.uint8)[..., None], 3, 2)
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), rgba)
    return np.asarray(image.convert("RGB"))


def compare(suite: str, name: str, data: bytes) -> Seen | None:
    """Read a file both ways; None: it is no image."""
    ours, pixels, message = by_fastdata(data)
    theirs, reference = by_pillow(data)
    kind = ours or theirs
    if isinstance(pixels, str) and isinstance(reference, str):
        if not (kind or NAMED.search(name)):
            return None
        return Seen(suite, name, kind or name.rpartition(".")[2].lower(), "neither", pixels)
    if isinstance(pixels, str):
        return Seen(suite, name, kind, "rejected", f"{pixels}: {message.removesuffix('; convert it to ordinary PNG or JPEG')}")
    if isinstance(reference, str):
        return Seen(suite, name, kind, "more", reference[:100])
    if pixels.shape != reference.shape:
        return Seen(suite, name, kind, "differs", f"{pixels.shape[:2]}, Pillow {reference.shape[:2]}")
    apart = np.abs(pixels.astype(int) - reference)
    most = int(apart.max())
    if most <= TOLERANCE:
        return Seen(suite, name, kind, "near" if most else "equal", str(most))
    part = (apart.max(2) > TOLERANCE).mean()
    return Seen(suite, name, kind, "differs", f"up to {most}, {part:.1%} of pixels by more than {TOLERANCE}")


def files(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the bytes of each file of a collection."""
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            if file.is_file() and 0 < file.stat().st_size <= LARGEST:
                yield str(file.relative_to(path)), file.read_bytes()
        return
    with tarfile.open(path) as archive:
        for member in archive:
            if member.isfile() and 0 < member.size <= LARGEST:
                yield member.name.partition("/")[2], archive.extractfile(member).read()  # type: ignore[union-attr]


def examine(path: Path, claim: Callable[[bytes], bool]) -> list[Seen]:
    """Compare the files of a collection that nobody has claimed."""
    found = []
    pool = ProcessPoolExecutor(1)
    for name, data in files(path):
        if TEXTS.search(name) or not claim(data):
            continue
        try:
            seen = pool.submit(compare, path.name, name, data).result(SECONDS)
        except (TimeoutError, BrokenProcessPool) as error:
            for process in list(pool._processes.values()):
                process.kill()
            pool.shutdown(wait=False, cancel_futures=True)
            pool = ProcessPoolExecutor(1)
            what = "a reader took the process down" if isinstance(error, BrokenProcessPool) else f"no answer in {SECONDS:.0f} s"
            seen = Seen(path.name, name, name.rpartition(".")[2].lower(), "lost", what)
        if seen is not None:
            found.append(seen)
    pool.shutdown()
    print(path.name, dict(Counter(seen.result for seen in found)), flush=True)
    return found


def reason_of(seen: Seen) -> str:
    return next((reason for pattern, reason in REASONS if re.search(pattern, seen.name)), "**unexplained**")


def table(head: str, rows: dict[str, list[Seen]]) -> Iterator[str]:
    """Yield a table that counts the results of each row."""
    results = ("equal", "near", "differs", "rejected", "more", "neither", "lost")
    yield f"| {head} | files | equal | within {TOLERANCE} | differs | only Pillow | only fastdata | neither | no answer |"
    yield "|---|" + "--:|" * (len(results) + 1)
    for name, seen in sorted(rows.items()):
        counts = Counter(each.result for each in seen)
        yield f"| {name} | {len(seen)} | " + " | ".join(f"{counts[result] or ''}" for result in results) + " |"


def page(found: Sequence[Seen]) -> Iterator[str]:
    """Yield the lines of benchmarks/results/real-files.md."""
    used = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    yield from ("# Real files", "")
    yield "The images of other projects' test suites, many of them broken on purpose, read by fastdata and by Pillow, with 8 bits,"
    yield f"on white. A pixel may differ by {TOLERANCE} codes: Pillow rounds transparency and inks otherwise, and cuts 16 bits to 8"
    yield f"where fastdata rounds. Made by `python tools/real_files.py`, with {used}."
    yield from ("", "## By collection", "")
    yield from table("collection", grouped(found, lambda seen: re.sub(r"(\.orig)?\.tar(\.\w+)?$", "", seen.suite)))
    yield from ("", "## By format", "")
    yield from table("format", grouped(found, lambda seen: seen.format))
    yield from ("", "## Where pixels differ", "", "| file | difference | reason |", "|---|---|---|")
    yield from (f"| {shown(seen)} | {seen.what} | {reason_of(seen)} |" for seen in found if seen.result == "differs")
    yield from ("", "## What only Pillow reads", "", "| files | format | fastdata says |", "|--:|---|---|")
    rejected = Counter((seen.format, seen.what) for seen in found if seen.result == "rejected")
    yield from (f"| {count} | {kind} | {what} |" for (kind, what), count in sorted(rejected.items()))
    yield from ("", "## What only fastdata reads", "", "| file | Pillow says |", "|---|---|")
    yield from (f"| {shown(seen)} | {seen.what} |" for seen in found if seen.result == "more")
    lost = [f"{shown(seen)}: {seen.what}" for seen in found if seen.result == "lost"]
    yield from ("", "## Without an answer", "", "; ".join(lost) or "None.", "")


def grouped(found: Sequence[Seen], key: Callable[[Seen], str]) -> dict[str, list[Seen]]:
    groups = dict[str, list[Seen]]()
    for seen in found:
        groups.setdefault(key(seen), []).append(seen)
    return groups


def shown(seen: Seen) -> str:
    return f"`{Path(seen.name).name}`"


def main() -> int:
    claimed = set[bytes]()

    def claim(data: bytes) -> bool:
        digest = hashlib.sha256(data).digest()
        new = digest not in claimed
        claimed.add(digest)
        return new

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        found = [seen for suite in threads.map(lambda path: examine(Path(path), claim), sys.argv[1:]) for seen in suite]
    PAGE.write_text("\n".join(page(found)))
    return int(any(seen.result == "differs" and "**" in reason_of(seen) for seen in found))


if __name__ == "__main__":
    sys.exit(main())
