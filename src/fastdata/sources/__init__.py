"""Archives that hold many images in one file, as SOURCE. `catalog` knows all kinds; each kind has a file of its own.

A kind lists its inputs once, in their stored order and with their labels, and says of each where its bytes lie. Workers then read
these places and never list again. What an archive holds as bare pixels becomes a PNG in memory, which the decoder reads exactly.
"""
