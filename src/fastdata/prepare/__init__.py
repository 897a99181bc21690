"""Source to store, offline: plan, run, finish."""

from fastdata.prepare.job import Summary, prep

__all__ = ["Summary", "prep"]
