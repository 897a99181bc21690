"""WebDataset shards: tar files in which the members of a sample are adjacent and share their name up to its first dot."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple

from fastdata.errors import PrepError
from fastdata.remote.path import AnyPath
from fastdata.sources.archive import Folder, Item, Kind, Selection, files_in, make_list, read_range, unreadable
from fastdata.sources.inputs import Source, SourceList, is_image, read_bytes
from fastdata.sources.labels import Value, text_label
from fastdata.sources.packed import Packed, PackedInputs
from fastdata.sources.tar_members import Member, members

__all__ = ["CLASSES", "KIND", "MASK"]

CLASSES = "classes.json"  # next to the shards: the names of the numbered classes
MASK = ".mask.png"  # the ending of a sample's mask

LABEL_BYTES = 1 << 20  # a longer file is not a label
COMPRESSED = re.compile(r"\.(tar\.(gz|bz2|xz|zst|lz4|Z)|t[gbx]z2?|tzst)$", re.IGNORECASE)
SAMPLE = re.compile(r"((?:.*/|)[^./][^./]*)\.([^/]*)", re.DOTALL)  # as in the package webdataset
META = re.compile(r"__[^/]*__(/|$)")

MASKS = (
    f"the {MASK} files are masks, which are not read from tars: fastdata export STORE DIR writes a store as folders instead, for "
    "fastdata-prep DIR/images --masks DIR/masks"
)

Members = tuple[tuple[int, int] | None, ...]  # the offset and the size of those that --fields names


class Sample(NamedTuple):
    """An input, its label, the names of that, the members that --fields names, and its other images."""

    item: Item
    label: Value = None
    names: Sequence[str] = ()
    parts: Members = ()
    others: tuple[Source, ...] = ()


def _takes(path: AnyPath) -> bool:
    return path.is_file() and (path.suffix.lower() == ".tar" or COMPRESSED.search(path.name) is not None)


def _inside(folder: Folder) -> list[AnyPath]:
    return files_in(folder, ".tar") or files_in(folder, ".tar.gz") or files_in(folder, ".tgz")


def _inputs(root: AnyPath, files: list[AnyPath], selection: Selection) -> SourceList:
    labels, names, skipped = Packed[Value](), list[str](), Counter[str]()

    def unlabelled() -> Iterator[Source]:
        for path in files:
            if COMPRESSED.search(path.name):
                raise PrepError(
                    f"{path} is compressed, so it can only be read from its beginning; decompress it to a .tar "
                    "(gunzip, unxz, zstd -d)"
                )
            try:
                for (name, size, problem, place), label, own, parts, others in _samples(
                    path, str(path.relative_to(root)), skipped, selection
                ):
                    labels.append(label)
                    if not names:
                        names.extend(own)
                    yield Source(name, -1, size, problem, place=place, parts=parts, others=others)
            except OSError as error:
                raise unreadable(path, error) from error

    found = PackedInputs(unlabelled())
    by, notes = "the .cls or .json of each sample", (MASKS,) if skipped[MASK] else ()
    inputs = make_list(
        root,
        ((one.name, one.size, one.problem, one.place) for one in found),
        labels,
        names or _class_names(files[0].parent, labels),
        skipped,
        by=by,
        sure=bool(selection.label),
        notes=notes,
        parts=(one.parts for one in found),
    )
    if not selection.images:
        return inputs
    pairs = zip(inputs.sources, found, strict=True)
    return replace(inputs, sources=PackedInputs(_with_others(source, one.others) for source, one in pairs))


def _with_others(source: Source, others: tuple[Source, ...]) -> Source:
    problems = [source.problem, *(other.problem for other in others)]
    size = source.size + sum(other.size for other in others)
    return replace(source, others=others, size=size, problem=next(filter(None, problems), ""))


def _samples(path: AnyPath, name: str, skipped: Counter[str], selection: Selection) -> Iterator[Sample]:
    """Yield the samples of a shard. If it was cut short, one more input stands for what is lost."""
    with path.open("rb") as file:
        for key, group in groupby(members(file, path), key=_key):
            if key:
                yield _sample(path, name, key, list(group), skipped, selection)
            elif key is not None:
                yield Sample((name, 0, "truncated", ("tar", name, 0, 0)))
            else:
                skipped.update(_ending(member.name) for member in group)


def _key(member: Member) -> str | None:
    """Return the name that the members of a sample share; "" for a missing end, None for a member of no sample."""
    if not member.name:
        return ""
    match = None if META.match(member.name) else SAMPLE.fullmatch(member.name)
    return match[1] if match else None


def _ending(name: str) -> str:
    """Return the name from its first dot on, as WebDataset does."""
    base = name.rpartition("/")[2]
    return f".{base.partition('.')[2].lower()}" if "." in base[1:] else base


def _sample(path: AnyPath, name: str, key: str, group: list[Member], skipped: Counter[str], selection: Selection) -> Sample:
    if selection.images:
        images, *more = ([member for member in group if _ending(member.name) == ending] for ending in selection.images)
    else:
        images, more = [member for member in group if is_image(member.name)], []
        images = [member for member in images if _ending(member.name).count(".") == 1] or images  # 1.jpg rather than 1.mask.png
    others = tuple(_other(name, found) for found in more)
    endings = tuple(f".{ending.lower()}" for ending in selection.endings)
    by_ending = {_ending(member.name): member for member in group}
    label, names, used = _label(path, by_ending)
    chosen = {used, *endings, *selection.images, *(_ending(image.name) for image in images)}
    skipped.update(ending for ending in by_ending if ending not in chosen)
    problem = next((m.problem for m in group if m.problem == "truncated"), "")
    if len(images) != 1:
        problem = problem or ("two-images" if images else "no-image")
        return Sample((f"{name}/{key}", 0, problem, ("tar", name, 0, 0)), label, names, (), others)
    image = images[0]
    place = "tar", name, image.offset, image.size
    wanted = [by_ending.get(ending) for ending in endings]
    parts = tuple(None if member is None or member.problem else (member.offset, member.size) for member in wanted)
    size = image.size + sum(part[1] for part in parts if part)
    return Sample((f"{name}/{image.name}", size, problem or image.problem, place), label, names, parts, others)


def _other(name: str, found: list[Member]) -> Source:
    """Return another image of a sample: the only member with its ending."""
    if len(found) != 1:
        return Source("", -1, 0, "two-partners" if found else "no-partner", place=("tar", name, 0, 0))
    member = found[0]
    return Source(f"{name}/{member.name}", -1, member.size, member.problem, place=("tar", name, member.offset, member.size))


def _label(path: AnyPath, by_ending: dict[str, Member]) -> tuple[Value, list[str], str]:
    """Return a sample's label, the names of its columns, and the ending of the member that holds it."""
    for ending, parse in ((".cls", _parse_text), (".json", _parse_json)):
        member = by_ending.get(ending)
        if member is not None and not member.problem and member.size <= LABEL_BYTES:
            value, columns = parse(read_range(path, member.offset, member.size))
            if value is not None:
                return value, columns, ending
    return None, [], ""


