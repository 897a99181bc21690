"""Encode and decode images: JPEG on a grid of cells, and files of every format; knows no dataset."""

CODECS = "jpeg", "original", "rgb", "png"  # of records
