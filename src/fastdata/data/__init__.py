"""Samples: a store, a crop and an index become compact tensors."""
