"""Imported by the fork server before it starts workers, so that they share these modules.

`gc.freeze` hides the objects from the collector, whose marks would give each worker its own copy of their pages.
"""

import gc

import fastdata.images.dataset
import fastdata.loader.fetch  # noqa: F401

gc.freeze()
