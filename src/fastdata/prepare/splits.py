"""One store for each split of a source, such as train and val, with the same classes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from fastdata.errors import PrepError
from fastdata.prepare.plan import Work
from fastdata.sources.inputs import SplitsError
from fastdata.sources.labels import NoClassesError, UnknownClassError
from fastdata.sources.urls import to_path

__all__ = ["plan_stores"]

BESIDE = ("masks", "yolo")  # options that name a folder with the files of each input; one below it has those of a split
CHARS = "chars"  # a tokenizer that has the characters of its text
OF_ONE_SPLIT = ("labels", "coco", "images", "train_bpe")  # options that cannot be divided


def plan_stores(plan: Callable[..., Work], source: Any, out: Any, options: Mapping[str, Any]) -> dict[str, Work]:
    """Plan the store of a source, or one for each of its splits, before anything is written.

    Args:
        plan: makes a plan of `source`, `out` and `options`. OUT photos.fds becomes photos-train.fds and so on.

    Returns:
        The plan by the name of the split, train first; by "" if there are no splits.

    Raises:
        PrepError: there is nothing to prepare, an option is about one split, or a split has a class that train lacks.
    """
    try:
        return {"": plan(source, out, **options)}
    except SplitsError as found:
        if found.beside or any(options.get(name) for name in OF_ONE_SPLIT) or options.get("tokenizer") == CHARS:
            raise
        works = dict[str, Work]()
        base = (found.stem if out is None else os.fspath(out).rstrip("/")).removesuffix(".fds")
        classes: dict[str, Any] = {}  # those of the first split, if none are given
        for name, path in found.splits.items():
            chosen, target = {**options, **_options_of(found, name, options)}, f"{base}-{name}.fds"
            try:
                works[name] = plan(path, target, **{**chosen, **classes})
            except NoClassesError:
                if not classes:
                    raise
                works[name] = plan(path, target, **chosen)
            except UnknownClassError as error:
                if not classes:
                    raise
                raise PrepError(
                    f"{error}. These are the classes of {next(iter(works))}: list those of all splits in order"
                ) from None
            labels = works[name].plan.labels
            if len(works) == 1 and labels.kind == "class" and chosen.get("classes") is None:
                classes = {"classes": labels.names}
        return works


def _options_of(found: SplitsError, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a split that differ from those of the source."""
    if found.column:
        return {"split": name}
    folders = {option: to_path(options[option]) / name for option in BESIDE if options.get(option)}
    if not all(folder.is_dir() for folder in folders.values()):
        raise found
    return {option: str(folder) for option, folder in folders.items()}
