"""What the fork server imports before it makes workers, so that they share it.

The collector's marks on all these objects would give each worker a copy of the pages that they lie in: they are set apart.
"""

import gc

import fastdata.images.dataset
import fastdata.loader.fetch  # noqa: F401

gc.freeze()
