"""From the arguments of `prep` to a plan: the path of a source, its kind of data, the options, the folders, the splits."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import xxhash

from fastdata import kinds
from fastdata.errors import PrepError
from fastdata.kinds import Modality
from fastdata.options import as_option, build, options_of
from fastdata.prepare.plan import Plan, PrepareRun
from fastdata.prepare.spawn import preload
from fastdata.remote.bucket import Storage, is_url, local_path, scheme
from fastdata.sources.base import locate
from fastdata.sources.inputs import SplitsError
from fastdata.sources.labels import NoClassesError, UnknownClassError
from fastdata.sources.urls import to_path
from fastdata.store.files import is_store
from fastdata.types import StrPath

BESIDE = ("masks", "yolo")  # options that name a folder with the files of each input; one below it has those of a split
CHARS = "chars"  # a tokenizer that has the characters of its text
OF_ONE_SPLIT = ("labels", "coco", "images", "train_bpe")  # options that cannot be divided


def build_plan(
    source: StrPath,
    out: StrPath | None = None,
    storage: Storage | None = None,
    *,
    limit: int | None = None,
    **arguments: Any,
) -> PrepareRun:
    """Return the plan that `prep` would carry out with these arguments."""
    check_positive(limit=limit)
    if (place := to_path(source)).is_dir() and is_store(place):
        raise PrepError(
            f"SOURCE {source} is a store already: fastdata info {source} shows what it holds. To make another store, give the "
            f"original SOURCE, or run fastdata export {source} DIR and give DIR"
        )
    kind = choose_kind(source, arguments)
    preload(kind.name)
    options = _own_options(kind, source, arguments)
    out = resolve_out(out)
    target = _resolve(source, out, getattr(options, "root", None), getattr(options, "split", None))
    if is_url(out) and "order" in options_of(kind.options) and options.order is None:
        options = replace(options, order="shuffled")  # it is read in lanes, which mix sorted inputs badly
    plan: Plan = kind.module("planning").plan_source(source, target, options, limit)
    return PrepareRun(plan, target, dict(storage or {}), url=str(out) if is_url(out) else "")


def resolve_out(out: Any) -> Any:
    """Return OUT in a canonical form: a URL of object storage without a slash at its end, the path of a file:// URL, or a path."""
    if isinstance(out, os.PathLike) and os.fspath(out).partition("/")[0].endswith(":"):
        raise ValueError(f"OUT {out} is a path, in which // became /: give the URL as a str")
    if not is_url(out):
        return out
    if scheme(out) == "file":
        return local_path(out)
    if scheme(out) in ("http", "https"):
        raise ValueError(f"OUT {out} can only be read: give a URL such as s3://bucket/photos.fds, or a gs:// or az:// URL")
    return out.rstrip("/")


def on_disk(out: Any, what: str) -> Any:
    """Return OUT as `resolve_out` does. Raise a PrepError if it is a URL. what: the beginning of the reason."""
    if is_url(place := resolve_out(out)):
        raise PrepError(f"OUT is {place}, but {what} on a disk: give a folder, then run fastdata publish")
    return place


def choose_kind(source: StrPath, arguments: dict[str, Any]) -> Modality:
    """Return the kind that the arguments ask for, by name or by an option that no other kind has; else the kind of the files."""
    name = arguments.get("kind")
    if name is not None:
        if name not in kinds.NAMES:
            raise ValueError(f"--kind is {name}, but must be one of {', '.join(kinds.NAMES)}")
        return kinds.find(name)
    known = reversed([kinds.find(name) for name in kinds.NAMES])  # images are last, since they claim every source
    return next(kind for kind in known if kind.detect(source, arguments))


def _own_options(kind: Modality, source: StrPath, arguments: dict[str, Any]) -> Any:
    """Make the options of a kind. Raise a TypeError or ValueError for one that is unknown, wrong or of another kind."""
    for name, value in arguments.items():
        owners = [one for one in map(kinds.find, kinds.NAMES) if name in options_of(one.options)]
        if not owners and name != "kind":
            raise TypeError(f"prep has no argument {name!r}")
        if owners and kind not in owners and _is_set(value, options_of(owners[0].options)[name].default):
            wrong = f"{as_option(name)} is about {owners[0].name}, but SOURCE {source} holds {kind.name}"
            raise ValueError(f"{wrong}: leave the option out, or give --kind")
    return build(kind.options, arguments)


def _is_set(value: Any, default: Any) -> bool:
    """Return whether an option has a value other than its default, None or (). Arrays cannot be compared as a whole."""
    return not any(isinstance(value, type(other)) and value == other for other in (default, None, ()))


def check_positive(**arguments: float | None) -> None:
    """Raise ValueError for the first argument that is neither None nor positive."""
    for name, value in arguments.items():
        if value is not None and value <= 0:
            raise ValueError(f"{as_option(name)} is {value}, but must be positive")


def _resolve(source: StrPath, out: StrPath | None, own_root: StrPath | None, split: str | None) -> Path:
    """Return the folder of the store. own_root: the folder that names of inputs are relative to, if set."""
    if is_url(out):
        return Path(tempfile.gettempdir(), f"fastdata-{os.getuid()}-{xxhash.xxh3_64_hexdigest(str(out).encode())}")
    root, name = locate(source)
    root = root if own_root is None else to_path(own_root)
    target = Path(out) if out is not None else Path(f"{name}{'' if split is None else f'-{split}'}.fds")
    if to_path(source).is_dir() and target.resolve().is_relative_to(root.resolve()):
        raise PrepError(f"OUT {target} lies inside SOURCE {source}, and would be an input of the next run; put it elsewhere")
    return target.absolute()


def plan_stores(plan: Callable[..., PrepareRun], source: Any, out: Any, options: Mapping[str, Any]) -> dict[str, PrepareRun]:
    """Return the plans of a source by split, train first, or its one plan under "", before anything is written.

    plan: makes a plan of `source`, `out` and `options`. OUT photos.fds becomes photos-train.fds and so on.
    """
    try:
        return {"": plan(source, out, **options)}
    except SplitsError as found:
        if found.beside or any(options.get(name) for name in OF_ONE_SPLIT) or options.get("tokenizer") == CHARS:
            raise
        works = dict[str, PrepareRun]()
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
                raise PrepError(f"{error} (from {next(iter(works))}): give --classes with the classes of all splits") from None
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
