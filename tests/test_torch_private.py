"""What is private of torch stands in one file, with the versions that it was tested with."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import torch

import fastdata
from fastdata.system.torch_private import TESTED

ATTRIBUTES = (
    "_workers",
    "_worker_pids_set",
    "_shutdown_workers",
    "_tasks_outstanding",
    "_task_info",
    "_opt_called",
)  # of torch's objects


def private(tree: ast.AST) -> set[str]:
    """Names that a file takes from torch though they begin with an underscore; `torch._foreach_add` and its like are documented."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and re.fullmatch(r"torch(\.\w+)*\._(?!_)\w+", name := ast.unparse(node)):
            found.add(name)
        elif isinstance(node, ast.Attribute) and node.attr in ATTRIBUTES and ast.unparse(node.value) != "self":
            found.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            found |= {name for alias in node.names if "._" in (name := f"{node.module}.{alias.name}")}
    return {name for name in found if "._foreach_" not in name and "TorchDispatchMode" not in name}


def test_what_is_private_of_torch_stands_in_one_file() -> None:
    root = Path(fastdata.__file__).parent
    found = {path.name: names for path in root.rglob("*.py") if (names := private(ast.parse(path.read_text())))}
    assert set(found) == {"torch_private.py"}, found
    assert private(ast.parse("from torch._utils import x\ntorch._C.y()\nbatches._workers")) == {
        "torch._utils.x",
        "torch._C",
        "_workers",
    }


def test_this_torch_is_one_that_it_was_tested_with() -> None:
    version = ".".join(torch.__version__.split(".")[:2])
    if version not in TESTED:
        pytest.skip(f"torch {version}: if all else passes, add it to TESTED in torch_private.py, and to its docstring")
