"""Make a store from a source: plan, run the shards, finish.

Nothing is imported here, since each worker process imports this package: `functions` has what users call.
"""
