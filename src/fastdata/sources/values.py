"""Values of columns: parsed from text or from files, inferred, and checked against the column's type."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fastdata.sources.inputs import is_number
from fastdata.store.column import TEXTS, Column

__all__ = ["fit", "infer_text", "infer_values", "listed", "parse_file", "parse_text"]

Array = np.ndarray[Any, np.dtype[Any]]

JSON_ENDINGS = ("json", "jsn")


def parse_text(column: Column, text: str) -> Any:
    """Return the value in a cell of a CSV, or in a text file, for `fit`: text itself, JSON, a number, or a list as [1, 2].

    Raises:
        ValueError: the text does not hold such a value.
    """
    if column.type in TEXTS:
        return json.loads(text or "null") if column.type == "json" else text
    if column.shape or column.many:
        found = json.loads(text)
        if not isinstance(found, list):
            raise ValueError(f"{text!r:.60} is not a list, such as [1, 2]")
        return found
    if not text:
        return None
    if column.dtype.kind == "b":
        if text.lower() not in ("true", "false", "0", "1"):
            raise ValueError(f"{text!r:.60} is not true, false, 0 or 1")
        return text.lower() in ("true", "1")
    if "_" in text:  # Python would read 1_2 as 12
        raise ValueError(f"{text!r:.60} is not a number")
    return float(text) if column.dtype.kind == "f" else int(text)


def parse_file(column: Column | None, ending: str, data: bytes) -> Any:
    """Return the value in a file, or a member of a tar, for `fit`.

    Text is UTF-8, without a byte-order mark and without line ends at its end.

    Args:
        column: what to read it as; None: what the ending says. An unknown one is text if it can be.
        ending: of its name, such as "txt" or "seg.npy".
        data: its bytes.

    Raises:
        ValueError: the file does not hold such a value.
    """
    if column is not None and column.type == "bytes":
        return data
    last = ending.lower().rpartition(".")[2]
    if last == "npy" and (column is None or column.type not in TEXTS):
        return _array_in(data)
    text = data.decode("utf-8-sig").rstrip("\r\n")
    if last in JSON_ENDINGS and (column is None or column.type != "text"):
        return json.loads(text)
    return text if column is None else parse_text(column, text.strip() if column.type not in TEXTS else text)


def _array_in(data: bytes) -> Array:
    try:
        array = np.load(io.BytesIO(data), allow_pickle=False)
    except Exception as error:  # noqa: BLE001  numpy evaluates the header: whatever that throws at damaged bytes
        raise ValueError(f"it is no .npy file of numbers: {error}") from None
    if not isinstance(array, np.ndarray):
        raise ValueError("it holds several arrays")
    return array


def infer_text(texts: Sequence[str]) -> str:
    """Return int64 or float32, if all cells are such numbers, else text."""
    if all(re.fullmatch(r"-?[0-9]{1,18}", text) for text in texts):
        return "int64"
    filled = list(filter(None, texts))
    return "float32" if filled and all(map(is_number, filled)) else "text"


def infer_values(name: str, values: Sequence[Any]) -> Column:
    """Return the column that suits JSON's values: bool, int64, float32, text, arrays or lists of numbers; else JSON."""
    kinds = {type(value) for value in values if value is not None}
    if not kinds:
        return Column(name, "json")
    for found, fitting in (("bool", {bool}), ("int64", {int}), ("float32", {int, float}), ("text", {str})):
        if kinds <= fitting:
            return Column(name, found)
    found_lists = _infer_lists(name, (value for value in values if value is not None)) if kinds == {list} else None
    return found_lists or Column(name, "json")


def _infer_lists(name: str, values: Iterable[list[Any]]) -> Column | None:
    """Return a column of arrays, or of lists if their lengths differ; None if these are not numbers, or the shapes do not fit."""
    lengths, shapes, kinds = set[int](), set[tuple[int, ...]](), set[str]()
    for value in values:
        try:
            array = np.array(value)
        except ValueError:  # the lengths differ inside one value
            return None
        lengths.add(len(array))
        if array.size:
            shapes.add(array.shape[1:])
            kinds.add(array.dtype.kind)
    if len(shapes) != 1:
        return None
    (shape,) = shapes
    type = "bool" if kinds == {"b"} else "int64" if kinds == {"i"} else "float32" if kinds <= {"i", "f"} else None
    if type is None:
        return None
    return Column(name, type, (*lengths, *shape)) if len(lengths) == 1 else Column(name, type, shape, many=True)


