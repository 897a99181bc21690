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

from archives import write_tar
from fastdata import LMDBDataset, MaskDataset, prep
from fastdata.errors import PrepError
from support import encode, picture, write_pictures

NAMES = ("café", "zoë", "plain")
MASK = np.arange(600, dtype=np.uint8).reshape(20, 30) % 3


def write(root: Path, form: str, ending: str, data: Callable[[int], bytes]) -> Path:
    root.mkdir(parents=True)
    for k, name in enumerate(NAMES):
        (root / f"{unicodedata.normalize(form, name)}{ending}").write_bytes(data(k))
    return root


@pytest.mark.parametrize("forms", [("NFD", "NFC"), ("NFC", "NFD")])
def test_names_are_paired_whatever_their_form(tmp_path: Path, forms: tuple[str, str]) -> None:
    images = write(tmp_path / "in", forms[0], ".png", lambda k: encode(picture(k, 20, 30), ".png"))
    options: dict[str, Any] = {"workers": 1, "codec": "png"}
    masks = write(tmp_path / "m", forms[1], ".png", lambda k: encode(MASK, ".png"))
    masked = prep(images, tmp_path / "m.fds", masks=masks, **options)
    assert masked.rejected == {} and all(np.array_equal(mask, MASK) for _, mask in MaskDataset(masked.out))
    others = write(tmp_path / "o", forms[1], ".png", lambda k: encode(picture(k + 9, 20, 30), ".png"))
    pairs = prep(images, tmp_path / "p.fds", images=(f"one={images}", f"two={others}"), **options)
    assert pairs.rejected == {} and pairs.kept == 3
    yolo = write(tmp_path / "y", forms[1], ".txt", lambda k: b"0 0.5 0.5 0.5 0.5\n" * (k + 1))
    by_yolo = prep(images, tmp_path / "y.fds", yolo=yolo, **options).out
    body = {
        "images": [
            {"id": k, "file_name": f"{unicodedata.normalize(forms[1], name)}.png", "height": 20, "width": 30}
            for k, name in enumerate(NAMES)
        ],
        "annotations": [{"image_id": k, "category_id": 0, "bbox": [7.5, 5, 15, 10]} for k in range(3) for _ in range(k + 1)],
        "categories": [{"id": 0, "name": "thing"}],
    }
    (tmp_path / "a.json").write_text(json.dumps(body))
    by_coco = prep(images, tmp_path / "c.fds", coco=tmp_path / "a.json", **options).out
    for out in (by_yolo, by_coco):
        dataset = LMDBDataset(out)
        order = [NAMES.index(unicodedata.normalize("NFC", Path(dataset.name(k)).stem)) for k in range(3)]
        assert [len(boxes) for boxes in dataset.columns["boxes"]] == [k + 1 for k in order]


@pytest.mark.parametrize("forms", [("NFD", "NFC"), ("NFC", "NFD")])
def test_tables_name_images_whatever_their_form(tmp_path: Path, forms: tuple[str, str]) -> None:
    """And class names of either form are one class where a list of classes has them."""
    images = write(tmp_path / "in", forms[0], ".png", lambda k: encode(picture(k, 20, 30), ".png"))
    named = [unicodedata.normalize(forms[1], name) for name in NAMES]
    rows = [{"path": f"{name}.png", "label": name, "caption": f"of {k}"} for k, name in enumerate(named)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "t.csv").write_text("path,label,caption\n" + "".join(",".join(row.values()) + "\n" for row in rows), "utf-8")
    classes = [unicodedata.normalize(forms[0], name) for name in reversed(NAMES)]
    for k, table in enumerate((tmp_path / "t.jsonl", tmp_path / "t.csv")):
        for source, options in ((images, {"labels": table}), (table, {"root": images})):
            out = prep(source, tmp_path / f"{k}.fds", classes=classes, fields="caption", workers=1, overwrite=True, **options).out
            dataset = LMDBDataset(out, fields=("caption", "label"))
            found = {
                unicodedata.normalize("NFC", Path(dataset.name(k)).stem): (one["caption"], one["label"])
                for k, (_, one) in enumerate(dataset)  # type: ignore[arg-type]
            }
            assert found == {name: (f"of {k}", 2 - k) for k, name in enumerate(NAMES)}


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


