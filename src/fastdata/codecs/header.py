"""What all image formats share: a header with the size, and a method that decodes the pixels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from fastdata.codecs.channels import Pixels
from fastdata.errors import CodecError

__all__ = ["FIXED_BYTES", "Header", "unsupported"]

FIXED_BYTES = 1 << 23  # what a decoder takes for the smallest image


@dataclass(frozen=True, kw_only=True)
class Header(ABC):
    """What a file declares before its pixels.

    `height` and `width` are as stored, before `orientation` (as in EXIF). `deep`: it may have more than 8 bits, of which `pixels`
    returns 8. `pixel_bytes`: the memory for a pixel while it is decoded.
    """

    pixel_bytes: ClassVar[int] = 28  # JPEG 2000 with alpha takes 25, most formats half of it

    format: str
    height: int
    width: int
    orientation: int = 1
    deep: bool = False

    def memory(self) -> int:
        """Return the most bytes that decoding and `flatten` take at a time, beside the file: measured for each library."""
        return self.pixel_bytes * self.height * self.width + FIXED_BYTES

    @abstractmethod
    def pixels(self, data: bytes) -> Pixels:
        """Decode the file `data` to its pixels as stored; raises `CodecError` (truncated, unsupported, undecodable)."""


def unsupported(what: str) -> CodecError:
    """Return the error for an intact image of a kind that is not read here."""
    return CodecError(f"{what} is not supported; convert the image to PNG or JPEG", "unsupported")
