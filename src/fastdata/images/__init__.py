"""Bytes to pixels and back: JPEG on a restart grid, raw and PNG records, and whatever image a user has."""
