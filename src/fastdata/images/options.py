"""What `fastdata-prep` can be asked for of images."""

from __future__ import annotations

from dataclasses import dataclass

from fastdata.options import option
from fastdata.sources.options import LabelOptions, PairOptions, StrPath

__all__ = ["CODECS", "RESIZE_MODES", "ImageOptions"]

CODECS = ("jpeg", "original", "rgb", "png", "yuv420")
RESIZE_MODES = ("short", "long", "crop", "stretch")


@dataclass(frozen=True)
class ImageOptions(PairOptions, LabelOptions):
    """Images"""

    size: tuple[int, ...] | None = option(
        "Side in pixels; may repeat. Default: each image keeps its own.", type="int", several=True, common=True
    )
    resize: str = option(
        "What becomes SIZE: the short side, the long side, a centre square (crop), or both sides (stretch).",
        "short",
        choices=RESIZE_MODES,
    )
    upscale: bool = option("Enlarge smaller images, which otherwise keep their size.", False)
    codec: str = option(
        "How images are stored. On a restart grid (jpeg); bare pixels (rgb); png; or planes of luma and halved colours (yuv420; an "
        "odd last row or column is repeated). original: JPEG files that need no change (sound, upright, of the wanted size and "
        "channels) keep their bytes, with all that is in them, such as EXIF; others become jpeg.",
        "jpeg",
        choices=CODECS,
        common=True,
    )
    quality: int = option("Of JPEG, 1 to 100.", 90)
    gray: bool = option("Store one channel.", False)
    bits: int = option("8, or 16 for uint16 pixels (codec rgb or png).", 8, choices=(8, 16))
    background: tuple[int, int, int] = option("RGB colour beneath transparent pixels.", (255, 255, 255), type="color")
    max_pixels: int = option("Reject larger images before decoding them.", 1 << 28)
    palette: StrPath | None = option(
        "Of masks in colours: a file with a line for each class, red, green, blue and a name.", type="file", group="Masks"
    )

    def __post_init__(self) -> None:
        LabelOptions.__post_init__(self)
        if self.masks is None and (self.mask_suffix or self.mask_bits != 8 or self.palette is not None):
            raise ValueError("--mask-suffix, --mask-bits and --palette are about masks: give --masks too")
