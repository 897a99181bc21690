"""benchmarks/tips.py: every tip runs, its result has the shape that the page needs, and the page has a place for each."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from support import run

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "benchmarks/tips.py"
PAGE = ROOT / "docs/speed.md"
CELL = re.compile(r"<!--(cpu|gpu):(\w+)-->(.*?)<!--/-->")

# Without a GPU, the tips that need one run on the CPU; their numbers mean nothing.
REHEARSE = """
import sys, tempfile
from pathlib import Path
import torch
sys.argv = ["tips.py"]
import tips
from measuring import TIPS, Setting
from prep_inputs import photos
with tempfile.TemporaryDirectory() as folder:
    setting = Setting(torch.device("cpu"), True, Path(folder), photos(Path("none"), Path(folder) / "photos"))
    for one in TIPS.values():
        if one.where == "gpu" and one.name != "dali":
            with one.prepare(setting) as sides:
                checked = sides.check and sides.check()
                runs = [side(1e-3) for side in (sides.baseline, sides.tip)]
            assert all(found.images > 0 and found.seconds > 0 for found in runs), one.name
            print("ran", one.name)
"""


def rows() -> dict[str, list[str]]:
    """The cells of a page, by column."""
    found: dict[str, list[str]] = {"cpu": [], "gpu": []}
    for column, name, _ in CELL.findall(PAGE.read_text()):
        found[column].append(name)
    return found


@pytest.mark.slow
def test_the_table_has_one_place_for_each_tip() -> None:
    listed = run(sys.executable, SCRIPT, "--list", cwd=ROOT)
    assert listed.returncode == 0, listed.stderr
    where = dict(re.match(r"(\w+) \((\w+)\): ", line).groups() for line in listed.stdout.splitlines())  # type: ignore[union-attr]
    assert len(where) > 30
    assert sorted(rows()["cpu"]) == sorted(["machine", *(name for name, place in where.items() if place != "gpu")])
    assert sorted(rows()["gpu"]) == sorted(["machine", *(name for name, place in where.items() if place != "host")])


@pytest.mark.slow
def test_a_quick_run_fills_the_page(tmp_path: Path) -> None:
    page = tmp_path / "speed.md"
    shutil.copyfile(PAGE, page)
    done = run(sys.executable, SCRIPT, "--quick", "--out", tmp_path, "--page", page, "--write", seconds=400, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (written,) = tmp_path.glob("tips-*-cpu.json")
    result = json.loads(written.read_text())
    assert result["load_before"] >= 0 and result["quick"] is True and result["machine"]["command"].startswith("tips.py --quick")
    states = {name: found["state"] for name, found in result["tips"].items()}
    assert states["pinning"] == "waits for a GPU" and states["uint8"] == "measured"
    assert all(re.match("measured|waits for a GPU|left out: ", state) for state in states.values()), states
    for name, found in result["tips"].items():
        assert found["baseline"] and found["tip"] and found["unit"]
        if found["state"] == "measured":
            assert found.keys() & {"speed"} or found["amounts"] or found["scores"], name
        for values in (found.get("speed"), *found.get("per_second", {}).values()):
            assert values is None or 0 < values["min"] <= values["median"] <= values["max"], name
    assert result["tips"]["uint8"]["amounts"]["bytes"]["ratio"] == 0.25
    assert result["tips"]["detach"]["amounts"]["activations after 8 batches"]["ratio"] < 0.5
    before, after = ({(c, n): text for c, n, text in CELL.findall(path.read_text())} for path in (PAGE, page))
    assert {key for key in before if key[0] == "gpu" and before[key] != after[key]} == set()
    assert "bytes 0.25 x" in after["cpu", "uint8"]
    assert CELL.sub("", page.read_text()) == CELL.sub("", PAGE.read_text()), "nothing else of the page changes"


@pytest.mark.slow
def test_tips_that_need_a_gpu_run() -> None:
    done = run(sys.executable, "-c", REHEARSE, cwd=SCRIPT.parent, seconds=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ran ") >= 8
