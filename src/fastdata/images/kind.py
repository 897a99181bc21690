"""Images as a kind of data, for packages that serve every kind; and the options of `fastdata-prep` for images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastdata.codecs import CODECS
from fastdata.kinds import Modality
from fastdata.options import option
from fastdata.sources.options import LabelOptions, PairOptions
from fastdata.types import StrPath


@dataclass(frozen=True)
class ImageOptions(PairOptions, LabelOptions):
    """Images"""

    size: tuple[int, ...] | None = option(
        "Side in pixels to resize to, smaller images too, as torchvision's Resize. May repeat. Default: images keep their size.",
        type="int",
        multiple=True,
    )
    resize: str = option(
        "Which side becomes SIZE: the short one, the long one, the side of a centre square (crop), or both (stretch).",
        "short",
        choices=("short", "long", "crop", "stretch"),
    )
    upscale: bool = option("Whether smaller images are enlarged, or keep their size.", True)
    codec: str = option(
        "How images are stored. jpeg (on a restart grid), rgb (raw pixels) or png. original: JPEG files that need no change "
        "(sound, upright, of the right size and channels) keep their bytes, with EXIF; other files become jpeg.",
        "jpeg",
        choices=CODECS,
    )
    quality: int = option("JPEG quality, 1 to 100.", 90)
    gray: bool = option("Store one channel.", False)
    bits: int = option("Bits per channel: 8, or 16 for uint16 pixels (codec rgb or png).", 8, choices=(8, 16))
    images: tuple[str, ...] = option(
        "For several images a sample, such as left and right, give this for each: NAME=WHERE[:CODEC][:BITS][:gray]. WHERE is a "
        "folder, in SOURCE or elsewhere, with files of the same names; or, in WebDataset tars, the ending of a member. The first "
        "image gives the labels.",
        (),
        multiple=True,
        metavar="NAME=WHERE",
    )
    max_pixels: int = option("Reject images with more pixels, before decoding them.", 1 << 28)
    fields: tuple[str, ...] = option(
        "Value to store with each image: NAME for a column of the table or the archive, or NAME=ENDING for files next to the "
        "images and members of a tar (caption=txt, meta=json, embedding=npy); then perhaps :TYPE, a dtype, text, bytes or json, "
        "with [] for lists and [512] for arrays; for boxes xyxy, xywh or cxcywh in pixels, for keypoints xy[17]. May repeat.",
        (),
        multiple=True,
        metavar="COLUMN",
        group="Labels",
    )
    tokenize: tuple[str, ...] = option(
        "Store a text column as tokens: NAME=TOKENIZER, or NAME=TOKENIZER:LENGTH for rows that are cut or padded. TOKENIZER is as "
        "for text. May repeat.",
        (),
        multiple=True,
        metavar="COLUMN=TOKENIZER",
        group="Labels",
    )
    coco: StrPath | None = option(
        "COCO JSON of the images in SOURCE: stores boxes, categories, areas, keypoints and captions.", type="file", group="Labels"
    )
    yolo: StrPath | None = option(
        "Folder with a YOLO .txt for each image: stores boxes, categories and keypoints; polygons become boxes. The names are in "
        "data.yaml or classes.txt, in it or above it.",
        type="folder",
        group="Labels",
    )
    palette: StrPath | None = option(
        "File that maps mask colours to classes: a line of red, green, blue and a name for each.", type="file", group="Masks"
    )

    def __post_init__(self) -> None:
        LabelOptions.__post_init__(self)
        if self.coco is not None and self.yolo is not None:
            raise ValueError("--coco and --yolo are two sources of annotations: give one of them")
        if self.masks is None and (self.mask_bits != 8 or self.palette is not None):
            raise ValueError("--mask-bits and --palette are about masks: give --masks too")


class ImageModality(Modality):
    """Photos and other pictures, each with a label, a class mask, or neither."""

    name = "images"
    item = "image"
    options = ImageOptions
    exports = "imagefolder", "webdataset"

    def detect(self, source: StrPath, given: Mapping[str, Any]) -> bool:
        """Claim whatever no other kind claims."""
        return True

    def dataset(self, manifest: Any, *, in_memory: bool = False) -> Any:
        """Return RAMImages, LMDBDataset, or MaskDataset where there are masks."""
        from fastdata.images.dataset import LMDBDataset, MaskDataset, RAMImages

        return RAMImages if in_memory else MaskDataset if manifest.section("masks") else LMDBDataset


KIND = ImageModality()
