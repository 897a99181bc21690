"""The errors that fastdata raises.

    FastDataError
    ├── CodecError          bytes are not a readable image; `.reason` is one word for a report
    ├── PrepError           preparing cannot start or continue
    ├── StoreError          a store cannot be opened, read or written
    │   ├── FormatError     its files violate format 1
    │   └── RemoteError     object storage does not give or take an object
    ├── LoaderError         batches cannot be made from these samples
    └── MissingExtraError   an optional package is not installed (also an ImportError)

Wrong arguments raise `ValueError` or `TypeError`. A message says what was expected, what was found, and what to do.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = [
    "CodecError",
    "FastDataError",
    "FormatError",
    "LoaderError",
    "MissingExtraError",
    "PrepError",
    "RemoteError",
    "StoreError",
    "needs",
    "warn_user",
]


class FastDataError(Exception):
    """The base of fastdata's errors."""


class CodecError(FastDataError):
    """Bytes are not a readable image. `reason` is a short, stable word, such as ``truncated`` or ``too-large``."""

    def __init__(self, message: str, reason: str = "undecodable") -> None:
        super().__init__(message)
        self.reason = reason


class PrepError(FastDataError):
    """Preparing cannot start or continue; finished work is kept."""


class StoreError(FastDataError):
    """A store cannot be opened, read or written."""


class FormatError(StoreError):
    """The files of a store violate its format."""


class RemoteError(StoreError):
    """Object storage does not give or take an object. `missing`: there is no such object."""

    def __init__(self, message: str, *, missing: bool = False) -> None:
        super().__init__(message)
        self.missing = missing


class LoaderError(FastDataError):
    """A batch cannot be made from these samples."""


class MissingExtraError(FastDataError, ImportError):
    """An optional package is not installed; the message names the pip command."""

    def __init__(self, package: str) -> None:
        super().__init__(f"this needs {package}, which is not installed: pip install {package}")


@contextmanager
def needs(package: str) -> Iterator[None]:
    """Raise a MissingExtraError if the import of an optional package in the body fails."""
    try:
        yield
    except ModuleNotFoundError:
        raise MissingExtraError(package) from None


def warn_user(message: str) -> None:
    """Warn with the line of the nearest caller outside fastdata and torch, once per line as Python does."""
    frame = sys._getframe(1)
    stacklevel = 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("fastdata", "torch"):
        frame = frame.f_back
        stacklevel += 1
    warnings.warn(message, stacklevel=stacklevel)
