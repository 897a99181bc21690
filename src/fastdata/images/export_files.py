"""What a record is as an ordinary image file."""

from __future__ import annotations

from fastdata.images.pixels import decode_record, encode_record
from fastdata.store.format import Variant
from fastdata.store.store import Store

__all__ = ["ENDINGS", "as_file"]

ENDINGS = {"jpeg": ".jpg", "original": ".jpg", "png": ".png", "rgb": ".png", "yuv420": ".png"}


def as_file(store: Store, variant: Variant, index: int, record: memoryview) -> bytes:
    """JPEG and PNG as they are stored, raw pixels and planes as PNG."""
    if variant.form.jpegs or variant.form.codec == "png":
        return bytes(record)
    row = store.samples[index]
    pixels = decode_record(record, variant.form, int(row[f"{variant.name}/height"]), int(row[f"{variant.name}/width"]))
    return encode_record(pixels[:, :, 0] if variant.form.channels == 1 else pixels, "png")
