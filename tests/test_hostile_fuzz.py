"""Damaged files through every reader of sources, in a process with little memory: errors of fastdata's own, and nothing else."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import zstandard

from archives import png, write_tar
from support import run

ATTEMPTS = 60
CHILD = """
import random, resource, signal, sys, warnings
from pathlib import Path
from fastdata.errors import CodecError, FastDataError

def images(path):
    from fastdata.sources.base import read_source
    from fastdata.sources.listing import list_sources
    found = list_sources(path)
    for source in found.sources:
        if not source.problem:
            try:
                read_source(found.root, source)
            except CodecError:
                pass

def text(path):
    from fastdata.text.documents import Cutting, documents
    from fastdata.text.listing import list_text
    for piece in list_text(path, Cutting("\\n")).pieces:
        list(documents(path.parent, piece, Cutting("\\n"), most=1 << 20))

def arrays(path):
    from fastdata.arrays.options import ArrayOptions
    from fastdata.arrays.planning import plan_arrays
    plan_arrays(path, ArrayOptions(max_bytes=1 << 24), None)

def table(path):
    from fastdata import TableDataset
    TableDataset(path, target="y", shared=False)

path, read, attempts = Path(sys.argv[1]), globals()[sys.argv[2]], int(sys.argv[3])
warnings.simplefilter("ignore")
good, rng = path.read_bytes(), random.Random(0)
read(path)
resource.setrlimit(resource.RLIMIT_AS, (8 << 30,) * 2)
for k in range(attempts):
    data = bytearray(good[: rng.randrange(len(good))] if k % 3 == 0 else good)
    for _ in range(rng.choice((1, 2, 5)) * (k % 3 > 0)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    signal.alarm(20)  # ends the process
    try:
        read(path)
    except FastDataError:
        pass
"""


def _arrow(path: Path, table: Any) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


IMAGES = pa.table({"image": pa.array([{"bytes": png(k, 4, 4)[1], "path": "a.png"} for k in range(3)]), "label": [0, 1, 0]})
NUMBERS = pa.table({"a": [1, 2, 3], "s": ["x", "y", None], "y": [0.5, 1, 2]})
LINES = b"".join(b"line %d\n" % k for k in range(50))
FILES: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "x.tar": (
        "images",
        lambda path: write_tar(path, [("0.png", png(0)[1]), ("0.cls", b"1"), ("1.png", png(1)[1])]),
    ),
    "x.parquet": ("images", lambda path: pyarrow.parquet.write_table(IMAGES, path)),
    "x.arrow": ("images", lambda path: _arrow(path, IMAGES)),
    "t.parquet": ("table", lambda path: pyarrow.parquet.write_table(NUMBERS, path)),
    "t.arrow": ("table", lambda path: _arrow(path, NUMBERS)),
    "t.csv": ("table", lambda path: path.write_text('a,s,y\n1,"x, y",0.5\n2,"a ""b""",1\n3,,2\n')),
    "x.npy": ("arrays", lambda path: np.save(path, np.zeros((3, 4, 5), np.int16))),
    "x.npz": ("arrays", lambda path: np.savez_compressed(path, a=np.zeros((3, 4, 5), np.int16))),
    "x.nii.gz": ("arrays", lambda path: nibabel.save(nibabel.Nifti1Image(np.zeros((3, 4, 5), np.int16), np.eye(4)), path)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_damage_is_an_error_of_fastdata_s(tmp_path: Path, name: str) -> None:
    read, make = FILES[name]
    make(tmp_path / name)
    done = run(sys.executable, "-c", CHILD, tmp_path / name, read, ATTEMPTS)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["x.txt.gz", "x.txt.zst", "x.jsonl"])
def test_of_damaged_text_the_documents_before_are_read(tmp_path: Path, name: str) -> None:
    """Each cut of the file: what is read is a beginning of what was written."""
    from fastdata.errors import CodecError, PrepError
    from fastdata.text.documents import Cutting, Piece, documents

    texts = [line.decode() for line in LINES.splitlines()]
    jsonl = b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)
    data = {"x.txt.gz": gzip.compress(LINES), "x.txt.zst": zstandard.compress(LINES), "x.jsonl": jsonl}[name]
    for length in range(0, len(data), 3):
        (tmp_path / name).write_bytes(data[:length])
        found = list[Any]()
        try:
            for _, text in documents(tmp_path, Piece(name, 0, -1, length), Cutting("\n")):
                found.append(text)
        except (CodecError, PrepError):
            pass
        whole = [text for text in found if isinstance(text, str)]
        assert whole[:-1] == texts[: max(len(whole) - 1, 0)]
        assert not whole or texts[len(whole) - 1].startswith(whole[-1])  # the file may end inside of it
