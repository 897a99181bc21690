"""Tests of pages in a browser are collected only where `make test-pages` has installed what they need."""

from importlib.util import find_spec

import pytest

if find_spec("playwright") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True)
def nothing_is_left() -> None:
    """Replaces the check of other tests: Playwright's process and threads serve all tests of a module."""
