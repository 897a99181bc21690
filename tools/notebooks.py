"""Run the notebooks, and keep what they print and draw: python tools/notebooks.py [NAME...]      (`make pictures` runs all)"""

from __future__ import annotations

import argparse
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
TIMEOUT_S = 600  # of a cell


def main() -> None:
    names = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=names, metavar="NAME", help="default: all")
    for name in parser.parse_args().names:
        path = FOLDER / f"{name}.ipynb"
        notebook = nbformat.read(path, as_version=4)
        NotebookClient(notebook, timeout=TIMEOUT_S).execute()
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)  # the times of day
        notebook.metadata.pop("widgets", None)
        notebook.metadata.language_info = {"name": "python"}
        nbformat.write(notebook, path)
        print(path)


if __name__ == "__main__":
    main()
