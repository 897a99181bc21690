"""Reports of stores of every kind: the numbers on the page, and that the page is safe and complete in itself."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import fastdata
import stores
from fastdata import prep
from fastdata.cli import cli
from fastdata.report.store_report import store_report
from support import MAIN, encode, picture, run, write_pictures


class Page(HTMLParser):
    """The elements of a page: their names and attributes, and the text of each."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.feed(text)
        assert self.open == [], "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "input", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in self.open[-1:]:
            self.texts.setdefault(tag, []).append(data)

    def attributes(self, tag: str, name: str) -> list[str]:
        return [found[name] or "" for element, found in self.elements if element == tag and name in found]


def report(path: Path) -> tuple[dict[str, Any], Page]:
    """The numbers of a report, by section, as JSON has them, and its page, which is safe and complete in itself."""
    text, found = store_report(path)
    page = Page(text)
    policy = next(found["content"] for tag, found in page.elements if tag == "meta" and "http-equiv" in found)
    assert policy is not None and policy.startswith("default-src 'none'; img-src data:;")
    assert all(address.startswith("data:image/") for address in page.attributes("img", "src"))
    assert all(address.startswith("#") for address in page.attributes("a", "href"))
    assert not [name for _, found in page.elements for name in found if name.startswith("on")]
    digest = base64.b64encode(hashlib.sha256("".join(page.texts["script"]).encode()).digest()).decode()
    assert policy.endswith(f"script-src 'sha256-{digest}'") and len(page.texts["script"]) == 1
    assert not {"link", "iframe", "object"} & {tag for tag, _ in page.elements}
    ids = [found["id"] for _, found in page.elements if "id" in found]
    assert len(set(ids)) == len(ids) and {address[1:] for address in page.attributes("a", "href")} <= set(ids)
    sections = json.loads(json.dumps(found, allow_nan=False))["sections"]
    assert page.attributes("section", "id") == list(sections)
    return sections, page


def findings(sections: dict[str, Any]) -> str:
    return " ".join(text for section in sections.values() for text in section["findings"])


