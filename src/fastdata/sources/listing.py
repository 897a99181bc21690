"""The list of inputs: which files, in which order, with which labels."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from fastdata.errors import PrepError
from fastdata.sources.catalog import list_archives
from fastdata.sources.inputs import EXTENSIONS, FOLDERS, SPLITS, Source, SourceList, splits_error
from fastdata.sources.labelling import with_classes, with_pattern, without_labels
from fastdata.sources.mask_folders import refuse_mask_folders
from fastdata.sources.options import NO_LABELS, LabelOptions, StrPath
from fastdata.sources.path_table import is_path_table, list_table, with_table
from fastdata.sources.walk import Walk
from fastdata.store.format import Labels
from fastdata.words import number_of

__all__ = ["labelled", "list_folder", "list_sources", "others"]

TEXT = frozenset({".txt", ".text", ".md", ".jsonl", ".ndjson"})


def list_sources(source: StrPath, asked: LabelOptions | None = None) -> SourceList:
    """List the images of a folder (one folder per class, or flat), of a CSV/TSV file of `path,label`, or of archives.

    Args:
        source: a folder, a .csv or .tsv file with paths relative to it, or archives: see `fastdata.sources`.
        asked: what the caller says of inputs and labels.

    Raises:
        PrepError: nothing to prepare, splits side by side, labels that do not fit, an unknown class.
    """
    path, asked = Path(source), asked or LabelOptions()
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
        hint = _text_hint(found.skipped)
        raise PrepError(
            f"no images in {source}{others(found)}; image files end in .jpg, .png, .webp and so on, or have no ending{hint}"
        )
    return found


def _text_hint(endings: Iterable[str]) -> str:
    return "; text needs a tokenizer: --tokenizer NAME_OR_FILE, or --train-bpe VOCAB" if TEXT & set(endings) else ""


def _archive_column(asked: LabelOptions) -> tuple[str, ...]:
    """Where an archive's labels are looked for: nowhere, if they come from elsewhere."""
    return asked.label_column if asked.labels is None and asked.label_from is None else (NO_LABELS,)


def labelled(found: SourceList, source: Path, asked: LabelOptions) -> SourceList:
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


def others(found: SourceList) -> str:
    """What is there, where nothing can be used."""
    count = sum(found.skipped.values())
    listed = ", ".join(f"{name} {count}" for name, count in found.skipped.most_common(5))
    parts = [f"{number_of(count, 'other file')} {'are' if count > 1 else 'is'} there ({listed})"] if count else []
    return "".join(f"; {part}" for part in [*parts, *found.notes])


def list_folder(root: Path, endings: frozenset[str] = EXTENSIONS) -> SourceList:
    walk = Walk(root, lambda name: _ending(name) in endings)
    folders = list(walk.folders())
    _refuse_splits(root, [name for name, _ in folders])
    skipped: Counter[str] = Counter()
    top = list(_images(walk, "", skipped, endings))
    inner = [(name, [i for f in sorted(below) for i in _images(walk, f, skipped, endings)]) for name, below in folders]
    notes = walk.notes()
    if not any(files for _, files in inner):
        return SourceList(root, Labels("none"), [Source(n, -1, s, p) for n, s, p in top], skipped, FOLDERS, notes)
    names = tuple(name for name, _ in inner)
    sources = [Source(n, label, s, p) for label, (_, files) in enumerate(inner) for n, s, p in files]
    stray = [Source(n, -1, s, "no-label") for n, s, _ in top]
    return SourceList(root, Labels("class", names), sources + stray, skipped, FOLDERS, notes)


def _refuse_splits(root: Path, folders: list[str]) -> None:
    splits = {name: str(root / name) for name in folders if name.lower() in SPLITS}
    if len(splits) > 1:
        raise splits_error(root, splits)


def _ending(name: str) -> str:
    return os.path.splitext(name)[1].lower()


def _images(walk: Walk, folder: str, skipped: Counter[str], endings: frozenset[str]) -> Iterator[tuple[str, int, str]]:
    """The (name, size, problem) of each image in a folder."""
    for file in walk.files(folder):
        ending = _ending(file[0])
        if ending in endings or not ending:
            yield file
        else:
            skipped[ending] += 1
