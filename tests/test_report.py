"""Contact sheets and pages about stores of every kind: what they show, and that pages are safe and complete in themselves."""

from __future__ import annotations

import os
import re
from html.parser import HTMLParser
from pathlib import Path

import cv2
import numpy as np
import pandas as pd
import pytest

import stores
from fastdata import prep
from fastdata.report.drawing import store_page
from support import MAIN, Array, encode, picture, run, write_pictures


class Page(HTMLParser):
    """The elements of a page: their names and attributes, and the text of each."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.page = text
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.setdefault(self.elements[-1][0], []).append(data)

    def pictures(self) -> list[str]:
        return [found["src"] or "" for tag, found in self.elements if tag == "img"]

    def chart(self, title: str) -> dict[str, str]:
        """The numbers of a chart, by the names of its bars."""
        assert f"<caption>{title}" in self.page
        table = self.page.partition(f"<caption>{title}")[2].partition("</table>")[0]
        return dict(re.findall(r'row">(.*?)</th>.*?count">(.*?)</td>', table, re.DOTALL))


def report(path: Path) -> Page:
    """The page of a store, which is safe and complete in itself."""
    page = Page(store_page(path))
    policy = next(found["content"] for tag, found in page.elements if tag == "meta" and "http-equiv" in found)
    assert policy == "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    assert all(address.startswith("data:image/") for address in page.pictures())
    assert not [name for _, found in page.elements for name in found if name.startswith("on")]
    assert not {"link", "iframe", "object", "script", "a"} & {tag for tag, _ in page.elements}
    return page


def test_a_store_of_two_classes_with_rejects(tmp_path: Path) -> None:
    for k in range(36):
        path = tmp_path / "in" / ("owl" if k < 33 else "rook") / f"{k:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(picture(k, 80 + k % 3, 90 + k), ".png"))
    (tmp_path / "in/owl/words.jpg").write_text("no image")
    page = report(prep(tmp_path / "in", tmp_path / "in.fds", workers=1, codec="png").out)
    assert page.chart("samples of each class") == {"owl": "33", "rook": "3"}
    assert page.texts["td"][-3:] == ["owl/words.jpg", "not-an-image", page.texts["td"][-1]]
    assert len(page.pictures()) == 36 and page.texts["b"].count("owl") == 33
    assert any("codec png" in text for text in page.texts["dd"])


def test_names_from_the_data_are_never_markup(tmp_path: Path) -> None:
    evil = [
        "</script><script>alert(1)</script>",
        "' onclick=alert(2) x=\"",
        "</style><img src=x onerror=alert(3)>",
        "&lt;b&gt; \u202e",
    ]
    paths = write_pictures(tmp_path / "in", 4)
    rows = {"path": [path.name for path in paths], "label": evil}
    pd.DataFrame(rows).to_csv(tmp_path / "in/c.csv", index=False)
    made = prep(tmp_path / "in/c.csv", tmp_path / "<i>.fds", workers=1).out
    assert "\u202e" not in store_page(made)
    page = report(made)
    assert {text.replace("\ufffd", "\u202e") for text in page.texts["b"]} == {*evil} and page.texts["h1"] == ["<i>.fds"]
    os.rename(paths[0], os.fsencode(tmp_path / "in") + b"/<svg onload=x>\xff\xfe.png")  # noqa: PTH104
    paths[1].rename(tmp_path / "in/<script>.png").write_text("no image")
    page = report(prep(tmp_path / "in", tmp_path / "o.fds", workers=1).out)
    assert "<script>.png" in page.texts["td"] and any("<svg onload=x>\ufffd\ufffd.png" in text for text in page.texts["span"])


@pytest.mark.parametrize(
    ("name", "pictures"),
    [("unlabelled", 5), ("floats", 6), ("deep", None), ("several", 12), ("masked", 6), ("tokens", 0), ("arrays", 1)],
)
def test_every_kind_has_a_page(name: str, pictures: int | None) -> None:
    page = report(getattr(stores, name)())
    assert pictures in (None, len(page.pictures()))
    if name == "masked":
        assert page.chart("pixels of each class of masks") == {f"{k} ": "1,200" for k in range(3)}


def test_text_is_shown(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n\n".join(["tea & <milk>", "tea", "ünï ☕" * 40]))
    page = report(prep(tmp_path / "a.txt", tmp_path / "o.fds", tokenizer="bytes", split_on="\n\n", workers=1).out)
    shown = "".join(page.texts["div"])
    assert "tea & <milk>" in shown and "ünï ☕" in shown, "also letters of several tokens"


def test_the_command(tmp_path: Path) -> None:
    store = stores.unlabelled()
    done = run(*MAIN, "report", store, cwd=tmp_path)
    assert done.returncode == 0 and re.fullmatch(r"flat-report.html: .* kB, .*\n", done.stdout), done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["flat-report.html"]
    (tmp_path / "empty").mkdir()
    done = run(*MAIN, "report", tmp_path / "empty", cwd=tmp_path)
    assert done.returncode == 1 and "no store at" in done.stderr


def test_a_page_never_loads_torch() -> None:
    made = [stores.masked(), stores.tokens()]
    code = "import sys\nfrom fastdata.report.drawing import store_page\n"
    code += "for path in sys.argv[1:]: store_page(path)\nassert 'torch' not in sys.modules"
    done = run(MAIN[0], "-c", code, *made)
    assert done.returncode == 0, done.stderr


# Contact sheets

TITLE, TILE = 56, 144  # pixels: above the samples, and a side of their pictures


def drawn(store: Path, sheet: Path) -> tuple[int, Array]:
    """How many samples `fastdata info` says that it drew, and the picture, RGB."""
    found = run(*MAIN, "info", store, "--sheet", sheet)
    assert (found.returncode, found.stderr) == (0, "")
    said = re.search(r"^(\d+) \w+ drawn in", found.stdout, re.M)
    assert said is not None
    return int(said[1]), cv2.cvtColor(cv2.imread(str(sheet)), cv2.COLOR_BGR2RGB)


@pytest.mark.slow
def test_the_sheet_shows_samples_with_their_classes(tmp_path: Path) -> None:
    colors = {"red": (250, 10, 10), "blue": (10, 10, 250)}
    for name, color in colors.items():
        for k in range(30):
            path = tmp_path / "in" / name / f"{k}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encode(np.full((40, 40, 3), color, np.uint8), ".png"))
    store = prep(tmp_path / "in", tmp_path / "o.fds", codec="png", workers=1).out
    count, sheet = drawn(store, tmp_path / "s.png")
    assert count == 48
    assert [(sheet == color).all(axis=2).sum() for color in colors.values()] == [24 * TILE * TILE] * 2


def test_the_middle_slice_of_a_volume(tmp_path: Path) -> None:
    """It has a ramp, all other slices are noise."""
    (tmp_path / "in").mkdir()
    volume = np.random.default_rng(0).integers(-30_000, 30_000, (40, 72, 72)).astype(np.int16)
    volume[20] = np.arange(72)[None] * 100 - 3000
    np.save(tmp_path / "in/a.npy", volume)
    count, sheet = drawn(prep(tmp_path / "in", tmp_path / "o.fds", workers=1).out, tmp_path / "s.png")
    tile = sheet[TITLE : TITLE + TILE, 8 : 8 + TILE]
    assert count == 1 and (tile == tile[:1]).all() and (tile[:, :, :1] == tile).all()
    line = tile[0, ::2, 0].astype(float)
    assert np.abs(line - np.linspace(0, 255, 72)).max() < 6


def test_masks_and_further_images_stand_beside_their_images() -> None:
    assert drawn(stores.tokens(), stores.tokens().with_suffix(".png"))[0] == 2, "documents, as ids without a tokenizer"
    for store, count in ((stores.masked(), 3), (stores.several(), 6)):
        shown, sheet = drawn(store, store.with_suffix(".png"))
        assert shown == count
        for k in range(count):
            left = 8 + k % 4 * (2 * TILE + 8)
            row = TITLE + TILE // 2 + k // 4 * (TILE + 2 * 18 + 8)
            first, second = (sheet[row, left + at : left + at + TILE] for at in (0, TILE))
            assert len(np.unique(first)) > 2 and (second != first).any()
