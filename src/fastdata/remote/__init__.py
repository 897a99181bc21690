"""Stores in object storage: a bucket behind one interface, a fetcher process, and a cache on a local disk."""
