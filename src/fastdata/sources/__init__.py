"""Lists of inputs and their labels, from folders, tables of paths, and archives; each kind has a module.

A module lists its inputs once, in stored order, with the place of each one's bytes. Workers read from there, and never list again.
"""
