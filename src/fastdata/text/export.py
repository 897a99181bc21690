"""Export tokens to the files that nanoGPT reads."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fastdata.errors import StoreError
from fastdata.store.store import Store
from fastdata.tokenizer import FILES, characters_in

VAL_FRACTION = 0.1  # as in nanoGPT's shakespeare_char


def export(
    store: Store, root: Path, to: str, size: int | None, tick: Callable[[int], None], val_fraction: float = VAL_FRACTION
) -> int:
    """Write all tokens of a store into a folder, and return the number of files.

    `train.bin`, and `val.bin` with the last tokens, are for `np.memmap`. A tokenizer of characters adds `meta.pkl`.
    """
    variant, section = store.manifest.variants[0], store.manifest.section("tokens")
    if variant.form.dtype != "uint16":
        raise StoreError("nanoGPT reads tokens as uint16, which cannot hold the ids of this vocabulary")
    left = int(int(store.samples["tokens"].sum()) * (1 - val_fraction))
    root.mkdir(parents=True, exist_ok=True)
    reader = store.reader(variant)
    with (root / "train.bin").open("wb") as train, (root / "val.bin").open("wb") as val:
        for k in range(len(reader)):
            part = np.frombuffer(reader.get(k), "<u2")
            train.write(part[:left].tobytes())
            val.write(part[left:].tobytes())
            left = max(0, left - len(part))
            tick(len(part))
    if not val_fraction:
        (root / "val.bin").unlink()
    has_characters: bool = section.engine == "chars"
    if has_characters:
        characters = characters_in((store.path / FILES["chars"]).read_bytes())
        itos = dict(enumerate(characters))
        meta = {"vocab_size": len(characters), "itos": itos, "stoi": {c: k for k, c in itos.items()}}
        (root / "meta.pkl").write_bytes(pickle.dumps(meta))
    return 1 + bool(val_fraction) + has_characters
