"""Reports: one HTML page about a store, and contact sheets."""
