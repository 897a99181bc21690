"""Bytes at rest: the store format, its LMDB shards, and the store in memory."""
