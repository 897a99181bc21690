"""Export a store of images as image files in class folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fastdata.images.pixels import decode_record, encode_record
from fastdata.store.class_folders import make_folders, place_of, unused, write_labels
from fastdata.store.format import Variant
from fastdata.store.store import Store

__all__ = ["ENDINGS", "as_file", "write_folders"]

ENDINGS = {"jpeg": ".jpg", "original": ".jpg", "png": ".png", "rgb": ".png", "yuv420": ".png"}


def as_file(store: Store, variant: Variant, index: int, record: memoryview) -> bytes:
    """Return a record as an ordinary image file: JPEG and PNG unchanged, raw pixels and planes as PNG."""
    if variant.form.jpegs or variant.form.codec == "png":
        return bytes(record)
    height, width = (int(store.field(variant, side)[index]) for side in ("height", "width"))
    pixels = decode_record(record, variant.form, height, width)
    return encode_record(pixels[:, :, 0] if variant.form.channels == 1 else pixels, "png")


def write_folders(store: Store, root: Path, size: int | None, tick: Callable[[int], None]) -> int:
    """Write every image, its mask, and the other images of the sample, as files. Float labels go to labels.csv."""
    variant = store.variant(size)
    names = store.names()
    masked = store.manifest.section("masks") is not None
    images = store.manifest.images or ("images" if masked else "",)
    places = {image: store.variant(size, image=image if store.manifest.images else "") for image in images}
    if masked:
        places["masks"] = store.variant(size, mask=True)
    readers = [store.reader(v) for v in places.values()]
    taken = set[str]()
    written = []
    for folder in places:
        make_folders(store, root / folder)
    for k, name in enumerate(names):
        relative = unused(place_of(store, k, name), ENDINGS[variant.form.codec], taken)
        for (folder, kind), reader in zip(places.items(), readers, strict=True):
            target = (root / folder / relative).with_suffix(ENDINGS[kind.form.codec])
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(as_file(store, kind, k, reader.get(k)))
        written.append(relative)
        tick(1)
    if store.manifest.labels.kind == "vector":
        write_labels(store, root / "labels.csv", written)
    return len(names)
