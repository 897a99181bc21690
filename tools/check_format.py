"""Check a store against docs/format.md, without fastdata's own code.

    python tools/check_format.py STORE

Needs numpy, lmdb, xxhash and Pillow. Prints a line for each problem, and exits with 1 if there is one. It is slow and simple on
purpose: it is the second opinion on the format.
"""

from __future__ import annotations

import io
import itertools
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import xxhash
from PIL import Image


def check(root: Path) -> Iterator[str]:
    manifest = json.loads((root / "manifest.json").read_text())
    if manifest["format"] != "fastdata" or manifest["version"] != "1.0":
        yield f"format {manifest['format']} {manifest['version']}"
        return
    for name, total in manifest["files"].items():
        data = (root / name).read_bytes()
        if [len(data), xxhash.xxh3_128_hexdigest(data)] != [total["bytes"], total["xxh3_128"]]:
            yield f"{name}: size or checksum"
    samples = np.load(root / "samples.npy", allow_pickle=False)
    names = [json.loads(line) for line in (root / "names.txt").read_bytes().splitlines()]
    rejects = [json.loads(line) for line in (root / "rejects.jsonl").read_bytes().splitlines()]
    named = len(names) == len(samples) if manifest["kind"] == "images" else len(names) > max(samples["source"].tolist(), default=-1)
    if not named or len(samples) != manifest["num_samples"] or len(rejects) != manifest["num_rejects"]:
        yield f"{len(samples)} rows, {len(names)} names, {len(rejects)} rejects: not what the manifest says"
    seen = [*samples["source"].tolist(), *(r["source"] for r in rejects)]
    if manifest["kind"] == "images" and sorted(seen) != list(range(len(seen))):
        yield "samples and rejects together are not the list of inputs"
    expected = {"manifest.json", *manifest["files"]}
    for variant in manifest["variants"]:
        expected |= {f"{variant['name']}/shard-{k:05d}.mdb" for k in range(len(manifest["shard_samples"]))}
        yield from check_index(root, manifest, variant)
        if manifest["kind"] == "tokens":
            yield from check_tokens(root, manifest, variant, samples)
        elif manifest["kind"] == "arrays":
            yield from check_arrays(root, manifest, variant, samples)
        else:
            yield from check_variant(root, manifest, variant, samples)
    found = {str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()}
    if found != expected:
        yield f"files: {sorted(found ^ expected)}"


def check_index(root: Path, manifest: dict[str, Any], variant: dict[str, Any]) -> Iterator[str]:
    """Compare the index with what LMDB finds."""
    rows = iter(np.load(root / variant["name"] / "index.npy", allow_pickle=False).tolist())
    for shard in range(len(variant["shards"])):
        path = root / variant["name"] / f"shard-{shard:05d}.mdb"
        data = path.read_bytes()
        with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as env, env.begin() as txn:
            for number, (_, value) in enumerate(txn.cursor()):
                offset, length, digest = next(rows, (0, -1, 0))
                if data[offset : offset + length] != value or xxhash.xxh3_64_intdigest(value) != digest:
                    yield f"{variant['name']}/index.npy: record {number} of shard {shard}"
    if next(rows, None) is not None:
        yield f"{variant['name']}/index.npy has more rows than there are records"


def records_of(path: Path, total: dict[str, Any]) -> Iterator[Any]:
    """Yield the problems of the file, as text, and then its records as a list."""
    data = path.read_bytes()
    if [len(data), xxhash.xxh3_128_hexdigest(data)] != [total["bytes"], total["xxh3_128"]]:
        yield f"{path.name}: size or checksum"
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as env, env.begin() as txn:
        yield list(txn.cursor())


def check_tokens(root: Path, manifest: dict[str, Any], variant: dict[str, Any], samples: Any) -> Iterator[str]:
    section, dtype = manifest["sections"]["tokens"], np.dtype(variant["form"]["dtype"]).newbyteorder("<")
    ends = np.cumsum(samples["tokens"])
    if (samples["start"] != ends - samples["tokens"]).any() or int(ends[-1] if len(ends) else 0) != sum(section["counts"]):
        yield "the documents do not follow each other, or are not as long as the tokens"
    largest, bounds = 0, np.cumsum([0, *manifest["shard_samples"]])
    for shard, (total, count, number) in enumerate(zip(variant["shards"], section["counts"], variant["records"], strict=True)):
        *problems, records = records_of(root / variant["name"] / f"shard-{shard:05d}.mdb", total)
        yield from problems
        if [key for key, _ in records] != [k.to_bytes(8, "big") for k in range(number)]:
            yield f"shard {shard}: keys"
        if any(len(value) != (256 << 12) - 16 for _, value in records[:-1]):
            yield f"shard {shard}: records of other sizes"
        tokens = np.concatenate([np.zeros(0, dtype), *(np.frombuffer(value, dtype) for _, value in records)])
        if len(tokens) != count or samples["tokens"][bounds[shard] : bounds[shard + 1]].sum() != count:
            yield f"shard {shard}: {len(tokens)} tokens"
        largest = max(largest, int(tokens.max(initial=0)))
    if largest != section["largest"] or largest >= section["vocab_size"]:
        yield f"the largest id is {largest}, the manifest says {section['largest']} of {section['vocab_size']}"


def chunks_of(manifest: dict[str, Any], row: Any, variant: dict[str, Any]) -> list[int]:
    """Return the bytes that each record of an array must have."""
    arrays, dtype = manifest["sections"]["arrays"], np.dtype(variant["form"]["dtype"])
    sides = row["shape"].tolist()
    dims = len(arrays["chunk"]) + arrays["channels"]
    assert all(sides[:dims]) and not any(sides[dims:]), sides
    channels = 1
    if arrays["channels"]:
        channels = 1 if variant["name"].startswith("mask-") else sides[0]
        sides = sides[1:dims]
    grid = [[min(c, n - k) for k in range(0, n, c)] for n, c in zip(sides, arrays["chunk"], strict=False)]
    return [math.prod(box) * channels * dtype.itemsize for box in itertools.product(*grid)]


