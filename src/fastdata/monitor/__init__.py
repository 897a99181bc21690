"""Reports of a run: progress line, log, picture and profile."""
