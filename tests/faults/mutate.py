"""Damage to bytes, by format: any kind of damage for all formats, and values that are valid but absurd where a format has numbers.

Each function takes a generator of random numbers and bytes, and returns other bytes. The format is known by the name of the file.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any

__all__ = ["MUTATORS", "mutated"]

Mutator = Callable[[Random, bytes], bytes]

NUMBERS = (0, 1, -1, 2, 3, 7, 127, 128, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**62, 2**63 - 1, 2**63)
VALUES: tuple[Any, ...] = (*NUMBERS, -(2**63), 2**64, 10**40, 0.5, 1e308, -1e308, float("nan"), float("inf"), None, True, False)
VALUES += ("", "a", "../../etc/passwd", "/etc/passwd", "\0", "\ud800", "1" * 5000, [], {}, [[]], [0] * 100)
WORDS = (b"../", b"/", b"\0", b"\xff", b"\n", b'"', b",", b"\t", b"nan", b"inf", b"1e999", b"-1", b"9" * 30, b"\xef\xbb\xbf", b"\r")
OBJECTS = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,)}"
LINES = re.compile(rb"(?<=\n)")
NUMBER = re.compile(rb"-?\d+(\.\d+)?")


def systematic(k: int, data: bytes) -> bytes | None:
    """The k-th damage of a fixed list: cut before each byte, then each bit flipped. None: the list has ended."""
    if k < len(data):
        return data[:k]
    k -= len(data)
    if k < 8 * len(data):
        return flip(data, k)
    return None


def flip(data: bytes, bit: int) -> bytes:
    out = bytearray(data)
    out[bit >> 3] ^= 1 << (bit & 7)
    return bytes(out)


def anything(rng: Random, data: bytes) -> bytes:
    """Up to four random changes."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        data = rng.choice(CHANGES)(rng, data)
    return data


def _place(rng: Random, data: bytes) -> int:
    """A place, mostly near one of the ends, where headers and indices are."""
    if not data:
        return 0
    span = rng.choice((len(data), len(data), min(len(data), 64), min(len(data), 512)))
    at = rng.randrange(span)
    return len(data) - 1 - at if rng.random() < 0.2 else at


def _bit(rng: Random, data: bytes) -> bytes:
    return flip(data, _place(rng, data) * 8 + rng.randrange(8)) if data else data


def _byte(rng: Random, data: bytes) -> bytes:
    at = _place(rng, data)
    return data[:at] + bytes([rng.choice((0, 1, 127, 128, 254, 255, rng.randrange(256)))]) + data[at + 1 :]


def _integer(rng: Random, data: bytes) -> bytes:
    """Overwrite a field with a large, small or negative number, or change it a little."""
    at, code = _place(rng, data), rng.choice(("<H", ">H", "<I", ">I", "<Q", ">Q"))
    size = struct.calcsize(code)
    if at + size > len(data):
        return data
    value = struct.unpack_from(code, data, at)[0] + rng.choice((-2, -1, 1, 2, 8, 4096))
    if rng.random() < 0.7:
        value = rng.choice(NUMBERS)
    return data[:at] + struct.pack(code, value % (1 << 8 * size)) + data[at + size :]


