"""The page about a store: its samples and its counts, in one HTML file that loads nothing."""

from __future__ import annotations

import base64
import io
import re
from importlib.resources import files
from typing import Any

from fastdata.report.sheet import fitted
from fastdata.store.info import info_lines, store_facts
from fastdata.store.preview import counts_of, previews
from fastdata.store.store import Store
from fastdata.types import Array, StrPath

SAMPLES, SIDE = 96, 256  # pictures, and pixels of the longer side of each
REJECTS = 100
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069\ufffe\uffff]")  # or turns text around


def store_page(path: StrPath) -> str:
    """Return the page of a store."""
    from jinja2 import Environment

    store = Store(path, kind=None)
    samples = [(sample, [_address(pixels) for pixels in sample.pictures]) for sample in previews(store, SAMPLES)]
    environment = Environment(autoescape=True, finalize=_printable)
    template = environment.from_string((files(__package__) / "page.html").read_text(encoding="utf-8"))
    return template.render(
        name=store.path.name,
        lines=[line.strip().partition(": ") for line in info_lines(store)],
        samples=samples,
        charts=[*counts_of(store_facts(store))],
        rejects=store.rejects()[:REJECTS],
    )


def _printable(value: Any) -> Any:
    """Replace characters that HTML cannot hold, such as undecodable bytes of file names."""
    return UNPRINTABLE.sub("\ufffd", value) if type(value) is str else value


def _address(pixels: Array) -> str:
    """Return RGB pixels as a data URL of an image."""
    data = io.BytesIO()
    fitted(pixels, SIDE).save(data, "JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(data.getvalue()).decode()}"
