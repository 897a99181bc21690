"""Options of clients that object storage does not take, without a network."""

from __future__ import annotations

from typing import Any

import pytest

from fastdata import RemoteError


@pytest.mark.parametrize("url", ["s3://bucket/x", "gs://bucket/x", "az://bucket/x"])
@pytest.mark.parametrize("storage", [{"endpoin": "x"}, {"anonymous": True, "endpoin": 1}, {"url": "endpoin"}])
def test_an_option_that_is_wrong_is_named(url: str, storage: dict[str, Any]) -> None:
    from fastdata.remote.bucket import Bucket

    with pytest.raises(RemoteError, match=rf"^{url}: .*(endpoin|url)"):
        Bucket(url, storage)