def _cut(rng: Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _without(rng: Random, data: bytes) -> bytes:
    at = _place(rng, data)
    return data[:at] + data[at + rng.choice((1, 2, 4, 8, 512, rng.randrange(1, 5000))) :]


def _zeros(rng: Random, data: bytes) -> bytes:
    at, size = _place(rng, data), rng.choice((2, 4, 8, 16, 512, 4096))
    return data[:at] + bytes(min(size, len(data) - at)) + data[at + size :]


def _twice(rng: Random, data: bytes) -> bytes:
    at = _place(rng, data)
    piece = data[at : at + rng.choice((1, 4, 16, 512, 4096))]
    to = rng.choice((at, _place(rng, data)))
    return data[:to] + piece * rng.choice((1, 1, 1, 2, 40)) + data[to:]


def _word(rng: Random, data: bytes) -> bytes:
    at = _place(rng, data)
    return data[:at] + rng.choice(WORDS) + data[at + rng.choice((0, 0, 1, 3)) :]


def _longer(rng: Random, data: bytes) -> bytes:
    return data + rng.choice((b"\0", b"\n", b"x", bytes(4096), data[: rng.randrange(len(data) + 1)]))


def _digits(rng: Random, data: bytes) -> bytes:
    """Replace a number that is written out."""
    found = list(NUMBER.finditer(data[:20_000]))
    if not found:
        return data
    match = rng.choice(found)
    return data[: match.start()] + str(rng.choice(VALUES[: len(NUMBERS) + 8])).encode() + data[match.end() :]


CHANGES: tuple[Mutator, ...] = (
    *(_bit, _bit, _byte, _byte, _integer, _integer, _integer, _cut, _without, _zeros, _twice, _word, _longer, _digits),
)


def as_json(rng: Random, data: bytes) -> bytes:
    """Change a value of a JSON document, remove or repeat an entry, or nest it deeply; else damage its bytes."""
    if rng.random() < 0.25:
        return anything(rng, data)
    try:
        body = json.loads(data)
    except ValueError:
        return anything(rng, data)
    for _ in range(rng.choice((1, 1, 1, 2))):
        body = _changed(rng, body)
    text = json.dumps(body)
    if rng.random() < 0.03:
        deep = rng.choice((100, 5000, 200_000))
        text = text.replace(rng.choice(("0", '""', "1")), "[" * deep + "]" * deep, 1)
    return text.encode()


def _changed(rng: Random, body: Any) -> Any:
    """Change one value, which is found by walking down from the root."""
    if isinstance(body, dict | list) and body and rng.random() < 0.9:
        keys = list(body) if isinstance(body, dict) else range(len(body))
        key = rng.choice(keys)
        what = rng.random()
        if what < 0.05:
            del body[key]
        elif what < 0.1 and isinstance(body, dict):
            body[rng.choice(("", "a", "../a", *keys))] = body.pop(key)
        elif what < 0.1:
            body.append(body[key])
        elif what < 0.15:
            other = rng.choice(keys)
            body[key], body[other] = body[other], body[key]
        else:
            body[key] = _changed(rng, body[key])
        return body
    if type(body) is int and rng.random() < 0.4:
        return body + rng.choice((-1, 1, 2, 100, -body - 1))
    if isinstance(body, str) and body and rng.random() < 0.4:
        at = rng.randrange(len(body))
        return body[:at] + rng.choice(("", "/", "..", "\0", "x", "9")) + body[at + 1 :]
    return deepcopy(rng.choice(VALUES))  # which may be changed again


def as_lines(rng: Random, data: bytes) -> bytes:
    """Change a line that is JSON, repeat, remove or swap lines; else damage the bytes."""
    lines = LINES.split(data)
    what, at = rng.random(), rng.randrange(len(lines))
    if what < 0.4:
        return anything(rng, data)
    if what < 0.7:
        lines[at] = as_json(rng, lines[at].rstrip(b"\n")) + b"\n"
    elif what < 0.8:
        del lines[at]
    elif what < 0.9:
        lines.insert(at, rng.choice(lines))
    else:
        lines[at] = rng.choice(WORDS) * rng.choice((1, 2, 300)) + lines[at]
    return b"".join(lines)


def as_npy(rng: Random, data: bytes) -> bytes:
    """Change the header of an .npy file, and correct its length; else damage the bytes."""
    if rng.random() < 0.5 or data[:6] != b"\x93NUMPY":
        return anything(rng, data)
    end = 10 + int.from_bytes(data[8:10], "little")
    head, body = data[10:end], data[end:]
    head = rng.choice((_digits, _word, _byte, _twice, anything))(rng, head)
    if rng.random() < 0.1:
        head = rng.choice((b"(" * 5000, b"-" * 50_000 + b"1", OBJECTS, b"9**9**9"))
    return data[:8] + (len(head) & 0xFFFF).to_bytes(2, "little") + head + body


def as_png(rng: Random, data: bytes) -> bytes:
    """Damage a chunk of a PNG, sometimes with the right checksum for it, or change the order of chunks; else damage the bytes."""
    if rng.random() < 0.5:
        return anything(rng, data)
    chunks = _png_chunks(data)
    if not chunks:
        return anything(rng, data)
    at = rng.randrange(len(chunks))
    kind, body = chunks[at]
    what = rng.random()
    if what < 0.6:
        chunks[at] = kind, anything(rng, body)
    elif what < 0.75:
        del chunks[at]
    else:
        chunks.insert(rng.randrange(len(chunks) + 1), rng.choice(chunks))
    return data[:8] + b"".join(struct.pack(">I", len(b)) + k + b + struct.pack(">I", zlib.crc32(k + b)) for k, b in chunks)


def _png_chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    at, found = 8, []
    while at + 12 <= len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        found.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + size]))
        at += 12 + size
    return found


