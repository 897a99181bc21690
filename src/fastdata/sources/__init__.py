"""Lists of inputs and their labels. Each kind of source (folder, table of paths, archive) has a module.

A module lists the inputs once, with the place of each input's bytes. Workers read the bytes there, and list nothing.
"""
