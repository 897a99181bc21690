"""Read some keys of a YAML file: text, whole numbers, and lists and maps of these, in blocks or in brackets.

That is what files of class names hold. Anchors, tags, and text of several lines are errors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any, NamedTuple

from fastdata.errors import PrepError
from fastdata.remote.path import AnyPath
from fastdata.sources.inputs import read_bytes

__all__ = ["read_keys"]

KEY = re.compile(r"(?P<key>'(?:[^']|'')*'|\"(?:[^\"\\]|\\.)*\"|[^\s'\"\[\]{}#&*!|>,-][^\s:#]*)\s*:(?:\s+(?P<rest>.*)|$)")
COMMENT = re.compile(r"((?:[^'\"#]|'(?:[^']|'')*'|\"(?:[^\"\\]|\\.)*\"|(?<=\S)#|['\"])*?)\s*(?:(?:^|(?<=\s))#.*)?")
TOKEN = re.compile(r"\s*([\[\]{},]|:(?=\s|$)|'(?:[^']|'')*'|\"(?:[^\"\\]|\\.)*\"|[^\s\[\]{},:'\"](?:[^\[\]{},:]|:(?!\s|$))*)")
REFUSED = ("&", "*", "!", "|", ">", "%", "@", "`")


class _Line(NamedTuple):
    """A line without its indentation and comment. number: from 1."""

    number: int
    indent: int
    text: str


def read_keys(path: AnyPath, keys: Collection[str]) -> dict[str, Any]:
    """Return the values of the keys at the top of a YAML file, as far as it has them. Other keys may hold anything.

    Raises:
        PrepError: the file cannot be read, or such a value is written in a way that is not known here.
    """
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except OSError as error:
        raise PrepError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise PrepError(f"{path} is not text in UTF-8: {error}") from None
    found, key = dict[str, list[_Line]](), ""
    for number, raw in enumerate(text.splitlines(), 1):
        match = COMMENT.fullmatch(raw)
        line = match[1] if match else raw
        stripped = line.strip()
        if not stripped or stripped in ("---", "..."):
            continue
        entry = KEY.match(line)
        if entry:
            key = entry["key"].strip("'\"")
            found[key] = []
            line, stripped = "", (entry["rest"] or "").strip()
        if key and stripped:
            found[key].append(_Line(number, len(line) - len(line.lstrip()) if line else -1, stripped))
    return {name: _Reader(path, name).value(found[name]) for name in keys if found.get(name)}


def _scalar(text: str) -> Any:
    """Return a whole number, or text. Raises ValueError for an escape in double quotes that JSON does not have."""
    if text[:1] == text[-1:] == "'" and len(text) > 1:
        return text[1:-1].replace("''", "'")
    if text[:1] == text[-1:] == '"' and len(text) > 1:
        return json.loads(text)
    return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else text


class _Reader:
    """Reads the value of one key."""

    def __init__(self, path: AnyPath, key: str) -> None:
        self._path = path
        self._key = key

    def _error(self, line: _Line) -> PrepError:
        return PrepError(
            f"{self._path}, line {line.number}: {self._key} is written in a way that is not read here; write [a, b], or a line for "
            f'each, "- a" or "0: a": {line.text!r:.60}'
        )

    def value(self, lines: list[_Line]) -> Any:
        """Return the value that these lines write."""
        first = lines[0]
        if first.text[0] in "[{":
            return self._brackets(lines)
        if first.text[0] in REFUSED:
            raise self._error(first)
        if first.text == "-" or first.text.startswith("- "):
            return [self.value(inner) for _, inner in self._items(lines, re.compile(r"-(?:\s+(?P<rest>.*)|$)"))]
        if KEY.match(first.text):
            return {self._scalar(match["key"], inner[0]): self.value(inner) for match, inner in self._items(lines, KEY)}
        if len(lines) > 1:
            raise self._error(lines[1])
        return self._scalar(first.text, first)

    def _scalar(self, text: str, line: _Line) -> Any:
        try:
            return _scalar(text)
        except ValueError:
            raise self._error(line) from None

    def _items(self, lines: list[_Line], opening: re.Pattern[str]) -> list[tuple[re.Match[str], list[_Line]]]:
        """Return the items of a block: what opens each, and its lines."""
        found = list[tuple[re.Match[str], list[_Line]]]()
        for line in lines:
            match = opening.match(line.text) if line.indent == lines[0].indent else None
            if match:
                rest = (match["rest"] or "").strip()
                found.append((match, [_Line(line.number, line.indent + 1, rest)] if rest else []))
            elif line.indent < lines[0].indent or (line.indent == lines[0].indent and not line.text.startswith("-")):
                raise self._error(line)
            else:
                found[-1][1].append(line)
        for place, (_, inner) in enumerate(found):
            if not inner:
                raise self._error(lines[min(place, len(lines) - 1)])
        return found

    def _brackets(self, lines: list[_Line]) -> Any:
        text = " ".join(line.text for line in lines)
        tokens, place = list[str](), 0
        while place < len(text.rstrip()):
            match = TOKEN.match(text, place)
            if match is None:
                raise self._error(lines[0])
            tokens.append(match[1].strip())
            place = match.end()
        try:
            value = _nested(tokens)
        except (IndexError, ValueError):
            raise self._error(lines[0]) from None
        if tokens:
            raise self._error(lines[0])
        return value


def _nested(tokens: list[str]) -> Any:
    """Remove the tokens of one value, and return it. Raises IndexError or ValueError if they are not one."""
    token = tokens.pop(0)
    if token not in ("[", "{"):
        if token in ("]", "}", ",", ":") or token[0] in REFUSED:
            raise ValueError(token)
        return _scalar(token)
    end, items = ("]" if token == "[" else "}"), list[Any]()
    while tokens[0] != end:
        item = _nested(tokens)
        if token == "{":
            if tokens.pop(0) != ":":
                raise ValueError("no colon")
            item = (item, _nested(tokens))
        items.append(item)
        if tokens[0] == ",":
            tokens.pop(0)
        elif tokens[0] != end:
            raise ValueError(tokens[0])
    tokens.pop(0)
    return items if token == "[" else dict(items)
