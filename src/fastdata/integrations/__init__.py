"""Small adapters for other packages, where a Loader alone is not enough; docs/integrations.md shows each."""
