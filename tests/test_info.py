"""`fastdata info`: what it says of a store, to people and as JSON."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import fastdata
import stores
from fastdata.cli import cli
from fastdata.store.info import info_lines, store_facts
from fastdata.store.store import Store
from support import encode, picture, signed


def said(path: Path) -> str:
    return "\n".join(info_lines(Store(path, kind=None))) + "\n"


def facts(path: Path) -> dict[str, Any]:
    return dict(json.loads(json.dumps(store_facts(Store(path, kind=None)), allow_nan=False)))


def test_the_command_prints_lines_or_json() -> None:
    path = stores.masked()
    for options, expected in (((), said(path)), (("--json",), json.dumps(facts(path), indent=1) + "\n")):
        found = CliRunner().invoke(cli, ["info", str(path), *options])
        assert found.exit_code == 0 and len(found.output.splitlines()) == len(expected.splitlines())


def test_classes_are_counted_by_name(tmp_path: Path) -> None:
    for name, count in (("ant", 3), ("bee", 1), ("cow", 2)):
        for k in range(count):
            (tmp_path / "in" / name).mkdir(parents=True, exist_ok=True)
            (tmp_path / "in" / name / f"{k}.png").write_bytes(encode(picture(k, 20, 30), ".png"))
    (tmp_path / "in/bee/bad.png").write_bytes(b"no image")
    first = fastdata.prep(tmp_path / "in", tmp_path / "o.fds", workers=1).out
    assert "\n  classes: ant 3, bee 1, cow 2\n" in said(first) and "rejected: not-an-image 1" in said(first)
    (tmp_path / "in/bee/0.png").unlink()
    (tmp_path / "in/stray.png").write_bytes(encode(picture(9, 20, 30), ".png"))
    found = facts(fastdata.prep(tmp_path / "in", tmp_path / "p.fds", classes=first, workers=1).out)
    classes = {entry["name"]: entry["samples"] for entry in found["labels"]["classes"]}
    assert classes == {"ant": 3, "bee": 0, "cow": 2} and found["samples"] == sum(classes.values()) + found["labels"]["unlabelled"]


def test_the_memory_that_a_store_would_take() -> None:
    path = stores.store()
    pixels = {size: sum(image.nbytes for image in stores.whole(path, size)) for size in stores.SIZES}
    assert facts(path)["memory"] == [{"size": s, "bytes": pixels[s], "decoded_bytes": pixels[s]} for s in stores.SIZES]
    store = Store(stores.square("jpeg"))
    reader = store.reader(store.variant())
    held = sum(len(reader.get(k)) for k in range(len(store)))
    assert facts(store.path)["memory"] == [{"size": 32, "bytes": held, "decoded_bytes": len(store) * 32 * 32 * 3}]
    assert f"  memory 32: bytes {held / 1e3:.1f} kB, decoded bytes {len(store) * 3.072:.1f} kB\n" in said(store.path)
    assert facts(stores.masked())["memory"][0]["decoded_bytes"] == 3 * 30 * 40 * 4
    assert facts(stores.tokens())["memory"] == [{"size": None, "bytes": 2000}]
    assert facts(stores.arrays())["memory"] == [{"size": None, "bytes": 20 * 30 * 40 * 2}]


@pytest.mark.parametrize(
    ("make", "kind", "count"), [("store", "images", 42), ("masked", "images", 3), ("tokens", "tokens", 2), ("arrays", "arrays", 1)]
)
def test_every_kind(make: str, kind: str, count: int) -> None:
    path = getattr(stores, make)()
    found, text = facts(path), said(path)
    assert (found["path"], found["kind"], found["samples"], found["format"]) == (str(path), kind, count, "1.0")
    assert found["options"] == Store(path, kind=None).manifest.options
    assert not [part for part in ("{", "[", "'", "None", "True", "False") if part in text], text
    expected = {
        "store": "options: bits 8, codec rgb, max pixels 268435456, quality 90, resize short, sizes 96,64, upscale yes\n",
        "masked": "mask 1: pixels 1200\n",
        "tokens": "tokens: vocab size 65536, end 0, largest 999, count 1000",
        "arrays": "arrays: chunk 32 x 32 x 32",
    }
    assert expected[make] in text


def test_labels_that_are_not_finite_are_null_in_json(tmp_path: Path) -> None:
    assert facts(stores.floats())["labels"]["columns"][0] == {"name": "quarter", "min": 0.0, "mean": 0.625, "max": 1.25}
    assert "  column quarter: min 0, mean 0.625, max 1.25\n" in said(stores.floats())
    out = tmp_path / "o.fds"
    shutil.copytree(stores.floats(), out)
    samples = np.load(out / "samples.npy")
    samples["label"][0, 0] = np.nan
    np.save(out / "samples.npy", samples)
    signed(out)
    first, *others = facts(out)["labels"]["columns"]
    assert first == {"name": "quarter", "min": None, "mean": None, "max": None} and None not in others[0].values()
