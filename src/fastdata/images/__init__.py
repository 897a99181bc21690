"""Images: JPEG records on a restart grid, other codecs, and image files of any format."""
