"""Targets: archives and tables of inputs: tar, Parquet, Arrow, MDS, LitData, and labels in CSV, JSONL and Parquet."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import ipc, parquet

import stores
from archives import png, write_tar
from fastdata.codecs.decode import SourceImage
from fastdata.errors import PrepError
from fastdata.sources.base import read_source, release
from fastdata.sources.inputs import SourceList
from fastdata.sources.listing import list_sources
from fastdata.sources.options import LabelOptions
from target import Case, as_json, each, target
from test_archives_tables import rows, table

FOREIGN = Path(__file__).parent.parent / "data" / "foreign"
MOST = 20  # inputs that are read: a hostile archive may list millions


def read_inputs(path: Path) -> Any:
    """List an archive, and decode its first inputs."""
    try:
        found = list_sources(path)
        return described(found), each(found.sources[:MOST], lambda source: decoded(found, source))
    finally:
        release()


def decoded(found: SourceList, source: Any) -> Any:
    if source.problem:
        return source.problem
    return SourceImage(read_source(found.root, source), max_pixels=1 << 20).decode()


def described(found: SourceList) -> Any:
    return found.labels, [(source.name, source.label, source.problem) for source in found.sources[:MOST]]


def contents(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(root.iterdir())}


def tars() -> dict[str, bytes]:
    samples = (((f"{k}.png", png(k)[1]), (f"{k}.cls", b"%d" % k), (f"{k}.json", b'{"a": 1}')) for k in range(3))
    root, members = stores.folder(), [member for sample in samples for member in sample]
    write_tar(root / "ustar.tar", members)
    write_tar(root / "pax.tar", [("é" * 70 + name, data) for name, data in members], format=1 + 1)
    write_tar(root / "gnu.tar", [("d/" * 60 + name, data) for name, data in members], format=1)
    return contents(root)


def tables() -> dict[str, bytes]:
    root, body = stores.folder(), table(rows(0, 6), [k % 3 for k in range(6)], ["a", "b", "c"])
    parquet.write_table(body, root / "a.parquet", row_group_size=4)
    parquet.write_table(body, root / "plain.parquet", compression="none", write_page_checksum=True)
    for name, writer in (("file", ipc.new_file), ("stream", ipc.new_stream)):
        with writer(root / f"{name}.arrow", body.schema) as out:
            out.write_table(body, max_chunksize=4)
    return contents(root)


def streamed() -> dict[str, bytes]:
    """Datasets of MosaicML Streaming and of LitData."""
    files = (file for name in ("mds-jpeg", "litdata-dict") for file in (FOREIGN / name).iterdir())
    return {f"{file.parent.name}/{file.name}": file.read_bytes() for file in sorted(files)}


def labels() -> dict[str, bytes]:
    body = [{"path": f"{k}.png", "label": f"class {k % 2}", "score": k / 3, "text": 'a "b", c'} for k in range(6)]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(body[0]))
    writer.writeheader()
    writer.writerows(body)
    buffer = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(body), buffer)
    lines = b"".join(as_json(row) + b"\n" for row in body)
    return {"a.csv": out.getvalue().encode(), "a.tsv": out.getvalue().replace(",", "\t").encode(), "a.jsonl": lines} | {
        "labels.parquet": buffer.getvalue()
    }


@target(tars, cases=2000)
def archive_tar(case: Case) -> Any:
    return read_inputs(case.write())


@target(tables)
def archive_parquet(case: Case) -> Any:
    return read_inputs(case.write())


@target(streamed, cases=2000)
def archive_streamed(case: Case) -> Any:
    """A folder of several files, of which one is damaged."""
    folder = case.write().parent
    for name, data in streamed().items():
        if name != case.name and Path(name).parent.name == folder.name:
            (folder / Path(name).name).write_bytes(data)
    return read_inputs(folder)


@target(labels, cases=1500, allowed=(PrepError, ValueError))
def label_tables(case: Case) -> Any:
    """A table of paths and labels, whose images may all be missing."""
    for options in (None, LabelOptions(regression=("score",))):
        found = list_sources(case.write(), options, fields=["text"])
    return described(found)
