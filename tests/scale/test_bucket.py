"""The client of object storage: options that it does not take, and answers that do not come."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from faults import serving
from support import run, until

OPENS = """
import json, sys
from fastdata.errors import RemoteError
from fastdata.remote.bucket import Bucket

try:
    Bucket(sys.argv[1], json.loads(sys.argv[2]))
except RemoteError as error:
    print(error)
"""


@pytest.mark.parametrize("url", ["s3://bucket/x", "gs://bucket/x", "az://bucket/x"])
@pytest.mark.parametrize("storage", [{"endpoin": "x"}, {"anonymous": True, "endpoin": 1}, {"url": "endpoin"}])
def test_an_option_that_is_wrong_is_named(url: str, storage: dict[str, Any]) -> None:
    done = run(sys.executable, "-c", OPENS, url, json.dumps(storage))  # a process with a client may not fork, as other tests do
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{url}: ")
    assert "endpoin" in done.stdout or "url" in done.stdout


READS = """
import sys, time
from fastdata.remote.bucket import Bucket

bucket, began = Bucket(sys.argv[1], {}), time.monotonic()
print(bytes(bucket.read_range("x", 1, 60_000)) == (bytes(range(256)) * 256)[1:60_001], time.monotonic() - began)
"""


@pytest.mark.parametrize(("fault", "once", "least", "most"), [("stall", True, 1, 4), ("late", False, 5, 9)])
def test_what_does_not_come_in_time_is_asked_for_again(fault: str, once: bool, least: float, most: float, tmp_path: Path) -> None:
    """One answer that stalls costs a second. Of a server that is always slow, a client that waits longer reads."""
    (tmp_path / "x").write_bytes(bytes(range(256)) * 256)
    with serving(tmp_path) as server:
        server.always = {"x": fault}
        if once:
            threading.Thread(target=lambda: [until(lambda: server.made[fault] > 0), server.always.clear()]).start()
        done = run(sys.executable, "-c", READS, server.url)
        assert done.returncode == 0, done.stderr
        right, seconds = done.stdout.split()
        assert right == "True" and least < float(seconds) < most
        assert server.requests["x"] == (2 if once else 3)
