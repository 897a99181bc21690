"""The errors that fastdata raises.

    FastDataError
    ├── CodecError          an input cannot be used; `.reason` is one word for a report
    ├── PrepError           preparing cannot start or continue
    │   └── MachineError    this machine lacks memory; another one may have enough
    ├── StoreError          a store cannot be opened, read or written
    │   ├── FormatError     its files violate format 1
    │   └── RemoteError     an object cannot be read from, or written to, object storage
    ├── LoaderError         batches cannot be made from these samples
    └── MissingExtraError   an optional package is not installed (also an ImportError)

Wrong arguments raise `ValueError` or `TypeError`. A message says what was expected, what was found, and what to do.
"""

from __future__ import annotations

import errno
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["CodecError", "FastDataError", "FormatError", "LoaderError", "MachineError", "MissingExtraError", "PrepError"]
__all__ += ["LACKS_MEMORY", "RemoteError", "StoreError", "damaged", "lacking", "may_pass", "needs", "warn_user"]


class FastDataError(Exception):
    """The base of fastdata's errors."""


class CodecError(FastDataError):
    """An input cannot be used. `reason` is a short, stable word, such as ``truncated`` or ``too-large``."""

    def __init__(self, message: str, reason: str = "undecodable") -> None:
        super().__init__(message)
        self.reason = reason


class PrepError(FastDataError):
    """Preparing cannot start or continue; finished work is kept."""


class MachineError(PrepError):
    """Preparing needs more memory than this machine has. The input is not at fault, so it is not rejected."""


class StoreError(FastDataError):
    """A store cannot be opened, read or written."""


class FormatError(StoreError):
    """The files of a store violate its format."""


class RemoteError(StoreError):
    """An object cannot be read from or written to object storage. `missing`: no such object. `denied`: access is denied (403)."""

    def __init__(self, message: str, *, missing: bool = False, denied: bool = False) -> None:
        super().__init__(message)
        self.missing = missing
        self.denied = denied


class LoaderError(FastDataError):
    """A batch cannot be made from these samples."""


class MissingExtraError(FastDataError, ImportError):
    """An optional package is not installed; the message names the pip command."""

    def __init__(self, package: str) -> None:
        super().__init__(f"{package} is needed, but not installed: pip install {package}")


@contextmanager
def needs(package: str) -> Iterator[None]:
    """Raise a MissingExtraError if the import of an optional package in the body fails."""
    try:
        yield
    except ModuleNotFoundError:
        raise MissingExtraError(package) from None


LACKS_MEMORY = "memory ran out, or the limit of `ulimit -v` is reached: use fewer workers, or raise the limit"
_LACKING = {
    errno.EMFILE: "too many files are open: raise the limit of this process, which `ulimit -n` shows",
    errno.ENFILE: "too many files are open on this machine: raise fs.file-max, or run fewer processes",
    errno.ENOMEM: LACKS_MEMORY,
    -4: LACKS_MEMORY,  # cv2.Error.StsNoMem
}


_OF_FILES = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL)


def lacking(error: BaseException | None) -> str:
    """Return what ran out and what to do, if an error or its cause says that file descriptors or memory ran out; else ""."""
    while error is not None:
        if isinstance(error, MemoryError):
            return LACKS_MEMORY
        number = error.errno if isinstance(error, OSError) else getattr(error, "code", None)  # of LMDB and of OpenCV
        if isinstance(number, int) and number in _LACKING:
            return _LACKING[number]
        error = error.__cause__ or error.__context__
    return ""


def may_pass(error: OSError) -> bool:
    """Return whether an error is about the disk, such as a lost network disk, rather than the file that was read."""
    return error.errno is not None and error.errno not in _OF_FILES


def damaged(what: object, error: BaseException) -> StoreError:
    """Return the error to raise if a file of a store cannot be read: a FormatError, unless file descriptors or memory ran out."""
    if found := lacking(error):
        return StoreError(f"{what} cannot be opened: {found}")
    return FormatError(f"{what} is damaged: {error}; run fastdata verify")


def warn_user(message: str) -> None:
    """Warn with the line of the nearest caller outside fastdata, torch and context managers, once per line as Python does."""
    frame = sys._getframe(1)
    stacklevel = 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("fastdata", "torch", "contextlib"):
        frame = frame.f_back
        stacklevel += 1
    warnings.warn(message, stacklevel=stacklevel)
