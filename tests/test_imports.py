"""The package's shape: who may import whom, what is public, and what an import costs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fastdata

ROOT = Path(fastdata.__file__).parent
# A room may import the rooms named here, and itself; nothing else of fastdata.
ARROWS = {
    "errors": set(),
    "_version": set(),
    "namesake": {"errors"},
    "machine": set(),
    "forks": set(),
    "shared": {"errors"},
    "codec": {"errors"},
    "store": {"errors", "machine", "codec"},
    "prepare": {"_version", "errors", "machine", "codec", "store"},
    "data": {"errors", "machine", "shared", "codec", "store"},
    "loader": {"errors", "machine", "shared", "data", "gpu"},
    "gpu": set(),
    "optim": {"errors"},
    "parallel": {"errors", "gpu", "optim"},
    "monitor": {"errors", "machine"},
    "checkpoint": {"errors", "parallel"},
    "train": {"errors", "gpu", "optim", "parallel", "monitor", "checkpoint"},
    "bench": {"_version", "errors", "machine", "codec", "store", "data", "gpu", "loader"},
    "cli": {"_version", "errors", "prepare", "store", "bench"},
    "integrations": {"errors", "loader"},
    "__main__": {"cli"},
}
OPTIONAL = {"matplotlib", "PIL", "sklearn", "nvidia", "ray", "tokenizers", "tiktoken", "sentencepiece", "zstandard", "pyarrow"}
OPTIONAL |= {"h5py", "nibabel", "pydicom", "pandas", "pytorch_optimizer", "kornia", "torchvision", "albumentations"}
OPTIONAL |= {"accelerate", "transformers", "tifffile", "pillow_heif", "pillow_jxl"}


def _room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def _imported(tree: ast.AST) -> set[str]:
    """Full names of the modules that a file imports, wherever in it."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


def _back_edges(path: Path, room: str, source: str) -> list[str]:
    bad = []
    for name in _imported(ast.parse(source)):
        parts = name.split(".")
        if parts[0] == "fastdata":
            other = parts[1] if len(parts) > 1 else "__init__"
            if other != room and other not in ARROWS[room]:
                bad.append(f"{path}: {room} imports {name}")
    return bad


FILES = sorted(p for p in ROOT.rglob("*.py") if p != ROOT / "__init__.py")


def test_imports_go_one_way() -> None:
    assert len(FILES) > 20
    assert [edge for p in FILES for edge in _back_edges(p.relative_to(ROOT), _room(p), p.read_text())] == []


def test_the_probe_sees_an_import_against_the_arrow() -> None:
    assert _back_edges(Path("x.py"), "codec", "def f():\n    from fastdata.store.store import Store")
    assert not _back_edges(Path("x.py"), "store", "from fastdata.codec.pixels import CODECS")


def test_optional_packages_are_not_imported_at_module_level() -> None:
    for path in FILES:
        top = ast.Module([n for n in ast.parse(path.read_text()).body if isinstance(n, ast.Import | ast.ImportFrom)], [])
        assert not {name.split(".")[0] for name in _imported(top)} & OPTIONAL, path


def test_files_stay_small() -> None:
    assert {p.name: n for p in FILES if (n := len(p.read_text().splitlines())) > 400} == {}


def _loaded_by(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(*sorted(sys.modules))"
    return set(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize(
    "code", ["import fastdata", "import fastdata.cli", "import fastdata.prepare.worker", "import fastdata.prepare"]
)
def test_the_command_line_and_its_workers_never_load_torch(code: str) -> None:
    assert not {"torch", *OPTIONAL} & _loaded_by(code)


def test_the_probe_sees_torch() -> None:
    assert "torch" in _loaded_by("import fastdata; fastdata.Loader")


def test_public_names() -> None:
    assert fastdata.__all__ == [
        "ArrayDataset",
        "Augment",
        "Batch",
        "CenterCrop",
        "CodecError",
        "Crop",
        "FastDataError",
        "FormatError",
        "GPUNormalize",
        "LMDBDataset",
        "Loader",
        "LoaderError",
        "MaskDataset",
        "MissingExtraError",
        "NextToken",
        "Prefetcher",
        "PrepError",
        "RAMDataset",
        "RandomCrop",
        "RandomResizedCrop",
        "Resize",
        "StoreError",
        "Summary",
        "TableDataset",
        "TokenDataset",
        "Trainer",
        "drop_dead_bias",
        "largest_batch",
        "prep",
        "profile",
    ]
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
