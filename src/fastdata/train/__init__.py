"""A small trainer: gradient updates, their learning rates, and checkpoints that resume exactly."""
