"""Batches: order, resume, and the Loader."""
