"""Images as a kind of data: the interface for packages that serve every kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastdata.images.options import ImageOptions
from fastdata.kinds import Modality
from fastdata.types import StrPath


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
        from fastdata.images.stored import LMDBDataset, MaskDataset, RAMImages

        return RAMImages if in_memory else MaskDataset if manifest.section("masks") else LMDBDataset


KIND = ImageModality()
