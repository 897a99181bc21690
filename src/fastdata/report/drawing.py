"""Contact sheets and pages: samples and counts of a store of any kind, on one PNG or in one HTML file that loads nothing."""

from __future__ import annotations

import base64
import io
import re
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from fastdata.store.info import Preview, counts_of, info_lines, previews, store_facts
from fastdata.store.store import Store
from fastdata.types import Array, StrPath

if TYPE_CHECKING:
    from PIL.Image import Image

TILE, GAP, LINE, TITLE = 144, 8, 18, 56  # pixels: a picture, a margin, a line of text, the height of the title
ACROSS = 8  # pictures
SAMPLES, TEXT_LINES = 48, 2
MAX_KEYS = 24  # classes in the legend
MAX_LETTERS = 300  # of a line
DARK, GREY, PALE = (32, 32, 32), (112, 112, 112), (244, 244, 244)


def draw_sheet(path: StrPath, out: StrPath) -> int:
    """Draw at most 48 samples, evenly spaced over a store, and a legend of its masks or boxes.

    Pictures of a sample are side by side: several images, and its mask. Volumes show their middle slice, text its beginning.

    out: the PNG to write. Returns the number of samples shown.
    """
    from PIL import Image

    store = Store(path, kind=None)
    cells = [_cell(preview) for preview in previews(store, SAMPLES)]
    wide, tall = (max((getattr(cell, side) for cell in cells), default=TILE) for side in ("width", "height"))
    columns = max(1, ACROSS * (TILE + GAP) // (wide + GAP))
    counts = [counted for counted in counts_of(store_facts(store)) if counted.rows[0][2]]
    keys = counts[0].rows[:MAX_KEYS] if counts else []
    below = TITLE + -(-len(cells) // columns) * (tall + GAP)
    sheet = Image.new("RGB", (ACROSS * (TILE + GAP) + GAP, below + -(-len(keys) // ACROSS) * (LINE + GAP)), "white")
    _write(sheet, (GAP, 6), store.path.name, 20)
    _write(sheet, (GAP, 32), next(info_lines(store)).rpartition(": ")[2], color=GREY)
    for k, cell in enumerate(cells):
        sheet.paste(cell, (GAP + k % columns * (wide + GAP), TITLE + k // columns * (tall + GAP)))
    for k, (name, count, color) in enumerate(keys):
        x, y = GAP + k % ACROSS * (TILE + GAP), below + k // ACROSS * (LINE + GAP)
        sheet.paste(color or DARK, (x, y, x + LINE, y + LINE))
        _write(sheet, (x + LINE + 6, y), f"{name} {count:,}", width=TILE - LINE - 6)
    sheet.save(out, "PNG")
    return len(cells)


def _cell(preview: Preview) -> Image:
    """Draw a sample: its pictures or text, its title and its note."""
    from PIL import Image

    wide = TILE * len(preview.pictures) or ACROSS * (TILE + GAP) - GAP
    top = TILE if preview.pictures else TEXT_LINES * LINE
    cell = Image.new("RGB", (wide, top + LINE * (1 + bool(preview.pictures))), "white")
    cell.paste(PALE, (0, 0, wide, top))
    for k, pixels in enumerate(preview.pictures):
        picture = fitted(pixels, TILE)
        cell.paste(picture, (k * TILE + (TILE - picture.width) // 2, (TILE - picture.height) // 2))
    text = preview.text
    for k in range(TEXT_LINES if text else 0):
        text = _write(cell, (4, k * LINE), text)
    if preview.pictures:
        _write(cell, (0, top), preview.title)
    _write(cell, (0, cell.height - LINE), preview.note, color=GREY)
    return cell


def fitted(pixels: Any, side: int) -> Image:
    """Return RGB pixels [H, W, 3] as a picture whose longer side is `side`. Enlarging does not smooth."""
    from PIL import Image

    picture = Image.fromarray(pixels)
    scale = side / max(picture.size)
    return picture.resize([max(1, round(n * scale)) for n in picture.size], Image.Resampling.BOX)


def _write(image: Image, xy: tuple[int, int], text: str, size: int = 13, *, width: int = 0, color: Any = DARK) -> str:
    """Write as much of a text as fits into a line, up to `width` or the end of the image. Return the rest."""
    from PIL import ImageDraw, ImageFont

    draw, font = ImageDraw.Draw(image), ImageFont.load_default(size)
    known = text[:MAX_LETTERS].encode("utf-8", "replace").decode()
    plain = "".join(letter if letter.isprintable() else " " for letter in known)
    width = width or image.width - xy[0]
    fits = len(plain)
    while draw.textlength(plain[:fits], font) > width:
        fits -= 1
    draw.text(xy, plain[:fits], color, font)
    return text[fits:]


# Pages

PAGE_SAMPLES, SIDE = 96, 256  # pictures, and pixels of the longer side of each
REJECTS = 100
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069\ufffe\uffff]")  # or turns text around


def store_page(path: StrPath) -> str:
    """Return the HTML page about a store."""
    from jinja2 import Environment

    store = Store(path, kind=None)
    samples = [(sample, [_address(pixels) for pixels in sample.pictures]) for sample in previews(store, PAGE_SAMPLES)]
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
