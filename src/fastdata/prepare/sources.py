"""The list of inputs: which files, in which order, with which labels."""

from __future__ import annotations

import csv
import os
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from fastdata.errors import PrepError
from fastdata.prepare.archives.catalog import list_archives
from fastdata.prepare.inputs import EXTENSIONS, SPLITS, Source, SourceList, StrPath, splits_error
from fastdata.store.format import Labels, read_manifest

__all__ = ["Source", "SourceList", "list_sources", "look", "walk_files", "walk_images"]


def list_sources(source: StrPath, *, labels: StrPath | None = None, classes: StrPath | None = None) -> SourceList:
    """List the images of a folder (one folder per class, or flat), of a CSV/TSV file of `path,label`, or of archives.

    Args:
        source: a folder, a .csv or .tsv file with paths relative to it, or archives: see `fastdata.prepare.archives`.
        labels: a CSV/TSV whose first column is a path relative to `source`, the others float values; a header names them.
        classes: a store whose class list is to be used, so that a validation set has the numbers of its training set.

    Raises:
        PrepError: nothing to prepare, splits side by side, a label file that does not fit, an unknown class.
    """
    path = Path(source)
    if (archived := list_archives(source)) is not None:
        found = archived
    elif path.is_dir():
        found = _list_folder(path)
    elif path.is_file() and path.suffix.lower() in (".csv", ".tsv"):
        found = _list_table(path)
    else:
        what = "is neither a folder nor a .csv or .tsv file, nor an archive of a known kind" if path.exists() else "does not exist"
        raise PrepError(f"SOURCE {source} {what}")
    if labels is not None:
        found = _with_vectors(found, Path(labels))
    if classes is not None:
        found = _with_classes(found, Path(classes))
    if not found.sources:
        left = f"; {sum(found.skipped.values())} other files are there ({_counts(found.skipped)})" if found.skipped else ""
        raise PrepError(f"no images in {source}{left}; image files end in .jpg, .png, .webp and so on, or have no ending")
    return found


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counter.most_common(5))


def _list_folder(root: Path) -> SourceList:
    folders = [entry.name for entry in _listed(root) if _is_folder(entry)]
    _refuse_splits(root, folders)
    skipped: Counter[str] = Counter()
    top = list(_images(root, "", skipped))
    inner = [(name, [i for folder in sorted(_below(root, name)) for i in _images(root, folder, skipped)]) for name in folders]
    if not any(files for _, files in inner):
        return SourceList(root, Labels("none"), [Source(n, -1, s, p) for n, s, p in top], skipped)
    names = tuple(name for name, _ in inner)
    sources = [Source(n, label, s, p) for label, (_, files) in enumerate(inner) for n, s, p in files]
    stray = [Source(n, -1, s, "no-label") for n, s, _ in top]
    return SourceList(root, Labels("class", names), sources + stray, skipped)


def _hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def _refuse_splits(root: Path, folders: list[str]) -> None:
    splits = {name: str(root / name) for name in folders if name.lower() in SPLITS}
    if len(splits) > 1:
        raise splits_error(root, splits)


def _listed(path: Path) -> list[os.DirEntry[str]]:
    """What a folder holds, sorted by name."""
    try:
        with os.scandir(path) as entries:
            return sorted((e for e in entries if not _hidden(e.name)), key=lambda e: e.name)
    except OSError as error:
        raise PrepError(f"cannot list {path}: {error.strerror}") from error


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _below(root: Path, folder: str, above: frozenset[tuple[int, int]] = frozenset()) -> Iterator[str]:
    """A folder and all folders in it; not those that a link leads back to. Sorted, they stand in the order of ImageFolder."""
    try:
        info = (root / folder).stat()
    except OSError as error:
        raise PrepError(f"cannot list {root / folder}: {error.strerror}") from error
    if (here := (info.st_dev, info.st_ino)) in above:
        return
    yield folder
    for entry in _listed(root / folder):
        if _is_folder(entry):
            yield from _below(root, f"{folder}/{entry.name}", above | {here})


def _images(root: Path, folder: str, skipped: Counter[str]) -> Iterator[tuple[str, int, str]]:
    """The (name, size, problem) of each image in a folder."""
    for entry in _listed(root / folder):
        if not _is_folder(entry):
            ending = os.path.splitext(entry.name)[1].lower()
            if _is_image(entry.name) or not ending:
                yield f"{folder}/{entry.name}" if folder else entry.name, *look(entry.path)
            else:
                skipped[ending] += 1


def walk_files(root: Path) -> Iterator[tuple[str, int, str]]:
    """The (name, size, problem) of every file in a folder and all folders in it, hidden ones aside."""
    inner = (folder for entry in _listed(root) if _is_folder(entry) for folder in sorted(_below(root, entry.name)))
    for folder in ("", *inner):
        for entry in _listed(root / folder):
            if not _is_folder(entry):
                yield f"{folder}/{entry.name}" if folder else entry.name, *look(entry.path)


def walk_images(root: Path) -> Iterator[tuple[str, int, str]]:
    """The same of the images among them."""
    return (file for file in walk_files(root) if _is_image(file[0]) or not os.path.splitext(file[0])[1])


