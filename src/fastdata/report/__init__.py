"""Reports: one HTML page about a store, or about runs of a Trainer."""
