"""A trainer that takes batches from any loader."""
