"""Lists of inputs and their labels, from folders, tables of paths, and archives, of which each kind has a file.

A kind lists its inputs once, in stored order, and says where the bytes of each lie. Workers read those places and never list again.
"""
