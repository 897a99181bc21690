"""The tests of other packages' loops: collected only in the environment of `make test-integrations`."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
THEIRS = (
    "FutureWarning",
    "DeprecationWarning",
    "PendingDeprecationWarning",
    "UserWarning:(lightning|accelerate|transformers|timm|torchdata)",
)

if find_spec("lightning") is None:
    collect_ignore_glob = ["test_*.py"]
else:  # here, and in every process that a test starts, before anything imports torchvision
    sys.path.insert(0, str(HERE / "site"))
    sys.modules.pop("sitecustomize", None)
    __import__("sitecustomize")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HERE / "site"), os.environ.get("PYTHONPATH"))))


@pytest.fixture(scope="session")
def epochs():
    """What four epochs deliver in a loop by hand that tells the Loader each epoch."""
    from common import train_loader
    from stores import sha

    with train_loader(0) as loader:
        return [sha(loader) for epoch in range(4) if loader.set_epoch(epoch) is None]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of warnings, those that clients raise about themselves are no errors here; ours are, as everywhere."""
    for item in items:
        if HERE in item.path.parents:
            for kind in THEIRS:
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{kind}"))
