"""The images of a sample that has several: their names, and how each is stored."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

__all__ = ["NamedImage", "parse_images"]

NAME = re.compile(r"[A-Za-z0-9_]{1,100}")
TAKEN = ("mask", "masks")  # an export has masks under these names
FORM = "NAME=WHERE[:CODEC][:BITS][:gray], such as left=left or depth=depth:png:16:gray"


class NamedImage(Struct, frozen=True, forbid_unknown_fields=True):
    """One of several images, and how it is stored, as `ImageRecipe` says."""

    name: str
    codec: str
    bits: int
    gray: bool

    def __str__(self) -> str:
        return ":".join([self.name, self.codec, str(self.bits), *(["gray"] if self.gray else [])])


def parse_images(texts: Sequence[str], *, codecs: Sequence[str], codec: str, bits: int, gray: bool) -> list[tuple[NamedImage, str]]:
    """Parse the values of `--images`. Return each image, and where it lies.

    Args:
        texts: the values.
        codecs: the codecs there are.
        codec, bits, gray: what holds for images that do not say.

    Raises:
        ValueError: a value is malformed, or they do not fit together.
    """
    if len(texts) == 1:
        raise ValueError(f"--images {texts[0]} is given once, but is about several images: give it for each, or leave it out")
    found = [_parsed(text, codecs, codec, bits, gray) for text in texts]
    for k, (image, _) in enumerate(found):
        if image.name in (other.name for other, _ in found[:k]):
            raise ValueError(f"--images: two images are called {image.name}: give each a name of its own")
    return found


def _parsed(text: str, codecs: Sequence[str], codec: str, bits: int, gray: bool) -> tuple[NamedImage, str]:
    name, _, rest = text.partition("=")
    where, *details = re.split(r":(?!//)", rest)  # also of a URL
    if not where or not NAME.fullmatch(name):
        raise ValueError(f"--images {text}: give {FORM}; names have letters, digits and _")
    if name in TAKEN:
        raise ValueError(f"--images {text}: {name} is the name of masks, which --masks stores: call the image something else")
    for detail in details:
        if detail in codecs:
            codec = detail
        elif detail in ("8", "16"):
            bits = int(detail)
        elif detail == "gray":
            gray = True
        else:
            raise ValueError(f"--images {text}: {detail!r} is none of {', '.join(codecs)}, 8, 16, gray: give {FORM}")
    if bits == 16 and codec in ("jpeg", "original"):
        raise ValueError(f"--images {text}: 16 bits do not fit into codec {codec}: give rgb or png, as in {name}={where}:png:16")
    return NamedImage(name, codec, bits, gray), where
