"""WebDataset shards: tar files in which the members of a sample are adjacent and share their name up to its first dot."""

from __future__ import annotations

import os
import re
import tarfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from typing import Any, BinaryIO, NamedTuple

from fastdata.errors import PrepError
from fastdata.sources.base import damaged_file, read_range, unreadable
from fastdata.sources.files import are_names, is_image, nfc, parse_json, read_json
from fastdata.sources.folder import with_companion
from fastdata.sources.inputs import Field, Packed, Source, SourceList
from fastdata.sources.labels import Value, with_labels
from fastdata.sources.options import LabelOptions
from fastdata.sources.urls import AnyPath
from fastdata.store.manifest import Labels

CLASSES = "classes.json"  # next to the shards: the names of the numbered classes
MASK = ".mask.png"  # the ending of a sample's mask

LABEL_BYTES = 1 << 20  # a longer file is not a label
END_BYTES = 2 * tarfile.BLOCKSIZE  # zeros at the end of a tar; most programs add more, up to a multiple of tarfile.RECORDSIZE
FULL_BYTES = END_BYTES + tarfile.RECORDSIZE
SAMPLE = re.compile(r"((?:.*/|)[^./][^./]*)\.([^/]*)", re.DOTALL)  # as in the package webdataset
META = re.compile(r"__[^/]*__(/|$)")

read = read_range


def list_inputs(
    root: AnyPath, files: list[AnyPath], options: LabelOptions, fields: Sequence[Field], images: Sequence[str]
) -> SourceList:
    """List the samples of shards. images: the endings of the images of a sample, if it has several."""
    inputs, labels, names, skipped = Packed[Source](), Packed[Value](), list[str](), Counter[str]()
    endings = [f".{field.ending.lower()}" for field in fields if field.ending]
    for path in files:
        if path.suffix.lower() != ".tar":
            raise PrepError(f"{path} is compressed, and its members cannot be read one by one: decompress it to a .tar")
        tar = str(path.relative_to(root))
        try:
            with path.open("rb") as file:
                for key, members in _samples(file, path, skipped):
                    label, columns, used = _label(file, members)
                    inputs.append(_input(tar, key, members, endings, images, skipped, used))
                    labels.append(label)
                    names = names or [*columns]
        except OSError as error:
            raise unreadable(path, error) from error
    by, listed = "the .cls or .json of each sample", SourceList(root, Labels("none"), inputs, skipped)
    known = read_json(files[0].parent / CLASSES)
    if not names and not options.regression and known and are_names(known):
        names, by = known, f"{by}, with the names of {CLASSES}"
    return with_labels(listed, labels, options, names=names, by=by)


class Member(NamedTuple):
    """A file in a tar."""

    name: str
    offset: int
    size: int
    problem: str  # why it cannot be used, or ""


def _members(file: BinaryIO, path: AnyPath) -> Iterator[Member]:
    """Yield the members that are not folders. Anything but zeros after them is an error, since tarfile takes damage for the end."""
    total, end = file.seek(0, os.SEEK_END), 0
    file.seek(0)
    try:
        with tarfile.open(fileobj=file, mode="r:", encoding="utf-8", errors="surrogateescape") as opened:
            tar: Any = opened
            for header in iter(tar.next, None):
                tar.members.clear()  # which would hold all of them
                sparse = header.issparse()
                size = header.size if header.isreg() and not sparse else 0
                if header.size < 0 or header.offset < end or header.offset_data + size > total:
                    raise tarfile.ReadError(f"{header.name!a} claims {header.size} bytes")
                end = header.offset_data + size
                if not header.isdir():
                    problem = "unsupported" if sparse else "" if header.isreg() else "not-a-file"
                    yield Member(header.name.removeprefix("./").rstrip("/") or ".", header.offset_data, size, problem)
            end = tar.offset
    except (tarfile.TarError, ValueError, OverflowError, MemoryError) as error:
        raise damaged_file(path, f"is damaged or cut short at byte {end}, or is no tar ({error})") from None
    file.seek(end)
    if file.read(FULL_BYTES).strip(b"\0"):
        raise damaged_file(path, f"is damaged at byte {end}, where a member or the end of the tar should be")
    zeros = total - end
    if zeros != END_BYTES and not (END_BYTES < zeros < FULL_BYTES and total % tarfile.RECORDSIZE == 0):
        raise damaged_file(path, f"was cut short, or has lost its end: {zeros} zeros follow its last member, from byte {end}")


