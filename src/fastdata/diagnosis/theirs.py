"""Errors of a user's own functions, as `fastdata doctor` prints them: from the user's code on."""

from __future__ import annotations

import re
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from fastdata.diagnosis.training import Step
from fastdata.errors import FastDataError

__all__ = ["failures_named", "their_traceback"]

FRAME = re.compile(r'  File "(.*)", line \d+')
HEAD = "Traceback (most recent call last):\n"
ORIGINAL = f"\nOriginal {HEAD}"  # in the message of an error that another process had
OURS = f"{Path(__file__).parent.parent}/", f"{Path(torch.__file__).parent}/"
PYTHON = f"{sysconfig.get_path('stdlib')}/"


@contextmanager
def failures_named(option: str, name: str | None, model: str | None = None) -> Iterator[None]:
    """Name the user's function whose code fails in the body, and show the error from there on. Other errors pass.

    Args:
        option, name: the option and the function that it names; None: the body calls none.
        model: what --model names, if the body makes steps.

    Raises:
        FastDataError: the code of a function fails.
        ValueError: a function returns something else than it should.
    """
    try:
        yield
    except Exception as error:
        codes = {frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)}
        if not codes.isdisjoint({Step.__init__.__code__, Step.__call__.__code__}):
            option, name = "--model", model
        if name is None:
            raise
        if found := their_traceback(error):
            raise FastDataError(f"{option} {name} failed:\n{found}") from error
        if isinstance(error, TypeError):
            raise ValueError(f"{option} {name}: {error}") from error
        raise


def their_traceback(error: BaseException) -> str:
    """Return the traceback of an error from the first frame on that is not of fastdata, torch or Python; "" if all are."""
    _, found, original = str(error).partition(ORIGINAL)
    text = HEAD + original if found else "".join(traceback.format_exception(error))
    kept, theirs, any_theirs = list[str](), False, False
    for line in text.splitlines(keepends=True):
        if line == HEAD:
            theirs = False
        elif frame := FRAME.match(line):
            if not theirs and _is_theirs(frame[1]):
                kept.append(HEAD)
                theirs = any_theirs = True
        elif not line.startswith("    "):  # what was raised, or how it led to the next error
            kept.append(line)
            continue
        if theirs:
            kept.append(line)
    return "".join(kept).rstrip() if any_theirs else ""


def _is_theirs(file: str) -> bool:
    packages = "site-packages" in file or "dist-packages" in file
    return not (file.startswith((*OURS, "<frozen ")) or (file.startswith(PYTHON) and not packages))
