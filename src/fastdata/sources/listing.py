"""The list of inputs: which files, in which order, with which labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from fastdata.errors import PrepError
from fastdata.sources.base import list_archives
from fastdata.sources.fields import parse_fields, with_fields
from fastdata.sources.folder import list_folder, refuse_mask_folders
from fastdata.sources.inputs import FOLDERS, Field, SourceList
from fastdata.sources.labels import with_labels, with_pattern
from fastdata.sources.options import LabelOptions
from fastdata.sources.tables import is_path_table, list_table, with_table
from fastdata.sources.urls import AnyPath, explain_missing, to_path
from fastdata.types import StrPath
from fastdata.words import number_of

TEXT = frozenset({".txt", ".text", ".md", ".jsonl", ".ndjson"})


def list_sources(
    source: StrPath, options: LabelOptions | None = None, fields: Sequence[str] = (), images: Sequence[str] = ()
) -> SourceList:
    """List the images of a folder (one folder per class, or flat), of a table of paths and labels, or of archives.

    fields: which other values to take. images: the endings of a sample's images, if SOURCE is tars with several in each sample.
    """
    path, options = to_path(source), options or LabelOptions()
    chosen = parse_fields(fields)
    named = [field for field in chosen if not field.ending]
    if is_path_table(path, options.path_column) and not images:
        inputs = list_table(path, options, named)
    elif (archived := list_archives(source, options, chosen, images)) is not None:
        inputs = archived
    elif images:
        raise PrepError(f"--images: SOURCE {source} holds neither a folder {images[0].removeprefix('.')}, nor WebDataset tars")
    elif path.is_dir():
        inputs = list_folder(path)
    else:
        unknown = "is neither a folder nor a table of paths, nor an archive of a known kind"
        what = f"{unknown}; fastdata.prep prepares any sequence in Python" if path.exists() else "does not exist"
        raise PrepError(f"SOURCE {source} {what}{explain_missing(path)}{_text_hint([path.suffix.lower()])}")
    inputs = labelled(inputs, path, options, [] if inputs.fields else named)
    inputs = with_fields(inputs, [field for field in chosen if field.ending or not inputs.fields], source)
    if not inputs.sources:
        hint = f"image files end in .jpg, .png, .webp and so on, or have no extension{_text_hint(inputs.skipped)}"
        raise PrepError(f"no images in {source}{skipped_files(inputs)}; {hint}")
    return inputs


def _text_hint(endings: Iterable[str]) -> str:
    return "; text needs a tokenizer: --tokenizer NAME_OR_FILE, or --train-bpe VOCAB" if TEXT & set(endings) else ""


def labelled(inputs: SourceList, source: AnyPath, options: LabelOptions, fields: Sequence[Field] = ()) -> SourceList:
    """Return the inputs with the labels that the options ask for, and with `fields`, which are columns of `--labels`."""
    table = is_path_table(source, options.path_column)
    no_column = None if options.labels is not None else options.path_column
    for name, value in (("--root", options.root), ("--split", options.split), ("--path-column", no_column)):
        if value is not None and not table:
            raise PrepError(f"{name} {value} needs a table of paths (.csv, .tsv, .jsonl or .parquet) as SOURCE, not {source}")
    if options.label_from is not None:
        return with_pattern(inputs, options)
    if options.labels is not None:
        inputs = with_table(inputs, to_path(options.labels), options, fields)
    if options.no_labels:
        return with_labels(inputs, (), options)  # so that none needs one
    if options.labels is None and source.is_dir() and inputs.labelled_by == FOLDERS:
        if options.column:
            option = "--regression" if options.regression else "--label-column"
            raise PrepError(f"{option} {options.column}: {source} is a folder, which has no columns")
        refuse_mask_folders(inputs, source)
        if options.classes is not None:  # a folder without inputs need not be among them
            names = inputs.labels.names
            folders = [names[one.label] if isinstance(one.label, int) and one.label >= 0 else None for one in inputs.sources]
            inputs = replace(with_labels(inputs, folders, options, type="folders", by=f"SOURCE {source}"), labelled_by=FOLDERS)
    return inputs


def skipped_files(inputs: SourceList) -> str:
    """Describe the skipped files, for a message that there are no inputs."""
    listed = ", ".join(f"{name} {count}" for name, count in inputs.skipped.most_common(5))
    parts = [f"it has {number_of(inputs.skipped.total(), 'other file')} ({listed})"] if listed else []
    return "".join(f"; {part}" for part in [*parts, *inputs.notes])
