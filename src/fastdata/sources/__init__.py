"""Lists of inputs and their labels, from folders, path tables and archives that hold many images in one file.

Each kind of archive has a file here, and `catalog` lists the kinds. A kind lists its inputs once, in stored order and with their
labels, and says where the bytes of each lie. Workers read those places and never list again. Bare pixels in an archive become a
PNG in memory, which is lossless.
"""
