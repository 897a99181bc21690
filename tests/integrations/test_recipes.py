"""Every snippet of docs/integrations.md runs as it stands, and its table names the versions that were run."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import fastdata
from stores import sources

DOCUMENT = Path(__file__).parents[2] / "docs" / "integrations.md"


def recipes():
    """The code of each section, by its heading; several blocks of one section are one script."""
    sections = re.split(r"^## ", DOCUMENT.read_text(), flags=re.MULTILINE)[1:]
    found = {each.splitlines()[0]: re.findall(r"^```python\n(.*?)^```", each, re.MULTILINE | re.DOTALL) for each in sections}
    return {heading: "\n".join(blocks) for heading, blocks in found.items() if blocks}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the store that the recipes read."""
    folder = tmp_path_factory.mktemp("recipes")
    fastdata.prep(sources(), folder / "images.fds", size=64, workers=1)
    return folder


@pytest.mark.parametrize("heading", recipes())
def test_it_runs(folder, heading):
    (folder / "recipe.py").write_text(recipes()[heading])
    done = subprocess.run([sys.executable, "recipe.py"], cwd=folder, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def test_the_table_names_the_installed_versions():
    rows = re.findall(r"^\| \[?([\w-]+)[^|]*\| ([\d.]+) \|", DOCUMENT.read_text().partition("\n## ")[0], re.MULTILINE)
    assert len(rows) >= 10
    for name, stated in rows:
        package = "lightning" if name == "Fabric" else name
        assert version(package).split("+")[0] == stated, name
