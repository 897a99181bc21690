"""Tests of pages in a browser are collected only in the environment of `make test-pages`."""

from importlib.util import find_spec

if find_spec("playwright") is None:
    collect_ignore_glob = ["test_*.py"]
