"""Images as a kind of data: the interface that the kind-independent rooms use."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastdata.images.options import ImageOptions
from fastdata.kinds import Modality, Planned, StrPath

__all__ = ["KIND", "ImageModality"]

CPU_AVX2 = 11  # OpenCV's number for it, which cv2 does not export


class ImageModality(Modality):
    """Photos and other pictures, each with a label, a class mask, or neither."""

    name = "images"
    says = "images"
    item = "image"
    options = ImageOptions
    exports = "imagefolder", "webdataset"
    variants = r"(mask-|image-[A-Za-z0-9_]+-)?(full|[0-9]+)"

    def detect(self, source: StrPath, given: Mapping[str, Any]) -> bool:
        """Claim whatever no other kind claims."""
        return True

    def plan(self, source: StrPath, out: Path, options: ImageOptions, limit: int | None) -> Planned:
        """List the images and plan what to store."""
        from fastdata.images.planning import plan_images

        return plan_images(source, options, limit)

    def machine(self) -> dict[str, str]:
        """Return whether OpenCV uses AVX2, without which it rounds differently, and a checksum of how it was built."""
        import cv2
        import xxhash

        build = xxhash.xxh3_64_hexdigest(cv2.getBuildInformation().encode())[:8]
        return {"AVX2 in OpenCV": "yes" if cv2.checkHardwareSupport(CPU_AVX2) else "no", "OpenCV build": build}

    def typed(self, options: dict[str, Any]) -> dict[str, Any]:
        """Turn a manifest's options into command-line options."""
        from msgspec import convert

        from fastdata.images.sections import NamedImage

        found = dict[str, Any]()
        for key, value in options.items():
            if key == "mask":
                found |= _typed_masks(value) if isinstance(value, dict) else {}
            elif key == "images":
                found[key] = [str(image) for image in convert(value, tuple[NamedImage, ...])]
            elif key == "upscale":
                found["no-upscale"] = not value
            else:
                found["size" if key == "sizes" else key.replace("_", "-")] = value
        return found

    def alike(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return all but whether masks wrote their second class as 255, which their records do not."""
        mask = {key: value for key, value in (options["mask"] or {}).items() if key != "binary"}
        return super().alike(options) | {"mask": mask}

    def dataset(self, manifest: Any, *, in_memory: bool = False) -> Any:
        """Return RAMImages, LMDBDataset, or MaskDataset where there are masks."""
        from fastdata.images.ram import RAMImages
        from fastdata.images.stored import LMDBDataset, MaskDataset

        return RAMImages if in_memory else MaskDataset if manifest.section("masks") else LMDBDataset


def _typed_masks(mask: dict[str, Any]) -> dict[str, Any]:
    """Turn the masks' entry of a manifest's options into command-line options."""
    palette = [
        " ".join(map(str, [*color, name])) for color, name in zip(mask.get("colors", ()), mask.get("names", ()), strict=False)
    ]
    return {"mask-bits": mask.get("bits"), **({"palette": palette} if palette else {})}


KIND = ImageModality()
