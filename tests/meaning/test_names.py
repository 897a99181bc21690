"""A file belongs to an image if their names are the same to Unicode, as macOS and Linux write them."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from archives import write_table, write_tar
from fastdata import LMDBDataset, MaskDataset, prep
from fastdata.errors import PrepError
from stores import write_files
from support import encode, picture

NAMES = ("café", "zoë", "plain")
MASK = np.arange(600, dtype=np.uint8).reshape(20, 30) % 3
normal = unicodedata.normalize


def write(root: Path, form: str, ending: str, data: Callable[[int], bytes]) -> Path:
    root.mkdir(parents=True)
    for k, name in enumerate(NAMES):
        (root / f"{normal(form, name)}{ending}").write_bytes(data(k))
    return root


def picture_file(k: int) -> bytes:
    return encode(picture(k, 20, 30), ".png")


@pytest.mark.parametrize(("form", "other"), [("NFD", "NFC"), ("NFC", "NFD")])
def test_names_are_paired_whatever_their_form(tmp_path: Path, form: str, other: str) -> None:
    """Files, folders in tables, members of tars and patterns; names of classes are one where a list of classes has them."""
    images, named = write(tmp_path / normal(form, "ü"), form, ".png", picture_file), [normal(other, name) for name in NAMES]
    masks = write(tmp_path / "m", other, ".png", lambda k: encode(np.full((20, 30), k, np.uint8), ".png"))
    pairs = (f"one={images}", f"two={write(tmp_path / 'o', other, '.png', picture_file)}")
    yolo = write(tmp_path / "y", other, ".txt", lambda k: b"0 0.5 0.5 0.5 0.5\n" * (k + 1))
    body = {
        "images": [{"id": k, "file_name": f"{name}.png", "height": 20, "width": 30} for k, name in enumerate(named)],
        "annotations": [{"image_id": k, "category_id": 0, "bbox": [7.5, 5, 15, 10]} for k in range(3) for _ in range(k + 1)],
        "categories": [{"id": 0, "name": "thing"}],
    }
    (coco := tmp_path / "a.json").write_text(json.dumps(body))
    rows = [{"path": f"{name}.png", "label": name, "caption": f"of {k}"} for k, name in enumerate(named)]
    tables = [write_table(tmp_path / f"t.{ending}", rows) for ending in ("jsonl", "csv")]
    more = {"fields": "caption", "classes": [normal(form, name) for name in reversed(NAMES)]}
    for k, name in enumerate(named):
        (images / f"{name}.txt").write_text(f"of {k}")
    paths = write_table(tmp_path / "p.csv", [{"path": f"{normal(other, 'ü')}/{name}.png"} for name in named])
    members = [(form, "png", picture_file), (other, "txt", b"of %d".__mod__), (other, "cls", b"%d".__mod__)]
    tar = write_tar(tmp_path / "t.tar", [(f"{normal(f, NAMES[k])}.{end}", data(k)) for k in range(3) for f, end, data in members])
    pattern = f"({normal(other, 'é')}|zo.|plain)"
    ways: list[tuple[Path, dict[str, Any], list[str]]] = [  # a source, its options, and the classes
        *((images, options, []) for options in ({"masks": masks}, {"images": pairs}, {"yolo": yolo}, {"coco": coco})),
        *((images, {"labels": table, **more}, more["classes"]) for table in tables),
        *((table, {"root": images, **more}, more["classes"]) for table in tables),
        (images, {"fields": "caption=txt", "label_from": pattern}, ["plain", "zoë", "é"]),
        (paths, {"fields": "caption=txt"}, []),
        (tar, {"fields": "caption=txt"}, ["0", "1", "2"]),
    ]
    for source, options, classes in ways:
        made = prep(source, tmp_path / "o.fds", codec="png", workers=1, overwrite=True, **options)
        assert made.rejected == {} and made.kept == 3
        dataset = MaskDataset(made.out) if "masks" in options else LMDBDataset(made.out)
        assert list(dataset.classes) == classes or "masks" in options
        for k in range(3 if "images" not in options else 0):
            number, columns = NAMES.index(normal("NFC", Path(dataset.name(k)).stem)), dataset.columns
            if "masks" in options:
                assert int(dataset[k][1].max()) == number
            else:
                assert len(columns["boxes"][k]) == number + 1 if "boxes" in columns else columns["caption"][k] == f"of {number}"
            assert "classes" not in options or dataset.targets[k] == 2 - number


@pytest.mark.parametrize(("bbox", "rejected"), [([7.5, 5, 15, 10], 4), (None, 5), ([1, 2], 5), ("xyz", 5)])
def test_coco_may_separate_folders_as_windows_does(tmp_path: Path, bbox: Any, rejected: int) -> None:
    """And a box that is none is told as that."""
    for name in ("a", "b"):
        write(tmp_path / f"in/{name}", "NFC", ".png", lambda k: encode(picture(k, 20, 30), ".png"))
    images = [{"id": k, "file_name": f"{'ab'[k]}\\plain.png", "height": 20, "width": 30} for k in range(2)]
    boxes = [{"image_id": k, "category_id": 0, "bbox": bbox if k else [1, 2, 3, 4]} for k in range(2)]
    (tmp_path / "a.json").write_text(json.dumps({"images": images, "annotations": boxes, "categories": [{"id": 0, "name": "x"}]}))
    made = prep(tmp_path / "in", tmp_path / "o.fds", coco=tmp_path / "a.json", workers=1)
    wanted = {"not-annotated": 4} if rejected == 4 else {"not-annotated": 4, "bad-annotation": 1}
    assert made.rejected == wanted and made.kept == 6 - rejected
    assert rejected == 4 or re.search(r"bad-annotation: .*bbox", made.first_reject)


def test_classes_of_one_name_in_two_forms_are_one_class(tmp_path: Path) -> None:
    both = [unicodedata.normalize(form, "é") for form in ("NFC", "NFD")]
    rows = [{"path": f"{name}/{k}.png", "label": name} for k, name in enumerate([*both, "a"])]
    write_files(tmp_path / "in", {row["path"]: picture(k, 8, 9) for k, row in enumerate(rows)})
    write_table(tmp_path / "in/t.csv", rows)
    for k, (source, more) in enumerate([("in", {}), ("in/t.csv", {}), ("in", {"label_from": "(.+)/"})]):
        dataset = LMDBDataset(prep(tmp_path / source, tmp_path / f"{k}.fds", workers=1, **more).out)
        names = [unicodedata.normalize("NFC", dataset.classes[k]) for k in dataset.targets]
        assert len(dataset.classes) == 2 and sorted(names) == ["a", "é", "é"], more
    with pytest.raises(PrepError, match="comes more than once"):
        prep(tmp_path / "in/t.csv", tmp_path / "x.fds", classes=[*both, "a"])


@pytest.mark.parametrize(("image", "mask"), [("s_1", "s_2"), ("video_0001_10", "video_0001_11"), ("1", "10")])
def test_numbers_are_no_words_that_all_names_add(image: str, mask: str, tmp_path: Path) -> None:
    write_files(tmp_path, {f"i/{image}.png": picture(0, 20, 30), f"m/{mask}.png": picture(0, 20, 30)})
    with pytest.raises(PrepError, match=r"no mask in .* belongs to an input"):
        prep(tmp_path / "i", tmp_path / "o.fds", masks=tmp_path / "m")


@pytest.mark.parametrize("count", [1, 4])
def test_masks_of_cityscapes(count: int, tmp_path: Path) -> None:
    for k in range(count):
        for folder, end, data in (("i", "leftImg8bit", picture(k, 20, 30)), ("m", "gtFine_labelIds", (MASK + k) % 5)):
            write_files(tmp_path / folder, {f"aachen/aachen_{k:06d}_000019_{end}.png": data})
    made = prep(tmp_path / "i", tmp_path / "o.fds", masks=tmp_path / "m", codec="png", workers=1)
    assert made.kept == count and 'mask: names have "_gtFine_labelIds" where those of the inputs have "_leftImg8bit"' in made.notes
    for k, (image, mask) in enumerate(MaskDataset(made.out)):
        assert np.array_equal(image.permute(1, 2, 0), picture(k, 20, 30)) and np.array_equal(mask, (MASK + k) % 5)