def as_tar(rng: Random, data: bytes) -> bytes:
    """Change a header of a tar, and correct its checksum; else damage the bytes."""
    blocks = [at for at in range(0, len(data) - 511, 512) if data[at + 257 : at + 262] == b"ustar"]
    if rng.random() < 0.3 or not blocks:
        return anything(rng, data)
    at = rng.choice(blocks)
    head = bytearray(data[at : at + 512])
    what = rng.random()
    if what < 0.5:
        size = rng.choice((*NUMBERS, 511, 513, rng.randrange(1 << 20)))
        head[124:136] = (b"\x80" + bytes(3) + (size % 2**64).to_bytes(8, "big")) if size >= 8**11 or size < 0 else b"%011o\0" % size
    elif what < 0.7:
        head[156] = rng.choice(bytes(1) + b"01234567LKgxSVDNMX")
    elif what < 0.85:
        name = rng.choice((b"../../x.png", b"/x.png", b"", b"\xff.png", b".png", b"__a__/b.png", b"x" * 100))
        head[:100] = name.ljust(100, b"\0")
    else:
        place = rng.randrange(512)
        head[place : place + 8] = bytes(rng.randrange(256) for _ in range(8))[: 512 - place]
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return data[:at] + bytes(head) + data[at + 512 :]


def as_jpeg(rng: Random, data: bytes) -> bytes:
    """Damage, remove or repeat a segment of a JPEG's header, mostly with the right length; else damage the bytes."""
    at, found = 2, []
    while at + 4 <= len(data) and data[at] == 0xFF and data[at + 1] != 0xDA:
        found.append(slice(at, at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")))
        at = found[-1].stop
    if rng.random() < 0.4 or not found:
        return anything(rng, data)
    segment = rng.choice(found)
    body = anything(rng, data[segment][4:])
    length = len(body) + 2 if rng.random() < 0.9 else rng.choice((0, 1, 2, 65535))
    changed = data[segment][:2] + (length & 0xFFFF).to_bytes(2, "big") + body
    return data[: segment.start] + rng.choice((changed, changed, changed, b"", data[segment] * 2)) + data[segment.stop :]


MUTATORS: dict[str, Mutator] = {
    ".json": as_json,
    ".jsonl": as_lines,
    ".txt": as_lines,
    ".csv": as_lines,
    ".yaml": as_lines,
    ".npy": as_npy,
    ".png": as_png,
    ".jpg": as_jpeg,
    ".tar": as_tar,
}


def mutated(rng: Random, name: str, data: bytes, number: int) -> bytes:
    """Damage a file. A quarter of the numbers is systematic, the others are random."""
    found = systematic(number // 4, data) if number % 4 == 0 else None
    if found is None:
        found = MUTATORS.get(name[name.rfind(".") :], anything)(rng, data)
    return found
