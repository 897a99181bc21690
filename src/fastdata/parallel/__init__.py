"""One model on many devices: the ranks of a run, and how a model is laid over them."""
