"""`fastdata info`: what it says of a store, to people and as JSON."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastdata
import stores
from fastdata.store.store import Store
from support import MAIN, encode, picture, run, signed


def said(path: Path) -> str:
    found = run(*MAIN, "info", path)
    assert (found.returncode, found.stderr) == (0, "")
    return found.stdout


def facts(path: Path) -> dict[str, Any]:
    found = run(*MAIN, "info", path, "--json")
    assert (found.returncode, found.stderr) == (0, "")
    return dict(json.loads(found.stdout))


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


@pytest.mark.slow
def test_the_memory_that_a_store_would_take() -> None:
    path = stores.store()
    pixels = {size: sum(image.nbytes for image in stores.whole(path, size)) for size in stores.SIZES}
    assert facts(path)["memory"] == [{"size": s, "bytes": pixels[s], "decoded_bytes": pixels[s]} for s in stores.SIZES]
    assert f"RAMDataset takes {pixels[96] / 1e6:.1f} MB at size 96, {pixels[64] / 1e3:.1f} kB at size 64; " in said(path)
    small = stores.square("jpeg")
    store = Store(small)
    reader = store.reader(store.variant())
    held = sum(len(reader.get(k)) for k in range(len(store)))
    assert facts(small)["memory"] == [{"size": 32, "bytes": held, "decoded_bytes": len(store) * 32 * 32 * 3}]
    assert f"takes {held / 1e3:.1f} kB ({len(store) * 3.072:.1f} kB with decoded=True); " in said(small)
    (masked,) = facts(stores.masked())["memory"]
    assert masked["decoded_bytes"] == 3 * 30 * 40 * 4
    assert facts(stores.tokens())["memory"] == [{"size": None, "bytes": 2000}]
    assert facts(stores.arrays())["memory"] == [{"size": None, "bytes": 20 * 30 * 40 * 2}]
    assert facts(path)["free_memory"] > 0


@pytest.mark.slow
def test_every_kind_as_json() -> None:
    for path, kind, count in (
        (stores.store(), "images", 42),
        (stores.masked(), "images", 3),
        (stores.tokens(), "tokens", 2),
        (stores.arrays(), "arrays", 1),
    ):
        found = facts(path)
        assert (found["path"], found["kind"], found["samples"], found["format"]) == (str(path), kind, count, "1.0-rc")
        assert found["options"] == Store(path, kind=None).manifest.options
    floats = facts(stores.floats())["labels"]
    assert floats["columns"][0] == {"name": "quarter", "min": 0.0, "mean": 0.625, "max": 1.25}
    assert facts(stores.masked())["masks"] == [{"class": k, "name": "", "pixels": 1200} for k in range(3)]
    assert facts(stores.tokens())["tokens"]["count"] == 1000 and facts(stores.arrays())["arrays"]["chunk"] == [32, 32, 32]


@pytest.mark.slow
def test_no_python_shows_in_what_people_read() -> None:
    for path in (stores.store(), stores.masked(), stores.tokens(), stores.arrays(), stores.floats()):
        text = said(path)
        assert not [part for part in ("{", "[", "'", "None", "True", "False") if part in text.replace("decoded=True", "")], text
    assert "options: bits 8, codec rgb, max_pixels 268435456, quality 90, resize short, sizes 96,64, upscale yes\n" in (
        said(stores.store())
    )


def test_labels_that_are_not_finite_are_null_in_json(tmp_path: Path) -> None:
    out = tmp_path / "o.fds"
    shutil.copytree(stores.floats(), out)
    samples = np.load(out / "samples.npy")
    samples["label"][0, 0] = np.nan
    np.save(out / "samples.npy", samples)
    signed(out)
    first, *others = facts(out)["labels"]["columns"]
    assert first == {"name": "quarter", "min": None, "mean": None, "max": None} and None not in others[0].values()
    assert "quarter with values that are not finite" in said(out)
