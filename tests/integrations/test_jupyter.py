"""A notebook: an interrupted cell leaves nothing behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from stores import store

SET_UP = """
import os
from pathlib import Path
from fastdata import LMDBDataset, Loader, RandomResizedCrop

STORE = {store!r}

def children():
    "Processes that the kernel has started, without multiprocessing's own helpers."
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rsplit(")", 1)[1].split()[1])
            command = (path / "cmdline").read_text()
        except (OSError, IndexError):
            continue
        if parent == os.getpid() and "resource_tracker" not in command:
            found.append(int(path.name))
    return found

dataset = LMDBDataset(STORE, size=64, crop=RandomResizedCrop(24))
loader = Loader(dataset, 8, shuffle=True, num_workers=2)
"""


@pytest.fixture
def notebook(tmp_path):
    """Runs cells in one kernel: run(code) returns the text that the cell shows; run.client is nbclient's."""
    with kernel(tmp_path) as run:
        run(SET_UP.format(store=str(store())))
        yield run


@contextmanager
def kernel(folder):
    book = nbformat.v4.new_notebook()
    client = NotebookClient(book, timeout=360, resources={"metadata": {"path": str(folder)}})

    def run(code):
        cell = nbformat.v4.new_code_cell(code)
        book.cells.append(cell)
        client.execute_cell(cell, len(book.cells) - 1)
        return "".join(output.get("text", "") or output.get("data", {}).get("text/plain", "") for output in cell.outputs)

    run.client = client
    with client.setup_kernel():
        yield run


def test_an_interrupted_cell_leaves_nothing_behind(notebook):
    pid = int(notebook("os.getpid()"))
    marker = Path(notebook.client.resources["metadata"]["path"], "looping")

    def interrupt():
        end = time.monotonic() + 60
        while not marker.exists() and time.monotonic() < end:
            time.sleep(0.05)
        os.kill(pid, signal.SIGINT)  # what the kernel's stop button sends

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(CellExecutionError, match="KeyboardInterrupt"):
        notebook("for _ in range(10**6):\n    for batch in loader:\n        Path('looping').touch()")
    thread.join()
    assert notebook("len(batch.ids) == len(batch[0]) == len(batch[1])") == "True", "what was held stays"
    rows = notebook("sorted(int(k) for b in loader for k in b.ids) == list(range(42))")
    assert rows == "True", "the same loader goes on with another epoch"
    assert notebook("loader.close()\nlen(children())") == "0"
