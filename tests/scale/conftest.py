"""What the tests beyond one machine share: stores of many small shards, servers and clusters of this machine.

They are collected where obstore is installed, and those that are marked scale run in the environment of `make test-scale`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import cv2
import numpy as np
import pytest

import fastdata
from faults import FaultServer, serving
from servers import free_ports
from support import downloaders, encode, picture, tree

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
    """A store of 120 images in 23 shards."""
    root = tmp_path_factory.mktemp("many")
    (root / "in").mkdir()
    rng = np.random.default_rng(0)
    for k in range(120):
        assert cv2.imwrite(str(root / "in" / f"{k:03d}.png"), rng.integers(0, 256, (256, 256, 3), np.uint8))
    return fastdata.prep(root / "in", root / "many.fds", size=128, codec="rgb", workers=1).out


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


def make_bucket(endpoint: str) -> None:
    """Make the bucket called bucket, as soon as the server answers."""
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    client = boto3.client("s3", "us-east-1", endpoint_url=endpoint, aws_access_key_id="test", aws_secret_access_key="test")
    for _ in range(300):
        try:
            client.create_bucket(Bucket="bucket")
            return
        except (BotoCoreError, ClientError) as error:
            last = error
            time.sleep(0.1)
    raise last


@pytest.fixture(scope="session")
def moto() -> Iterator[str]:
    """The endpoint of an S3 server with a bucket called bucket. It takes any credentials."""
    (port,) = free_ports(1)
    command = [str(Path(sys.executable).parent / "moto_server"), "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    endpoint = f"http://127.0.0.1:{port}"
    try:
        make_bucket(endpoint)
        yield endpoint
    finally:
        process.kill()
        process.wait()


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
