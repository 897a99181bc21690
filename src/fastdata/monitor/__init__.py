"""Reports of a run: progress line, log and profile."""
