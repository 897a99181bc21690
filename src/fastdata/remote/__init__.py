"""Stores in object storage: a bucket behind one interface, a downloader process, and a cache on a local disk."""
