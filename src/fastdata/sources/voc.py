"""Annotations in Pascal VOC's XML, one file for each image, as columns.

The format: http://host.robots.ox.ac.uk/pascal/VOC/voc2012/htmldoc/devkit_doc.html. Its pixels count from 1 and xmax and ymax are
part of the box, so that the box of a whole image is 1, 1, width, height. Here it is 0, 0, width, height: 1 is subtracted from xmin
and ymin, as detectron2 does (detectron2/data/datasets/pascal_voc.py).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any
from xml.parsers import expat

from fastdata.errors import PrepError
from fastdata.remote.path import AnyPath
from fastdata.sources.annotations import BOXES, BoxCheck, annotated, category_column, finished, pair_files
from fastdata.sources.inputs import Source, SourceList, read_bytes
from fastdata.sources.packed import PackedInputs
from fastdata.store.column import INSTANCES, SOURCE_SIZE, Column
from fastdata.words import number_of

__all__ = ["with_voc"]

TOLERANCE = 0.01  # pixels
FLAGS = ("difficult", "truncated")
STORED = frozenset({"name", "bndbox", *FLAGS})
UNSPECIFIED = "Unspecified"  # a pose that says nothing


@dataclass(slots=True)
class _Element:
    """An element of an XML file, and the line in which it begins."""

    path: AnyPath
    tag: str
    line: int
    text: str = ""
    inner: list[_Element] = field(default_factory=list)

    def find(self, tag: str) -> _Element | None:
        """Return the first element with this tag in this one."""
        return next((one for one in self.inner if one.tag == tag), None)

    def error(self, why: str) -> PrepError:
        return PrepError(f"--voc {self.path}, line {self.line}: {why}")

    def needed(self, tag: str) -> _Element:
        if (found := self.find(tag)) is None:
            raise self.error(f"<{self.tag}> has no <{tag}>")
        return found

    def number(self, tag: str) -> float:
        found = self.needed(tag)
        try:
            value = float(found.text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise found.error(f"<{tag}> must be a number, but is {found.text.strip()!r:.60}")
        return value


@dataclass
class _Image:
    """What a file says: (height, width), boxes (x1, y1, x2, y2), the name of each, and its flags.

    Without a file, there is no size.
    """

    size: list[int] = field(default_factory=list)
    boxes: list[list[float]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    flags: dict[str, list[bool]] = field(default_factory=lambda: {flag: [] for flag in FLAGS})


def with_voc(inputs: SourceList, folder: AnyPath, *, reject_boxes: bool) -> SourceList:
    """Return the images with columns of what VOC's files say of them.

    Images without a file, and files without an image, remain in the list with that problem.

    Args:
        inputs: the images.
        folder: an .xml for each image, with the same path but for the extension.
        reject_boxes: reject an image with a box that lies partly outside of it; else clip the box, and drop it if nothing is left.

    Raises:
        PrepError: a file cannot be read, or is damaged.
    """
    option = f"--voc {folder}"
    inputs, files, unpaired = pair_files(inputs, option, folder, ".xml")
    counts = Counter[str]()
    images = PackedInputs(_read(folder, name, counts) if name else _Image() for name in files)
    names = sorted({name for image in images for name in image.names})
    number = {name: k for k, name in enumerate(names)}
    check = BoxCheck(reject=reject_boxes, tolerance=TOLERANCE)
    flags = [Column(flag, "bool", many=True, group=INSTANCES) for flag in FLAGS]
    sources = PackedInputs[Source]()
    for source, image in zip(inputs.sources, images, strict=True):
        if not image.size:
            sources.append(annotated(source, (), "not-annotated"))
            continue
        boxes, keep, problem = check.check(image.boxes, image.size[1], image.size[0])
        chosen: list[Sequence[Any]] = [[number[name] for name in image.names], *(image.flags[flag] for flag in FLAGS)]
        values = [image.size, boxes, *([one[k] for k in keep] for one in chosen)]
        sources.append(annotated(source, values, problem))
    columns = [SOURCE_SIZE, BOXES, category_column(names), *flags]
    sources.extend(unpaired)
    return finished(inputs, option, columns, sources, [*_notes(counts), *check.notes()])


def _notes(counts: Counter[str]) -> Iterator[str]:
    if counts["empty"]:
        yield f"{number_of(counts['empty'], 'image')} without annotations"
    if other := sorted(key.strip("<>") for key in counts if key.startswith("<")):
        yield f"not stored of the objects: {', '.join(other)}"
    if counts["named"]:
        yield f"{number_of(counts['named'], '.xml file')} with another <filename>: each belongs to the image with its own name"
    if counts["zero"]:
        yield (
            f"{number_of(counts['zero'], 'box')} with an xmin or ymin of 0, though VOC counts pixels from 1: if the files were "
            "written by a tool that counts from 0, all boxes here begin one pixel too far left and up"
        )


def _read(folder: AnyPath, name: str, counts: Counter[str]) -> _Image:
    root = _parse(folder / name)
    if root.tag != "annotation":
        raise root.error(f"<{root.tag}> is no annotation of Pascal VOC, which begins with <annotation>")
    if filename := root.find("filename"):
        counts["named"] += PurePosixPath(filename.text.strip()).stem not in ("", PurePosixPath(name).stem)
    sizes = root.needed("size")
    size = [sizes.number(side) for side in ("height", "width")]
    if not all(side >= 1 and side == int(side) for side in size):
        raise sizes.error(f"<size> must be whole numbers of pixels, but width is {size[1]:g} and height {size[0]:g}")
    image = _Image([int(side) for side in size])
    for one in root.inner:
        if one.tag == "object":
            _add(image, one, counts)
    counts["empty"] += not image.boxes
    return image


def _add(image: _Image, one: _Element, counts: Counter[str]) -> None:
    name = one.needed("name")
    if not name.text.strip():
        raise name.error("<name> is empty")
    box = one.needed("bndbox")
    xmin, ymin, xmax, ymax = (box.number(tag) for tag in ("xmin", "ymin", "xmax", "ymax"))
    counts["zero"] += min(xmin, ymin) == 0
    image.names.append(name.text.strip())
    image.boxes.append([xmin - 1, ymin - 1, xmax, ymax])
    for flag in FLAGS:
        value = 0.0 if one.find(flag) is None else one.number(flag)
        if value not in (0, 1):
            raise one.needed(flag).error(f"<{flag}> must be 0 or 1, but is {value:g}")
        image.flags[flag].append(bool(value))
    counts.update({f"<{inner.tag}>" for inner in one.inner if inner.tag not in STORED and inner.text.strip() != UNSPECIFIED})


def _parse(path: AnyPath) -> _Element:
    """Return the root of an XML file."""
    parser = expat.ParserCreate()
    top = _Element(path, "", 0)
    open_elements = [top]

    def begin(tag: str, attributes: Any) -> None:
        element = _Element(path, tag, parser.CurrentLineNumber)
        open_elements[-1].inner.append(element)
        open_elements.append(element)

    def end(tag: str) -> None:
        open_elements.pop()

    def text(data: str) -> None:
        open_elements[-1].text += data

    def entity(*declaration: Any) -> None:
        raise PrepError(f"--voc {path}, line {parser.CurrentLineNumber}: an annotation that declares entities is not read")

    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = begin, end, text
    parser.EntityDeclHandler = entity
    try:
        parser.Parse(read_bytes(path), True)
    except OSError as error:
        raise PrepError(f"cannot read --voc {path}: {error.strerror}") from None
    except expat.ExpatError as error:
        raise PrepError(f"--voc {path}, line {error.lineno}: {expat.ErrorString(error.code)}") from None
    except (LookupError, ValueError):  # of its declaration
        raise PrepError(f"--voc {path}, line 1: its encoding is not read here; save the file as UTF-8") from None
    finally:
        parser.StartElementHandler = parser.EntityDeclHandler = None  # they hold the parser, which would stay with all elements
    return top.inner[0]
