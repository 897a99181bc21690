"""Each notebook runs to its end, and shows what it printed and drew when it ran last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # where it works
    notebook = nbformat.read(path, as_version=4)
    kept = [output.output_type for output in outputs(notebook)]
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()  # raises what a cell raises
    assert [output.output_type for output in outputs(notebook)] == kept, "run `make pictures`"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_kept_has_no_errors_and_no_paths(path: Path) -> None:
    found = outputs(nbformat.read(path, as_version=4))
    assert any("image/png" in output.get("data", {}) for output in found)
    text = "".join(output.get("text", "") for output in found)
    assert "Traceback" not in text and "/tmp/" not in text
    assert not any(output.name == "stderr" for output in found if output.output_type == "stream")
