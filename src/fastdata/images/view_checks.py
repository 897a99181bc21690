"""Which views suit a dataset's images and targets."""

from __future__ import annotations

from collections.abc import Sequence

from fastdata.images.view import Views

__all__ = ["check_views"]


def check_views(views: Views, *, images: Sequence[str], masks: bool, geometric: str | None) -> Views:
    """Return the views.

    Args:
        views: crop, flips and transform.
        images: the names of the images of a sample, if it has several.
        masks: whether there are masks.
        geometric: the columns that follow the crop, in words; None: there are none.

    Raises:
        ValueError: if the views do not suit these.
    """
    if views.transform is not None:
        _check_transform(images, masks, geometric)
    if views.several and (masks or geometric):
        raise ValueError(
            f"crop makes {len(views.each)} views of an image, and {geometric or 'its mask'} can follow only one: give one crop, or "
            "leave them out"
        )
    if views.several and images:
        raise ValueError(
            f"crop makes {len(views.each)} views, and samples have {len(images)} images, {', '.join(images)}: give one crop, or "
            "choose an image with images="
        )
    return views


def _check_transform(images: Sequence[str], masks: bool, geometric: str | None) -> None:
    if masks:
        raise ValueError(
            "transform takes an image, and its mask would not follow: transform both on the device; images without masks come from "
            "RAMDataset(masks=False)"
        )
    if geometric:
        raise ValueError(
            f"transform takes an image, and {geometric} would not follow: transform both on the device, or leave it out"
        )
    if images:
        raise ValueError(
            f"transform takes an image, but samples have {', '.join(images)}, each of which it would change in another way: "
            "transform them on the device, or choose one with images="
        )
