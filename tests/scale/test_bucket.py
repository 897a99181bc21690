"""Options of clients that object storage does not take, without a network."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from support import run

OPENS = """
import json, sys
from fastdata import RemoteError
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
