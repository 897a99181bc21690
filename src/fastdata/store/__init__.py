"""Stores on disk: the format, its LMDB shards, checks, and exports."""