def fit(column: Column, value: Any) -> Any:
    """Return a value as the column can hold it. Whole numbers are held exactly; others are rounded when they are stored.

    Raises:
        ValueError: the column cannot hold it.
        OverflowError, RecursionError: nor can Python read it.
    """
    if column.type == "json":
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except TypeError as error:
            raise ValueError(f"it cannot be written as JSON: {error}") from None
        return value
    if column.type == "bytes" and isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if column.type in TEXTS:
        if not isinstance(value, str):
            missing = f"it holds no {column.type}: fill it, or leave the image out"
            raise ValueError(missing if value is None else f"{_shown(value)} is not {column.type}")
        value.encode()  # lone surrogates, which JSON may have, are no text
        return value
    array = _as_array(column, value)
    if column.shape or column.many:
        return array
    plain = {"f": float, "b": bool}.get(column.dtype.kind, int)
    return plain(array.item())


def listed(column: Column, value: Any) -> Any:
    """Return a value that fits as JSON has it."""
    found = fit(column, value)
    if not isinstance(found, np.ndarray):
        return found
    return found.astype({"f": np.float64, "b": np.bool_}.get(column.dtype.kind, np.int64)).tolist()


def _shown(value: Any) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else f"{value!r:.60}"


def _as_array(column: Column, value: Any) -> Array:
    """Return an array of the column's shape, () for one number, whose values its dtype holds. Nulls among floats are NaN."""
    dtype, lists = column.dtype, column.shape or column.many
    if value is None and (lists or dtype.kind != "f"):
        raise ValueError("its cell is empty: fill it, or leave the row out")
    if lists and not isinstance(value, list | tuple | np.ndarray):
        raise ValueError(f"{_shown(value)} is not a list, such as [1, 2]")
    try:
        array = np.asarray(value)
        if array.dtype.kind == "O" and dtype.kind == "f" and not any(isinstance(item, str) for item in array.flat):
            array = array.astype(np.float64)
    except (ValueError, TypeError):
        raise ValueError(f"{_shown(value)} is not a list of numbers, or its rows differ in length") from None
    _check_shape(column, array)
    if array.size and array.dtype.kind not in {"f": "fiu", "b": "biu"}.get(dtype.kind, "iu"):
        whole = " whole" if dtype.kind in "iu" and array.dtype.kind == "f" else ""
        raise ValueError(f"{_shown(value)} does not hold{whole} numbers that fit {column.type}")
    low, high = _limits(dtype)
    finite = array[np.isfinite(array)].astype(np.uint8 if array.dtype.kind == "b" else array.dtype)
    for extreme in (finite.min(initial=0).item(), finite.max(initial=0).item()):
        if not low <= extreme <= high:
            raise ValueError(f"{extreme} {'is too large for' if dtype.kind == 'f' else 'does not fit'} {column.type}")
    return array.reshape(-1, *column.shape) if column.many else array


def _limits(dtype: np.dtype[Any]) -> tuple[float, float]:
    """Return the least and the largest number that a dtype holds."""
    if dtype.kind == "b":
        return 0, 1
    if dtype.kind == "f":
        return float(np.finfo(dtype).min), float(np.finfo(dtype).max)
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


def _check_shape(column: Column, array: Array) -> None:
    if array.shape == column.shape and not column.many:
        return
    if column.many and array.ndim and (array.shape[1:] == column.shape or array.shape == (0,)):
        return
    what = f"{len(array)} numbers" if array.ndim == len(column.shape) == 1 else f"an array of {list(array.shape)}"
    one = column.shape[0] if len(column.shape) == 1 else list(column.shape) or "one number"
    holds = f"lists of {list(column.shape) or 'numbers'}" if column.many else f"{one} for each sample"
    raise ValueError(f"{what}, but {column.name} holds {holds}")