def _parse_text(data: bytes) -> tuple[Value, list[str]]:
    return text_label(data.decode("utf-8-sig", "surrogateescape")), []


def _parse_json(data: bytes) -> tuple[Value, list[str]]:
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        return None, []
    if not isinstance(body, dict):
        return None, []
    value: Any = body.get("label", body.get("cls"))
    if isinstance(value, str):
        return text_label(value), []
    if isinstance(value, int):
        return int(value), []
    if isinstance(value, float):
        return (value,), []
    if isinstance(value, list) and value and all(isinstance(v, int | float) for v in value):
        names = body.get("names")
        return tuple(map(float, value)), names if isinstance(names, list) and all(isinstance(n, str) for n in names) else []
    return None, []


def _class_names(folder: AnyPath, labels: Sequence[Value]) -> list[str]:
    """Read the names of the classes from `classes.json` next to the shards, if it fits the labels."""
    try:
        names = json.loads(read_bytes(folder / CLASSES))
    except (OSError, ValueError, RecursionError):
        return []
    fits = isinstance(names, list) and all(isinstance(name, str) for name in names) and len(set(names)) == len(names)
    return names if fits and all(n is None or (isinstance(n, int) and n < len(names)) for n in labels) else []


KIND = Kind("tar", _takes, _inputs, read_range, _inside, has_several=True)
