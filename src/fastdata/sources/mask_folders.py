"""Refuse a folder that holds a folder of images and one of masks, which would be read as two classes."""

from __future__ import annotations

import os
import re
import shlex
from collections import defaultdict
from collections.abc import Set

from fastdata.errors import PrepError
from fastdata.sources.inputs import SourceList
from fastdata.sources.urls import AnyPath

__all__ = ["refuse_mask_folders"]

IMAGES = re.compile(r"(images?|imgs?|jpegimages|leftimg8bit)([_-]?\w{2,5})?", re.IGNORECASE)
MASKS = re.compile(r"mask|annot|label|segm|ground.?truth|^gt", re.IGNORECASE)
MOST_FOLDERS = 8  # among more, a name that contains "mask" may well be a class, such as oxygen_mask
TRIED = 3  # how many masks to look for a suffix in


def refuse_mask_folders(inputs: SourceList, source: AnyPath) -> None:
    """Raise PrepError, with the command to type, if one folder is named like masks and has the file names of another."""
    names = inputs.labels.names
    if inputs.labels.kind != "class" or len(names) > MOST_FOLDERS or not any(map(MASKS.search, names)):
        return
    stems: defaultdict[str, set[str]] = defaultdict(set)
    for one in inputs.sources:
        folder, slash, name = one.name.partition("/")
        stems[folder if slash else ""].add(os.path.splitext(name if slash else folder)[0])
    for mask in (name for name in names if MASKS.search(name) and stems[name]):
        for image in (name for name in ("", *names) if not MASKS.search(name) and stems[name]):
            suffix = _suffix(stems[image], stems[mask])
            if suffix is not None or IMAGES.fullmatch(image):
                raise _refusal(source, image, mask, suffix or "")


def _suffix(images: Set[str], masks: Set[str]) -> str | None:
    """Return what most masks have after the name of an image; None if they are named otherwise."""
    for mask in sorted(masks)[:TRIED]:
        for end in sorted((mask[len(image) :] for image in images if mask.startswith(image)), key=len):
            if 2 * sum(image + end in masks for image in images) >= len(masks):
                return end
    return None


def _refusal(source: AnyPath, image: str, mask: str, suffix: str) -> PrepError:
    out = f"{source.absolute().name}.fds"
    command = ["fastdata-prep", str(source / (image or "images")), out, "--masks", str(source / mask)]
    command += ["--mask-suffix", suffix] if suffix else []
    if image:
        found = f"images in {image}/ and what look like their masks in {mask}/, which would become two classes."
    else:
        found = f"images, and what look like their masks in {mask}/, which would become a class. Move the images to images/."
    return PrepError(
        f"{source} holds {found} Prepare them as pairs, with your options:\n  {shlex.join(command)}\n"
        "If they are classes, add --label-from '([^/]+)/'"
    )
