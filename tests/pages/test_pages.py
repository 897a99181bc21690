"""Reports in headless Chromium: nothing on the console, nothing from the network, and nothing wider than the screen.

With FASTDATA_PAGES=FOLDER, the screenshots go there.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from playwright.sync_api import Browser, Page, sync_playwright

import stores
from fastdata import prep
from fastdata.report.page import store_page
from support import encode, picture

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: tests/pages/install_chromium.sh installs it"),
]

WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of each kind, by name."""
    folder = tmp_path_factory.mktemp("pages")
    made = {"masks": stores.masked(), "volumes": stores.masked_arrays(), "tokens": stores.tokens()}
    made |= {"photos": _photos(folder), "boxes": _boxes(folder)}
    found = {name: folder / f"{name}.html" for name in made}
    for name, store in made.items():
        found[name].write_text(store_page(store))
    return found


def _photos(folder: Path) -> Path:
    """A store of photos of ten classes, with a reject and hostile names."""
    for k in range(30):
        name = f"class {k % 10} <script>document.title='broken'; console.error('ran')\u2044script>/{k}.jpg"
        path = folder / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(picture(k, 300, 200 + 20 * k)))
    (folder / "photos/words.jpg").write_text("no image")
    return prep(folder / "photos", folder / "photos.fds", workers=1).out


def _boxes(folder: Path) -> Path:
    """A store of photos with a box each."""
    (folder / "scenes").mkdir()
    for k in range(4):
        (folder / f"scenes/{k}.jpg").write_bytes(encode(picture(k, 300, 400)))
    images = [{"id": k, "file_name": f"{k}.jpg", "height": 300, "width": 400} for k in range(4)]
    boxes = [{"id": k, "image_id": k, "bbox": [40, 60, 80, 100], "category_id": 1} for k in range(4)]
    body = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "thing"}]}
    (folder / "coco.json").write_text(json.dumps(body))
    return prep(folder / "scenes", folder / "scenes.fds", coco=folder / "coco.json", workers=1).out


class Visit:
    """A page in the browser, what it said on the console, and what it asked for."""

    def __init__(self, page: Page, path: Path) -> None:
        self.page = page
        self.said: list[str] = []
        self.asked: list[str] = []
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))
        page.goto(path.as_uri())

    def check(self, path: Path) -> None:
        assert self.said == []
        assert [url for url in self.asked if not url.startswith("data:")] == [path.as_uri()]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["masks", "volumes", "tokens", "photos", "boxes"])
def test_a_page_is_quiet_and_fits(browser: Browser, pages: dict[str, Path], tmp_path: Path, name: str, scheme: Any) -> None:
    folder = Path(os.environ.get("FASTDATA_PAGES", tmp_path))
    for size, what in ((WIDE, scheme), (NARROW, f"{scheme}-narrow")):
        with browser.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce") as context:
            visit = Visit(context.new_page(), pages[name])
            page = visit.page
            wide = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
            assert wide[0] <= wide[1], "nothing is wider than the screen"
            page.screenshot(path=folder / f"{name}-{what}.png", full_page=True)
            pixels = cv2.imread(str(folder / f"{name}-{what}.png"))
            assert (np.median(pixels) < 60) == (scheme == "dark")
            assert page.evaluate(
                "[...document.images].every((image) => image.alt !== null && (!image.complete || image.naturalWidth > 0))"
            )
            assert page.title().endswith(": report")
            visit.check(pages[name])