def look(path: str | Path) -> tuple[int, str]:
    """The size of a file, and why it can't be used; -1 if so."""
    try:
        info = os.stat(path)
    except FileNotFoundError:
        return -1, "broken-link" if os.path.islink(path) else "missing"
    except (OSError, ValueError):  # ValueError: a table's name with a zero byte
        return -1, "unreadable"
    return (info.st_size, "") if stat.S_ISREG(info.st_mode) else (-1, "not-a-file")  # a pipe would be read for ever


def _rows(path: Path) -> tuple[list[str], list[list[str]]]:
    """The first row, which may be a header, and the others, of a CSV or TSV file."""
    try:
        with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            rows = [row for row in csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",") if row]
    except (OSError, csv.Error) as error:
        raise PrepError(f"cannot read {path}: {error}") from error
    if not rows:
        raise PrepError(f"{path} is empty; it needs rows of path,label")
    width = len(rows[0])
    for number, row in enumerate(rows, 1):
        if len(row) != width:
            raise PrepError(f"{path}, row {number}: {len(row)} columns, the first row has {width}")
    return rows[0], rows[1:]


def _list_table(path: Path) -> SourceList:
    first, rows = _rows(path)
    root = path.parent
    header = None if _is_image(first[0]) or os.path.isfile(root / first[0]) else first
    if header is None:
        rows = [first, *rows]
    if len(rows) and len(rows[0]) > 2:
        columns = tuple(header[1:]) if header else tuple(f"label{k}" for k in range(1, len(rows[0])))
        values = [_floats(path, row) for row in rows]
        return SourceList(
            root, Labels("vector", columns), [Source(r[0], v, *look(root / r[0])) for r, v in zip(rows, values, strict=True)]
        )
    if len(rows) and len(rows[0]) == 1:
        return SourceList(root, Labels("none"), [Source(r[0], -1, *look(root / r[0])) for r in rows])
    classes = [row[1].strip() for row in rows]
    names = _class_names(path, set(classes))
    number = {name: k for k, name in enumerate(names)}
    sources = [Source(r[0], number[c], *look(root / r[0])) for r, c in zip(rows, classes, strict=True)]
    return SourceList(root, Labels("class", names), sources)


def _is_image(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in EXTENSIONS


def _class_names(path: Path, found: set[str]) -> tuple[str, ...]:
    """Sorted; as numbers where all are whole numbers, so that classes 0 to n-1 keep their numbers."""
    if "" in found:
        raise PrepError(f"{path} has rows with an empty label; fill them, or leave these rows out")
    digits = all(name.isascii() and name.isdigit() for name in found)
    if not digits and all(_is_number(name) for name in found):
        raise PrepError(
            f"{path}: the labels are numbers that are not all whole, such as {min(found)!r}; for float targets give the folder as "
            f"SOURCE and this table as --labels, for classes write whole numbers or names"
        )
    return tuple(sorted(found, key=int if digits else str))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _floats(path: Path, row: list[str]) -> tuple[float, ...]:
    try:
        return tuple(float(cell) for cell in row[1:])
    except ValueError:
        raise PrepError(f"{path}, row of {row[0]!r}: {row[1:]} are not all numbers") from None


def _with_vectors(found: SourceList, path: Path) -> SourceList:
    header, rows = _rows(path)
    if len(header) < 2:
        raise PrepError(f"{path} has one column; it needs a path and at least one value")
    known = {os.path.normpath(source.name) for source in found.sources}
    if os.path.normpath(header[0]) in known or _is_image(header[0]):
        columns, rows = tuple(f"label{k}" for k in range(1, len(header))), [header, *rows]
    else:
        columns = tuple(header[1:])
    values = {os.path.normpath(row[0]): _floats(path, row) for row in rows}
    if len(values) < len(rows):
        twice = Counter(os.path.normpath(row[0]) for row in rows).most_common(1)[0][0]
        raise PrepError(f"{path} names {twice!r} more than once")
    if missing := [name for name in values if name not in known]:
        raise PrepError(
            f"{path} names {len(missing)} images that are not in {found.root}, the first {missing[0]!r}; "
            f"paths are relative to SOURCE, such as {found.sources[0].name if found.sources else 'photo.jpg'!r}"
        )
    none = (float("nan"),) * len(columns)
    sources = [
        replace(
            s,
            label=values.get(os.path.normpath(s.name), none),
            problem=s.problem if s.problem not in ("", "no-label") else "" if os.path.normpath(s.name) in values else "no-label",
        )
        for s in found.sources
    ]
    return SourceList(found.root, Labels("vector", columns), sources, found.skipped)


def _with_classes(found: SourceList, store: Path) -> SourceList:
    if found.labels.kind != "class":
        raise PrepError(f"--classes {store} needs classes in SOURCE, which has labels of kind {found.labels.kind!r}")
    wanted = read_manifest(store).labels
    if wanted.kind != "class":
        raise PrepError(f"--classes {store}: that store has no classes, its labels are of kind {wanted.kind!r}")
    used = {found.labels.names[s.label] for s in found.sources if isinstance(s.label, int) and s.label >= 0}
    if unknown := sorted(used - set(wanted.names)):
        raise PrepError(
            f"{found.root} has classes that {store} does not have: {', '.join(unknown[:5])}; it has {len(wanted.names)} classes"
        )
    number = {name: k for k, name in enumerate(wanted.names)}
    sources = [
        replace(s, label=number[found.labels.names[s.label]] if isinstance(s.label, int) and s.label >= 0 else -1)
        for s in found.sources
    ]
    return SourceList(found.root, wanted, sources, found.skipped)