def check_arrays(root: Path, manifest: dict[str, Any], variant: dict[str, Any], samples: Any) -> Iterator[str]:
    name, first, done = variant["name"], 0, 0
    if variant["form"]["codec"] != "chunks" or name not in ("array", "mask-array"):
        yield f"{name}: {variant['form']}"
    for shard, (count, records) in enumerate(zip(manifest["shard_samples"], variant["records"], strict=True)):
        path = root / name / f"shard-{shard:05d}.mdb"
        data = path.read_bytes()
        if [len(data), xxhash.xxh3_128_hexdigest(data)] != list(variant["shards"][shard].values()):
            yield f"{path.name}: size or checksum"
        with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as env, env.begin() as txn:
            found = list(txn.cursor())
        if [key for key, _ in found] != [k.to_bytes(8, "big") for k in range(records)]:
            yield f"{path.name}: keys"
        place = 0
        for row in samples[first : first + count]:
            sizes = chunks_of(manifest, row, variant)
            values = [value for _, value in found[place : place + len(sizes)]]
            if row["first"] != done + place or [len(value) for value in values] != sizes:
                yield f"{path.name}, from record {place}: not the chunks of {row['shape']}"
            place += len(sizes)
        if place != records:
            yield f"{path.name}: {records} records, {place} of arrays"
        first, done = first + count, done + records


def check_variant(root: Path, manifest: dict[str, Any], variant: dict[str, Any], samples: Any) -> Iterator[str]:
    name, first = variant["name"], 0
    if name.startswith("mask-"):
        if (variant["form"]["codec"], variant["form"]["channels"]) != ("rgb", 1) or not manifest["sections"]["masks"]["pixels"]:
            yield f"{name}: {variant['form']}, {manifest['sections']}"
    for shard, (count, total) in enumerate(zip(manifest["shard_samples"], variant["shards"], strict=True)):
        path = root / name / f"shard-{shard:05d}.mdb"
        data = path.read_bytes()
        if [len(data), xxhash.xxh3_128_hexdigest(data)] != [total["bytes"], total["xxh3_128"]]:
            yield f"{path.name}: size or checksum"
        with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as env, env.begin() as txn:
            records = list(txn.cursor())
        if [key for key, _ in records] != [k.to_bytes(8, "big") for k in range(count)]:
            yield f"{path.name}: keys"
        for place, (_, record) in enumerate(records):
            row = samples[first + place]
            sides = name.rpartition("-")[2]  # masks and further images have those of the image
            size = (int(row[f"{sides}/height"]), int(row[f"{sides}/width"]))
            yield from (f"{path.name}, record {place}: {problem}" for problem in check_record(record, variant["form"], size))
        first += count


def check_record(record: bytes, form: dict[str, Any], size: tuple[int, int]) -> Iterator[str]:
    if form["codec"] == "rgb":
        if len(record) != size[0] * size[1] * form["channels"] * np.dtype(form["dtype"]).itemsize:
            yield f"{len(record)} bytes for {size}"
        return
    with Image.open(io.BytesIO(record)) as image:
        image.load()
        if image.size[::-1] != size or image.format not in {"png": ("PNG",)}.get(form["codec"], ("JPEG", "MPO")):
            yield f"{image.format} of {image.size[::-1]}, expected {size}"
        if form["codec"] == "original" and (
            image.mode not in ("L", "RGB")[: form["channels"]] or image.getexif().get(274, 1) not in (0, 1)
        ):
            yield f"{image.mode}, orientation {image.getexif().get(274)}"
    if form["codec"] == "jpeg":
        yield from check_grid(record, form["channels"], size[1])


def check_grid(record: bytes, channels: int, width: int) -> Iterator[str]:
    at, interval, index = 2, 0, b""
    while record[at + 1] != 0xDA:
        length = int.from_bytes(record[at + 2 : at + 4], "big")
        body = record[at + 4 : at + 2 + length]
        if record[at + 1] == 0xDD:
            interval = int.from_bytes(body, "big")
        if record[at + 1] == 0xE9 and body.startswith(b"fastdata\0\1"):
            index += body[14:]
        at += 2 + length
    at += 2 + int.from_bytes(record[at + 2 : at + 4], "big")
    mcu = 8 if channels == 1 else 16
    row = -(-width // mcu)
    fits = [n for n in range(1, row + 1) if row % n == 0 and n * mcu >= 16]
    if interval != (fits[0] if fits else 1):
        yield f"restart interval {interval} for a row of {row} MCUs"
    count = int.from_bytes(index[:4], "little")
    lengths = list(index[4 : 4 + count])
    for k in range(4 + count, len(index), 6):
        lengths[int.from_bytes(index[k : k + 4], "little")] += int.from_bytes(index[k + 4 : k + 6], "little") << 8
    for number, length in enumerate(lengths):
        at += length
        if record[at - 2 : at] not in (bytes([0xFF, 0xD0 + number % 8]), b"\xff\xd9"):
            yield f"segment {number} does not end in its marker"
    if at != len(record):
        yield f"the index covers {at} of {len(record)} bytes"


if __name__ == "__main__":
    count = 0
    for problem in check(Path(sys.argv[1])):
        print(problem, flush=True)  # at once: LMDB may crash on damage
        count += 1
    print(f"{sys.argv[1]}: {f'{count} problems' if count else 'as docs/format.md says'}")
    sys.exit(bool(count))
