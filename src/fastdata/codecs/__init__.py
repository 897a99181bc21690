"""Encode and decode images: JPEG on a grid of cells, and files of every format. Nothing here depends on datasets."""

CODECS = "jpeg", "original", "rgb", "png"  # of records
