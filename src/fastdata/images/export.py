"""export of images: files in class folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fastdata.images.export_files import ENDINGS, as_file
from fastdata.store.class_folders import make_folders, place_of, unused, write_labels
from fastdata.store.store import Store

__all__ = ["write_folders"]


def write_folders(store: Store, root: Path, size: int | None, tick: Callable[[int], None]) -> int:
    """Write every image, and its mask, as a file; float labels go to labels.csv."""
    variant, names, masked = store.variant(size), store.names(), store.manifest.section("masks") is not None
    places = {"images": variant, "masks": store.variant(size, mask=True)} if masked else {"": variant}
    readers, taken, written = [store.reader(v) for v in places.values()], set[str](), []
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
