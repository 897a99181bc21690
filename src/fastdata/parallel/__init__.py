"""One model on many devices: the ranks of a run, and the layout of a model over them."""