def _samples(file: BinaryIO, path: AnyPath, skipped: Counter[str]) -> Iterator[tuple[str, dict[str, Member]]]:
    """Yield the name of each sample of a shard, and its members by their endings."""
    seen = set[int]()
    for key, group in groupby(_members(file, path), key=_key):
        members = list(group)
        if key is None:
            skipped.update(_ending(member.name) for member in members)
            continue
        if hash(key) in seen:
            raise PrepError(f"{path}: the members of sample {key!a} are not adjacent; rewrite the tar with tar --sort=name")
        seen.add(hash(key))
        by_ending = {_ending(member.name): member for member in members}
        if len(by_ending) < len(members):
            twice = next(member.name for member in members if by_ending[_ending(member.name)] is not member)
            raise PrepError(f"{path} has the member {twice!a} twice, ignoring case; write the tar again with one of them")
        yield key, by_ending


def _key(member: Member) -> str | None:
    """Return the name that the members of a sample share, or None for a member of no sample."""
    match = None if META.match(member.name) else SAMPLE.fullmatch(member.name)
    return nfc(match[1]) if match else None


def _ending(name: str) -> str:
    """Return the name from its first dot on, as WebDataset does."""
    base = name.rpartition("/")[2]
    return f".{base.partition('.')[2].lower()}" if "." in base[1:] else base


def _input(
    tar: str, key: str, members: dict[str, Member], endings: list[str], several: Sequence[str], skipped: Counter[str], used: str
) -> Source:
    """Return a sample as an input. used: the ending of the member that holds its label."""
    images = [ending for ending in members if (ending in several[:1] if several else is_image(members[ending].name))]
    if not several:
        images = [ending for ending in images if ending.count(".") == 1] or images  # 1.jpg rather than 1.mask.png
    chosen = {used, *endings, *several, *images}
    skipped.update(ending for ending in members if ending not in chosen)
    if len(images) != 1:
        return Source(f"{tar}/{key}", -1, 0, "two-images" if images else "no-image", locator=("tar", tar, 0, 0))
    first, *more = (_file(tar, members.get(ending)) for ending in (*images, *several[1:]))
    wanted = [members.get(ending) for ending in endings]
    values = tuple(None if member is None or member.problem else [member.offset, member.size] for member in wanted)
    source = replace(first[0], size=first[0].size + sum(value[1] for value in values if value), values=values)
    for ending, files in zip(several[1:], more, strict=True):
        source = with_companion(source, files, ending.lstrip("."))
    return source


def _file(tar: str, member: Member | None) -> list[Source]:
    """Return the member as an input, in a list; [] for None."""
    if member is None:
        return []
    return [Source(f"{tar}/{member.name}", -1, member.size, member.problem, locator=("tar", tar, member.offset, member.size))]


def _label(file: BinaryIO, members: dict[str, Member]) -> tuple[Value, list[str], str]:
    """Return a sample's label, the names of the label's numbers, and the ending of the member that holds them."""
    for ending in (".cls", ".json"):
        member, value, names = members.get(ending), None, None
        if member is None or member.problem or member.size > LABEL_BYTES:
            continue
        file.seek(member.offset)
        data = file.read(member.size)
        if ending == ".cls":
            value = data.decode("utf-8-sig", "surrogateescape").strip()
        else:
            with suppress(ValueError, RecursionError, AttributeError):
                body = parse_json(data)
                value, names = body.get("label", body.get("cls")), body.get("names")
        if value not in (None, ""):
            return value, names if are_names(names) else [], ending
    return None, [], ""