@pytest.mark.parametrize("forms", [("NFD", "NFC"), ("NFC", "NFD")])
def test_every_other_way_of_names(forms: tuple[str, str], tmp_path: Path) -> None:
    """Files of fields, folders in tables, members of tars and patterns join what differs in the form of Unicode only."""
    normal = unicodedata.normalize
    data = [encode(picture(k, 8, 9), ".png") for k in range(3)]
    images = write(tmp_path / normal(forms[0], "ü") / "in", forms[0], ".png", data.__getitem__)
    for k, name in enumerate(NAMES):
        (images / f"{normal(forms[1], name)}.txt").write_text(f"of {k}")
    options: dict[str, Any] = {"fields": "caption=txt", "workers": 1, "overwrite": True}
    paths = [f"{normal(forms[1], 'ü')}/in/{normal(forms[1], name)}.png" for name in NAMES]
    (tmp_path / "t.csv").write_text("path\n" + "\n".join(paths), "utf-8")
    members = [(forms[0], "png", data), (forms[1], "txt", [b"of 0", b"of 1", b"of 2"]), (forms[1], "cls", [b"0", b"1", b"2"])]
    named = [(f"{normal(form, NAMES[k])}.{end}", body[k]) for k in range(3) for form, end, body in members]
    write_tar(tmp_path / "t.tar", named)
    pattern = {"label_from": f"({normal(forms[1], 'é')}|zo.|plain)"}
    for source, more, classes in (
        (images, pattern, ["plain", "zoë", "é"]),
        (tmp_path / "t.csv", {}, []),
        (tmp_path / "t.tar", {}, ["0", "1", "2"]),
    ):
        made = prep(source, tmp_path / "o.fds", **options, **more)
        dataset = LMDBDataset(made.out, fields=("caption",))
        assert made.rejected == {} and list(dataset.classes) == classes
        for k in range(3):
            name = normal("NFC", Path(dataset.name(k)).stem)
            assert dataset.columns["caption"][k] == f"of {NAMES.index(name)}"


def test_classes_of_one_name_in_two_forms_are_one_class(tmp_path: Path) -> None:
    both = [unicodedata.normalize(form, "é") for form in ("NFC", "NFD")]
    for k, name in enumerate([*both, "a"]):
        (tmp_path / "in" / name).mkdir(parents=True)
        (tmp_path / "in" / name / f"{k}.png").write_bytes(encode(picture(k, 8, 9), ".png"))
    rows = [(f"{name}/{k}.png", name) for k, name in enumerate([*both, "a"])]
    (tmp_path / "in/t.csv").write_text("path,label\n" + "".join(f"{path},{name}\n" for path, name in rows), "utf-8")
    for k, (source, more) in enumerate([("in", {}), ("in/t.csv", {}), ("in", {"label_from": "(.+)/"})]):
        dataset = LMDBDataset(prep(tmp_path / source, tmp_path / f"{k}.fds", workers=1, **more).out)
        names = [unicodedata.normalize("NFC", dataset.classes[k]) for k in dataset.targets]
        assert len(dataset.classes) == 2 and sorted(names) == ["a", "é", "é"], more
    with pytest.raises(PrepError, match="has two numbers"):
        prep(tmp_path / "in/t.csv", tmp_path / "x.fds", classes=[*both, "a"])


@pytest.mark.parametrize(("image", "mask"), [("s_1", "s_2"), ("video_0001_10", "video_0001_11"), ("1", "10")])
def test_numbers_are_no_words_that_all_names_add(image: str, mask: str, tmp_path: Path) -> None:
    for folder, name in (("i", image), ("m", mask)):
        write_pictures(tmp_path / folder, 1)[0].rename(tmp_path / folder / f"{name}.png")
    with pytest.raises(PrepError, match=r"no mask in .* belongs to an image"):
        prep(tmp_path / "i", tmp_path / "o.fds", masks=tmp_path / "m")


@pytest.mark.parametrize("count", [1, 4])
def test_masks_of_cityscapes(count: int, tmp_path: Path) -> None:
    for k in range(count):
        for folder, end, data in (("i", "leftImg8bit", picture(k, 20, 30)), ("m", "gtFine_labelIds", (MASK + k) % 5)):
            path = tmp_path / folder / "aachen" / f"aachen_{k:06d}_000019_{end}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encode(data, ".png"))
    made = prep(tmp_path / "i", tmp_path / "o.fds", masks=tmp_path / "m", codec="png", workers=1)
    assert made.kept == count and "mask: names have _gtFine_labelIds where those of the images have _leftImg8bit" in made.notes
    for k, (image, mask) in enumerate(MaskDataset(made.out)):
        assert np.array_equal(image.permute(1, 2, 0), picture(k, 20, 30)) and np.array_equal(mask, (MASK + k) % 5)
