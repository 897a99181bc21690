"""The list of inputs: which files, in which order, with which labels."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from fastdata.errors import PrepError
from fastdata.prepare.archives.catalog import list_archives
from fastdata.prepare.inputs import (
    EXTENSIONS,
    FOLDERS,
    NO_LABELS,
    SPLITS,
    Source,
    SourceList,
    SourceOptions,
    StrPath,
    is_image,
    look,
    splits_error,
)
from fastdata.prepare.labelling import with_classes, with_pattern, without_labels
from fastdata.prepare.mask_folders import refuse_mask_folders
from fastdata.prepare.path_table import is_path_table, list_table, with_table
from fastdata.store.format import Labels

__all__ = ["counts", "labelled", "list_folder", "list_sources", "walk_files", "walk_images"]

TEXT = frozenset({".txt", ".text", ".md", ".jsonl", ".ndjson"})


def list_sources(source: StrPath, asked: SourceOptions | None = None) -> SourceList:
    """List the images of a folder (one folder per class, or flat), of a CSV/TSV file of `path,label`, or of archives.

    Args:
        source: a folder, a .csv or .tsv file with paths relative to it, or archives: see `fastdata.prepare.archives`.
        asked: what the caller says of inputs and labels.

    Raises:
        PrepError: nothing to prepare, splits side by side, labels that do not fit, an unknown class.
    """
    path, asked = Path(source), asked or SourceOptions()
    if (archived := list_archives(source, _archive_column(asked))) is not None:
        found = archived
    elif path.is_dir():
        found = list_folder(path)
    elif is_path_table(path):
        found = list_table(path, asked)
    else:
        what = "is neither a folder nor a .csv or .tsv file, nor an archive of a known kind" if path.exists() else "does not exist"
        raise PrepError(f"SOURCE {source} {what}{_text_hint([path.suffix.lower()])}")
    found = labelled(found, path, asked)
    if not found.sources:
        left = f"; {sum(found.skipped.values())} other files are there ({counts(found.skipped)})" if found.skipped else ""
        hint = _text_hint(found.skipped)
        raise PrepError(f"no images in {source}{left}; image files end in .jpg, .png, .webp and so on, or have no ending{hint}")
    return found


def _text_hint(endings: Iterable[str]) -> str:
    return "; text needs a tokenizer: --tokenizer NAME_OR_FILE, or --train-bpe VOCAB" if TEXT & set(endings) else ""


def _archive_column(asked: SourceOptions) -> tuple[str, ...]:
    """Where an archive's labels are looked for: nowhere, if they come from elsewhere."""
    return asked.label_column if asked.labels is None and asked.label_from is None else (NO_LABELS,)


def labelled(found: SourceList, source: Path, asked: SourceOptions) -> SourceList:
    """The same inputs with the labels that are asked for.

    Raises:
        PrepError: an option does not go with this source, or the labels do not fit.
    """
    table = is_path_table(source)
    for name, value in (("--root", asked.root), ("--split", asked.split)):
        if value is not None and not table:
            raise PrepError(f"{name} {value} is about a .csv or .tsv file of paths, but SOURCE is {source}")
    if asked.label_from is not None:
        found = with_pattern(found, asked.label_from)
    elif asked.labels is not None:
        found = with_table(found, Path(asked.labels), asked)
    elif asked.no_labels:
        found = without_labels(found)
    elif source.is_dir() and found.labelled_by == FOLDERS:
        if asked.label_column:
            raise PrepError(f"--label-column {asked.label_column[0]}: {source} is a folder, which has no columns")
        refuse_mask_folders(found, source)
    if asked.classes is not None:
        found = with_classes(found, Path(asked.classes))
    return found


def counts(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counter.most_common(5))


def list_folder(root: Path, endings: frozenset[str] = EXTENSIONS) -> SourceList:
    folders = [entry.name for entry in _listed(root) if _is_folder(entry)]
    _refuse_splits(root, folders)
    skipped: Counter[str] = Counter()
    top = list(_images(root, "", skipped, endings))
    inner = [(name, [i for f in sorted(_below(root, name)) for i in _images(root, f, skipped, endings)]) for name in folders]
    if not any(files for _, files in inner):
        return SourceList(root, Labels("none"), [Source(n, -1, s, p) for n, s, p in top], skipped, FOLDERS)
    names = tuple(name for name, _ in inner)
    sources = [Source(n, label, s, p) for label, (_, files) in enumerate(inner) for n, s, p in files]
    stray = [Source(n, -1, s, "no-label") for n, s, _ in top]
    return SourceList(root, Labels("class", names), sources + stray, skipped, FOLDERS)


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


def _images(root: Path, folder: str, skipped: Counter[str], endings: frozenset[str]) -> Iterator[tuple[str, int, str]]:
    """The (name, size, problem) of each image in a folder."""
    for entry in _listed(root / folder):
        if not _is_folder(entry):
            ending = os.path.splitext(entry.name)[1].lower()
            if ending in endings or not ending:
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
    return (file for file in walk_files(root) if is_image(file[0]) or not os.path.splitext(file[0])[1])