def test_a_store_of_two_classes_with_rejects(tmp_path: Path) -> None:
    for k in range(36):
        path = tmp_path / "in" / ("owl" if k < 33 else "rook") / f"{k:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(picture(k, 80 + k % 3, 90 + k), ".png"))
    whole = encode(picture(99, 300, 400), ".jpg")
    (tmp_path / "in/owl/cut.jpg").write_bytes(whole[: len(whole) * 2 // 3])
    (tmp_path / "in/owl/words.jpg").write_text("no image")
    store = prep(tmp_path / "in", tmp_path / "in.fds", workers=1, codec="png").out
    sections, page = report(store)
    assert sections["classes"]["counts"] == {"owl": 33, "rook": 3}
    assert (sections["classes"]["largest"], sections["classes"]["smallest"]) == (33, 3)
    assert "owl has 33 images, 11 times as many as rook (3)" in findings(sections)
    assert sections["rejects"]["reasons"] == {"truncated": 1, "not-an-image": 1}
    assert sections["rejects"]["pictured"] == 1, "what is there of the file that was cut short"
    assert sections["sizes"]["width"] == [90, 125] and sections["sizes"]["height"] == [80, 82]
    assert sections["sizes"]["bytes"] == int(np.load(store / "full/index.npy")["length"].sum())
    assert sections["making"]["command"] == "fastdata-prep SOURCE in.fds --codec png"
    assert len(page.attributes("button", "data-text")) > 20


def test_names_from_the_data_are_never_markup(tmp_path: Path) -> None:
    script = (Path(fastdata.__file__).parent / "report/page.js").read_text()
    evil = [
        "</script><script>alert(1)</script>",
        "' onclick=alert(2) x=\"",
        "</style><img src=x onerror=alert(3)>",
        "&lt;b&gt; \u202e",
    ]
    paths = write_pictures(tmp_path / "in", 4)
    rows = {"path": [path.name for path in paths], "label": evil, "caption": evil[::-1]}
    pd.DataFrame(rows).to_csv(tmp_path / "in/c.csv", index=False)
    made = prep(tmp_path / "in/c.csv", tmp_path / "<i>.fds", workers=1, fields=("caption",)).out
    assert "\u202e" not in store_report(made)[0]
    _, page = report(made)
    assert {text.replace("\ufffd", "\u202e") for text in page.attributes("button", "data-text")} == {*evil}
    assert page.texts["script"] == [script] and "<i>.fds" in page.texts["h1"]
    assert all(any(text in alt.replace("\ufffd", "\u202e") for alt in page.attributes("img", "alt")) for text in evil), "captions"
    os.rename(paths[0], os.fsencode(tmp_path / "in") + b"/<svg onload=x>\xff\xfe.png")  # noqa: PTH104
    paths[1].rename(tmp_path / "in/<script>.png").write_text("no image")
    sections, page = report(prep(tmp_path / "in", tmp_path / "o.fds", workers=1).out)
    assert sections["rejects"]["reasons"] == {"not-an-image": 1} and "<script>.png" in page.texts["th"]
    assert any("<svg onload=x>\ufffd\ufffd.png" in text for text in page.texts["div"])


@pytest.mark.parametrize("name", ["unlabelled", "floats", "deep", "several", "masked", "tokens", "arrays", "masked_arrays"])
def test_every_kind_has_a_report(name: str) -> None:
    sections, page = report(getattr(stores, name)())
    assert {"making"} < set(sections)
    values = {
        "floats": lambda: sections["labels"]["labels"]["minus"] == {"min": -5.0, "mean": -2.5, "max": 0.0},
        "masked": lambda: sections["masks"]["pixels"] == {f"class {k}": 1200 for k in range(3)},
        "tokens": lambda: (sections["documents"]["tokens"], sections["vocabulary"]["used"]) == (1000, 1000),
        "arrays": lambda: sections["shapes"]["smallest"] == [20, 30, 40] and sections["values"]["max"] == 23999,
        "masked_arrays": lambda: len(page.attributes("img", "class")) >= 14 * 3,
        "several": lambda: len(page.attributes("img", "src")) >= 12,
    }
    assert values.get(name, lambda: True)()


def test_text_is_shown_and_counted(tmp_path: Path) -> None:
    texts = ["tea & <milk>", "tea", "", "ünï ☕" * 40]
    (tmp_path / "a.txt").write_text("\n\n".join(texts))
    (tmp_path / "b.txt").write_text("aaaa")
    (tmp_path / "in").mkdir()
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").rename(tmp_path / f"in/{name}.txt")
    store = prep(tmp_path / "in", tmp_path / "o.fds", tokenizer="bytes", split_on="\n\n", workers=1).out
    sections, page = report(store)
    data = [text.encode() for text in (*texts, "aaaa") if text]
    counts = np.bincount(np.frombuffer(b"".join(data), np.uint8))
    assert sections["documents"]["longest"] == max(map(len, data)) + 1
    assert sections["documents"]["tokens"] == sum(map(len, data)) + len(data)
    assert sections["documents"]["inputs"] == {"a.txt": sum(map(len, data[:-1])) + len(data) - 1, "b.txt": 5}
    found = dict(sections["vocabulary"]["common"])
    assert all(found[k] == counts[k] for k in found if k < 256) and len(found) == (counts > 0).sum() + 1
    shown = "".join(page.texts["span"])
    assert "tea & <milk>" in shown and "ünï ☕" in shown, "also letters of several tokens"


def test_boxes_are_drawn_where_they_are(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for k in range(2):
        (tmp_path / f"in/{k}.png").write_bytes(encode(picture(k, 200, 400), ".png"))
    boxes = [{"id": k, "image_id": 0, "bbox": [40 + k, 60, 80, 100], "category_id": 7 + k % 2} for k in range(3)]
    images = [{"id": k, "file_name": f"{k}.png", "height": 200, "width": 400} for k in range(2)]
    body = {"images": images, "annotations": boxes, "categories": [{"id": 7, "name": "owl"}, {"id": 8, "name": "rook"}]}
    (tmp_path / "c.json").write_text(json.dumps(body))
    sections, page = report(prep(tmp_path / "in", tmp_path / "o.fds", coco=tmp_path / "c.json", size=100, workers=1).out)
    drawn = [found for tag, found in page.elements if tag == "rect"]
    assert {(found["x"], found["y"], found["width"], found["height"]) for found in drawn} == {
        (f"{(40 + k) / 2:.1f}", "30.0", "40.0", "50.0") for k in range(3)
    }
    assert "0 0 200 100" in page.attributes("svg", "viewbox")
    counts = next(found["counts"] for found in sections["columns"].values() if "counts" in found)
    assert counts == {"owl": 2, "rook": 1} and "1 image has no boxes" in findings(sections)


# ---------------------------------------------------------------------------------------------------------------- command


def test_the_command(tmp_path: Path) -> None:
    store = stores.unlabelled()
    found = json.loads(run(*MAIN, "report", store, "--out", tmp_path / "p.htm", "--json").stdout)
    assert (found["out"], found["samples"], found["sections"]["samples"]["shown"]) == (str(tmp_path / "p.htm"), 5, 5)
    (tmp_path / "p.htm").unlink()
    done = run(*MAIN, "report", store, cwd=tmp_path)
    assert done.returncode == 0 and re.fullmatch(r"flat-report.html: .* MB, .*|flat-report.html: .* kB, .*\n", done.stdout), (
        done.stdout
    )
    assert [path.name for path in tmp_path.iterdir()] == ["flat-report.html"]
    (tmp_path / "empty").mkdir()
    asked = CliRunner().invoke(cli, ["report", str(store), "--out", "x.png"])
    assert asked.exit_code == 2 and "does not end in .html" in asked.output
    done = run(*MAIN, "report", tmp_path / "empty", cwd=tmp_path)
    assert done.returncode == 1 and "no store at" in done.stderr


@pytest.mark.slow
def test_the_commands_of_the_documentation(tmp_path: Path) -> None:
    text = (Path(__file__).parent.parent / "docs/report.md").read_text()
    prep(stores.sources(), tmp_path / "photos.fds", size=32, workers=1)
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for block in re.findall(r"^```bash\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        done = run("bash", "-euc", block, cwd=tmp_path, env=env)
        assert done.returncode == 0, done.stderr
    made = {path.name for path in tmp_path.glob("*.html")}
    assert made == {"photos-report.html", "look.html"}


def test_a_report_never_loads_torch() -> None:
    made = [stores.masked(), stores.masked_arrays(), stores.tokens()]
    code = "import sys\nfrom fastdata.report.store_report import store_report\n"
    code += "for path in sys.argv[1:]: store_report(path)\nassert 'torch' not in sys.modules"
    done = run(MAIN[0], "-c", code, *made)
    assert done.returncode == 0, done.stderr
