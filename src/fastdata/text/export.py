"""export of tokens: to the files that nanoGPT, llm.c and Megatron read."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.errors import StoreError
from fastdata.store.store import Store
from fastdata.text.tokenizer import FILES, characters_in

__all__ = ["TOKEN_FORMATS", "export_tokens"]

Array = np.ndarray[Any, np.dtype[Any]]

TOKEN_FORMATS = ("nanogpt", "llmc", "megatron")
LLMC_TOKENS = 100_000_000  # of a file, as llm.c's own scripts cut them
LLMC = {2: (20240520, 1), 4: (20240801, 7)}  # by bytes of a token: magic and version
VAL_FRACTION = 0.1  # as nanoGPT's own shakespeare_char has it
NEAR = 0.01  # of all tokens: if a document ends so near to the place, train.bin ends there
MEGATRON_MAGIC = b"MMIDIDX\x00\x00"
MEGATRON = {2: (8, "<u2"), 4: (4, "<i4")}  # there is no unsigned type of 32 bits


def export_tokens(store: Store, root: Path, to: str, tick: Callable[[int], None], val_fraction: float | None = None) -> int:
    """Write all tokens of a store into a folder that exists.

    nanogpt: `train.bin` and `val.bin`, bare tokens, for `np.memmap`, the last of them in `val.bin`; and, of a tokenizer of
    characters, `meta.pkl`. llmc: `tokens_000000.bin` and so on, a header of 1,024 bytes and at most 100 million tokens each.
    megatron: `tokens.bin` and `tokens.idx`, one sequence for each document.

    Returns:
        The number of files.

    Raises:
        StoreError: the format can't hold such ids.
    """
    variant, section = store.manifest.variants[0], store.manifest.section("tokens")
    kind, count = np.dtype(variant.form.dtype), sum(section.counts)
    if to == "megatron":
        code, name = MEGATRON[kind.itemsize]
        if section.largest >= 1 << 31:
            raise StoreError(f"Megatron's int32 does not hold the id {section.largest}")
        _write(root / "tokens.bin", (part.astype(name, copy=False) for part in _records(store, tick)))
        (root / "tokens.idx").write_bytes(_index(np.asarray(store.samples["tokens"], np.int64), code, kind.itemsize))
        return 2
    if to == "nanogpt" and kind.itemsize != 2:
        raise StoreError("nanoGPT reads its tokens as uint16, which does not hold this vocabulary: export to llmc or megatron")
    if to == "nanogpt":
        return _write_nanogpt(store, root, VAL_FRACTION if val_fraction is None else val_fraction, tick)
    held, number = _records(store, tick), 0
    left = np.zeros(0, kind)
    while number * LLMC_TOKENS < count or not number:
        size = min(LLMC_TOKENS, count - number * LLMC_TOKENS)
        header = np.zeros(256, "<i4")
        header[:3] = *LLMC[kind.itemsize], size
        with (root / f"tokens_{number:06d}.bin").open("wb") as file:
            file.write(header.tobytes())
            while size:
                if not len(left):
                    left = next(held)
                file.write(left[:size].tobytes())
                size, left = size - min(size, len(left)), left[size:]
        number += 1
    return number


def _write_nanogpt(store: Store, root: Path, val_fraction: float, tick: Callable[[int], None]) -> int:
    section = store.manifest.section("tokens")
    left, files = _train_tokens(store, val_fraction), 1
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
        found = characters_in((store.path / FILES["chars"]).read_bytes())
        meta = {"vocab_size": len(found), "itos": dict(enumerate(found)), "stoi": {c: k for k, c in enumerate(found)}}
        (root / "meta.pkl").write_bytes(pickle.dumps(meta))
        files += 1
    return files


def _train_tokens(store: Store, val_fraction: float) -> int:
    """How many tokens train.bin has: up to the end of a document, if one is near to where its share ends."""
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


def _write(path: Path, parts: Iterator[Array]) -> None:
    with path.open("wb") as file:
        for part in parts:
            file.write(part.tobytes())


def _index(lengths: Array, code: int, itemsize: int) -> bytes:
    """Megatron's .idx: version, type, counts, lengths, byte places, and which sequence each document begins with."""
    if lengths.max(initial=0) >= 1 << 31:
        raise StoreError(f"Megatron's index does not hold a document of {lengths.max()} tokens")
    head = MEGATRON_MAGIC + (1).to_bytes(8, "little") + bytes([code])
    head += len(lengths).to_bytes(8, "little") + (len(lengths) + 1).to_bytes(8, "little")
    places = (np.cumsum(lengths) - lengths) * itemsize
    return (
        head + lengths.astype("<i4").tobytes() + places.astype("<i8").tobytes() + np.arange(len(lengths) + 1, dtype="<i8").tobytes()
    )
