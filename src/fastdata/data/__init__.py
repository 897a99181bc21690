"""Datasets: samples, subsets and splits of a store."""
