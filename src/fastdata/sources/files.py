"""Files: their names, whether they can be read, and values in their text."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
import unicodedata
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from typing import Any, TypeGuard

from fastdata.errors import PrepError, may_pass
from fastdata.sources.urls import AnyPath, UrlPath, join
from fastdata.types import StrPath

EXTENSIONS = frozenset(
    ".jpg .jpeg .jpe .jfif .mpo .png .apng .webp .bmp .dib .tif .tiff .gif .avif .jp2 .j2k .j2c .pbm .pgm .ppm .pnm .avifs .heic "
    ".heif .hif .jxl "
    ".pam .ras .sun .psd .qoi .sgi .msp .hdr .exr .pfm .dds .svg .cr2 .cr3 .nef .arw .dng".split()  # not decoded: rejected by name
)
WITH_COMMA = re.compile(r"\s*[+-]?[0-9]+(,[0-9]+)+(\.[0-9]*)?\s*$")
LARGEST_FLOAT = 3.4028234663852886e38  # of float32, the type of stored float labels


def is_image(name: str) -> bool:
    """Return whether a file name has the extension of an image."""
    return os.path.splitext(name)[1].lower() in EXTENSIONS


def is_number(text: str) -> bool:
    """Return whether a text is a number, such as "-1.5" or "nan". Python reads 1_2 as a number too, but in a table it is a name."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def to_float(text: str) -> float:
    """Return the number in a text as a float. Raise ValueError if it is too large for one."""
    number = float(text)
    if math.isinf(number) and any(map(str.isdigit, text)):
        raise ValueError(f"{text} is too large for a float")
    return number


def parse_json(text: str | bytes) -> Any:
    """Parse JSON. Raise ValueError if the text is not JSON, a number is too large for a float, or an object has a key twice."""
    return json.loads(text, parse_float=to_float, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"an object has the key {twice!r} twice")
    return found


def have_commas(texts: Collection[str]) -> bool:
    """Return whether there are texts, and all are numbers with commas, such as 1,5 or 1,234,567.8."""
    return bool(texts) and all(map(WITH_COMMA.match, texts))


def look(path: StrPath) -> tuple[int, str]:
    """Return the size of a file in bytes and ""; or -1 and why it cannot be used."""
    if isinstance(path, UrlPath):
        return path.look()
    try:
        info = os.stat(path)
    except FileNotFoundError:
        return -1, "broken-link" if os.path.islink(path) else "missing"
    except ValueError:  # a name in a table with a zero byte
        return -1, "unreadable"
    except OSError as error:
        if not may_pass(error):
            return -1, "unreadable"
        raise PrepError(f"{os.fspath(path)} cannot be examined: {error.strerror}: is its disk there?") from error
    return (info.st_size, "") if stat.S_ISREG(info.st_mode) else (-1, "not-a-file")  # reading a pipe might never end


def nfc(text: str) -> str:
    """Return text in the form of Unicode in which names are compared: macOS writes "é" as two characters."""
    return unicodedata.normalize("NFC", text)


def path_key(name: str) -> str:
    """Return the form in which paths are compared: as by `nfc`, and with `/` as the separator."""
    return os.path.normpath(nfc(name.replace("\\", "/")))


def as_spelled(root: AnyPath, name: str) -> str:
    """Return a path below a root as it exists: in the given form of Unicode, or else in another one."""
    if name.isascii():
        return name
    folder, slash, last = name.rpartition("/")
    ends = [slash + nfc(last), slash + unicodedata.normalize("NFD", last)]
    forms = [name, *(start + end for start in (folder, nfc(folder), unicodedata.normalize("NFD", folder)) for end in ends)]
    return next((form for form in forms if look(join(root, form))[1] != "missing"), name)


def read_bytes(path: AnyPath) -> bytes:
    """Read a file that lies beside the inputs. Raise OSError if it is no ordinary file: reading a pipe might never end."""
    if not isinstance(path, UrlPath) and look(path)[1] == "not-a-file":
        raise OSError(errno.EINVAL, "it is no ordinary file")
    return path.read_bytes()


def read_json(path: AnyPath) -> Any:
    """Return the contents of a JSON file beside the inputs, or None if there is no such file, or it cannot be read."""
    with suppress(OSError, ValueError, RecursionError):
        return json.loads(read_bytes(path))
    return None


def are_names(value: Any) -> TypeGuard[list[str]]:
    """Return whether a value of JSON is a list of texts."""
    return isinstance(value, list) and all(isinstance(name, str) for name in value)
