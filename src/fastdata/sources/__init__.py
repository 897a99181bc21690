"""Lists of inputs and their labels, from folders, path tables and archives that hold many images in one file.

Each kind of archive has a file here, and `base` lists the kinds. A kind lists its inputs once, in stored order and with their
labels, and says where the bytes of each lie. Workers read those places and never list again. Bare pixels in an archive become a
PNG in memory, which is lossless. Inputs that do not fit together, or options, raise a PrepError.
"""
