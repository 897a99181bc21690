"""Export tokens to the files that nanoGPT, llm.c and Megatron read."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.errors import StoreError
from fastdata.store.store import Store
from fastdata.text.pretokenized import MEGATRON_MAGIC
from fastdata.tokenizer import FILES, characters_in

__all__ = ["export_tokens"]

Array = np.ndarray[Any, np.dtype[Any]]

LLMC_TOKENS = 100_000_000  # tokens in a file, as in llm.c's own scripts
LLMC = {2: (20240520, 1), 4: (20240801, 7)}  # by bytes of a token: magic and version
VAL_FRACTION = 0.1  # as in nanoGPT's shakespeare_char
NEAR = 0.01  # share of all tokens by which train.bin may be longer or shorter to end with a document
MEGATRON = {2: (8, "<u2"), 4: (4, "<i4")}  # by bytes of a token: code and dtype; Megatron has no uint32


def export_tokens(store: Store, root: Path, to: str, tick: Callable[[int], None], val_fraction: float | None = None) -> int:
    """Write all tokens of a store into an existing folder, and return the number of files.

    nanogpt: `train.bin` and `val.bin`, plain tokens for `np.memmap`, the last ones in `val.bin`; for a tokenizer of characters also
    `meta.pkl`. llmc: `tokens_000000.bin` and so on, each with a header of 1,024 bytes and at most 100 million tokens. megatron:
    `tokens.bin` and `tokens.idx`, one sequence for each document.

    Raises:
        StoreError: if the format cannot hold the ids.
    """
    variant, section = store.manifest.variants[0], store.manifest.section("tokens")
    kind = np.dtype(variant.form.dtype)
    count = sum(section.counts)
    if to == "megatron":
        code, name = MEGATRON[kind.itemsize]
        if section.largest >= 1 << 31:
            raise StoreError(f"Megatron's int32 does not hold the id {section.largest}")
        with (root / "tokens.bin").open("wb") as file:
            file.writelines(part.astype(name, copy=False).tobytes() for part in _records(store, tick))
        (root / "tokens.idx").write_bytes(_index(np.asarray(store.samples["tokens"], np.int64), code, kind.itemsize))
        return 2
    if to == "nanogpt" and kind.itemsize != 2:
        raise StoreError("nanoGPT reads its tokens as uint16, which does not hold this vocabulary: export to llmc or megatron")
    if to == "nanogpt":
        return _write_nanogpt(store, root, VAL_FRACTION if val_fraction is None else val_fraction, tick)
    parts = _records(store, tick)
    part = np.zeros(0, kind)
    number = 0
    while number * LLMC_TOKENS < count or not number:
        size = min(LLMC_TOKENS, count - number * LLMC_TOKENS)
        header = np.zeros(256, "<i4")
        header[:3] = *LLMC[kind.itemsize], size
        with (root / f"tokens_{number:06d}.bin").open("wb") as file:
            file.write(header.tobytes())
            while size:
                if not len(part):
                    part = next(parts)
                file.write(part[:size].tobytes())
                size, part = size - min(size, len(part)), part[size:]
        number += 1
    return number


def _write_nanogpt(store: Store, root: Path, val_fraction: float, tick: Callable[[int], None]) -> int:
    section = store.manifest.section("tokens")
    left = _train_tokens(store, val_fraction)
    files = 1
    with (root / "train.bin").open("wb") as train, (root / "val.bin").open("wb") as val:
        for part in _records(store, tick):
            train.write(part[:left].tobytes())
            val.write(part[left:].tobytes())
            left = max(0, left - len(part))
    if val_fraction:
        files += 1
    else:
        (root / "val.bin").unlink()
    if section.engine == "chars":
        characters = characters_in((store.path / FILES["chars"]).read_bytes())
        itos = dict(enumerate(characters))
        meta = {"vocab_size": len(characters), "itos": itos, "stoi": {c: k for k, c in itos.items()}}
        (root / "meta.pkl").write_bytes(pickle.dumps(meta))
        files += 1
    return files


def _train_tokens(store: Store, val_fraction: float) -> int:
    """Return the number of tokens for train.bin: up to the end of a document, if one ends near the wanted place."""
    ends = np.cumsum(store.samples["tokens"], dtype=np.int64)
    count = int(ends[-1]) if len(ends) else 0
    wanted = int(count * (1 - val_fraction))
    nearest = int(ends[np.abs(ends - wanted).argmin()]) if len(ends) else 0
    return nearest if abs(nearest - wanted) <= NEAR * count and val_fraction and 0 < nearest < count else wanted


def _records(store: Store, tick: Callable[[int], None]) -> Iterator[Array]:
    variant = store.manifest.variants[0]
    reader = store.reader(variant)
    for k in range(len(reader)):
        part = np.frombuffer(reader.get(k), np.dtype(variant.form.dtype).newbyteorder("<"))
        yield part
        tick(len(part))


def _index(lengths: Array, code: int, itemsize: int) -> bytes:
    """Return Megatron's .idx: version, dtype, counts, lengths, byte offsets, and the sequence that begins each document."""
    if lengths.max(initial=0) >= 1 << 31:
        raise StoreError(f"Megatron's index does not hold a document of {lengths.max()} tokens")
    head = MEGATRON_MAGIC + (1).to_bytes(8, "little") + bytes([code])
    head += len(lengths).to_bytes(8, "little") + (len(lengths) + 1).to_bytes(8, "little")
    places = (np.cumsum(lengths) - lengths) * itemsize
    return (
        head + lengths.astype("<i4").tobytes() + places.astype("<i8").tobytes() + np.arange(len(lengths) + 1, dtype="<i8").tobytes()
    )
