"""JPEG records: baseline files with restart markers on a grid, and an index of the segments between them.

A restart marker after every `interval` MCUs makes each segment decodable by itself. The interval divides the row of MCUs, so the
segments form a grid of cells, and a crop can be cut out of the compressed bytes. The lengths of the segments are in APP9.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

import cv2
import numpy as np
import simplejpeg

from fastdata.errors import CodecError
from fastdata.types import Array

INDEX_MARKER = 0xE9  # APP9: hardly used elsewhere
INDEX_ID = b"fastdata\0"
INDEX_HEAD = struct.Struct("<BHH")  # version, number of this chunk, number of chunks
INDEX_VERSION = 1
SEGMENT_HEAD = 4 + len(INDEX_ID) + INDEX_HEAD.size  # of a chunk: marker, length, and these
LONG = np.dtype([("place", "<u4"), ("high", "<u2")])  # a length of 256 or more: its segment, and its bits above the low byte
CHUNK_BYTES = 65_533 + 4 - SEGMENT_HEAD  # capacity of one APP9 segment
MIN_CELL = 16  # pixels; smaller cells cost more in markers than they save
MAX_SIDE = 65_500  # libjpeg's own limit
BUFFER_ALIGNMENT, BUFFER_OFFSET = 64, 40  # a decode buffer begins at BUFFER_OFFSET modulo BUFFER_ALIGNMENT


def restart_interval(width: int, mcu: int) -> int:
    """Return the MCUs per cell: the smallest divisor of the MCUs in a row (16 pixels wide, 8 in grey) that spans 16+ pixels."""
    row = -(-width // mcu)
    return next((n for n in range(1, row + 1) if row % n == 0 and n * mcu >= MIN_CELL), 1)


def encode_jpeg(image: Array, *, quality: int = 90) -> bytes:
    """Encode uint8 pixels, RGB [H, W, 3] (as 4:2:0) or grey [H, W], as a baseline JPEG on the restart grid."""
    height, width = image.shape[:2]
    if max(height, width) > MAX_SIDE:
        raise CodecError(f"{width} x {height} pixels: a JPEG has at most {MAX_SIDE} a side; shrink images with --size", "too-large")
    gray = image.ndim == 2
    params = [
        *(cv2.IMWRITE_JPEG_QUALITY, quality),
        *(cv2.IMWRITE_JPEG_RST_INTERVAL, restart_interval(width, 8 if gray else 16)),
        *(cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420),
    ]
    _, data = cv2.imencode(".jpg", image if gray else cv2.cvtColor(image, cv2.COLOR_RGB2BGR), params)
    return add_index(data.reshape(-1))


def add_index(data: Array) -> bytes:
    """Return a JPEG on the grid, given as uint8, with its index."""
    head = data[:4096].tobytes()  # cv2 writes about 600 bytes before the scan
    scan = data[scan_start(head, 2) :]
    (at,) = (scan[:-1] == 0xFF).nonzero()
    ends = at[scan[at + 1] != 0] + 2  # 0 follows a byte of data; all others are RSTm or EOI, and end a segment
    insert = 2 + 2 + int.from_bytes(head[4:6], "big")  # after JFIF's APP0, which must come first
    return b"".join([head[:insert], index_segments(np.diff(ends, prepend=0)), data[insert:].tobytes()])


def scan_start(data: bytes | memoryview, at: int) -> int:
    """Return where the entropy-coded data begins. `at` is the start of any segment of the header."""
    while data[at + 1] != 0xDA:
        at += 2 + (data[at + 2] << 8 | data[at + 3])
    return at + 2 + (data[at + 2] << 8 | data[at + 3])


def index_segments(lengths: Array) -> bytes:
    """Pack the low byte of each length, then list those above 255. Two bytes for each length would make a photo 1 % larger."""
    (long,) = (lengths > 0xFF).nonzero()
    high = np.empty(len(long), LONG)
    high["place"], high["high"] = long, lengths[long] >> 8
    packed = len(lengths).to_bytes(4, "little") + lengths.astype(np.uint8).tobytes() + high.tobytes()
    chunks = [packed[k : k + CHUNK_BYTES] for k in range(0, len(packed), CHUNK_BYTES)]
    out = []
    for number, chunk in enumerate(chunks):
        content = INDEX_ID + INDEX_HEAD.pack(INDEX_VERSION, number, len(chunks)) + chunk
        out.append(bytes([0xFF, INDEX_MARKER]) + (len(content) + 2).to_bytes(2, "big") + content)
    return b"".join(out)


def read_index(data: bytes | memoryview) -> tuple[Array, int] | None:
    """Return the bytes of each entropy-coded segment, int64, and where the index ends; or None if it is absent or damaged.

    A segment includes its closing marker: RSTm, or EOI for the last.
    """
    at = 2
    chunks: list[bytes] = []
    while at + SEGMENT_HEAD <= len(data):
        head = bytes(data[at : at + SEGMENT_HEAD])  # one copy is cheaper than several reads of a memoryview
        if head[0] != 0xFF or head[1] == 0xDA:
            return None
        end = at + 2 + (head[2] << 8 | head[3])
        if head[1] == INDEX_MARKER and head.startswith(INDEX_ID, 4):
            version, number, count = INDEX_HEAD.unpack_from(head, 4 + len(INDEX_ID))
            if version != INDEX_VERSION or number != len(chunks):
                return None
            chunks.append(bytes(data[at + SEGMENT_HEAD : end]))
            if len(chunks) == count:
                lengths = _unpack(b"".join(chunks))
                return None if lengths is None else (lengths, end)
        elif chunks:
            return None
        at = end
    return None


def _unpack(packed: bytes) -> Array | None:
    count = int.from_bytes(packed[:4], "little")
    try:
        lengths = np.frombuffer(packed, np.uint8, count, 4).astype(np.int64)
        if len(packed) > 4 + count:
            long = np.frombuffer(packed, LONG, -1, 4 + count)
            lengths[long["place"]] += long["high"].astype(np.int64) << 8
    except (ValueError, IndexError):  # it has another length, or names a segment that is not there
        return None
    return lengths


def decode_buffer(size: int) -> Array:
    """Return new memory to decode a JPEG into, uint8 [size], whose address is 40 modulo 64.

    If a row begins at a multiple of 32, libjpeg-turbo (simd/x86_64/jdcolext-avx2.asm) bypasses the cache on writing, and the next
    reader waits for memory: decoding and resizing take a quarter longer. Allocators return any multiple of 16.
    """
    memory: Array = np.empty(size + BUFFER_ALIGNMENT, np.uint8)
    start = (BUFFER_OFFSET - memory.ctypes.data) % BUFFER_ALIGNMENT
    return memory[start : start + size]


def decode_jpeg(data: bytes | memoryview | Array, *, gray: bool = False) -> Array:
    """Decode a JPEG as Pillow does, bit for bit: RGB [H, W, 3], or grey [H, W, 1]. Raise CodecError if the bytes are damaged."""
    return decode_jpeg_into(decode_buffer, data, jpeg_size(data), gray=gray)


def decode_jpeg_into(
    scratch: Callable[[int], Array], data: bytes | memoryview | Array, size: tuple[int, int], *, gray: bool, fast: bool = False
) -> Array:
    """Decode a JPEG to [H, W, 3 or 1] as `decode_jpeg` does, but into existing memory, and perhaps at a smaller scale.

    scratch: a function of n, such as `decode_buffer`, which returns n or more bytes of flat uint8 memory. size: (height, width) at
    full size, or at 1/2, 1/4 or 1/8 of it, rounded up. fast: use a faster, less exact transform and upsampling of colours.
    """
    height, width = size
    shape = height, width, 1 if gray else 3
    options = {"fastdct": fast, "fastupsample": fast, "min_height": height, "min_width": width}
    try:
        pixels: Array = simplejpeg.decode_jpeg(data, "GRAY" if gray else "RGB", buffer=scratch(math.prod(shape)), **options)
    except ValueError as error:
        raise CodecError(f"damaged JPEG: {error}") from None
    if pixels.shape != shape:
        raise CodecError(f"the JPEG holds {pixels.shape[1]} x {pixels.shape[0]} pixels, but {width} x {height} were expected")
    return pixels


def jpeg_size(data: bytes | memoryview | Array) -> tuple[int, int]:
    """Return (height, width) from the header."""
    try:
        height, width, *_ = simplejpeg.decode_jpeg_header(data)
    except ValueError as error:
        raise CodecError(f"damaged JPEG: {error}") from None
    return height, width
