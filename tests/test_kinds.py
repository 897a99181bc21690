"""A kind of data is one module and one registration: everything that serves every kind then serves it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fastdata
from fastdata import PrepError, StoreError, kinds
from fastdata.prepare.estimate import estimate
from fastdata.report.store_report import store_report
from fastdata.store.contact_sheet import draw_sheet
from fastdata.store.export import export
from fastdata.store.info import store_facts
from fastdata.store.info_lines import info_lines
from fastdata.store.store import Store
from fastdata.store.verify import verify
from support import MAIN, forget_kind, run, shards

LINES = [(0.5, "one"), (-2.0, "two words"), (7.25, "three"), (1e6, "ümlaut")]
PROGRAM = "import sys; sys.path.insert(0, {tests!r}); import numbered_lines; from fastdata.cli import main; main()"


@pytest.fixture(scope="module", autouse=True)
def fifth():
    import numbered_lines

    if "lines" not in kinds.names():  # other tests came between those of this file
        kinds.register("lines", "numbered_lines")
    yield numbered_lines
    forget_kind("lines")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lines")
    (folder / "in").mkdir()
    (folder / "in/a.lines").write_text("".join(f"{number}\t{line}\n" for number, line in LINES[:2]))
    (folder / "in/b.lines").write_text("".join(f"{number}\t{line}\n" for number, line in [*LINES[2:], (3, "")]))
    summary = fastdata.prep(folder / "in", folder / "o.fds", workers=2, least_chars=2)
    assert (summary.kind, summary.kept, summary.rejected) == ("lines", 4, {"short": 1})
    assert summary.notes == ("labels: the numbers",)
    return summary.out


def test_it_is_read(made: Path) -> None:
    dataset = fastdata.open(made)
    assert [dataset[k] for k in range(len(dataset))] == [(line, number) for number, line in LINES]


def test_what_it_does_not_offer_is_said(made: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="holds lines, which has no contact sheet"):
        draw_sheet(made, tmp_path / "x.png")
    with pytest.raises(TypeError, match=r"there is no RAMDataset for .* holds lines: open it with LineDataset"):
        fastdata.RAMDataset(made)


def test_it_is_told_of(made: Path) -> None:
    facts = store_facts(Store(made, "lines"))
    assert json.loads(json.dumps(facts))["labels"]["columns"][0]["max"] == 1e6 and facts["options"] == {"least_chars": 2}
    first, *others = info_lines(Store(made, "lines"))
    assert first.endswith("4 lines") and "least-chars 2" in "".join(others)


def test_it_has_a_report(made: Path) -> None:
    page, found = store_report(made, most=10)
    assert list(found["sections"]) == ["labels", "rejects", "making"] and page.count("<section") == 4  # with what is worth a look
    assert found["sections"]["labels"]["labels"]["number"]["max"] == 1e6 and "ümlaut" not in page


def test_it_is_verified(made: Path, tmp_path: Path) -> None:
    assert list(verify(made)) == []
    copied = tmp_path / "copy.fds"
    fastdata.prep(made.parent / "in", copied, least_chars=2, workers=1)
    for shard in shards(copied):
        shard.write_bytes(shard.read_bytes().replace(b"two words", b"ten words"))
    problems = list(verify(copied))
    assert any("a.lines:1" in problem for problem in problems), problems


def test_it_is_exported(made: Path, tmp_path: Path) -> None:
    assert export(made, tmp_path / "files") == 4
    rows = [line.split("\t") for line in (tmp_path / "files/lines.tsv").read_text().splitlines()]
    assert [(float(number), line) for number, line in rows] == LINES


def test_it_is_estimated_resumed_and_not_mixed_up(made: Path) -> None:
    found = estimate(made.parent / "in", made.parent / "p.fds")
    assert found.inputs == 5 and found.bytes > 0
    again = fastdata.prep(made.parent / "in", made, least_chars=2)
    assert again.resumed == 5
    with pytest.raises(PrepError, match=r"least.chars 2, now 3"):
        fastdata.prep(made.parent / "in", made, least_chars=3)
    with pytest.raises(ValueError, match=r"quality is about images, but SOURCE .* is lines here"):
        fastdata.prep(made.parent / "in", made, quality=3)
    with pytest.raises(StoreError, match="holds lines, not images; open it with LineDataset"):
        fastdata.LMDBDataset(made)


def test_the_command_has_its_options(made: Path, tmp_path: Path) -> None:
    program = (MAIN[0], "-c", PROGRAM.format(tests=str(Path(__file__).parent)))
    done = run(*program, "prep", made.parent / "in", tmp_path / "o.fds", "--least-chars", 4)
    assert done.returncode == 3 and "3 of 5 lines kept, 2 rejected" in done.stdout, done.stderr
    said = run(*program, "prep", "--help-for", "lines").stdout
    assert "--least-chars" in said and "Reject shorter lines." in said and "--size" not in said


def test_wrong_values_are_told_by_name() -> None:
    image = np.zeros((8, 8, 3), np.uint8)
    with pytest.raises(TypeError, match=r"^quality is 'high', but must be an int"):
        fastdata.prep([image], "o.fds", quality="high")
    with pytest.raises(ValueError, match=r"resize is tall, but must be one of short, long, crop, stretch"):
        fastdata.prep([image], "o.fds", resize="tall")
    with pytest.raises(TypeError, match="prep has no argument 'colour'"):
        fastdata.prep([image], "o.fds", colour="red")


def test_labels_that_are_an_array_do_not_go_with_a_table(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": [1, 2, 3], "y": [0, 1, 0]})
    with pytest.raises(ValueError, match=r"labels is about images, but SOURCE .* is a table here: leave it out"):
        fastdata.prep(frame, tmp_path / "o.fds", target="y", labels=np.arange(3))
