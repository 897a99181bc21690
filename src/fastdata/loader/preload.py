"""Imported by the fork server before it starts workers, so that they share the modules that they need.

The garbage collector is off meanwhile: it would find nothing, and take a tenth of the time. `gc.freeze` then hides the objects from
the collector, whose marks would give each worker its own copy of the objects' pages.
"""

import gc

gc.disable()
try:
    import multiprocessing.queues
    import multiprocessing.synchronize  # noqa: F401

    import fastdata.images.dataset
    import fastdata.images.kind
    import fastdata.loader.loader  # noqa: F401
finally:
    gc.freeze()
    gc.enable()
