"""The benchmarks that need a GPU, rehearsed on a CPU: each runs to its end, its checks see what is wrong, and a failure is told."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from support import run, write_pictures

GPU = Path(__file__).parents[1] / "benchmarks" / "gpu"
PARTS = ("inputs", "copies", "normalize", "resnet50", "loaders", "many_cores")


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str, Path]:
    """The report of a rehearsal of everything, as JSON and as Markdown; and the folder of its inputs."""
    root = tmp_path_factory.mktemp("gpu")
    write_pictures(root / "photos", 3, height=400, width=500, ending=".jpg")
    options = ["--device", "cpu", "--quick", "--photos", root / "photos", "--work", root / "work", "--out", root / "out"]
    done = run(sys.executable, GPU / "run.py", *options, seconds=540)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    (written,) = (root / "out").glob("*.json")
    assert written.name.startswith("cpu-")
    text = written.with_suffix(".md").read_text()
    assert str(root) not in text + written.read_text(), "where things lie is the machine's business"
    return json.loads(written.read_text()), text, root / "work"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a file of the benchmarks."""
    monkeypatch.syspath_prepend(str(GPU))
    return importlib.import_module


@pytest.mark.slow
def test_all_parts_run_to_their_end(rehearsed):
    report, text, _ = rehearsed
    assert [part["name"] for part in report["parts"]] == list(PARTS)
    assert {part["state"] for part in report["parts"]} == {"ok"}
    assert report["rehearsal"] and "A REHEARSAL" in text
    for part in report["parts"][1:]:
        result = part["result"]
        assert len(result["rows"]) >= 1 and result["checked"], part["name"]
        assert any(row["of_ceiling"]["median"] == 1 for row in result["rows"]), part["name"]
        for row in result["rows"]:
            assert row["rate"]["min"] <= row["rate"]["median"] <= row["rate"]["max"] and row["rate"]["min"] > 0
            assert f"| {row['name']} " in text
        assert f"## {part['name']}: " in text


class Contestant:
    """Delivers the centre of each file, as Pillow makes it; and can be made to do it wrong."""

    def __init__(self, inputs: Any, **wrong: Any) -> None:
        self.inputs, self.wrong = inputs, wrong

    def __iter__(self) -> Iterator[tuple[torch.Tensor, Any, Any]]:
        numbers = np.arange(self.inputs.count)
        numbers[0] = self.wrong.get("first", 0)
        shift = self.wrong.get("shift", 0)
        for part in numbers.reshape(-1, 8):
            images = [Image.open(self.inputs.path(int(k))).crop((50 + shift, 50, 250 + shift, 250)) for k in part]
            pixels = np.stack([np.asarray(image.resize((64, 64), Image.Resampling.BILINEAR)) for image in images])
            tensor = torch.from_numpy(pixels).to(self.wrong.get("dtype", torch.uint8)).permute(0, 3, 1, 2)
            yield tensor, part, np.tile([50, 50, 200, 200], (len(part), 1))


def setting_of(module: Any, work: Path) -> Any:
    part = module("part")
    return part.Setting(torch.device("cpu"), True, part.Inputs(work), 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "said"), [({"shift": 60}, "dB PSNR"), ({"first": 1}, "each sample once"), ({"dtype": torch.int16}, "delivers")]
)
def test_wrong_crops_are_seen(rehearsed, module, wrong, said):
    setting, result = setting_of(module, rehearsed[2]), module("part").Result([])
    with pytest.raises(module("part").Wrong, match=said):
        module("loaders").check(setting, "wrong", iter(Contestant(setting.inputs, **wrong)), 8, 64, result)
