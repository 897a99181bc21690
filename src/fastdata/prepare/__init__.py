"""Source to store, offline: plan, run, finish."""

from fastdata.prepare import job
from fastdata.prepare.job import Summary
from fastdata.prepare.naming import as_arguments

__all__ = ["Summary", "prep"]

prep = as_arguments(job.prep)
