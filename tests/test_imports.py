"""The package's shape: who may import whom, what is public, and what an import costs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import fastdata

ROOT = Path(fastdata.__file__).parent
# A room may import the rooms named here, itself and types; nothing else of fastdata.
ARROWS = {
    "errors": set(),
    "system": {"errors"},
    "_version": set(),
    "types": set(),
    "words": set(),
    "kinds": set(),
    "options": {"errors"},
    "tokenizer": {"errors"},
    "store": {"errors", "kinds", "options", "system", "tokenizer", "words"},
    "remote": {"_version", "errors", "store"},
    "sources": {"errors", "options", "remote", "store", "words"},
    "prepare": {"_version", "errors", "kinds", "options", "remote", "sources", "store", "system", "tokenizer", "words"},
    "data": {"errors", "gpu", "kinds", "remote", "store", "system"},
    "codecs": {"errors", "store"},
    "images": {
        "codecs",
        "data",
        "errors",
        "kinds",
        "options",
        "prepare",
        "remote",
        "sources",
        "store",
        "system",
        "tokenizer",
        "words",
    },
    "text": {"data", "errors", "kinds", "options", "prepare", "remote", "sources", "store", "system", "tokenizer", "words"},
    # arrays have labels, masks and crops as images
    "arrays": {"data", "errors", "images", "kinds", "options", "prepare", "remote", "sources", "store"},
    "tables": {"data", "errors", "sources", "store", "system"},
    "loader": {"data", "errors", "gpu", "images", "remote", "system", "tables", "text"},
    "gpu": {"system"},
    "optim": {"system"},
    "train": {"errors", "gpu", "optim", "store", "system"},
    "bench": {"codecs", "data", "errors", "gpu", "images", "loader", "prepare", "sources", "store", "system", "words"},
    "report": {"store"},
    "cli": {"_version", "bench", "errors", "kinds", "options", "prepare", "remote", "report", "store", "words"},
    "integrations": {"errors", "loader"},
    "entry": {"cli"},
    "__main__": {"entry"},
}
KINDS = ("images", "text", "arrays")
OPTIONAL = {"matplotlib", "PIL", "sklearn", "nvidia", "ray", "tokenizers", "zstandard", "pyarrow"}
OPTIONAL |= {"nibabel", "pandas", "pytorch_optimizer", "kornia", "torchvision", "albumentations"}
OPTIONAL |= {"obstore", "accelerate", "transformers", "tifffile", "pillow_heif", "pillow_jxl"}


def _room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def _imported(tree: ast.AST) -> set[str]:
    """Full names of the modules that a file imports, wherever in it, but for types."""
    names = set()
    typed = [node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    skipped = {id(node) for block in typed for node in block.body}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "fastdata":
            names |= {f"fastdata.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


def _back_edges(path: Path, room: str, source: str) -> list[str]:
    bad = []
    for name in _imported(ast.parse(source)):
        parts = name.split(".")
        if parts[0] == "fastdata":
            other = parts[1] if len(parts) > 1 else "__init__"
            if other not in (room, "types") and other not in ARROWS[room]:
                bad.append(f"{path}: {room} imports {name}")
    return bad


FILES = sorted(p for p in ROOT.rglob("*.py") if p != ROOT / "__init__.py")


def test_imports_go_one_way() -> None:
    assert len(FILES) > 20
    assert [edge for p in FILES for edge in _back_edges(p.relative_to(ROOT), _room(p), p.read_text())] == []


def test_the_probe_sees_an_import_against_the_arrow() -> None:
    assert _back_edges(Path("x.py"), "store", "def f():\n    from fastdata.codecs.pixels import Window")
    assert _back_edges(Path("x.py"), "store", "from fastdata import prepare")
    assert not _back_edges(Path("x.py"), "images", "from fastdata.store.store import Store")


def test_what_serves_every_kind_knows_none() -> None:
    assert not [room for room in ("kinds", "store", "sources", "prepare", "data") if ARROWS[room] & {*KINDS}]


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_no_file_imports_itself_by_way_of_others() -> None:
    """Also not inside a room, nor by an import in a function."""
    graph = {_module(p): _imported(ast.parse(p.read_text())) for p in FILES}
    TopologicalSorter(graph).prepare()
    with pytest.raises(CycleError):
        TopologicalSorter({"a": {"b"}, "b": {"c"}, "c": {"a"}}).prepare()


def test_optional_packages_are_not_imported_at_module_level() -> None:
    for path in FILES:
        top = ast.Module([n for n in ast.parse(path.read_text()).body if isinstance(n, ast.Import | ast.ImportFrom)], [])
        assert not {name.split(".")[0] for name in _imported(top)} & OPTIONAL, path


TORCHS = "_workers", "_worker_pids_set", "_shutdown_workers", "_tasks_outstanding", "_task_info", "_opt_called"  # of its objects


def _private(tree: ast.AST) -> set[str]:
    """Names that a file takes from torch though they begin with an underscore; `torch._foreach_add` and its like are documented."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and re.fullmatch(r"torch(\.\w+)*\._(?!_)\w+", name := ast.unparse(node)):
            found.add(name)
        elif isinstance(node, ast.Attribute) and node.attr in TORCHS and ast.unparse(node.value) != "self":
            found.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            found |= {name for alias in node.names if "._" in (name := f"{node.module}.{alias.name}")}
    return {name for name in found if "._foreach_" not in name and "TorchDispatchMode" not in name}


def test_what_is_private_of_torch_stands_in_one_file() -> None:
    assert [path.name for path in FILES if _private(ast.parse(path.read_text()))] == ["torch_private.py"]
    code = "from torch._utils import x\ntorch._C.y()\nbatches._workers"
    assert _private(ast.parse(code)) == {"torch._utils.x", "torch._C", "_workers"}


def _loaded_by(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(*sorted(sys.modules))"
    return set(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize(
    "code", ["import fastdata", "import fastdata.cli", "import fastdata.prepare.worker", "import fastdata.prepare.functions"]
)
def test_the_command_line_and_its_workers_never_load_torch(code: str) -> None:
    assert not {"torch", *OPTIONAL} & _loaded_by(code)


def test_workers_load_no_kind_of_data_before_they_know_theirs() -> None:
    """Nor what plans and joins stores: each worker would pay for it when it starts."""
    rooms = (
        "fastdata.codecs",
        "fastdata.images",
        "fastdata.text",
        "fastdata.arrays",
        "fastdata.prepare.plan",
        "fastdata.prepare.tasks",
    )
    assert not [name for name in _loaded_by("import fastdata.prepare.worker") if name.startswith(rooms)]


def test_public_names() -> None:
    assert {*fastdata.__all__, "open"} == set(fastdata._HOMES) < set(dir(fastdata))
    for name in fastdata._HOMES:
        assert getattr(fastdata, name).__name__ == name
        assert getattr(fastdata, name).__doc__


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(AttributeError, match=r"no attribute .Loder.; it has .*Loader"):
        _ = fastdata.Loder  # type: ignore[attr-defined]


def test_the_error_tree_is_the_one_that_its_docstring_draws() -> None:
    from fastdata import errors

    drawn = re.findall(r"(\w+Error)\b {2,}", errors.__doc__ or "")
    names = [name for name in errors.__all__ if name.endswith("Error")]
    assert sorted({"FastDataError", *drawn}) == sorted(names)
    assert all(issubclass(getattr(errors, name), errors.FastDataError) for name in names)
    assert issubclass(errors.MissingExtraError, ImportError)
    assert issubclass(errors.FormatError, errors.StoreError)
    assert "pip install matplotlib" in str(errors.MissingExtraError("matplotlib"))
