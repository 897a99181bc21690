"""Pictures for all tests, and a check that no test leaves anything running."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

# Test processes share the cores: more threads than cores wait for each other. OpenMP reads this when torch is imported.
WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
os.environ.setdefault("OMP_NUM_THREADS", str(max(len(os.sched_getaffinity(0)) // WORKERS, 1)))

from fastdata import prep  # noqa: E402  these import what reads it
from support import encode, picture, processes, tree  # noqa: E402

os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # it asks the network for newer versions of itself
if Path("/sys/class/net/lo").exists():  # else gloo takes the address of the machine's name, which may not answer at once
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def pytest_configure(config: pytest.Config) -> None:
    """Make the folder of `stores.folder` for all processes of a run. The first of them removes it, since others may be killed."""
    if "FASTDATA_TESTS" not in os.environ:
        root = os.environ["FASTDATA_TESTS"] = tempfile.mkdtemp(prefix="fastdata-tests-")
        config.add_cleanup(lambda: shutil.rmtree(root, ignore_errors=True))


def _threads() -> set[threading.Thread]:
    """All threads but those of tqdm, one a process, and of the compiler of torch 2.6, which live as long as it does."""
    return {one for one in threading.enumerate() if type(one).__name__ != "TMonitor" and "_read_thread" not in one.name}


def _environment() -> dict[str, str]:
    compiler = ("TORCHINDUCTOR_CACHE_DIR", "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR", "TRITON_CACHE_DIR", "TRITON_PTXAS_PATH")
    passing = ("PYTEST_CURRENT_TEST", "CUDA_MODULE_LOADING", *compiler)  # torch sets those itself
    return {name: value for name, value in os.environ.items() if name not in passing}


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Fails a test that leaves processes, threads or another environment behind."""
    environment, before, threads = _environment(), processes(), _threads()
    yield
    end = time.monotonic() + 3
    while left := [*processes() - before, *_threads() - threads]:
        assert time.monotonic() < end, f"the test left processes or threads behind: {left}"
        time.sleep(0.01)
    assert _environment() == environment, "the test changed the environment"


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(disk)], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("this user may not mount a file system")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """56 JPEG and PNG images of several shapes in three class folders, enough for a few shards; not to be written to."""
    root = tmp_path_factory.mktemp("input") / "photos"
    shapes = [(240, 320), (320, 240), (197, 281), (400, 260), (164, 164)]
    for k in range(56):
        folder = root / ("ant", "bird of prey", "çedilla")[k % 3]
        folder.mkdir(parents=True, exist_ok=True)
        ending = ".png" if k % 4 == 0 else ".jpg"
        (folder / f"{k:03d}{ending}").write_bytes(encode(picture(k, *shapes[k % len(shapes)]), ending))
    return root


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """320 JPEG files of 640 x 480, links to a dozen images: work for two cores for a second or two; not to be written to."""
    root = tmp_path_factory.mktemp("input") / "large"
    originals = [encode(picture(k, 480, 640)) for k in range(12)]
    for k in range(320):
        path = root / f"class{k % 4}" / f"{k:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        if k < len(originals):
            path.write_bytes(originals[k])
        else:
            os.link(root / f"class{k % 12 % 4}" / f"{k % 12:03d}.jpg", path)
    return root


@pytest.fixture(scope="session")
def undisturbed(large: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes | None]:
    """The store of `large` that a run makes which nobody disturbs, of size 256."""
    return tree(prep(large, tmp_path_factory.mktemp("undisturbed") / "o.fds", size=256, workers=2).out)
