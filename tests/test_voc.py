"""Pascal VOC's XML: pixels that count from 1 become coordinates, and damage is told by file and line."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fastdata import LMDBDataset, PrepError, prep
from fastdata.store.store import Store
from support import encode, picture

Object = tuple[str, tuple[float, float, float, float], int | None, int | None]


def document(height: int, width: int, objects: list[Object], filename: str = "") -> str:
    """An annotation as LabelImg writes it. A flag that is None is absent."""
    lines = ["<annotation>", f"<filename>{filename}</filename>" if filename else ""]
    lines += [f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"]
    for name, box, difficult, truncated in objects:
        lines += ["<object>", f"<name>{escape(name)}</name>", "<pose>Unspecified</pose>"]
        flags = (("difficult", difficult), ("truncated", truncated))
        lines += [f"<{tag}>{value}</{tag}>" for tag, value in flags if value is not None]
        lines += ["<bndbox>"]
        lines += [f"<{tag}>{value:g}</{tag}>" for tag, value in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)]
        lines += ["</bndbox>", "</object>"]
    return "\n".join([*lines, "</annotation>"])


def write(root: Path, images: dict[str, tuple[int, int]], texts: dict[str, str]) -> Path:
    for name, (height, width) in images.items():
        path = root / "in" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(picture(len(name), height, width), ".png"))
    for name, text in texts.items():
        path = root / "xml" / f"{name}.xml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return root


numbers = st.integers(-3, 70) | st.floats(-3, 70).map(lambda x: round(x, 2))
flags = st.sampled_from([None, 0, 1])
objects = st.tuples(
    st.sampled_from(["dog", "a & b", "<cat>", "Hund", "é"]), st.tuples(numbers, numbers, numbers, numbers), flags, flags
)
scenes = st.lists(st.tuples(st.integers(8, 60), st.integers(8, 60), st.lists(objects, max_size=5)), min_size=1, max_size=8)


@pytest.mark.parametrize("examples", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_columns_are_those_of_a_plain_loop(examples: int) -> None:
    @settings(max_examples=examples, deadline=None)
    @given(scenes)
    @example(
        [(20, 50, [("é", (1, 1, 50, 20), 1, 0), ("a & b", (5.5, -2, 60, 9), None, 1), ("é", (9, 9, 7, 12), 0, None)]), (9, 9, [])]
    )
    def check(found: list[Any]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            images = {f"sub/{k}": (height, width) for k, (height, width, _) in enumerate(found)}
            root = write(Path(folder), images, {f"sub/{k}": document(*one) for k, one in enumerate(found)})
            out = prep(root / "in", root / "o.fds", voc=root / "xml", workers=1).out
            columns, store = LMDBDataset(out).columns, Store(out)
            names = sorted({name for one in found for name, *_ in one[2]})
            assert next(column for column in store.manifest.columns if column.name == "category").names == tuple(names)
            for k, (height, width, objects) in enumerate(found):
                want = []
                for name, (xmin, ymin, xmax, ymax), difficult, truncated in objects:
                    (x1, x2), (y1, y2) = np.clip([xmin - 1, xmax], 0, width), np.clip([ymin - 1, ymax], 0, height)
                    if x2 > x1 and y2 > y1:
                        want.append(([x1, y1, x2, y2], names.index(name), bool(difficult), bool(truncated)))
                np.testing.assert_allclose(columns["boxes"][k], np.reshape([one[0] for one in want], (-1, 4)), atol=1e-5)
                for place, column in enumerate(("category", "difficult", "truncated"), 1):
                    assert columns[column][k].tolist() == [one[place] for one in want]
                assert columns["source_size"][k].tolist() == [height, width]

    check()


def test_a_box_covers_the_pixels_that_it_names(tmp_path: Path) -> None:
    """By the devkit: pixels count from 1, and xmax and ymax are part of the object."""
    image = np.zeros((40, 50, 3), np.uint8)
    rows, columns = range(5, 12), range(8, 30)  # numbers from 1
    for row in rows:
        for column in columns:
            image[row - 1, column - 1] = 255
    root = write(tmp_path, {}, {"a": document(40, 50, [("x", (columns[0], rows[0], columns[-1], rows[-1]), 0, 0)])})
    (root / "in").mkdir()
    (root / "in/a.png").write_bytes(encode(image, ".png"))
    pixels, box = LMDBDataset(prep(root / "in", root / "o.fds", voc=root / "xml", codec="png").out, fields="boxes")[0]
    x1, y1, x2, y2 = (int(v) for v in box[0])
    assert (pixels[:, y1:y2, x1:x2] == 255).all() and (pixels == 255).sum() == 3 * (x2 - x1) * (y2 - y1)


def test_nothing_vanishes(tmp_path: Path) -> None:
    more = document(20, 30, [("dog", (0, 1, 20, 10), 0, 1), ("dog", (9, 9, 40, 12), 0, 0)], "photo.jpg")
    more = more.replace("<pose>Unspecified</pose>", "<pose>Left</pose><part><name>head</name></part>")
    texts = {"a": more, "b": document(21, 30, []), "c": document(20, 30, [("dog", (5, 5, 4, 9), 0, 0)]), "z": document(9, 9, [])}
    root = write(tmp_path, dict.fromkeys("abcd", (20, 30)), texts)
    summary = prep(root / "in", root / "o.fds", voc=root / "xml", workers=1)
    assert summary.rejected == {"annotated-size": 1, "not-annotated": 1, "no-image": 1} and summary.kept == 2
    notes = set(summary.notes)
    assert {
        "1 image without annotations",
        "not stored of the objects: part, pose",
        "1 .xml file with another <filename>: each belongs to the image with its own name",
        "1 box without area inside of the image was dropped",
    } <= notes
    assert any(note.startswith("1 box with an xmin or ymin of 0, though VOC counts pixels from 1") for note in notes)
    assert any(note.startswith("2 boxes reached outside of the image and were clipped") for note in notes)
    assert prep(root / "in", root / "s.fds", voc=root / "xml", bad_boxes="reject", workers=1).rejected["box-outside"] == 1


GOOD = document(20, 30, [("dog", (2, 2, 9, 9), 0, 0)])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD[:-15], "a.xml, line 15: unclosed token"),
        (GOOD.replace("</name>", "</nam>"), "a.xml, line 5: mismatched tag"),
        ("", "a.xml, line 1: no element found"),
        (f'<?xml version="1.0" encoding="klingon"?>{GOOD}', "a.xml, line 1: its encoding is not read here"),
        (f'<?xml version="1.0" encoding="gbk"?>{GOOD}', "a.xml, line 1: its encoding is not read here"),
        ("<html></html>", "a.xml, line 1: <html> is no annotation of Pascal VOC"),
        (GOOD.replace("<xmin>2</xmin>", "<xmin>two</xmin>"), "a.xml, line 10: <xmin> must be a number, but is 'two'"),
        (GOOD.replace("<ymax>9</ymax>", "<ymax>inf</ymax>"), "a.xml, line 13: <ymax> must be a number, but is 'inf'"),
        (GOOD.replace("<ymin>2</ymin>", ""), "a.xml, line 9: <bndbox> has no <ymin>"),
        (GOOD.replace("<name>dog</name>", ""), "a.xml, line 4: <object> has no <name>"),
        (GOOD.replace("dog", " "), "a.xml, line 5: <name> is empty"),
        (GOOD.replace("<difficult>0", "<difficult>2"), "a.xml, line 7: <difficult> must be 0 or 1, but is 2"),
        (
            GOOD.replace("<width>30", "<width>0"),
            "a.xml, line 3: <size> must be whole numbers of pixels, but width is 0 and height 20",
        ),
        (GOOD.replace("size>", "sizes>"), "a.xml, line 1: <annotation> has no <size>"),
        ('<!DOCTYPE x [<!ENTITY a "b">]>\n' + GOOD, "a.xml, line 1: an annotation that declares entities is not read"),
    ],
)
def test_damage_is_told(tmp_path: Path, text: str, message: str) -> None:
    root = write(tmp_path, {"a": (20, 30)}, {"a": text})
    with pytest.raises(PrepError) as caught:
        prep(root / "in", root / "o.fds", voc=root / "xml")
    assert message in str(caught.value)
